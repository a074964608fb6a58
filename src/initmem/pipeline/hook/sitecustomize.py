"""Notes which files a Python program opens, and what it imports; Python imports this before the program.

Standard library only: the program may run in another environment. Each line is appended at once to the file
that $INITMEM_OPENED names, so that a kill loses none: `read PATH`, `written PATH`, `version NAME VERSION`.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
from typing import Any

LOG = "INITMEM_OPENED"
WRITING = os.O_WRONLY | os.O_RDWR


def opened(event: str, args: tuple[Any, ...]) -> tuple[str, str] | None:
    """What an audit event says of a file: `read` or `written`, and its absolute path."""
    if event == "open":
        path, _, flags = args
    elif event == "import":  # of a compiled module; others are opened
        path, flags = args[1], 0
    else:
        return None
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    return "written" if (flags or 0) & WRITING else "read", os.path.abspath(os.fsdecode(path))  # noqa: PTH100


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that were imported."""
    modules = {name: module for name, module in sys.modules.items() if "." not in name and name[:1] != "_"}
    # Attributes may be made by `__getattr__`, which may warn or import more: only what is there counts.
    numbers = {name: getattr(modules[name], "__dict__", {}).get("__version__") for name in sorted(modules)}
    packages = {
        name: str(number)
        for name, number in numbers.items()
        if isinstance(number, str) and number and name not in sys.stdlib_module_names
    }
    return {"python": ".".join(map(str, sys.version_info[:3]))} | packages


def _start(log: str) -> None:
    stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    seen: set[tuple[str, ...]] = set()

    def say(*words: str) -> None:
        if words not in seen and "\n" not in words[1]:
            seen.add(words)
            os.write(stream, (" ".join(words) + "\n").encode("utf-8", "surrogateescape"))

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "import"):
            try:
                if (what := opened(event, args)) is not None:
                    say(*what)
            except Exception:  # the program goes first
                return

    def say_versions() -> None:
        for name, number in versions().items():
            say("version", name, number)

    say("version", "python", versions()["python"])
    sys.addaudithook(hook)
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
