"""Interventions as the axis of measures, figures and pages: names in place of numbers change no value."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import planted
from initmem.cli import app
from initmem.errors import ConfigError
from initmem.measures.fit import Matched
from initmem.measures.measure import MEASURES, measure, not_applicable, remarks
from initmem.measures.memory import memory
from initmem.plots.builders import scale_plot
from initmem.plots.html import chart_json
from initmem.plots.matplotlib import draw
from initmem.record import RunRecord
from initmem.report.page import write_report
from initmem.store.results import Archive, collected, write_archive

# In the order of names, so that columns of values are in the same order as by scale.
NAMES = {0.1: "none", 0.5: "a-scheme", 1.0: "b-scheme", 1.8: "scale=2@2", 2.5: "shrink-perturb=0.4@2"}
RUNNER = CliRunner()


def named(records: list[RunRecord]) -> list[RunRecord]:
    """The same records, as if their levels had been interventions at scale 1."""
    return [replace(r, run=replace(r.run, scale=1.0, intervention=NAMES[r.run.scale])) for r in records]


@pytest.fixture
def by_scale() -> list[RunRecord]:
    return planted.records(planted.study("s", planted.grid(optimizer=["sgd", "adam"], batch_size=[16, 64])))


def test_memory_of_names_is_the_memory_of_numbers(by_scale: list[RunRecord]) -> None:
    one = [r for r in by_scale if r.run.recipe == by_scale[0].run.recipe]
    numbers, names = memory(one), memory(named(one))
    for field in ("memory", "low", "high", "p", "noise_range", "debiased", "verdict", "mode", "size"):
        assert getattr(numbers, field) == getattr(names, field), field
    assert names.scales == tuple(NAMES.values())
    assert numbers.fit is not None and names.fit is not None
    by_number, by_name = numbers.fit.matched, names.fit.matched
    assert isinstance(by_number, Matched) and isinstance(by_name, Matched)
    assert by_name._replace(scales=()) == by_number._replace(scales=())
    assert (numbers.fit.time, names.fit.train_change) == (names.fit.time, None)
    assert "initialization scale changes" in numbers.meaning and "intervention changes" in names.meaning


@pytest.mark.parametrize("what", ["scale", "failures", "interpolation", "repair", "difference", "fit"])
def test_measures_by_level_take_names(what: str, by_scale: list[RunRecord]) -> None:
    numbers, names = measure(by_scale, what), measure(named(by_scale), what)
    assert len(numbers) == len(names) > 0
    for one, other in zip(numbers, names, strict=True):
        if "scale" in one:
            assert NAMES[one.pop("scale")] == other.pop("scale")
        if what != "fit":
            assert one == other
        else:
            assert one["matched_memory"] == other["matched_memory"] and other["test"] is None


@pytest.mark.parametrize("what", [name for name, one in MEASURES.items() if one.numeric])
def test_slopes_are_asked_of_numbers_only(what: str, by_scale: list[RunRecord]) -> None:
    assert measure(named(by_scale), what) == []
    reasons = set(not_applicable(what, collected(named(by_scale))).values())
    assert reasons == {"it is asked of scales, which are numbers"}
    mixed = collected([*by_scale, *named(by_scale)])
    assert measure(mixed, what) == measure(by_scale, what)
    assert any("runs with interventions left out" in line for line in remarks(what, mixed))


def test_two_kinds_of_levels_in_one_recipe_are_said(by_scale: list[RunRecord]) -> None:
    one = [r for r in by_scale if r.run.recipe == by_scale[0].run.recipe]
    row = memory([*one, *named(one)])
    assert row.n_scales == 10
    assert any("scales and interventions are compared together" in note for note in row.notes)


def test_models_from_before_an_intervention_are_counted(by_scale: list[RunRecord]) -> None:
    one = [r for r in by_scale if r.run.recipe == by_scale[0].run.recipe]
    late = [
        replace(r, run=replace(r.run, intervention=r.run.intervention.replace("@2", "@5")))
        for r in named(one)  # the fourth epoch is selected
    ]
    assert "6 runs returned a model from before the intervention" in memory(late).notes
    assert not any("from before" in note for note in memory(named(one)).notes)


def test_levels_are_chosen_by_name(by_scale: list[RunRecord]) -> None:
    rows = measure(named(by_scale), "memory", scales=["none", "scale=2@2"])
    assert {row["n_scales"] for row in rows} == {2}
    with pytest.raises(ConfigError, match=r"scales = \['nothing'\] .allowed: none, a-scheme"):
        measure(named(by_scale), "memory", scales=["nothing"])


def test_figures_have_a_category_axis_without_lines(by_scale: list[RunRecord]) -> None:
    plot = scale_plot(named(by_scale))
    figure, _ = draw(plot)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == list(NAMES.values())
    drawn = [line for line in axes.lines if len(line.get_xdata()) == 5]
    assert drawn and all(line.get_linestyle() == "None" for line in drawn)
    expected = [s.y for s in scale_plot(by_scale).panels[0].series]
    np.testing.assert_allclose([s.y for s in plot.panels[0].series], expected)
    panel = chart_json({"test": plot})["choices"][0]["panels"][0]
    assert (panel["x"], panel["names"]) == ("intervention", list(NAMES.values()))
    assert panel["series"][0]["x"] == [1, 2, 3, 4, 5]


def test_an_archive_its_page_and_its_tables_show_names(by_scale: list[RunRecord], tmp_path: Path) -> None:
    path = tmp_path / "named.initmem"
    study = planted.study("s", list(dict.fromkeys(r.run.recipe for r in by_scale)))
    study = replace(study, scales=(1.0,), interventions=tuple(NAMES.values()))
    write_archive(path, [study], named(by_scale))
    assert {r.run for r in Archive(path).records()} == {r.run for r in named(by_scale)}
    assert Archive(path).studies() == [study]
    page = write_report(Archive(path), tmp_path / "page.html").read_text()
    assert page.count("shrink-perturb=0.4@2") > 4 and "σ = " not in page.split("<script")[0]
    shown = RUNNER.invoke(app, ["measure", str(path)])
    assert shown.exit_code == 0, shown.output
    shown = RUNNER.invoke(app, ["measure", str(path), "--what", "scale", "--json"])
    assert {row["scale"] for row in json.loads(shown.output)["rows"]} == set(NAMES.values())
    shown = RUNNER.invoke(app, ["measure", str(path), "--what", "beta"])
    assert "not applicable: it is asked of scales, which are numbers" in shown.output.replace("\n", " ")
