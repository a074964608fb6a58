"""The application, and what its commands share: options, exit codes, printing, opening stores."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from initmem import __version__
from initmem.errors import ConfigError, InitmemError

if TYPE_CHECKING:
    from rich.console import Console

    from initmem.table import Columns, Table

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


def seeds_option(text: str) -> str:
    """The override for `5`, the first so many seeds, or for `5,7`, these seeds."""
    return f"seeds={list(range(int(text)))}" if text.strip().isdecimal() else f"seeds=[{text}]"


def settings_of(overrides: Sequence[str] | None, *given: str | None) -> list[str]:
    """All overrides: those of --set, and those that have an option of their own."""
    return [*(overrides or ()), *filter(None, given)]


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
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe field."),
]
Scales = Annotated[
    str | None,
    typer.Option("--scales", parser=lambda text: f"scales=[{text}]", metavar="LIST", help="As in 0.1,1,2.5."),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        parser=seeds_option,
        metavar="N|LIST",
        help="5: seeds 0 to 4; 5,7: these two; 5,: seed 5 alone.",
    ),
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
PageOutput = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="The page.")]
Reference = Annotated[
    bool, typer.Option("--reference", help="Show the paper's values beside the measured ones.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs (see docs/json.md).")]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where datasets are kept.", show_default="$XDG_CACHE_HOME/initmem"),
]

# -- options of `initmem run`: what to train, where and how, what to do about crashed or old runs ------------


def engine_option(text: str) -> tuple[str, str | int]:
    """Read `partition=long`."""
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier() or not value:
        raise ConfigError(f"engine option {text!r} (allowed: KEY=VALUE, as in partition=long)")
    return key, int(value) if value.isdecimal() else value


def seconds(text: str) -> float:
    """A duration: a number of seconds, or one with the unit s, m or h."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "s")
    try:
        value = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ConfigError(f"timeout = {text!r} (allowed: a duration, as in 90, 90s, 15m, 2h)")
    return value


StudyName = Annotated[
    str | None,
    typer.Argument(
        help="A bundled study or a .toml file; not needed with --command.", autocompletion=bundled_studies
    ),
]
StoreOption = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Where the records go.", show_default="runs/STUDY-PRESET"),
]
Command = Annotated[
    str | None,
    typer.Option(
        metavar="PROGRAM",
        help="Train with your own program, which writes JSON lines: "
        "'python train.py --scale {scale} --seed {seed} --out {history}'.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With --command: its name.", show_default="that of the script"),
]
Watch = Annotated[
    list[Path] | None,
    typer.Option("--watch", metavar="FILE", help="With --command: another file that training depends on."),
]
Workdir = Annotated[
    str,
    typer.Option(
        metavar="own|shared",
        help="With --command: a working directory for every run, removed afterwards, or the present one.",
    ),
]
Until = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        metavar="PP",
        help="Add seeds, at planned interim analyses, until every interval is at most this wide.",
    ),
]
MaxSeeds = Annotated[int, typer.Option(min=1, metavar="N", help="With --until: the most seeds per recipe.")]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="With --command: N workers with a GPU each: CUDA_VISIBLE_DEVICES, or {gpu} in the command.",
    ),
]
EngineName = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="Where runs execute: local, inline, ray or slurm.")
]
EngineOptions = Annotated[
    list[Any] | None,
    typer.Option(
        "-E",
        "--engine-option",
        parser=engine_option,
        metavar="KEY=VALUE",
        help="For ray: address=HOST:PORT. For slurm: partition=..., timeout_min=..., ...",
    ),
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda or cuda:N (untested).")]
PackSize = Annotated[
    int | None,
    typer.Option("--pack", min=1, metavar="N", help="Replicas trained together.", show_default="by shape"),
]
CheckpointEvery = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Time between two checkpoints.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        parser=seconds,
        metavar="TIME",
        help="End a pack that finishes no epoch for this long: 90, 90s, 15m or 2h.",
        show_default="never",
    ),
]
RetryCrashed = Annotated[bool, typer.Option("--retry-crashed", help="Train crashed runs again.")]
KeepOld = Annotated[
    bool, typer.Option("--keep-old", help="Keep runs trained before your program or plugin changed.")
]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Do not stop when the first runs all crash alike.")
]


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


def show_rows(title: str, rows: Sequence[Mapping[str, Any]], columns: Columns) -> None:
    """Print rows with equal keys as a table."""
    from initmem.table import table_of

    show(table_of(title, rows, columns))


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
