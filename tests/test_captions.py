"""Captions name study, preset, n and machine; nothing that is drawn overlaps or misleads."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

import planted
from initmem.paper import figures, tables
from initmem.paper.reference import references
from initmem.plots import matplotlib as renderer
from initmem.plots.model import Plot, caption
from initmem.plots.styles import OPTIMIZERS
from initmem.record import RunRecord
from initmem.store.results import open_results
from initmem.study import Study
from planted import without

RESULTS = Path(__file__).parents[1] / "docs" / "results"
NAMES = (*figures.NAMES, "scale")
# Every figure of a full store, and each archive in one that it has much of, or little.
DRAWN = [("full", name) for name in figures.NAMES] + [
    ("main-grid-mini", "1"), ("best-recipe-mini", "3"), ("norm-aug-mini", "8"), ("lr-l2-mini", "4"),
    ("chaos-mini", "5"), ("transformers-mini", "2"), ("quickstart", "scale"), ("gaps", "5"),
]  # fmt: skip


@cache
def records_of(store: str) -> tuple[list[RunRecord], list[Study]]:
    if store not in ("planted", "full", "gaps"):
        results = open_results(RESULTS / f"{store}.initmem")
        return results.records(), results.studies()
    studies = planted.complete() if store == "full" else planted.everything()
    records = planted.records(*studies)
    if store == "gaps":
        records = without([r for i, r in enumerate(records) if i % 3], optimizer="sgd", batch_size=128)
    return records, studies


@cache
def plot_of(name: str, store: str = "planted", *, reference: bool = True) -> Plot:
    return figures.plot_of(name, *records_of(store), reference)


def labels(figure: Figure) -> list[Text]:
    """All words and numbers that are seen, those of ticks included."""
    found = [*figure.texts, *(one for legend in figure.legends for one in legend.get_texts())]
    for axes in figure.findobj(Axes):
        legend = axes.get_legend()
        found += [axes.title, axes._left_title, *axes.texts, *(legend.get_texts() if legend else [])]
        if not axes.axison:
            continue
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            found += [axis.label, axis.offsetText]
            major = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
            minor = zip(axis.get_minorticklocs(), axis.get_minorticklabels(), strict=True)
            ticks = [*major, *minor]
            found += [label for place, label in ticks if min(limits) <= place <= max(limits)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of labels that stand on each other by more than a point in both directions."""
    figure.draw_without_rendering()
    point = figure.dpi / 72
    found = labels(figure)
    boxes = [text.get_window_extent() for text in found]
    edges = np.array([(box.x0, box.y0, box.x1, box.y1) for box in boxes])
    left = np.maximum(edges[:, None, :2], edges[None, :, :2])
    right = np.minimum(edges[:, None, 2:], edges[None, :, 2:])
    both = np.triu((right - left > point).all(axis=2), k=1)
    return [(found[i].get_text(), found[j].get_text()) for i, j in np.argwhere(both)]


def test_labels_that_stand_on_each_other_are_seen() -> None:
    figure, axes = renderer.draw(plot_of("1"))
    assert overlapping(figure) == []
    for words in ("first", "second"):
        axes[0].text(0.5, 0.5, words, transform=axes[0].transAxes)
    assert overlapping(figure) == [("first", "second")]


@pytest.mark.parametrize(("store", "name"), DRAWN)
def test_nothing_overlaps_and_no_percentage_is_beyond_100(store: str, name: str) -> None:
    figure, every = renderer.draw(plot_of(name, store))
    assert overlapping(figure) == []
    tops = [axes.get_ylim()[1] for axes in every if "(%)" in axes.get_ylabel()]
    assert max(tops, default=0) <= 100
    for axes in every:  # no words on a published value
        marks = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
        places = [axes.transData.transform((m.get_xdata()[0], m.get_ydata()[0])) for m in marks]
        for text in axes.texts:
            assert not any(text.get_window_extent().contains(*at) for at in places), text.get_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_caption_is_made_of_fields(name: str) -> None:
    text = caption(plot_of(name, "main-grid-mini"))
    assert re.search(r"\. n: \d+( to \d+)?\. ", text)
    assert "Study: main-grid (preset mini). Machine: AMD EPYC." in text
    words, _, _ = text.partition(" Missing: ")  # cells are named by the labels of their recipes
    assert not re.search(r"\blr=|, ,|\.\.|: [,;.]", words)
    if name != "scale":
        assert "Setting: cifar10, 5,000 training examples, " in text
        assert ("Published values: none" in text) == (not plot_of(name, "main-grid-mini").has_published())
        assert "Published" not in caption(plot_of(name, "main-grid-mini", reference=False))
    assert "Open markers" not in caption(plot_of("1"))
    assert "Open markers: runs are missing or have no value" in caption(plot_of("1", "gaps"))


