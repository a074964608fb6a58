"""The application, its common options, and how it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from initmem import __version__
from initmem.errors import InitmemError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="initmem",
    help="Measure how much of a network's random initialization is still visible after training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

StudyArgument = Annotated[
    str, typer.Argument(help="A bundled study (see `initmem studies`) or a .toml file.")
]
StoreArgument = Annotated[
    Path, typer.Argument(help="The directory that `initmem run` wrote, or an archive of one.")
]
Effort = Annotated[str | None, typer.Option(help="Scale of the study, as listed by `initmem studies`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe field, or scales, or seeds."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes.", show_default="one per core")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where datasets are kept.", show_default="$XDG_CACHE_HOME/initmem")
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
        fail("stopped")
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough; keep the interpreter from complaining
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def fail(message: str) -> None:
    """End with one line and code 2."""
    print("initmem: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def print_json(content: Any) -> None:
    """Print for scripts."""
    print(json.dumps(content, indent=1, default=str))


def console(stderr: bool = False) -> Console:
    """Where tables go. Where nobody looks, nothing is cut to the width of a screen."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, width=None if terminal else 500)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"initmem {__version__}")
        raise typer.Exit
