"""Captions speak of what is drawn, and of nothing else; nothing that is drawn overlaps or misleads."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

import planted
from initmem.paper import figures, tables
from initmem.paper.reference import references
from initmem.plots import matplotlib as renderer
from initmem.plots.captions import caption
from initmem.plots.model import Heatmap, Plot
from initmem.record import RunRecord
from initmem.store.results import open_results
from initmem.study import Study
from planted import without

ARCHIVES = sorted((Path(__file__).parents[1] / "docs" / "results").glob("*.initmem"))
STORES = [*(path.stem for path in ARCHIVES), "planted", "gaps", "muon", "full"]
NAMES = (*figures.NAMES, "scale")
# A third of all pairs: three figures from each archive, each figure from several.
FIGURES = [(path.stem, name, True) for i, path in enumerate(ARCHIVES) for name in NAMES[i % 3 :: 3]]
FIGURES += [(store, name, True) for store in ("planted", "gaps", "muon", "full") for name in NAMES]
FIGURES.remove(("full", "scale", True))  # a line for each of a hundred recipes is no figure
LOOKED_AT = {*(path.stem for path in ARCHIVES), "full"} - {"batch-norm"}  # every recipe twice
FIGURES += [(store, name, False) for store in ("main-grid-mini", "gaps") for name in NAMES]


@cache
def records_of(store: str) -> tuple[list[RunRecord], list[Study]]:
    for path in ARCHIVES:
        if path.stem == store:
            results = open_results(path)
            return results.records(), results.studies()
    if store == "muon":  # most figures have nothing for it
        study = planted.study("muon", planted.grid(optimizer=["muon"], batch_size=[48]))
        return planted.records(study), [study]
    studies = planted.complete() if store == "full" else planted.everything()
    records = planted.records(*studies)
    if store == "gaps":
        records = without([r for i, r in enumerate(records) if i % 3], optimizer="sgd", batch_size=128)
    return records, studies


@cache
def plot_of(name: str, store: str = "planted", *, reference: bool = True) -> Plot:
    return figures.plot_of(name, *records_of(store), reference)


def signs(figure: Figure, text: str) -> dict[str, bool]:
    """What a caption can name, and whether it is in the figure."""
    lines = [line for line in figure.findobj(Line2D) if len(line.get_xdata())]
    patches = figure.findobj(Patch)
    words = [one.get_text() for one in figure.findobj(Text) if one.get_text().split() != text.split()]
    bands = [one for axes in figure.axes for one in axes.collections if _is_band(one)]
    drawn = [line for line in lines if line.get_marker() not in ("None", "", None)]
    right = [one.get_text() for axes in figure.axes for one in axes.texts if one.get_position()[0] == 1.02]
    return {
        "Hatched": any(patch.get_hatch() for patch in patches),
        "open diamonds": any(line.get_marker() == "D" and _hollow(line) for line in drawn),
        "open triangles": any(line.get_marker() in ("<", "v") and _hollow(line) for line in drawn),
        "stars": any(_is_star(line) for line in drawn),
        "dotted line": any(line.get_linestyle() == ":" and _level(line) for line in lines),
        "Dashed: at initialization": any(line.get_label() == "at initialization" for line in lines),
        "open markers": any(
            _face(line) == "white" and not _is_star(line) and _in_range(line) for line in drawn
        ),
        "band": bool(bands),
        "Crosses": "×" in words,
        "In parentheses": any(re.search(r"^(\d+\.\d )?\(\d+\)$", word) for word in words),
        "Right of each row": bool(right),
        "(the paper)": any("(" in word for word in right),
        "Bars": any(axes.patches for axes in figure.findobj(Axes) if _is_inset(axes)),
    }


def _is_star(line: Line2D) -> bool:
    """Of a published value; the smaller ones belong to a series."""
    return line.get_marker() == "*" and line.get_markersize() == 9


def _is_band(one: object) -> bool:
    if isinstance(one, LineCollection):  # of a point that has no neighbors
        return any(np.ptp(segment[:, 1]) > 1e-9 for segment in one.get_segments())
    if not isinstance(one, PolyCollection):
        return False
    return any(_area(path.vertices) > 1e-9 for path in one.get_paths())


def _area(corners: np.ndarray) -> float:
    x, y = corners.T
    return 0.5 * abs(float(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))))


def _hollow(line: Line2D) -> bool:
    return _face(line) == "none" and line.get_markeredgecolor() == "black"


def _face(line: Line2D) -> object:
    return line.get_markerfacecolor()


def _level(line: Line2D) -> bool:
    return line.get_color() == "black" and len(set(line.get_ydata())) == 1


def _in_range(line: Line2D) -> bool:
    """Not one of the points above the last epoch, which have words of their own."""
    return not any("not reached" in text.get_text() for text in line.axes.texts) or bool(
        min(line.get_ydata()) <= line.axes.get_yticks()[-1]
    )


def _is_inset(axes: Axes) -> bool:
    return not axes.get_yticks().size and not axes.get_xticks().size


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


@pytest.mark.parametrize(("store", "name", "reference"), FIGURES)
def test_a_caption_names_what_is_drawn_and_nothing_else(store: str, name: str, reference: bool) -> None:
    plot = plot_of(name, store, reference=reference)
    figure, _ = renderer.draw(plot)
    text = caption(plot)
    if reference and store in LOOKED_AT:
        assert overlapping(figure) == []
    for sign, is_drawn in signs(figure, text).items():
        assert (sign in text) == is_drawn, f"{sign}: {'not ' * (not is_drawn)}drawn, but: {text}"
    whole = not any(re.search(r"(no runs|seeds) at σ", line) for line in plot.missing)
    assert not (whole and "some are missing" in text)
    assert not re.search(r"no values|, ,|\.\.|: [,;.]", text)
    published = any(sign in text for sign in ("Published values", "(the paper)"))
    assert ("reference: the paper" in text) == published
    if published:
        assert "No published values" not in text
    assert ("No published values" in text) == (reference and not published and name != "scale")


PUBLISHED = {  # which published quantities a figure can show
    **dict.fromkeys("12458", ("spread", "gap")),
    "3": ("tau_interp",),
    "7": ("train",),
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize(
    "store", [store for store in STORES if store != "gaps"]
)  # no seed has a spread there
def test_no_published_values_are_missed(store: str, name: str) -> None:
    """By looking up every recipe behind what is drawn, whatever place its values were published in."""
    records, _ = records_of(store)
    plot = plot_of(name, store, reference=True)
    maps = [row for panel in plot.all_panels if isinstance(panel, Heatmap) for row in panel.rows]
    series = [*(one for panel in plot.panels for one in panel.series), *maps]
    drawn_runs = {run for one in series for runs in one.runs for run in runs}
    recipes = {record.run.recipe for record in records if record.id in drawn_runs}
    known = [item for item in references() if item.quantity in PUBLISHED[name]]
    if any(item.fits(recipe) for item in known for recipe in recipes):
        assert "No published values" not in caption(plot)


# -- what overlapped or misled ----------------------------------------------------------------------------


def drawn(name: str, store: str = "planted", *, reference: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure whose panels have found their places."""
    figure, axes = renderer.draw(plot_of(name, store, reference=reference))
    figure.draw_without_rendering()
    return figure, axes


