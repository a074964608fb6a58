"""initmem.plot: figures and axes from anything that holds records, ready to be restyled."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import initmem
import planted
from conftest import fake_record
from initmem.errors import ConfigError
from initmem.measures.memory import memory_table
from initmem.pipeline.result import Result
from initmem.plots.builders import beta_plot, scale_plot
from initmem.plots.matplotlib import draw
from initmem.store.results import open_results
from initmem.store.store import Store
from initmem.study import Study

ARCHIVE = Path(__file__).parents[1] / "docs" / "results" / "main-grid-mini.initmem"


@pytest.fixture
def store(tmp_path: Path, tiny_study: Study) -> Store:
    store = Store.create(tmp_path / "store")
    store.add_study(tiny_study)
    store.commit([fake_record(r, 0.9 - 0.1 * r.scale + 0.01 * r.seed) for r in tiny_study.all_runs()])
    return store


def test_results_may_be_a_result_a_store_a_path_or_records(store: Store, tiny_study: Study) -> None:
    every = [Result(store, tiny_study), store, store.path, str(store.path), store.records()]
    for results in every:
        figure, axes = initmem.plot.scale(results)
        assert isinstance(figure, Figure)
        (line,) = axes.lines
        assert list(line.get_xdata()) == [0.5, 1.0, 2.0]
        assert np.allclose(line.get_ydata(), [85.5, 80.5, 70.5])
        assert axes.get_ylabel() == "test accuracy (%)"
        axes.set_title("restyled")


def test_an_archive_gives_every_plot_and_figure() -> None:
    records = initmem.open_results(ARCHIVE).records()
    _, norm = initmem.plot.norm(ARCHIVE)
    assert len(norm.lines) == 8
    _, slopes = initmem.plot.beta(ARCHIVE, clock="sgd")
    assert slopes.get_xlabel().startswith("SGD clock")
    _, epochs = initmem.plot.interpolation(ARCHIVE)
    assert epochs.get_yscale() == "log"
    _, memories = initmem.plot.memory(ARCHIVE)
    rows = memory_table(records)
    points = [line.get_xdata()[0] for line in memories.lines if line.get_marker() == "o"]
    assert sorted(points) == pytest.approx(sorted(row.memory for row in rows))
    _, panels = initmem.plot.clocks(ARCHIVE)
    assert {axes.get_xlabel().split(",")[0] for axes in panels} == {"sum of learning rates"}
    figure, axes = initmem.plot.figure(ARCHIVE, 1, reference=True)
    assert len(axes) == 8
    assert isinstance(figure, Figure)


def test_axes_of_the_user_keep_their_figure_and_get_a_legend() -> None:
    records = planted.records(planted.study("two", planted.grid(optimizer=["sgd", "adam"])))
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    drawn, same = initmem.plot.scale(records, axes=axes)
    assert drawn is figure
    assert same is axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["sgd", "adam"]


def test_mistakes_are_explained() -> None:
    records = planted.records(planted.study("one", planted.grid(optimizer=["sgd"])))
    with pytest.raises(ConfigError, match=r"metric = 'accurracy' \(did you mean .*allowed: .*test_accuracy"):
        initmem.plot.scale(records, "accurracy")
    with pytest.raises(ConfigError, match=r"clock = 'tick' \(allowed: sgd, l2"):
        initmem.plot.beta(records, clock="tick")
    with pytest.raises(ConfigError, match=r"figure = '9' \(allowed: 1, 2"):
        initmem.plot.figure(records, 9)


def test_the_page_about_plots_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    (tmp_path / "docs").symlink_to(ARCHIVE.parents[1])
    monkeypatch.chdir(tmp_path)
    page = (ARCHIVE.parents[1] / "report.md").read_text("utf-8").partition("## Plots")[2]
    names: dict[str, object] = {}
    for code in re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S):
        exec(code, names)
    assert (tmp_path / "scale.pdf").stat().st_size > 5_000
    assert len(names["right"].lines) > 8  # type: ignore[attr-defined]


def test_many_recipes_share_the_axes_of_the_user() -> None:
    many = ARCHIVE.with_stem("transformers-mini")
    for draw_many in (initmem.plot.scale, initmem.plot.beta):
        _, axes = draw_many(many)
        assert len({line.get_label() for line in axes.lines if not line.get_label().startswith("_")}) == 24


def test_a_style_that_comes_again_has_its_legend_below_its_panel() -> None:
    """Scales and interventions have panels of their own; recipes of 6 and 600 epochs a logarithmic axis."""
    lengths = [planted.recipe(optimizer="sgd").replace(epochs=epochs) for epochs in (6, 600)]
    other = planted.recipe(optimizer="sgd", dataset="digits")
    by_scale = planted.records(planted.study("s", [*lengths, *planted.grid(optimizer=["adam", "muon"])]))
    intervened = [
        replace(one, run=replace(one.run, intervention=name))
        for one in planted.records(planted.study("i", [other], scales=(1.0,)))
        for name in ("none", "scale=2@2")
    ]
    plot = scale_plot([*by_scale, *intervened])
    titles = {panel.x_title: panel.title for panel in plot.panels}
    assert titles == {"initialization scale σ": "scales", "intervention": "interventions"}
    (panel,) = beta_plot(by_scale).panels
    (axis,) = draw(beta_plot(by_scale))[1]
    assert panel.log_x and axis.get_xscale() == "log"
    crowd = beta_plot(open_results(ARCHIVE.with_stem("transformers-mini")).records())
    assert crowd.legend == [] and all(len(panel.key) == len(panel.series) for panel in crowd.panels)
    for panel in crowd.panels:
        assert len({(entry.style.marker, entry.style.color) for entry in panel.key}) == len(panel.key)
    drawn, _ = draw(crowd)
    below = [axes.get_legend() for axes in drawn.axes if axes.get_legend()]
    assert [len(legend.get_texts()) for legend in below] == [len(panel.key) for panel in crowd.panels]
