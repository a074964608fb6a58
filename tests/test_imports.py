"""The rules of the house: imports go one way, and the front door is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import initmem
from conftest import SLOW

SOURCE = Path(initmem.__file__).parent
LEVELS = (
    {"errors", "seeds"},
    {"files", "catalog", "content"},
    {"register"},
    {"recipe"},
    {"clocks", "labels", "table", "intervention"},
    {"metric"},
    {"study"},
    {"study_file", "record"},
    {"store"},
    {"data"},
    {"measures"},
    {"train", "plots"},
    {"theory"},
    {"engines"},
    {"session"},
    {"paper"},
    {"report"},
    {"pipeline", "export"},
    {"plot"},
    {"cli"},
    {"__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def imports(path: Path) -> set[str]:
    """The rooms of this package that a file imports."""
    found = set()
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):  # how a value shows itself elsewhere is drawn in a room above it
        if isinstance(node, ast.FunctionDef) and node.name in ("_repr_html_", "to_latex"):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("initmem."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "initmem":
            found |= {alias.name for alias in node.names if alias.name in LEVEL}
    return found


def test_imports_go_one_way() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE)
        room = name.parts[0].removesuffix(".py")
        if room != "__init__":
            wrong += [f"{name}: {other}" for other in imports(path) - {room} if LEVEL[other] >= LEVEL[room]]
    assert wrong == []


RESULTS = Path(__file__).parents[1] / "docs" / "results" / "main-grid-mini.initmem"
STATUS = f"""from initmem.store.results import open_results, store_status
assert store_status(open_results({str(RESULTS)!r}))["studies"][0]["done"]"""
LIGHT = {
    "import initmem": "torch numpy ray matplotlib polars pydantic",
    "initmem.Recipe()": "torch numpy scipy matplotlib",
    "import initmem.cli; initmem.cli.load([])": "torch numpy scipy matplotlib polars pydantic rich.console",
    "import initmem.theory": "scipy torch matplotlib",
    STATUS: "torch numpy scipy",  # it is asked often, and NumPy takes as long to load as all the rest
}


@pytest.mark.parametrize("code", LIGHT)
def test_what_is_light_loads_nothing_heavy(code: str) -> None:
    script = f"import sys, initmem\n{code}\nprint(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True)
    loaded = ended.stdout.split()
    assert "initmem" in loaded
    assert set(LIGHT[code].split()) & set(loaded) == set()


def test_every_public_name_is_there() -> None:
    for name in initmem.__all__:
        assert getattr(initmem, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = initmem.nothing


def test_files_that_start_first_are_there() -> None:
    assert [name for name in SLOW if not (Path(__file__).parent / f"{name}.py").exists()] == []