def test_the_numbers_of_figure_4_stand_below_the_bars_where_no_published_value_is() -> None:
    _, axes = drawn("4")
    (inset,) = axes[1].child_axes
    numbers = [text for text in inset.texts if re.fullmatch(r"\d+\.\d", text.get_text())]
    assert len(numbers) == 14
    assert all(text.get_position()[1] < 0 for text in numbers)
    boxes = [text.get_window_extent() for text in numbers]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])


@pytest.mark.parametrize("store", ["norm-aug-mini", "planted", "gaps"])
def test_no_percentage_axis_goes_beyond_100(store: str) -> None:
    for name in ("1", "4", "5", "7", "8", "scale"):
        _, axes = renderer.draw(plot_of(name, store))
        tops = [one.get_ylim()[1] for one in axes if "(%)" in one.get_ylabel()]
        assert tops
        assert max(tops) <= 100, name


@pytest.mark.parametrize("store", ["best-recipe-mini", "norm-aug-mini", "gaps"])
@pytest.mark.parametrize("name", ["1", "5", "8"])
def test_no_words_stand_on_a_published_value(store: str, name: str) -> None:
    _, every = drawn(name, store)
    for axes in every:
        marks = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
        for text in axes.texts:
            box = text.get_window_extent()
            for mark in marks:
                at = axes.transData.transform((mark.get_xdata()[0], mark.get_ydata()[0]))
                assert not box.contains(*at), text.get_text()


@pytest.mark.parametrize(("store", "name"), [("best-recipe-mini", "5"), ("norm-aug-mini", "8")])
def test_panels_fill_the_page_where_some_have_no_runs(store: str, name: str) -> None:
    _, axes = drawn(name, store, reference=False)
    filled = sum(one.get_position().width for one in axes[: len({a.get_position().x0 for a in axes})])
    assert filled > 0.75


@pytest.mark.parametrize("store", ["norm-aug-mini", "chaos-mini", "quickstart"])
@pytest.mark.parametrize("name", ["1", "5", "8"])
def test_the_names_of_one_panel_do_not_widen_the_gaps_between_the_others(store: str, name: str) -> None:
    _, axes = drawn(name, store)
    first, second = (one.get_position() for one in axes[:2])
    assert 0 < second.x0 - first.x1 < 0.08


def test_ticks_between_powers_of_ten_have_no_labels_where_there_is_no_room() -> None:
    figure, _ = drawn("6", "best-recipe-mini")
    ticks = [axes.get_xticklabels(minor=True) for axes in figure.axes if axes.get_xscale() == "log"]
    assert ticks
    assert not any(tick.get_text() for some in ticks for tick in some)


