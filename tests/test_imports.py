"""The rules of the house: imports go one way, and the front door is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import initmem

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


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if room == "__init__":
        return
    for other in imports(path) - {room}:
        assert LEVEL[other] < LEVEL[room], f"{room} may not import {other}"


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "'torch', 'numpy', 'ray', 'matplotlib', 'polars', 'pydantic'"
    script = f"import sys, initmem; assert not {{{heavy}}} & set(sys.modules); initmem.Recipe(); "
    script += "assert 'matplotlib' not in sys.modules; assert callable(initmem.plot.scale)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_help_loads_nothing_heavy() -> None:
    heavy = "'torch', 'numpy', 'scipy', 'matplotlib', 'polars', 'pydantic', 'rich.console'"
    script = (
        "import sys, initmem.cli; initmem.cli.load([]); loaded = set(sys.modules); "
        f"assert 'initmem.cli.bundled' in loaded; assert not {{{heavy}}} & loaded, {{{heavy}}} & loaded"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_how_far_a_store_is_can_be_said_without_numpy() -> None:
    """It is asked often, and NumPy takes as long to load as all the rest."""
    results = Path(__file__).parents[1] / "docs" / "results" / "main-grid-mini.initmem"
    script = (
        "import sys; from initmem.store.results import store_status; "
        "from initmem.store.results import open_results; "
        f"assert store_status(open_results({str(results)!r}))['studies'][0]['done']; "
        "assert not {'torch', 'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_every_public_name_is_there() -> None:
    for name in initmem.__all__:
        assert getattr(initmem, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = initmem.nothing
