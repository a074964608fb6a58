"""Notes which files a Python program opens, and what it imports; Python imports this before the program.

Standard library only: the program may run in another environment. Each line is appended at once to the file
that $INITMEM_OPENED names, so that a kill loses none: `read PATH`, `written PATH`, `version NAME VERSION`.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

LOG = "INITMEM_OPENED"
WRITING = os.O_WRONLY | os.O_RDWR


def watch(say: Callable[[str, str], None]) -> None:
    """Say of every file that is opened from now on: `read` or `written`, and its absolute path."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "import"):
            return
        try:
            # Of imports the file of a compiled module; others are opened.
            path, flags = (args[0], args[2]) if event == "open" else (args[1], 0)
            if isinstance(path, str | bytes | os.PathLike):
                how = "written" if (flags or 0) & WRITING else "read"
                say(how, os.path.abspath(os.fsdecode(path)))  # noqa: PTH100
        except Exception:  # the program goes first
            return

    sys.addaudithook(hook)


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that were imported."""
    numbers = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in sorted(sys.modules):
        if "." not in name and name[:1] != "_" and name not in sys.stdlib_module_names:
            # Only what is there counts: `__getattr__` of a module may warn or import more.
            number = getattr(sys.modules.get(name), "__dict__", {}).get("__version__")
            if isinstance(number, str) and number:
                numbers[name] = str(number)
    return numbers


def _start(log: str) -> None:
    stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    seen: set[tuple[str, str]] = set()

    def say(kind: str, text: str) -> None:
        if (kind, text) not in seen and "\n" not in text:
            seen.add((kind, text))
            os.write(stream, f"{kind} {text}\n".encode("utf-8", "surrogateescape"))

    def say_versions() -> None:
        for name, number in versions().items():
            say("version", f"{name} {number}")

    say("version", f"python {versions()['python']}")
    watch(say)
    atexit.register(say_versions)


def _next() -> None:
    """Import the sitecustomize that this one hides, if there is one."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry != own]
    hidden = sys.modules.pop(__name__)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        sys.modules[__name__] = hidden


if __name__ == "sitecustomize" and LOG in os.environ:
    _start(os.environ[LOG])
    _next()