def test_an_optimizer_has_one_color_in_every_figure() -> None:
    for name in ("1", "3", "6", "scale", "beta"):
        plot = plot_of(name, "main-grid-mini")
        lines = {one.label.split()[0].strip(","): one.style.color for one in plot.series}
        first = {label: OPTIMIZERS[label].color for label in lines if label in OPTIMIZERS}
        assert {"sgd", "adam"} <= first.keys()
        if name in ("1", "3"):
            assert lines == first
        for label in first:  # shades of it where there are several
            red, blue = (int(lines[label][i : i + 2], 16) for i in (1, 5))
            own_red, own_blue = (int(first[label][i : i + 2], 16) for i in (1, 5))
            assert (red > blue) == (own_red > own_blue), (name, label)


PUBLISHED = {  # which published quantities a figure can show
    **dict.fromkeys("12458", ("spread", "gap")),
    "3": ("tau_interp",),
    "7": ("train",),
}


@pytest.mark.parametrize("store", ["planted", "full", "lr-l2-mini", "norm-aug-mini"])
def test_no_published_values_are_missed(store: str) -> None:
    """By looking up every recipe behind what is drawn, whatever place its values were published in."""
    records, _ = records_of(store)
    for name, quantities in PUBLISHED.items():
        plot = plot_of(name, store)
        drawn_runs = {run for one in plot.series for runs in one.runs for run in runs}
        recipes = {record.run.recipe for record in records if record.id in drawn_runs}
        known = [item for item in references() if item.quantity in quantities]
        if any(item.fits(recipe) for item in known for recipe in recipes):
            assert plot.has_published(), name


# -- how panels stand on the page -------------------------------------------------------------------------


@pytest.mark.parametrize(("store", "name"), [("best-recipe-mini", "5"), ("norm-aug-mini", "8")])
def test_panels_fill_the_page_where_some_have_no_runs(store: str, name: str) -> None:
    figure, axes = renderer.draw(plot_of(name, store, reference=False))
    figure.draw_without_rendering()
    filled = sum(one.get_position().width for one in axes[: len({a.get_position().x0 for a in axes})])
    assert filled > 0.75


def test_ticks_between_powers_of_ten_have_no_labels_where_there_is_no_room() -> None:
    figure, _ = renderer.draw(plot_of("6", "best-recipe-mini"))
    ticks = [axes.get_xticklabels(minor=True) for axes in figure.axes if axes.get_xscale() == "log"]
    assert ticks
    assert not any(tick.get_text() for some in ticks for tick in some)


def test_a_bound_is_written_as_one() -> None:
    figure, _ = renderer.draw(plot_of("2", "best-recipe-mini"))
    written = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "14.4 (≤ 3.5)" in written
    assert "23.5 (0.0)" in written


def test_published_values_say_over_how_many_scales_and_of_which_lines() -> None:
    assert "Published spreads: over 5 or 25 scales." in caption(plot_of("8"))
    notes = tables.make("4", *records_of("lr-l2-mini"), reference=True).notes
    assert "Published spreads: over 5 or 25 scales; measured: over 2" in notes
    said = "Published values: interpolation epoch ≈ 30 to 40 for adam, adamw, muon at b = 16, 32, 64."
    assert said in caption(plot_of("3", "full"))


# -- tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["main-grid-mini", "best-recipe-mini", "quickstart", "full"])
def test_the_notes_of_a_table_speak_of_what_it_shows(store: str) -> None:
    records, studies = records_of(store)
    for name in tables.NAMES:
        for reference in (False, True):
            table = tables.make(name, records, studies, reference)
            said, texts = " ".join(table.notes), [cell.text for row in table.rows for cell in row]
            places = [i for i, column in enumerate(table.columns) if "paper" in column.title]
            published = any(row[i].text.strip("—") for row in table.rows for i in places)
            assert bool(places) == reference
            assert ("No published values" in said) == (reference and not published)
            assert ("given in parentheses" in said) == any(re.search(r"\d \(\d+\)$", text) for text in texts)
            assert bool(table.missing) == any("—" in text for text in texts) or name == "1"
            assert name == "1" or "Study: " in said


# -- what used to be left out -----------------------------------------------------------------------------


def test_rates_are_said_of_every_optimizer_that_has_its_own() -> None:
    for name in ("1", "6"):
        said = caption(plot_of(name, "best-recipe-mini"))
        assert "momentum: learning rate 0.1, L2 0.0005. adam: learning rate 0.001, L2 0." in said


def test_all_optimizers_of_the_depth_study_are_shown() -> None:
    plot = plot_of("5", "full")
    shown = {title for panel in plot.panels for title in [panel.title] if len(panel.series) == 4}
    assert shown == {f"b = {b}, {name}" for b in (16, 128) for name in planted.OPTIMIZERS}
    table = tables.make("5", *records_of("full"))
    assert {row[2].value for row in table.rows} == set(planted.OPTIMIZERS)


def test_every_clock_of_figure_6_has_an_axis_of_its_own() -> None:
    sgd, decayed, adam = plot_of("6", "full").rows[-1]
    assert [one.label for one in sgd.series] == [f"sgd, b = {b}" for b in (16, 32, 64, 128, 256)]
    assert [one.label for one in decayed.series] == ["λ = 0.01, b = 16", "λ = 0.01, b = 128"]
    assert len(adam.series) == 5
    assert "λ Σ η" in decayed.x_title
    assert len(plot_of("6", "main-grid-mini").rows[-1]) == 2  # nothing there has L2