def test_the_caption_says_why_a_place_is_hatched_or_a_marker_open() -> None:
    never = caption(plot_of("3", "best-recipe-mini"))
    assert "Hatched: no runs or 99.5% never reached." in never
    assert "Interpolation epoch: median, runs that never reach it counted as later" in never
    assert "n = 3 per point." in never
    complete = caption(plot_of("3", "main-grid-mini"))
    assert "(open markers: some never reach it or some have no value)" in complete
    assert "some are missing" in caption(plot_of("3", "gaps"))


def test_the_caption_says_over_how_many_scales_a_published_spread_was_taken() -> None:
    assert "published over 5 or 25 scales, measured over 5" in caption(plot_of("8"))
    assert "published over 25 scales, measured over 5." in caption(plot_of("2"))
    for name, said in (("4", "22.8, 1.6, 26.5, 4.3"), ("6", "22.8, 26.5")):
        notes = tables.make(name, *records_of("lr-l2-mini"), reference=True).notes
        expected = f"Published spreads: {said} over 25 scales, the others over 5; measured: over 2"
        assert expected in notes
    notes = tables.make("5", *records_of("main-grid-mini"), reference=True).notes
    assert "Published spreads: over 25 scales; measured: over 5" in notes
    assert not any("Published" in note for note in tables.make("6", *records_of("quickstart")).notes)


def test_a_bound_is_written_as_one() -> None:
    figure, _ = drawn("2", "best-recipe-mini")
    written = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "14.4 (≤ 3.5)" in written
    assert "23.5 (0.0)" in written


def test_published_epochs_are_said_of_the_lines_they_belong_to() -> None:
    said = "Published values: interpolation epoch ≈ 30 to 40 for adam, adamw, muon at b = 16, 32, 64."
    assert said in caption(plot_of("3", "full"))
    assert "Published" not in caption(plot_of("3", "full", reference=False))


# -- tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tables.NAMES)
@pytest.mark.parametrize("store", sorted(LOOKED_AT))
def test_the_notes_of_a_table_speak_of_what_it_shows(store: str, name: str) -> None:
    records, studies = records_of(store)
    for reference in (False, True):
        table = tables.make(name, records, studies, reference)
        said, texts = " ".join(table.notes), [cell.text for row in table.rows for cell in row]
        places = [i for i, column in enumerate(table.columns) if "paper" in column.title]
        published = any(row[i].text.strip("—") for row in table.rows for i in places)
        assert bool(places) == reference
        assert ("No published values" in said) == (reference and not published)
        if name != "1":
            assert ("reference: the paper" in said) == published
        assert ("given in parentheses" in said) == any(re.search(r"\d \(\d+\)$", text) for text in texts)
        assert ("without augmentation" in said) == (name == "7" and not augmented(records, studies))
        assert bool(table.missing) == any("—" in text for text in texts) or name == "1"


def augmented(records: list[RunRecord], studies: list[Study]) -> bool:
    standard = [r for r in records if r.run.recipe.get("optimizer") == "momentum"] or records
    return any(r.run.recipe.get("augment") == "flip-crop" for r in standard)


# -- what used to be left out -----------------------------------------------------------------------------


def test_rates_are_said_of_every_optimizer_that_has_its_own() -> None:
    for name in ("1", "2", "3", "6"):
        said = caption(plot_of(name, "best-recipe-mini"))
        assert "momentum: lr=0.1, l2=0.0005. adam: lr=0.001, l2=0." in said


def test_all_optimizers_of_the_depth_study_are_shown() -> None:
    plot = plot_of("5", "full")
    shown = {title for panel in plot.panels for title in [panel.title] if len(panel.series) == 4}
    assert shown == {f"b = {b}, {name}" for b in (16, 128) for name in planted.OPTIMIZERS}
    table = tables.make("5", *records_of("full"))
    assert {row[2].value for row in table.rows} == set(planted.OPTIMIZERS)


def test_both_kinds_of_sgd_stand_in_one_panel_of_figure_6() -> None:
    sgd, adam = plot_of("6", "full").rows[-1]
    assert [one.label for one in sgd.series] == [
        *(f"b = {b}" for b in (16, 32, 64, 128, 256)),
        "b = 16, λ = 0.01",
        "b = 128, λ = 0.01",
    ]
    assert len(adam.series) == 5
    plain, penalized = ({one.style.color for one in some} for some in (sgd.series[:5], sgd.series[5:]))
    assert plain.isdisjoint(penalized)
    assert "λ Σ η" in sgd.x_title
    assert "λ" not in plot_of("6", "main-grid-mini").rows[-1][0].x_title  # nothing there has a penalty


def test_a_statistic_is_named_once_though_some_panels_have_no_band() -> None:
    assert caption(plot_of("3", "main-grid-mini")).lower().count("epoch: median") == 1
