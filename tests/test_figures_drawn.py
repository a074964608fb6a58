from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.text import Text

import planted
from initmem.errors import ConfigError, StoreError
from initmem.paper import figures
from initmem.paper.reference import SYMBOLS, find, references
from initmem.plots import matplotlib as renderer
from initmem.plots.builders import scale_plot
from initmem.plots.model import Entry, Panel, Plot, Series, caption
from initmem.plots.styles import PALETTE
from planted import recipe, without

MAIN = planted.main_grid()
FULL = planted.records(MAIN)
ALL = planted.everything()
BATCHES = sorted({one.batch_size for one in MAIN.recipes})


@pytest.mark.parametrize("name", figures.NAMES)
def test_every_figure_is_drawn_from_a_store_with_gaps(name: str, tmp_path: Path) -> None:
    some = [r for i, r in enumerate(planted.records(*ALL)) if i % 3 and r.run.recipe.batch_size == 16]
    path = tmp_path / f"{name}.svg"
    plot = figures.plot_of(name, some, ALL, reference=True)
    figures.draw(plot, path)
    picture = path.read_text()
    assert picture.startswith("<?xml")
    assert len(picture) > 20_000
    assert plot.missing


def test_the_ending_picks_the_format_and_the_bytes_depend_on_the_data_alone(tmp_path: Path) -> None:
    plot = scale_plot(FULL[:15], "test_accuracy")
    assert plot.panels[0].series
    drawn = {name: renderer.draw(plot)[0] for name in ("a", "b")}
    for ending, magic in ((".png", b"\x89PNG"), (".PDF", b"%PDF"), (".svg", b"<?xml")):
        for name, figure in drawn.items():
            renderer.save(figure, tmp_path / f"{name}{ending}")
        first = (tmp_path / f"a{ending}").read_bytes()
        assert first.startswith(magic)
        assert first == (tmp_path / f"b{ending}").read_bytes()


def texts_of(plot: Plot) -> list[str]:
    return [text.get_text() for text in renderer.draw(plot)[0].findobj(Text)]


def test_rows_and_columns_without_runs_are_left_out() -> None:
    def titles(plot: Plot) -> list[str]:
        return [axes.get_title(loc="left") for axes in renderer.draw(plot)[1]]

    rows = figures.plot_of("1", without(FULL, batch_size=128), [MAIN])
    assert titles(rows) == ["(a) b = 16", "(b) b = 16", "(c) b = 16"]
    assert "sgd b128: no runs" in caption(rows)
    columns = figures.plot_of("5", without(FULL, optimizer="adam"), [MAIN])
    assert titles(columns) == ["(a) b = 16, sgd", "(b) b = 128, sgd"]
    one = figures.plot_of("5", without(FULL, optimizer="adam", batch_size=128), [MAIN])
    assert "no runs" in texts_of(one)  # in its place, beside those that have some


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"figure file = .*'.*1.jpg' \(allowed endings: .pdf, .png, .svg\)"):
        figures.draw(figures.plot_of("1", FULL, [MAIN]), tmp_path / "1.jpg")
    with pytest.raises(ConfigError, match=r"figure = '11' .*allowed: 1, 2"):
        figures.plot_of("11", FULL, [MAIN])
    with pytest.raises(StoreError, match="no finished run yet"):
        figures.plot_of("1", [], [MAIN])
    with pytest.raises(StoreError, match="cannot be written"):
        figures.draw(figures.plot_of("7", FULL[:3], [MAIN]), tmp_path / "nowhere" / "7.png")


def test_a_caption_can_be_left_out() -> None:
    plot = figures.plot_of("1", FULL, [MAIN])
    (under,) = [text for text in texts_of(plot) if text.startswith("Accuracy gap")]
    figure, _ = renderer.draw(plot, captioned=False)
    assert under not in [text.get_text() for text in figure.findobj(Text)]
    assert figure.get_figheight() < renderer.draw(plot)[0].get_figheight()


def test_all_figures_are_those_that_a_store_can_fill() -> None:
    drawn = figures.available(FULL, [MAIN])
    assert {"1", "2", "3", "6", "scale", "memory", "tradeoff", "beta", "clocks"} <= drawn.keys()
    assert "layers" not in drawn  # these records hold no norms of layers
    one_scale = figures.available([r for r in FULL if r.run.scale == 1.0], [MAIN])
    assert one_scale.keys().isdisjoint({"beta", "clocks", "tradeoff"})
    with pytest.raises(StoreError, match="no finished run yet"):
        figures.available([], [MAIN])


