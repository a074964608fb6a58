from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t as student

import planted
from initmem.errors import ConfigError
from initmem.paper import figures
from initmem.paper.selection import name_of
from initmem.plots.model import caption, log_limits
from initmem.plots.series import common_grid, folded
from initmem.record import RunRecord, crashed
from initmem.study import Run
from planted import accuracies, recipe, without

MAIN = planted.main_grid()
FULL = planted.records(MAIN)
ALL = planted.everything()
SEEDS = np.array(planted.SEEDS)


def line_of(panel, label: str):
    (series,) = [series for series in panel.series if series.label == label]
    return series


# -- figure 1 ---------------------------------------------------------------------------------------------


def test_figure_1_shows_means_and_bands_of_gap_accuracy_and_norm() -> None:
    plot = figures.plot_of("1", FULL, [MAIN])
    assert plot.missing == []
    assert [[panel.title for panel in row] for row in plot.rows] == [["b = 16"] * 3, ["b = 128"] * 3]
    gap, test, norm = plot.rows[1]
    expected = accuracies(recipe(optimizer="adam", batch_size=128))
    line = line_of(test, "adam")
    assert line.x == list(planted.SCALES)
    assert np.allclose(line.y, expected.mean(axis=1), rtol=1e-12)
    half = (np.array(line.high) - line.low) / 2
    alone = student.ppf(0.975, 2) * expected.std(axis=1, ddof=1) / np.sqrt(3)  # of each mean
    assert np.allclose((np.array(line.high) + line.low) / 2, line.y)
    assert np.all((half >= 0.999 * alone) & (half < 2.5 * alone))  # all scales at once: wider
    assert line.n == line.expected == [3] * 5
    assert np.allclose(line_of(gap, "adam").y, 100 - expected.mean(axis=1), rtol=1e-12)
    assert np.allclose(line_of(norm, "adam").y, [10 * scale + 4 for scale in planted.SCALES])
    assert np.allclose(norm.guides[0].y, [10 * scale for scale in planted.SCALES])


def test_what_is_missing_is_named_and_breaks_the_line() -> None:
    some = without(FULL, optimizer="muon")
    some = without(some, optimizer="adam", batch_size=16, scale=1.0)
    some = without(some, optimizer="sgd", batch_size=16, scale=2.5, seed=0)
    plot = figures.plot_of("1", some, [MAIN])
    assert plot.missing == [
        "sgd b16: 2 of 3 seeds at σ = 2.5",
        "adam b16: no runs at σ = 1",
        "muon b16: no runs",
        "muon b128: no runs",
    ]
    assert all(name in caption(plot) for name in plot.missing)
    adam = line_of(plot.rows[0][1], "adam")
    assert math.isnan(adam.y[2])
    assert adam.n[2] == 0
    assert line_of(plot.rows[0][1], "sgd").n == [3, 3, 3, 3, 2]
    assert "muon" not in [entry.label for entry in plot.legend[0]]


def test_a_batch_size_that_is_wanted_stands_there_without_runs_beside_those_that_are() -> None:
    made = planted.study("mine", planted.grid(optimizer=["sgd", "muon-conv"], batch_size=[16, 48]))
    plot = figures.plot_of("1", planted.records(made), [made])
    assert [row[0].title for row in plot.rows] == ["b = 16", "b = 48", "b = 128"]
    assert plot.rows[2][0].series == []
    assert [line.label for line in plot.rows[0][0].series] == ["sgd", "muon-conv"]
    assert "sgd b128: no runs" in plot.missing
    assert not [text for text in plot.missing if text.startswith("muon-conv")]  # nobody asked for that one


def test_failed_runs_and_perturbed_replicates_are_not_drawn() -> None:
    lost = FULL[0]
    twins = [planted.record(replace(r.run, perturbation=1.001)) for r in FULL]
    broken = [crashed(lost.run, "Traceback", {}), *FULL[1:], *twins]
    plot = figures.plot_of("1", broken, [MAIN])
    assert plot.missing == ["sgd b16: 2 of 3 seeds at σ = 0.1"]
    assert "1 runs crashed" in plot.notes
    assert max(line_of(plot.rows[0][1], "adam").n) == 3


