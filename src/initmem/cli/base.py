"""The application, and what its commands share: options, exit codes, printing, opening stores."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from initmem import __version__
from initmem.errors import ConfigError, InitmemError, first_of

if TYPE_CHECKING:
    from rich.console import Console

    from initmem.table import Table

app = typer.Typer(
    name="initmem",
    help="Measure how much of a network's random initialization is still visible after training.",
    epilog="Exit codes: 0 all work is done; 1 some runs crashed or are missing, or files are damaged; "
    "2 a mistake in the input; 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help wraps; panels cut the names of options in a narrow terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)
UNLIMITED = 10_000  # columns: wider than any table
MISSING_SHOWN = 3


def bundled_studies(incomplete: str) -> list[str]:
    """Names for shell completion."""
    from initmem.study_file import bundled

    return [name for name in bundled() if name.startswith(incomplete)]


def presets_of_study(context: typer.Context, incomplete: str) -> list[str]:
    """Names for shell completion, once the study is there."""
    from initmem.study_file import presets

    words = [context.params.get("study"), *context.args]  # an option without a value leaves it in args
    try:
        names = presets(next(filter(None, words), ""))
    except InitmemError:
        return []
    return [name for name in names if name.startswith(incomplete)]


StudyArgument = Annotated[
    str,
    typer.Argument(
        help="A bundled study (see `initmem studies`) or a .toml file.", autocompletion=bundled_studies
    ),
]
StoreArgument = Annotated[
    Path, typer.Argument(help="A directory that `initmem run` wrote, or an archive of one.")
]
StoresArgument = Annotated[
    list[Path],
    typer.Argument(help="Directories that `initmem run` wrote, or archives; several count as one."),
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Size of the study; `initmem studies NAME` lists them.",
        metavar="NAME",
        autocompletion=presets_of_study,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe field, the scales or the seeds."),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin", metavar="MODULE", help="Import a module that registers networks or datasets of yours."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Worker processes.", show_default="one per core"),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="PATH", help="A file; with `all`, a directory.")
]
Reference = Annotated[
    bool, typer.Option("--reference", help="Show the paper's values beside the measured ones.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs (see docs/json.md).")]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where datasets are kept.", show_default="$XDG_CACHE_HOME/initmem"),
]


def main() -> None:
    """Run the command line. A user's mistake is one line on stderr and exit code 2."""
    try:
        code = app(prog_name="initmem", standalone_mode=False)
    except InitmemError as error:
        fail(str(error))
    except typer.TyperException as error:
        fail(error.format_message())
    except typer.Abort:
        fail("interrupted", code=130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough; keep the interpreter from complaining
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        say(f"initmem {__version__}")
        raise typer.Exit
    print_help(context)


def print_help(context: typer.Context) -> None:
    """Help for whoever names no command."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def say(text: str, *, err: bool = False) -> None:
    """Print one line, which a terminal shows on as many as it takes, broken between words."""
    from initmem.plots.tables import printable

    stream, line = sys.stderr if err else sys.stdout, printable(text)
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=stream)


def show(table: Table) -> None:
    """Print a table, fitted to the terminal; in a pipe all of it."""
    from initmem.plots.tables import print_table

    print_table(table, console())


def print_json(schema: str, rows: Sequence[Mapping[str, Any]], **summary: Any) -> None:
    """Print rows for programs; `summary` is what is true of all of them together."""
    from initmem.store.encoding import plain_values

    content: dict[str, Any] = {"schema": f"initmem.{schema}/1", "rows": rows}
    if summary:
        content["summary"] = summary
    print(json.dumps(plain_values(content), indent=1, default=str, allow_nan=False))


def fail(message: str, *, code: int = 2) -> NoReturn:
    """End with one line on stderr."""
    say("initmem: " + " ".join(message.split()), err=True)
    sys.exit(code)


def console(*, stderr: bool = False) -> Console:
    """Where tables and progress go. It reads no markup, and cuts nothing where there is no terminal."""
    from rich.console import Console

    width = None if (sys.stderr if stderr else sys.stdout).isatty() else UNLIMITED
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def output_path(output: Path | None, default: str, *, several: bool) -> Path:
    """The file to write: in the given directory for `all`, else the given file."""
    if not several:
        return output or Path(default)
    folder = output or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror})") from None
    return folder / default


def missing_in_words(names: Sequence[str]) -> str:
    """The first of what is missing: half a grid would fill the screen."""
    hint = ", see --json" if len(names) > MISSING_SHOWN else ""
    return f" (missing: {first_of(names, MISSING_SHOWN)}{hint})" if names else ""
