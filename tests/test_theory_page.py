"""The page docs/theory.md is what its template and its numbers give, and its numbers are still true."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from initmem.cli import main
from initmem.study_file import load_study
from initmem.theory import diagonal, fading, figure9, resetting
from initmem.theory.lab import train_linear
from initmem.theory.show import ENTRIES, show

DOCS = Path(__file__).parent.parent / "docs"


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_theory", DOCS / "build_theory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD = builder()
PAGE = (DOCS / "theory.md").read_text("utf-8")
NUMBERS = json.loads((DOCS / "theory.json").read_text())


def test_the_page_is_what_the_template_gives() -> None:
    """Runs the page's Python, too: what it prints is part of the page."""
    assert BUILD.render(NUMBERS) == PAGE
    assert PAGE.count("```python") == PAGE.count("```text") == 2


def test_another_number_makes_another_page() -> None:
    changed = json.loads(json.dumps(NUMBERS))
    changed["fig9"][0]["D"] = -33.3
    assert "-33.3" in BUILD.render(changed)


def test_the_numbers_of_resetting_are_those_of_today() -> None:
    for row, old in zip(show("resetting").rows, NUMBERS["resetting"], strict=True):
        assert row == pytest.approx(old, rel=0.05)
    x, y = resetting.example(seed=0)
    norms = [np.linalg.norm(resetting.ridge(x, y, row["r"])) for row in NUMBERS["resetting"]]
    assert norms == pytest.approx([row["ridge_norm"] for row in NUMBERS["resetting"]])


def test_all_propositions_held() -> None:
    rows = NUMBERS["propositions"]
    assert [row["proposition"] for row in rows] == list(range(1, 9))
    for row in rows:
        assert row["discrepancy"] <= row["tolerance"] == (1e-8 if row["kind"] == "flow" else 1e-10)


def test_the_diagonal_rows_are_those_of_the_closed_form() -> None:
    problem = diagonal.sparse_problem(seed=0)
    solutions = diagonal.least_l1(problem), diagonal.least_l2(problem)
    reached = diagonal.Diagonal(problem, (), *solutions)
    flow = [row for row in NUMBERS["diagonal"] if row["method"] == "flow"]
    places = [float(reached.position(diagonal.closed_form(problem, row["scale"]))) for row in flow]
    assert places == pytest.approx([row["place"] for row in flow], abs=1e-5)


def test_the_rows_of_the_study_are_those_of_its_runs() -> None:
    study = load_study("linear")
    recipe = next(r for r in study.recipes if r.get("batch_size") == 16 and r.get("l2"))
    records = train_linear(study.runs(recipe))
    label = "linear sgd constant b16 epochs=30 l2=0.1 lr=0.004"
    row = BUILD.find(NUMBERS["linear"], recipe=label)
    one = fading.fading(row["recipe"], "l2", records)
    assert one.beta[-1] == pytest.approx(row["beta_end"], rel=1e-3)
    assert one.until(one.beta[0] / 4, "l2") == pytest.approx(row["clock_to_quarter"], rel=1e-3)
    measured = BUILD.find(NUMBERS["memory"], recipe=row["recipe"])
    accuracy = np.array([r.summary.test_accuracy for r in records]).reshape(len(study.seeds), -1)
    assert np.ptp(100 * accuracy.mean(axis=0)) == pytest.approx(measured["memory"], rel=1e-3)


def test_pictures_are_there_and_shown() -> None:
    shown = set(re.findall(r"\(images/(theory-[\w-]+\.png)\)", PAGE))
    assert shown == {f"theory-{name}.png" for name, entry in ENTRIES.items() if entry.plot}
    for name in shown:
        data = (DOCS / "images" / name).read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 300_000


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow parts on a smaller scale."""
    reach = diagonal.reach
    monkeypatch.setattr(
        diagonal, "reach", lambda problem, *, seed: reach(problem, (0.1, 1.0), seed=seed, steps=200)
    )
    monkeypatch.setattr(figure9, "figure9_data", lambda *, seed: short_figure9())


def short_figure9() -> tuple[figure9.Experiment, ...]:
    lines = figure9._trajectories(figure9.gradient_path, 20, ("full", (1.0,)))
    return tuple(figure9.Experiment(letter, "short", lines) for letter in "abcd")


@pytest.mark.usefixtures("light", "no_workers")
def test_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command of the page, in order; the study at its smallest preset."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = [line.partition("#")[0].split() for block in blocks for line in block.splitlines()]
    assert len(commands) == 9
    for words in commands:
        assert words[0] == "initmem"
        smaller = ["--preset", "smoke", "--workers", "1"] if words[1] == "run" else []
        monkeypatch.setattr(sys, "argv", [*words, *smaller])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {
        "fig9.png",
        "linear-store",
        "diagonal.png",
        "resetting.png",
    }
