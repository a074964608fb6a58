"""How large the package is, and how much of it a run and a report load.

    python benchmarks/size.py           # also puts the lengths of the ten files into CONTRIBUTING.md

Code lines are those with code: no blank lines, comments or docstrings. Python itself reports every import, in
the command and in its worker processes (PYTHONPROFILEIMPORTTIME). Of loaded modules, packages that hold
nothing but their docstring are not counted.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from initmem.cli import COMMANDS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "initmem"
# What a newcomer reads to know what a run does, in this order.
WALK = (
    "cli/run", "session", "study", "recipe", "engines/packs", "engines/worker", "train/loop", "record",
    "store/store", "measures/memory",
)  # fmt: skip
LINE = re.compile(r"^import time:.*\|\s+(initmem[\w.]*)$", re.M)


def imported(*arguments: str) -> set[str]:
    """The modules of initmem that one command imports, workers included."""
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-m", "initmem", *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(ended.stderr[-2000:])
    own = f"initmem.cli.{COMMANDS[arguments[0]]}"  # loaded by name, which Python does not report
    return {name for name in [own, *LINE.findall(ended.stderr)] if has_code(name)}


def has_code(name: str) -> bool:
    """Whether a module is more than a docstring."""
    spec = find_spec(name)
    return spec is not None and bool(spec.origin) and len(Path(str(spec.origin)).read_text().splitlines()) > 3


def of_quickstart() -> tuple[set[str], set[str]]:
    """What `initmem run quickstart --preset smoke` imports, and what `initmem report` imports."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        run = imported("run", "quickstart", "--preset", "smoke", "--workers", "1", "--store", store)
        return run, imported("report", store)


def code_lines(path: Path) -> int:
    """Lines of a module that hold code."""
    text = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.string.strip() and token.type != tokenize.COMMENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(docstring_lines(ast.parse(text))))


def docstring_lines(tree: ast.Module) -> Iterator[int]:
    """The lines of all docstrings of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def functions(path: Path) -> int:
    """Functions and methods that a module defines."""
    return sum(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(path.read_text())))


def parameters() -> int:
    """Arguments and options of all commands, without --help."""
    from typer.main import get_command

    from initmem.cli import app

    commands: list[Any] = [get_command(app)]
    count = 0
    while commands:
        command = commands.pop()
        commands += getattr(command, "commands", {}).values()
        count += len(command.params)
    return count


def main() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    print(f"{len(modules)} modules, {sum(map(code_lines, modules)):,} code lines, ", end="")
    print(f"{sum(map(functions, modules)):,} functions, {parameters()} command-line parameters")
    run, report = of_quickstart()
    print(f"loaded: {len(run)} modules by a run, {len(report)} by a report, {len(run | report)} by both")
    print("what a run does, in ten files:")
    lines = {name: len((SOURCE / f"{name}.py").read_text().splitlines()) for name in WALK}
    page = ROOT / "CONTRIBUTING.md"
    text = page.read_text()
    for name, number in lines.items():
        print(f"  {name:18} {number:4} lines")
        text = re.sub(rf"(\| `{name}\.py` \| )\d+", rf"\g<1>{number}", text)
    page.write_text(text)
    print(f"  {'':18} {sum(lines.values()):,} lines")


if __name__ == "__main__":
    main()
