"""What `initmem theory` shows: rows for every name, pictures for most, clear words for mistakes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from initmem.cli import main
from initmem.errors import ConfigError, StoreError
from initmem.plots.captions import caption
from initmem.study_file import load_study
from initmem.theory import diagonal, exponents, fading, figure9, propositions
from initmem.theory.lab import LinearSettings
from initmem.theory.show import ENTRIES, Entry, show

NAMES = ["propositions", "exponents", "fig9", "diagonal", "resetting", "linear"]


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow parts on a smaller scale, so that every command can really be run."""
    check, reach = propositions.check_all, diagonal.reach
    monkeypatch.setattr(propositions, "check_all", lambda *, seed: check(seed=seed, trials=1))
    monkeypatch.setattr(
        exponents,
        "measure_all",
        lambda *, seed: [exponents.movement("leakage", "sgd", 2.0, seed=seed, networks=9)],
    )
    monkeypatch.setattr(
        diagonal, "reach", lambda problem, *, seed: reach(problem, (0.1, 1.0), seed=seed, steps=200)
    )
    orders = ("full", (1.0,)), ("cyclic", (0.0, 2.0))
    lines = figure9._trajectories(figure9.gradient_path, 20, *orders)
    short = tuple(figure9.Experiment(letter, "short", lines) for letter in "abcd")
    monkeypatch.setattr(figure9, "figure9_data", lambda *, seed: short)
    monkeypatch.setattr(fading, "load_study", lambda name: load_study(name, "smoke"))


def initmem(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["initmem", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("name", NAMES)
def test_every_name_gives_a_table_json_and_a_picture_if_it_has_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computed = []
    entry = ENTRIES[name]

    def once(seed: int) -> object:
        computed[:] = computed or [entry.compute(seed)]
        return computed[0]

    monkeypatch.setitem(ENTRIES, name, entry._replace(compute=once))
    before = "matplotlib.pyplot" in sys.modules
    picture = tmp_path / "picture.png"
    drawn = ["-o", picture] if entry.plot else []
    assert initmem(monkeypatch, "theory", name, *drawn) == 0
    table = capsys.readouterr().out
    assert initmem(monkeypatch, "theory", name, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == f"initmem.theory.{name}/1"
    rows = said["rows"]
    assert len({tuple(row) for row in rows}) == 1
    assert "NaN" not in json.dumps(rows)
    if name == "fig9":
        assert [row["D"] for row in rows[:2]] == pytest.approx([-34.6, -3.07], rel=2e-3)
    for key in entry.in_brief or rows[0]:
        assert key in table
    assert "True" not in table
    assert "None" not in table
    if entry.plot:
        assert caption(entry.plot(computed[0])) == ""  # the page says it
        assert f"picture: {picture}" in table.replace("\n", "")
        assert picture.stat().st_size > 20_000
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_the_names_are_these() -> None:
    assert list(ENTRIES) == NAMES


def test_mistakes_are_explained_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, entry in ENTRIES.items():
        monkeypatch.setitem(ENTRIES, name, entry._replace(compute=lambda _: pytest.fail("computed")))
    with pytest.raises(ConfigError, match=r"theory 'fig10' \(allowed: propositions, exponents, fig9,"):
        show("fig10")
    with pytest.raises(ConfigError, match=r"exponents has no picture \(allowed: fig9, diagonal, res"):
        show("exponents", output=tmp_path / "x.png")
    with pytest.raises(ConfigError, match=r"x.docx' \(allowed endings: .*pdf, .*png"):
        show("fig9", output=tmp_path / "x.docx")


def test_a_file_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/x.png: cannot be written \(No such file"):
        show("resetting", output=tmp_path / "nowhere" / "x.png")


def test_the_command_refuses_in_one_line(command) -> None:
    code, _, refused = command("theory", "fig10")
    assert code == 2
    assert refused.count("\n") == 1
    assert "propositions" in refused


def test_a_seed_draws_anew_and_repeats() -> None:
    first, again, other = (show("resetting", seed=seed).rows for seed in (0, 0, 1))
    assert first == again
    assert first[0]["distance"] != other[0]["distance"]


def test_what_diverged_is_none_in_json_and_a_dash_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = Entry("odd", lambda _: None, lambda _: [{"distance": float("nan"), "holds": True, "error": 1.5}])
    monkeypatch.setitem(ENTRIES, "odd", odd)
    assert show("odd").rows == [{"distance": None, "holds": True, "error": 1.5}]
    assert initmem(monkeypatch, "theory", "odd") == 0
    assert {"-", "yes", "1.5"} <= set(capsys.readouterr().out.split())


def test_the_time_to_a_level_is_interpolated() -> None:
    slopes = np.array([4.0, 2.0, 1.0, 0.5])
    axes = {"epochs": np.arange(4.0), "sgd": 10 * np.arange(4.0)}
    one = fading.Fading("x", LinearSettings(), axes, slopes, slopes, slopes)
    assert one.until(1.5, "epochs") == pytest.approx(1.5)
    assert one.until(1.5, "sgd") == pytest.approx(15)
    assert one.until(1.0, "epochs") == pytest.approx(2)
    assert one.until(0.1, "epochs") is None


@pytest.mark.usefixtures("light")
def test_families_hold_the_recipes_of_the_study_and_one_slower_adam() -> None:
    families = fading.families(0)
    assert [family.clock for family in families] == ["sgd", "l2", "adaptive"]
    assert [[one.recipe.batch_size for one in family.members] for family in families] == [[4, 8, 16]] * 3
    assert [len(family.others) for family in families] == [0, 0, 1]
    assert families[2].others[0].recipe.learning_rate == 0.03
    sgd = families[0].members[0]
    assert list(sgd.axes["epochs"]) == [0, 1, 2]
    assert sgd.axes["sgd"][-1] == pytest.approx(2 * 128 * 0.01**2 / 4)
    # At the start the norm is the scale times that of the standard draw, about sqrt(4 + 4).
    assert sgd.beta[0] == pytest.approx(np.sqrt(8), rel=0.2)
    other = fading.families(1)[0].members[0]
    assert other.beta[0] != sgd.beta[0]