def test_runs_of_another_size_are_never_pooled_but_named() -> None:
    wide = [r.model_copy(update={"width": 16}) for r in MAIN.recipes if r.optimizer == "sgd"]
    other = planted.study("wide", wide)
    plot = figures.plot_of("1", [*FULL, *planted.records(other)], [MAIN, other])
    assert line_of(plot.rows[0][1], "sgd").n == [3] * 5
    assert plot.notes[0] == "Not shown: 30 runs that differ in other fields"
    assert "main-grid" in caption(plot)
    assert "wide" not in caption(plot).replace("width", "")


def test_an_optimizer_with_a_rate_of_its_own_is_shown_and_the_rate_said() -> None:
    made = planted.study(
        "mine",
        planted.grid(optimizer=["sgd"], batch_size=[16, 128])
        + planted.grid(optimizer=["adam"], learning_rate=[0.05], batch_size=[16, 128]),
    )
    plot = figures.plot_of("1", planted.records(made), [made])
    assert [line.label for line in plot.rows[0][1].series] == ["sgd", "adam"]
    assert plot.notes[:2] == ["sgd: learning rate 0.001", "adam: learning rate 0.05"]


def test_figure_1_says_where_sgd_does_not_interpolate_as_published() -> None:
    """What is planted fits 90% at the largest scales."""
    notes = [note for note in figures.plot_of("1", FULL, [MAIN]).notes if "unlike" in note]
    assert [note.split(",")[0] for note in notes] == [f"sgd b{b} does not interpolate" for b in (16, 128)]
    assert "train accuracy 100.0% at the smallest scale, 90.0% at the largest" in notes[0]


def test_a_store_without_a_study_is_measured_by_its_own_grid() -> None:
    some = without(FULL, optimizer="adam", batch_size=16, scale=1.0)
    plot = figures.plot_of("1", without(some, optimizer="sgd", batch_size=16, scale=0.1, seed=2), [])
    assert plot.missing == ["sgd b16: 2 of 3 seeds at σ = 0.1", "adam b16: no runs at σ = 1"]
    assert "Study: not known." in caption(plot)


# -- figure 2 ---------------------------------------------------------------------------------------------


def test_figure_2_crosses_what_did_not_fit_and_leaves_gaps() -> None:
    some = without(FULL, optimizer="adamw", batch_size=16, scale=0.5)
    plot = figures.plot_of("2", some, [MAIN])
    maps = {panel.title: panel for panel in plot.all_panels}
    assert sorted(maps) == sorted(f"b = {b}" for b in (16, 32, 64, 128, 256))
    first = maps["b = 16"]
    names = [row.label for row in first.rows]
    sgd, adamw = names.index("sgd"), names.index("adamw")
    assert first.crossed[sgd] == [False, False, False, True, True]
    assert not any(first.crossed[adamw])
    assert all(first.crossed[names.index("muon")])  # fitted in the end, but not when selected
    assert np.allclose(first.rows[sgd].y, accuracies(recipe(optimizer="sgd", batch_size=16)).mean(axis=1))
    assert math.isnan(first.rows[adamw].y[1])
    assert first.rows[adamw].n == [3, 0, 3, 3, 3]
    assert not maps["b = 32"].has_runs()
    assert "sgd b32: no runs" in plot.missing
    assert "adamw b16: no runs at σ = 0.5" in plot.missing


# -- figure 3 ---------------------------------------------------------------------------------------------


def test_figure_3_keeps_what_was_never_reached() -> None:
    plot = figures.plot_of("3", FULL, [MAIN])
    times = line_of(plot.rows[0][0], "sgd")
    assert times.y[:3] == [2.0, 2.0, 2.0]  # seeds 0, 1, 2 reach it at epochs 2, 3, 2
    assert all(math.isnan(y) for y in times.y[3:])
    assert times.n == [3] * 5
    assert times.n_censored == [0, 0, 0, 3, 3]
    assert plot.rows[0][0].ceiling == planted.EPOCHS
    repair = line_of(plot.rows[1][0], "adam")
    history = [planted.histories(recipe(optimizer="adam", batch_size=16), 1.0, seed) for seed in SEEDS]
    gaps = [
        100 * (h["val_accuracy"][3] - h["val_accuracy"][1 + seed % 2])
        for h, seed in zip(history, SEEDS, strict=True)
    ]
    assert repair.y[2] == pytest.approx(np.mean(gaps), rel=1e-12)
    assert plot.missing == []  # not reached is a result