def test_recipes_are_chosen_by_pattern_or_by_words() -> None:
    def chosen(pattern: str) -> set[tuple[str, int]]:
        found = figures.matching(FULL, [MAIN], pattern)
        return {(r.run.recipe.optimizer, r.run.recipe.batch_size) for r in found}

    assert chosen("adam*") == {(name, b) for name in ("adam", "adamw") for b in BATCHES}
    assert chosen("adam") == {("adam", b) for b in BATCHES}
    assert chosen("b16 sgd") == {("sgd", 16)}
    with pytest.raises(ConfigError, match=r"recipes = 'nobody' \(allowed: sgd b16, "):
        chosen("nobody")


def test_many_recipes_are_divided_and_their_bands_left_out() -> None:
    plot = figures.plot_of("scale", FULL, [MAIN])
    assert len({r.run.recipe for r in FULL}) > 8
    assert [row[0].title for row in plot.rows] == list(planted.OPTIMIZERS)
    for row in plot.rows:
        assert {one.label for one in row[0].series} <= {f"{row[0].title} b{b}" for b in BATCHES}
    few = figures.plot_of("scale", figures.matching(FULL, [MAIN], "sgd"), [])
    assert len(few.rows) == 1
    some = figures.plot_of("scale", figures.matching(FULL, [MAIN], "b16"), [])
    assert len(some.rows[0][0].series) == 5

    def bands(drawn: Plot) -> int:
        return sum(len(axes.collections) for axes in renderer.draw(drawn)[1])

    assert bands(few) > 0
    assert bands(some) == 0
    assert bands(figures.plot_of("1", FULL, [MAIN])) > 0  # as in the paper


def test_the_colors_of_a_heat_map_span_ten_points_or_more() -> None:
    (wide,) = {panel.limits for panel in figures.plot_of("2", FULL, [MAIN]).all_panels}
    assert wide[1] - wide[0] >= 10
    flat = [replace(r, summary=replace(r.summary, test_accuracy=0.985 + 0.001 * r.run.scale)) for r in FULL]
    (low, high), *others = {panel.limits for panel in figures.plot_of("2", flat, [MAIN]).all_panels}
    assert not others
    assert high - low == pytest.approx(10)
    assert low < 98.5 < 98.75 < high <= 100


def test_a_legend_too_wide_for_the_page_is_broken() -> None:
    entry = figures.plot_of("1", FULL, [MAIN]).legend[0][0]
    rows = renderer.legend_rows([[entry._replace(label="fifteen letters" + str(i)) for i in range(7)]])
    assert [len(row) for row in rows] == [4, 3]
    assert renderer.legend_rows([[entry] * 5]) == [[entry] * 5]


def test_never_reached_is_drawn_above_the_last_epoch() -> None:
    figure, every = renderer.draw(figures.plot_of("3", FULL, [MAIN]))
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert texts.count("not reached") == 2
    above = [
        line
        for axes in every
        for line in axes.lines
        if line.get_linestyle() == "None" and len(line.get_ydata()) and min(line.get_ydata()) > planted.EPOCHS
    ]
    assert [list(line.get_xdata()) for line in above] == [[1.8, 2.5], [1.8, 2.5]]


# -- captions and references ------------------------------------------------------------------------------


def test_the_caption_says_the_preset_and_what_stands_beside() -> None:
    plain = figures.plot_of("1", FULL, [MAIN])
    beside = figures.plot_of("1", FULL, [MAIN], reference=True)
    assert "Study: main-grid (preset mini)." in caption(plain)
    assert "Published values: open diamonds" in caption(beside)
    assert "width 8" in caption(plain)
    assert "6 epochs" in caption(plain)
    assert all(
        spread.reference is not None for spread in beside.rows[1][3].rows if spread.label != "momentum"
    )
    marks = {(mark.x[0], mark.y[0]) for mark in beside.rows[1][1].published}
    assert marks == {(0.1, 85.0), (2.5, 58.6)}
    assert all(len(row) == 3 for row in plain.rows)


