"""The application, the options that commands share, and the exit codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from initmem import __version__
from initmem.cli.console import fail, say
from initmem.errors import InitmemError

app = typer.Typer(
    name="initmem",
    help="Measure how much of a network's random initialization is still visible after training.",
    epilog="Exit codes: 0 all work is done; 1 some runs failed or are missing, or files are damaged; "
    "2 a mistake in the input; 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help wraps; panels cut the names of options in a narrow terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)


def bundled_studies(incomplete: str) -> list[str]:
    """Names for shell completion."""
    from initmem.study_file import bundled

    return [name for name in bundled() if name.startswith(incomplete)]


StudyArgument = Annotated[
    str,
    typer.Argument(
        help="A bundled study (see `initmem studies`) or a .toml file.", autocompletion=bundled_studies
    ),
]
StoreArgument = Annotated[
    Path, typer.Argument(help="A directory that `initmem run` wrote, or an archive of one.")
]
Effort = Annotated[
    str | None,
    typer.Option(help="Size of the study; `initmem studies NAME` lists them.", metavar="NAME"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe field, the scales or the seeds."),
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
Wide = Annotated[
    bool, typer.Option("--wide", help="Show every column, even where the terminal is too narrow.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where datasets are kept.", show_default="$XDG_CACHE_HOME/initmem"),
]


def main() -> None:
    """Run the command line. A user's mistake is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
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
