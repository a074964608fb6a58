"""What `initmem theory` and docs/theory.md show: rows, pictures, and numbers that are still true."""

from __future__ import annotations

import json
import re
import runpy
import sys
from functools import cache, partial
from pathlib import Path

import pytest

from initmem.errors import ConfigError, StoreError
from initmem.plots.model import caption
from initmem.theory import diagonal, figure9, propositions, resetting
from initmem.theory.show import PARTS, Part, show

DOCS = Path(__file__).parents[1] / "docs"
BUILD = runpy.run_path(str(DOCS / "build_theory.py"))
PAGE = (DOCS / "theory.md").read_text("utf-8")
NUMBERS = json.loads((DOCS / "theory.json").read_text())


def small(name: str):
    """A part of the theory on a scale on which every command can be run."""
    short = [
        figure9._thin(panel, eta, order, figure9.gradient_path(eta, targets))
        for panel in "abcd"
        for order, targets in (("full", [1.0] * 20), ("cyclic", [0.0, 2.0] * 10))
        for eta in figure9.RATES
    ]
    return {
        "propositions": partial(propositions.check_all, trials=1),
        "exponents": lambda seed: [propositions.movement("leakage", "sgd", 2.0, seed=seed, networks=9)],
        "fig9": lambda seed: short,
        "diagonal": partial(diagonal.compute, scales=(0.1, 1.0), steps=200),
    }.get(name, PARTS[name].compute)


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part on a small scale, and computed once."""
    for name, part in list(PARTS.items()):
        monkeypatch.setitem(PARTS, name, part._replace(compute=cache(small(name))))


# -- the command ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("name", ["propositions", "exponents", "fig9", "diagonal", "resetting"])
def test_every_part_gives_a_table_json_and_a_picture_if_it_has_one(
    name: str, tmp_path: Path, command
) -> None:
    part, before = PARTS[name], "matplotlib.pyplot" in sys.modules
    picture = tmp_path / "picture.png"
    code, table, _ = command("theory", name, *(["-o", picture] if part.plot else []))
    assert code == 0
    code, text, _ = command("theory", name, "--json")
    assert code == 0
    content = json.loads(text)
    assert content["schema"] == f"initmem.theory.{name}/1"
    rows = content["rows"]
    assert len({tuple(row) for row in rows}) == 1
    assert "NaN" not in text
    if name == "fig9":
        assert [row["D"] for row in rows[:2]] == pytest.approx([-34.6, -3.07], rel=2e-3)
    left_out = {"kind", "check", "seed", "diverged", "to_least_l1", "to_least_l2"}
    assert [key for key in rows[0] if key not in table and key not in left_out] == []
    assert "True" not in table
    assert "None" not in table
    if part.plot:
        assert caption(part.plot(part.compute(0))) == ""  # the page says it
        assert f"picture: {picture}" in table.replace("\n", "")
        assert picture.stat().st_size > 20_000
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_mistakes_are_explained_before_anything_is_computed(monkeypatch, tmp_path: Path, command) -> None:
    for name, part in PARTS.items():
        monkeypatch.setitem(PARTS, name, part._replace(compute=lambda _: pytest.fail("computed")))
    code, _, refused = command("theory", "fig10")
    assert code == 2
    assert refused.count("\n") == 1
    assert "theory 'fig10' (allowed: propositions, exponents, fig9," in refused
    with pytest.raises(ConfigError, match=r"exponents has no picture \(allowed: fig9, diagonal, res"):
        show("exponents", output=tmp_path / "x.png")
    with pytest.raises(ConfigError, match=r"x.docx' \(allowed endings: .*pdf, .*png"):
        show("fig9", output=tmp_path / "x.docx")


@pytest.mark.usefixtures("light")
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/x.png: cannot be written \(No such file"):
        show("fig9", output=tmp_path / "nowhere" / "x.png")


def test_what_diverged_is_none_in_json_and_a_dash_in_the_table(monkeypatch, command) -> None:
    row = {"distance": float("nan"), "holds": True, "error": 1.5}
    monkeypatch.setitem(PARTS, "odd", Part("odd", lambda _: [row]))
    assert show("odd") == [{"distance": None, "holds": True, "error": 1.5}]
    _, table, _ = command("theory", "odd")
    assert {"-", "yes", "1.5"} <= set(table.split())


# -- the page -------------------------------------------------------------------------------------------


def test_the_page_is_what_its_template_and_its_numbers_give() -> None:
    """Runs the Python on the page as well: what it prints is part of the page."""
    render = BUILD["render"]
    assert render(NUMBERS) == PAGE
    assert PAGE.count("```python") == PAGE.count("```text") == 1
    NUMBERS["fig9"][0]["D"], known = -33.3, NUMBERS["fig9"][0]["D"]
    assert "-33.3" in render(NUMBERS)
    NUMBERS["fig9"][0]["D"] = known


def test_the_numbers_of_the_page_are_those_of_today() -> None:
    """Those that take a second to compute; figure 9 and the exponents have tests of their own."""
    rows = show("resetting")
    for row, old in zip(rows, NUMBERS["resetting"], strict=True):
        assert row == pytest.approx(old, rel=0.05)
    assert resetting.rows(resetting.compute(1))[0]["distance"] != rows[0]["distance"]  # the seed matters
    for row in NUMBERS["propositions"]:
        assert row["discrepancy"] <= row["tolerance"] == (1e-8 if row["kind"] == "flow" else 1e-10)
    problem = diagonal.sparse_problem(seed=0)
    reached = diagonal.Diagonal(problem, (), diagonal.least_l1(problem), diagonal.least_l2(problem))
    flow = [row for row in NUMBERS["diagonal"] if row["method"] == "flow"]
    places = [float(reached.position(diagonal.closed_form(problem, row["scale"]))) for row in flow]
    assert places == pytest.approx([row["place"] for row in flow], abs=1e-5)


def test_pictures_are_there_and_shown() -> None:
    shown = set(re.findall(r"\(images/(theory-[\w-]+\.png)\)", PAGE))
    assert shown == {f"theory-{name}.png" for name, part in PARTS.items() if part.plot}
    for name in shown:
        data = (DOCS / "images" / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 300_000


def test_commands_are_parts_of_the_theory() -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [line.partition("#")[0].split() for block in blocks for line in block.splitlines()]
    assert len(commands) == 3
    for program, command, name, *words in commands:
        assert (program, command) == ("initmem", "theory")
        assert name in PARTS
        assert words in ([], ["-o", f"{name}.png"])