def test_figure_3_shows_every_batch_size_and_the_others_say_what_they_leave_out() -> None:
    made = planted.study("mine", planted.grid(optimizer=["sgd", "adam"], batch_size=[16, 32, 128, 256]))
    records = planted.records(made)
    plot = figures.plot_of("3", records, [made])
    assert [panel.title for panel in plot.rows[0]] == ["b = 16", "b = 32", "b = 128", "b = 256"]
    for name in ("1", "4", "5", "7"):
        other = figures.plot_of(name, records, [made])
        assert "Not shown: batch sizes 32, 256" in other.notes
        assert "Not shown: batch sizes 32, 256" in caption(other)
    assert not any("batch sizes" in note for note in plot.notes)


# -- figure 4 ---------------------------------------------------------------------------------------------


def test_figure_4_sorts_the_spreads_of_all_settings() -> None:
    plot = figures.plot_of("4", planted.records(*ALL), ALL, reference=True)
    assert plot.missing == []
    panels, spreads = plot.rows
    bars = spreads[1].rows
    assert len(bars) == 14  # 12 settings, adam, long training
    assert [bar.value for bar in bars] == sorted(bar.value for bar in bars)
    means = accuracies(recipe(optimizer="sgd", learning_rate=0.01, l2=0.01, batch_size=128)).mean(axis=1)
    found = {bar.label: bar for bar in bars}
    assert found["η = 0.01, λ = 0.01"].value == pytest.approx(np.ptp(means), rel=1e-9)
    assert found["η = 0.01, λ = 0.01"].reference == 0.3
    assert found["η = 0.01, λ = 0.005"].relation == "<"
    assert found["constant η, 9 epochs"].reference == 26.0
    assert found["η = 0.1, λ = 0.01"].reference is None
    assert line_of(panels[0], "constant η, 9 epochs").n == [1] * 5


def test_spreads_compare_over_the_scales_that_all_share() -> None:
    fine = planted.study(
        "fine", planted.grid(optimizer=["sgd"], batch_size=[16]), scales=[0.1 * k for k in range(1, 31)]
    )
    both = [ALL[1], fine]
    plot = figures.plot_of("4", planted.records(*both), both)
    panel, spreads = (row[0] for row in plot.rows)
    bar = next(bar for bar in spreads.rows if bar.label == "η = 0.001, λ = 0")
    means = accuracies(recipe(optimizer="sgd", batch_size=16)).mean(axis=1)
    assert spreads.n_scales == 5
    assert bar.value == pytest.approx(np.ptp(means), rel=1e-9)  # not over the 30 scales up to 3
    assert len(line_of(panel, "η = 0.001, λ = 0").x) == 30
    assert common_grid([[1, 2, 3], [1, 3], [1, 3, 5]]) == [1, 3]


def test_a_setting_without_all_scales_has_no_spread_and_says_so() -> None:
    some = without(planted.records(ALL[1]), learning_rate=0.1, l2=0.0, batch_size=16, scale=0.1)
    some = without(some, learning_rate=0.1, l2=0.01)
    plot = figures.plot_of("4", some, [ALL[1]])
    bars = {bar.label: bar for bar in plot.rows[1][0].rows}
    assert (bars["η = 0.1, λ = 0"].value, bars["η = 0.1, λ = 0"].void) == (None, "incomplete")
    assert "η = 0.1, λ = 0.01" not in bars  # named below the figure
    assert "sgd lr=0.1 l2=0.01 b16: no runs" in plot.missing
    assert "sgd lr=0.1 b16: no runs at σ = 0.1" in plot.missing
    assert "adam lr=0.001 b128: no runs" in plot.missing
    assert "sgd lr=0.001 constant b16: no runs" in plot.missing


def test_long_training_alone_is_not_taken_for_the_sweep() -> None:
    plot = figures.plot_of("4", planted.records(ALL[2]), [ALL[2]])
    assert [line.label for line in plot.rows[0][0].series] == ["constant η, 9 epochs"]


# -- figures 5, 7, 8 --------------------------------------------------------------------------------------