def test_the_count_of_runs_is_in_the_caption() -> None:
    assert "n: 3." in caption(figures.plot_of("1", FULL, [MAIN]))
    some = figures.plot_of("1", without(FULL, seed=1, scale=0.1), [MAIN])
    assert "n: 2 to 3. Open markers: runs are missing" in caption(some)


def test_a_long_list_of_gaps_is_cut_in_the_caption_alone() -> None:
    missing = [f"cell {i}: no runs" for i in range(9)]
    text = caption(Plot([], head="Head", missing=missing))
    assert "cell 5: no runs; and 3 more." in text
    assert "cell 6" not in text


@pytest.mark.parametrize(
    ("where", "fields", "quantity", "scale", "value"),
    [
        ("figure 1", {"optimizer": "sgd", "batch_size": 16}, "spread", None, 22.8),
        ("figure 2", {"optimizer": "sgd", "batch_size": 256}, "spread", None, 25.7),
        ("figure 2", {"optimizer": "adam", "batch_size": 256}, "spread", None, 5.3),
        ("figure 1", {"optimizer": "momentum", "batch_size": 16}, "spread", None, 10.9),
        ("table 4", {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 128}, "spread", None, 8.1),
        (
            "table 4",
            {"optimizer": "sgd", "learning_rate": 0.01, "l2": 1e-3, "batch_size": 128},
            "spread",
            None,
            17.4,
        ),
        ("figure 5", {"model": "resnet56", "batch_size": 128, "patience": 30}, "spread", None, 24.2),
        ("figure 6", {"optimizer": "sgd", "batch_size": 64}, "beta", None, 0.1),
        ("figure 1", {"optimizer": "sgd", "batch_size": 128}, "test", 2.5, 58.6),
        ("figure 1", {"optimizer": "sgd", "learning_rate": 0.01, "batch_size": 128}, "spread", None, None),
        ("figure 1", {"optimizer": "sgd", "batch_size": 16, "norm": "layer"}, "spread", None, None),
        ("figure 3", {"optimizer": "sgd", "batch_size": 16}, "spread", None, None),
    ],
)
def test_published_values_are_found_by_procedure(where, fields, quantity, scale, value) -> None:
    found = find(where, recipe(**fields), quantity, scale)
    assert (found.value if found else None) == value


def test_published_values_are_well_formed() -> None:
    places = {f"figure {i}" for i in range(1, 9)} | {f"table {i}" for i in range(1, 8)}
    for item in references():
        assert item.recipes
        assert item.relation in SYMBOLS
        assert item.unit in ("pp", "%", "per unit of scale", "epochs")
        assert item.quantity in ("spread", "test", "train", "gap", "beta", "tau_best", "tau_interp")
        assert set(item.shown) <= places
    assert len(references()) == 38
    below = find("table 4", recipe(optimizer="sgd", learning_rate=0.01, l2=5e-3, batch_size=128), "spread")
    assert str(below) == "< 1.0"


def test_panels_with_limits_of_their_own_name_their_axis() -> None:
    lines = [Series("a", PALETTE[0], [1.0, x], [0.1, 0.9]) for x in (100.0, 1000.0)]
    shared = [Panel("", "clock", "elasticity", [line], log_x=True) for line in lines]
    own = [panel._replace(x_limits=(1.0, panel.series[0].x[-1])) for panel in shared]
    _, (above, below) = renderer.draw(Plot([[shared[0]], [shared[1]]]))
    assert above.get_xlim() == below.get_xlim() and above.get_xlabel() == ""
    _, (above, below) = renderer.draw(Plot([[own[0]], [own[1]]]))
    assert (above.get_xlim(), below.get_xlim()) == ((1.0, 100.0), (1.0, 1000.0))
    assert above.get_xlabel() == below.get_xlabel() == "clock"


@pytest.mark.parametrize("name", ["$", "a $ b_{ $", "10$^$"])
def test_a_dollar_in_a_name_is_a_dollar(name: str, tmp_path: Path) -> None:
    line = Series(name, PALETTE[0], [1.0, 10.0, 100.0], [0.1, 0.2, 0.3])
    panel = Panel(name, "scale", name, (line,), log_x=True)
    figure, _ = renderer.draw(Plot([[panel]], [[Entry(name, PALETTE[0])]]))
    renderer.save(figure, tmp_path / "one.svg")
    letters = (tmp_path / "one.svg").read_text()
    assert name in letters
    assert "mathdefault{10^{1}}" in letters  # a tick label is still a formula
