"""The application, and what its commands share: options, exit codes, printing, opening stores."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias

import typer

from initmem import __version__
from initmem.errors import ConfigError, InitmemError

if TYPE_CHECKING:
    from rich.console import Console

    from initmem.table import Columns, Table

    Rows: TypeAlias = Sequence[Mapping[str, Any]]
    TitledRows: TypeAlias = tuple[str, Rows, Columns]

app = typer.Typer(
    name="initmem",
    help="Measure how much of a network's random initialization is still visible after training.",
    epilog="Exit codes: 0 all work is done; 1 some runs crashed or are missing, or files are damaged; "
    "2 a mistake in the input; 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help wraps; panels cut the names of options in a narrow terminal
    context_settings={"help_option_names": ["-h", "--help"]},
)
INTERRUPTED = 130
UNLIMITED = 10_000  # columns: wider than any table


# -- options that several commands share, and those of `initmem run` ---------------------------------------


def argument(help: str, **more: Any) -> Any:
    """A word of a command."""
    return typer.Argument(help=help, **more)


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option with a value; its name is that of the parameter unless given."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def output_file(metavar: str, help: str, **more: Any) -> Any:
    """Where something is written."""
    return typer.Option("-o", "--output", metavar=metavar, help=help, **more)


def flag(name: str, help: str, *names: str) -> Any:
    """An option without a value."""
    return typer.Option(name, *names, help=help)


def bundled_studies(incomplete: str) -> list[str]:
    """Names for shell completion."""
    from initmem.study_file import bundled

    return [name for name in bundled() if name.startswith(incomplete)]


def recipe_fields(incomplete: str) -> list[str]:
    """Fields of a recipe for shell completion."""
    from initmem.recipe import Recipe

    return [f"{name}=" for name in Recipe.model_fields if name.startswith(incomplete)]


def seeds_option(text: str) -> str:
    """The override for `5`, the first so many seeds, or for `5,7`, these seeds."""
    return f"seeds={list(range(int(text)))}" if text.strip().isdecimal() else f"seeds=[{text}]"


def engine_option(text: str) -> tuple[str, str | int]:
    """Read `partition=long`."""
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier() or not value:
        raise ConfigError(f"engine option {text!r} (allowed: KEY=VALUE, as in partition=long)")
    return key, int(value) if value.isdecimal() else value


WITH_COMMAND = "With --command: "
StudyName = Annotated[
    str | None,
    argument("A bundled study or a .toml file; not needed with --command.", autocompletion=bundled_studies),
]
StudyOrStore = Annotated[
    str, argument("A bundled study, a .toml file, or a store or archive.", autocompletion=bundled_studies)
]
StoreArgument = Annotated[Path, argument("A directory that `initmem run` wrote, or an archive of one.")]
StoresArgument = Annotated[
    list[Path], argument("Directories that `initmem run` wrote, or archives; several count as one.")
]
Preset = Annotated[str | None, option("NAME", "Size of the study; `initmem studies NAME` lists them.")]
Overrides = Annotated[
    list[str] | None,
    option("KEY=VALUE", "Override a recipe field.", "--set", autocompletion=recipe_fields),
]
Scales = Annotated[
    str | None, option("LIST", "As in 0.1,1,2.5.", "--scales", parser=lambda text: f"scales=[{text}]")
]
Seeds = Annotated[
    str | None,
    option("N|LIST", "5: seeds 0 to 4; 5,7: these two; 5,: seed 5 alone.", "--seeds", parser=seeds_option),
]
Plugins = Annotated[
    list[str] | None,
    option("MODULE", "Import a module that registers networks or datasets of yours.", "--plugin"),
]
Workers = Annotated[int | None, option("N", "Worker processes.", min=1, show_default="one per core")]
Output = Annotated[Path | None, output_file("PATH", "A file; with `all`, a directory.")]
Reference = Annotated[bool, flag("--reference", "Show the paper's values beside the measured ones.")]
AsJson = Annotated[bool, flag("--json", "Print JSON for programs (see docs/json.md).")]

StoreOption = Annotated[
    Path | None, option("DIR", "Where the records go.", "--store", show_default="runs/STUDY-PRESET")
]
Command = Annotated[
    str | None,
    option(
        "PROGRAM",
        "Train with your own program, which writes JSON lines: "
        "'python train.py --scale {scale} --seed {seed} --out {history}'.",
    ),
]
Name = Annotated[str | None, option("NAME", f"{WITH_COMMAND}its name.", show_default="that of the script")]
Watch = Annotated[
    list[Path] | None, option("FILE", f"{WITH_COMMAND}another file that training depends on.", "--watch")
]
Workdir = Annotated[
    str, option("own|shared", f"{WITH_COMMAND}a directory for every run, removed afterwards, or this one.")
]
Gpus = Annotated[
    int | None,
    option("N", f"{WITH_COMMAND}N workers, a GPU each: CUDA_VISIBLE_DEVICES, or {{gpu}} in it.", min=1),
]
Until = Annotated[
    float | None,
    option("PP", "Add seeds, at planned interim analyses, until no interval is wider.", min=0.01),
]
MaxSeeds = Annotated[int, option("N", "With --until: the most seeds per recipe.", min=1)]
EngineName = Annotated[str, option("NAME", "Where runs execute: local, inline, ray or slurm.", "--engine")]
EngineOptions = Annotated[
    list[Any] | None,
    option(
        "KEY=VALUE",
        "For ray: address=HOST:PORT. For slurm: partition=..., timeout_min=..., ...",
        "-E",
        "--engine-option",
        parser=engine_option,
    ),
]
Device = Annotated[str, option("NAME", "cpu, cuda or cuda:N (untested).")]
PackSize = Annotated[
    int | None, option("N", "Replicas trained together.", "--pack", min=1, show_default="by shape")
]
CheckpointEvery = Annotated[float, option("SECONDS", "Time between two checkpoints.", min=0)]
Timeout = Annotated[
    float | None,
    option("SECONDS", "End a pack that finishes no epoch for this long.", min=0.001, show_default="never"),
]
RetryCrashed = Annotated[bool, flag("--retry-crashed", "Train crashed runs again.")]
KeepOld = Annotated[bool, flag("--keep-old", "Keep runs trained before your program or plugin changed.")]
KeepGoing = Annotated[bool, flag("--keep-going", "Do not stop when the first runs all crash alike.")]
Verbose = Annotated[
    bool,
    flag("-v", "Also the layers in use, the metric, a legend and every note.", "--verbose", "--explain"),
]
Explain = Annotated[bool, flag("--explain", "Also every note on single recipes.")]


# -- the application and its output --------------------------------------------------------------------------


def main() -> None:
    """Run the command line. A user's mistake is one line on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends like Ctrl-C
    try:
        code = app(prog_name="initmem", standalone_mode=False)
    except InitmemError as error:
        fail(str(error))
    except typer.TyperException as error:
        fail(error.format_message())
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough; keep the interpreter from complaining
        sys.exit(1)
    if code == INTERRUPTED:
        fail("interrupted", code=INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


@app.callback(invoke_without_command=True)
def _without_command(
    context: typer.Context, version: Annotated[bool, flag("--version", "Print the version and exit.")] = False
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


def fail(message: str, *, code: int = 2) -> NoReturn:
    """End with one line on stderr."""
    say("initmem: " + " ".join(message.split()), err=True)
    sys.exit(code)


def show(*tables: Table, legend: bool = True) -> None:
    """Print tables with the same columns, fitted to the terminal, in a pipe all of them; one legend below."""
    from initmem.plots.tables import print_table

    for table in tables:
        print_table(table, console(), legend=legend and table is tables[-1])


def show_rows(title: str, rows: Rows, columns: Columns) -> None:
    """Print rows as a table of these columns, as far as any row has a value there."""
    from initmem.table import table_of

    keys = [key for key in map(str, columns) if any(row.get(key) not in (None, "") for row in rows)]
    show(table_of(title, [{key: row[key] for key in keys} for row in rows], columns))


def print_json(schema: str, rows: Rows, **summary: Any) -> None:
    """Print rows for programs; `summary` is what is true of all of them together."""
    from initmem.store.encoding import plain_values

    content: dict[str, Any] = {"schema": f"initmem.{schema}/1", "rows": rows}
    if summary:
        content["summary"] = summary
    print(json.dumps(plain_values(content), indent=1, default=str, allow_nan=False))


def answer(
    schema: str, rows: Rows, *lines: str, as_json: bool, table: TitledRows | None = None, **more: Any
) -> None:
    """Print rows for programs, or the same for people: as a table, in lines, or both."""
    if as_json:
        print_json(schema, rows, **more)
        return
    if table:
        show_rows(*table)
    for line in lines:
        say(line)


def console() -> Console:
    """Where tables go. It reads no markup, and cuts nothing where there is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else UNLIMITED
    return Console(highlight=False, markup=False, emoji=False, width=width)