def test_depth_has_a_panel_per_optimizer_and_batch_size_and_a_line_per_network() -> None:
    records = planted.records(*ALL)
    tests = figures.plot_of("5", records, ALL)
    trains = figures.plot_of("7", records, ALL)
    assert [[p.title for p in row] for row in tests.rows] == [
        ["b = 16, sgd", "b = 16, adam"],
        ["b = 128, sgd", "b = 128, adam"],
    ]
    names = ["resnet9", "resnet9-avgpool", "resnet56", "resnet110"]
    assert [line.label for line in tests.rows[0][0].series] == names
    deep = recipe(model="resnet110", patience=30, optimizer="sgd", batch_size=128)
    assert np.allclose(line_of(tests.rows[1][0], "resnet110").y, accuracies(deep).mean(axis=1))
    assert line_of(trains.rows[1][0], "resnet110").y == [100, 100, 100, 90, 90]
    assert tests.missing == trains.missing == []


def test_depth_with_other_optimizers_has_rows_of_its_own() -> None:
    both = ["resnet9", "resnet56"]
    made = planted.study(
        "deep",
        planted.grid(model=both, optimizer=["sgd", "adam", "muon"], batch_size=[16, 128])
        + planted.grid(optimizer=["adamw"], batch_size=[16, 128]),
    )
    for name in ("5", "7"):
        plot = figures.plot_of(name, planted.records(made), [made])
        # adamw ran with one network only: nothing to compare
        assert [[panel.title for panel in row] for row in plot.rows[2:]] == [
            ["b = 16, muon"],
            ["b = 128, muon"],
        ]
        assert [series.label for series in plot.rows[2][0].series] == both
        assert not any("muon" in text or "adamw" in text for text in plot.missing)


def test_networks_trained_on_other_data_are_not_put_beside_each_other() -> None:
    small = [r.model_copy(update={"train_size": 500}) for r in ALL[3].recipes]
    depth = planted.study("depth", small)
    plot = figures.plot_of("5", planted.records(MAIN, depth), [MAIN, depth])
    assert "resnet9 sgd b16: no runs" in plot.missing
    assert plot.notes == ["Not shown: 60 runs that differ in other fields"]


def test_figure_8_compares_norms_and_augmentation() -> None:
    plot = figures.plot_of("8", planted.records(*ALL), ALL, reference=True)
    labels = ["batch norm, flip-crop", "layer norm, flip-crop", "batch norm, no augmentation"]
    assert [line.label for line in plot.rows[0][0].series] == labels
    spreads = {spread.label: spread for spread in plot.rows[1][2].rows}
    assert spreads["sgd, batch norm, flip-crop"].reference == 18.9
    assert spreads["sgd, layer norm, flip-crop"].reference == 15.2
    assert (
        spreads["adam, layer norm, flip-crop"].reference,
        spreads["adam, layer norm, flip-crop"].relation,
    ) == (3.5, "<=")
    assert spreads["sgd, batch norm, no augmentation"].reference == 26.5
    gone = figures.plot_of("8", planted.records(MAIN), [MAIN])
    assert "layer flip-crop sgd b16: no runs" in gone.missing


# -- figure 6 ---------------------------------------------------------------------------------------------


def test_figure_6_shows_slopes_against_epochs_and_clocks() -> None:
    plot = figures.plot_of("6", planted.records(*ALL), ALL, reference=True)
    (sgd_panel, adaptive), _, clocks = plot.rows
    grid = [(s, seed) for s in planted.SCALES for seed in planted.SEEDS]
    sgd = recipe(optimizer="sgd", batch_size=16)
    curves = np.array([planted.histories(sgd, s, seed)["val_accuracy"] for s, seed in grid])
    slopes = np.abs([np.polyfit([s for s, _ in grid], curves[:, t], 1)[0] for t in range(planted.EPOCHS)])
    line = line_of(sgd_panel, "sgd")
    assert np.allclose(line.y, slopes, rtol=1e-9)
    assert line.x == [1, 2, 3, 4, 5, 6]
    assert line.n == [15] * 6
    assert [entry.label for entry in adaptive.series] == ["adam", "adamw", "muon"]
    assert [panel.x_title.split(",")[0] for panel in clocks] == [
        "SGD clock",
        "L2 clock",
        "sum of learning rates",
    ]
    epochs = np.arange(1, 7)
    assert np.allclose(line_of(clocks[0], "sgd, b = 128").x, 1e-3 * epochs / 128)
    assert np.allclose(line_of(clocks[1], "λ = 0.01, b = 16").x, 0.01 * epochs)  # on its own clock
    assert np.allclose(line_of(clocks[2], "adam, b = 16").x, 2e-3 * epochs)
    assert sgd_panel.published_level == 0.1
    assert adaptive.published_level is None
    assert [panel.published_level for panel in clocks] == [0.1, None, None]
    assert "sgd b32: no runs" in plot.missing


def test_the_size_of_a_slope_whose_interval_holds_zero_starts_at_zero() -> None:
    beta = np.array([0.3, -0.3, 0.1])
    low, high = folded(beta - 0.2, beta + 0.2)
    assert np.allclose(low, [0.1, 0.1, 0.0])
    assert np.allclose(high, [0.5, 0.5, 0.3])


def test_all_panels_of_a_quantity_have_the_same_kind_of_axis() -> None:
    plot = figures.plot_of("6", planted.records(*ALL), ALL)
    panel, line = plot.rows[0][0], plot.rows[0][0].series[0]
    few = plot._replace(rows=[[panel._replace(series=[line._replace(y=[0.1, 0.2, 0.0])])]])
    assert log_limits(few) == {}  # not a decade: linear
    tiny = panel._replace(series=[line._replace(y=[1e-9])])
    assert log_limits(few._replace(rows=[*few.rows, [tiny]])) == {panel.y_title: (0.2e-4, 0.4)}


def test_another_penalty_stands_in_where_the_usual_one_was_not_run() -> None:
    made = planted.study(
        "mine", planted.grid(optimizer=["sgd"], learning_rate=[1e-3, 0.05], l2=[0.0, 0.02], batch_size=[16])
    )
    plot = figures.plot_of("6", planted.records(made), [made])
    assert "sgd η = 0.05, λ = 0.02" in [line.label for line in plot.rows[0][0].series]


# -- odd runs --------------------------------------------------------------------------------------------


def test_names_of_cells_need_no_complete_recipe() -> None:
    assert name_of(("model", "optimizer"), ("linear", "muon")) == "linear muon"
    assert name_of(("optimizer", "l2", "batch_size"), ("sgd", 0.0, 16)) == "sgd b16"


def test_a_diverged_run_without_an_epoch_has_no_gap_but_an_accuracy() -> None:
    run = FULL[0].run
    empty = {name: column[:0] for name, column in planted.histories(run.recipe, 0.1, 0).items()}
    summary = FULL[0].summary.__class__(
        epochs=0, tau_best=0, test_accuracy=0.1, test_cross_entropy=2.3, norm_init=1.0
    )
    broken = RunRecord(Run(run.recipe, run.scale, run.seed), "diverged", summary, empty)
    for name in figures.NAMES:
        figures.plot_of(name, [broken, *FULL[1:]], [MAIN])
    gap, test, _ = figures.plot_of("1", [broken, *FULL[1:]], [MAIN]).rows[0]
    assert line_of(gap, "sgd").n[0] == 2
    assert line_of(test, "sgd").n[0] == 3


# -- beta of any records ----------------------------------------------------------------------------------


def test_figure_beta_draws_the_size_of_the_slope_of_every_recipe() -> None:
    records = [record for record in FULL if record.run.recipe.batch_size == 16]
    (panel,) = figures.plot_of("beta", records, [MAIN]).panels
    assert len(panel.series) == 5
    for series in panel.series:
        # planted: accuracy falls by 0.05 / epoch per unit of scale
        assert np.allclose(series.y, [0.05 / epoch for epoch in range(1, planted.EPOCHS + 1)])


def test_figure_beta_needs_a_curve_and_two_scales() -> None:
    one_scale = [record for record in FULL if record.run.scale == 1.0]
    with pytest.raises(ConfigError, match="no slope of val_accuracy: too few scales, or not recorded"):
        figures.plot_of("beta", one_scale, [MAIN])


def test_figure_beta_names_the_recipes_that_it_cannot_draw() -> None:
    adam = recipe(optimizer="adam", batch_size=16)
    records = [
        record
        for record in FULL
        if record.run.recipe.batch_size == 16 and (record.run.recipe != adam or record.run.scale == 1.0)
    ]
    plot = figures.plot_of("beta", records, [MAIN])
    assert len(plot.panels[0].series) == 4
    (missing,) = plot.missing
    assert missing.startswith("adam")
    assert missing.endswith("no slope of val_accuracy: too few scales, or not recorded epoch by epoch")
