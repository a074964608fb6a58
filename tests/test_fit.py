"""Fit next to memory, on planted histories: delay, generalization, both, neither."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from initmem.measures.fit import cold_epochs, fit
from initmem.measures.memory import memory
from initmem.measures.scales import failures
from initmem.recipe import PipelineRecipe, Recipe
from initmem.record import COLUMNS, RunRecord, Summary, summarize
from initmem.study import Run

SCALES, EPOCHS = (0.1, 0.5, 1.0, 1.8, 2.5), 40

Delay = Callable[[float], float]  # the time constant of learning, in epochs, by scale
Effect = Callable[[float], float]  # the loss of accuracy on new data of a network that fits, by scale


def learned(time: np.ndarray, constant: float) -> np.ndarray:
    """Train accuracy at some times: from chance towards 1."""
    return 1 - 0.9 * np.exp(-time / constant)


def record(
    scale: float, seed: int, rng: np.random.Generator, delay: Delay, effect: Effect, noise: float = 0.005
) -> RunRecord:
    """Validation accuracy is a function of train accuracy and of the planted effect, plus noise."""
    ends = np.arange(1.0, EPOCHS + 1)
    level = noise * rng.standard_normal()
    fitted = learned(ends, delay(scale))
    history = dict.fromkeys(COLUMNS, 0.001 * ends)
    history["train_accuracy"] = learned(ends - 0.5, delay(scale))
    history["train_cross_entropy"] = 2.5 * (1.001 - history["train_accuracy"])
    history["val_accuracy"] = 0.1 + (0.8 - effect(scale)) * (fitted - 0.1) / 0.9 + level
    history["val_accuracy"] += 0.1 * noise * rng.standard_normal(EPOCHS)
    history["val_objective"] = EPOCHS - ends  # the last epoch is selected
    test = history["val_accuracy"][-1] + 0.3 * noise * rng.standard_normal()
    recipe = Recipe.parse({"dataset": "digits", "epochs": EPOCHS, "batch_statistics": "re-estimated"})
    summary = summarize(history, norm_init=scale, test_accuracy=float(test))
    return RunRecord(Run(recipe, scale, seed), "completed", summary, history)


def study(number: int, delay: Delay, effect: Effect, seeds: int = 5) -> list[RunRecord]:
    rng = np.random.default_rng(number)
    return [record(scale, seed, rng, delay, effect) for seed in range(seeds) for scale in SCALES]


def same(scale: float) -> float:
    return 5.0


def slower(scale: float) -> float:
    return 8.0 + 6 * scale


def none(scale: float) -> float:
    return 0.0


def some(scale: float) -> float:
    return 0.03 * scale


def modes(delay: Delay, effect: Effect, studies: int = 60) -> list[str | None]:
    return [memory(study(i, delay, effect)).mode for i in range(studies)]


def test_pure_delay_is_trainability() -> None:
    found = modes(slower, none)
    assert found.count("trainability") >= 0.95 * len(found)


def test_an_effect_at_equal_fit_is_generalization() -> None:
    assert set(modes(same, some, 20)) == {"generalization"}


def test_an_effect_at_unequal_fit_is_found_by_matching() -> None:
    found = modes(slower, some, 40)
    assert found.count("generalization") >= 0.95 * len(found)
    measured = fit(study(0, slower, some))
    # At a train accuracy L the validation accuracy is lower by the effect times (L - 0.1) / 0.9.
    expected = 100 * (some(2.5) - some(0.1)) * (measured.matched.level - 0.1) / 0.9
    assert measured.matched.memory == pytest.approx(expected, abs=1.0)


def test_no_memory_gives_few_false_alarms() -> None:
    verdicts = [memory(study(i, same, none)).verdict for i in range(60)]
    assert verdicts.count("remembers") <= 6  # 3 are expected


def test_the_split_recovers_both_parts_to_rounding() -> None:
    records = study(3, slower, some)
    found = fit(records)

    def mean(scale: float, name: str) -> float:
        return 100 * float(np.mean([r.metric(name) for r in records if r.run.scale == scale]))

    train = mean(2.5, "train_accuracy") - mean(0.1, "train_accuracy")
    test = mean(2.5, "test_accuracy") - mean(0.1, "test_accuracy")
    assert found.train_change.value == pytest.approx(train, abs=1e-9)
    assert found.test_change.value == pytest.approx(test, abs=1e-9)
    assert found.test_change.value == pytest.approx(
        found.train_change.value - found.gap_change.value, abs=1e-9
    )


def test_the_split_is_exact_where_a_seed_has_no_test_result() -> None:
    records = study(5, slower, some)
    untested = replace(records[0], summary=replace(records[0].summary, test_accuracy=None))
    lower = dict(records[4].history) | {"train_accuracy": 0.9 * records[4].history["train_accuracy"]}
    found = fit([untested, *records[1:4], replace(records[4], history=lower), *records[5:]])
    assert found.test_change.value == pytest.approx(
        found.train_change.value - found.gap_change.value, abs=1e-9
    )
    others = fit(records[5:])  # the seed is left out of all three
    assert found.train_change == pytest.approx(others.train_change)


def test_the_paired_interval_of_a_change_is_scipys() -> None:
    from scipy.stats import ttest_1samp

    records = study(4, same, some)
    found = fit(records)
    values = {(r.run.seed, r.run.scale): r.summary.test_accuracy for r in records}
    changes = [100 * (values[seed, 2.5] - values[seed, 0.1]) for seed in range(5)]
    interval = ttest_1samp(changes, 0.0).confidence_interval(0.95)
    assert found.test_change[1:] == pytest.approx((interval.low, interval.high))


def test_crossings_are_interpolated_at_the_middle_of_epochs() -> None:
    found = fit([record(s, k, np.random.default_rng(0), slower, none, 0.0) for s in SCALES for k in range(2)])
    # 1 - 0.9 exp(-t / constant) passes the level at -constant log((1 - level) / 0.9).
    exact = [-slower(scale) * math.log((1 - found.time.level) / 0.9) for scale in SCALES]
    assert found.time.epochs == pytest.approx(exact, rel=0.01)
    assert found.time.ratio == pytest.approx(slower(2.5) / slower(0.1), rel=0.01)
    assert found.matched.memory < 0.2  # the same curve, slower
    assert found.matched_by_loss.memory < 0.2


def moving(scale: float, seed: int, **fields: object) -> RunRecord:
    """A run of 40 epochs with 68 updates each whose batch norm is evaluated with moving averages."""
    recipe = Recipe.parse({"dataset": "digits", "epochs": EPOCHS, "batch_size": 16, **fields})
    one = record(scale, seed, np.random.default_rng(seed), same, none)
    history = dict(one.history) | {"clock_adaptive": 68 * recipe.learning_rate * np.arange(1.0, EPOCHS + 1)}
    return RunRecord(Run(recipe, scale, seed), "completed", one.summary, history)


@pytest.mark.parametrize(("scale", "updates"), [(2.5, 390), (1.0, 390), (0.5, 527), (0.1, 848)])
def test_epochs_are_cold_until_the_starting_value_is_two_percent_of_the_variance(
    scale: float, updates: int
) -> None:
    cold = cold_epochs(moving(scale, 0))
    assert 68 * cold < updates <= 68 * (cold + 1)
    assert 0.99 ** (68 * (cold + 1)) <= 0.02 * min(1.0, scale) ** 2 < 0.99 ** (68 * cold)


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_statistics": "re-estimated"},
        {"norm": "layer"},
        {"optimizer": "schedule-free-sgd"},
    ],
)
def test_other_statistics_are_never_cold(fields: dict[str, object]) -> None:
    assert cold_epochs(moving(0.1, 0, **fields)) == 0


def test_scales_that_cross_in_cold_epochs_are_not_compared() -> None:
    # All reach 99.5% after about 26 epochs; with a tenth of the updates per epoch all of them are cold.
    runs = [moving(scale, seed) for seed in range(3) for scale in SCALES]
    found = fit(runs)
    assert found.matched.scales == SCALES
    slow = [
        RunRecord(
            r.run,
            r.status,
            r.summary,
            dict(r.history) | {"clock_adaptive": 0.1 * r.history["clock_adaptive"]},
        )
        for r in runs
    ]
    refused = fit(slow)
    assert isinstance(refused.matched, str)
    assert "before validation can be used" in refused.matched


def test_late_generalization_counts_equal_fit_in_the_last_epoch() -> None:
    """Grokking: all networks fit at once, and generalize long afterwards, when depends on the scale."""
    runs = []
    for seed in range(5):
        for scale in SCALES:
            one = record(scale, seed, np.random.default_rng(seed), lambda _: 0.5, none)
            ends = np.arange(1.0, EPOCHS + 1)
            rise = 1 / (1 + np.exp(-(ends - 10 - 12 * scale)))
            noise = 0.003 * np.random.default_rng(int(100 * seed + 10 * scale)).standard_normal()
            history = dict(one.history) | {"val_accuracy": 0.1 + 0.8 * rise + noise}
            if scale == 2.5:  # the first epoch is selected, before the data are fitted
                history["val_objective"] = ends
            summary = summarize(history, norm_init=scale, test_accuracy=float(history["val_accuracy"][-1]))
            runs.append(RunRecord(one.run, "completed", summary, history))
    found = fit(runs)
    assert found.late
    assert max(found.train) - min(found.train) > 10
    assert memory(runs).mode == "generalization"


def test_user_code_without_a_train_metric_is_told() -> None:
    records = []
    for seed in range(5):
        for scale in SCALES:
            rng = np.random.default_rng(100 * seed + int(10 * scale))
            accuracy = 0.9 - 0.1 * scale + 0.002 * rng.standard_normal(3)
            history = {"val_loss": np.array([3.0, 2.0, 1.0]), "test_accuracy": accuracy}
            summary = summarize(history, norm_init=None, test_accuracy=float(accuracy[-1]))
            run = Run(PipelineRecipe.parse({"pipeline": "mine"}), scale, seed)
            records.append(RunRecord(run, "completed", summary, history))
    found = memory(records)
    assert found.verdict_text.startswith("remembers: fit unknown")
    assert any("train_accuracy" in note for note in found.notes)


def test_measures_over_time_name_the_epochs_that_they_leave_out() -> None:
    from initmem.measures.beta import beta_curve
    from initmem.measures.design import shared_notes
    from initmem.measures.fit import cold_remarks

    cold = [moving(scale, seed) for seed in range(3) for scale in SCALES]
    warm = [moving(scale, seed, batch_statistics="re-estimated") for seed in range(3) for scale in SCALES]
    left_out = np.isnan(beta_curve(cold).beta)
    assert left_out.tolist() == [True] * 12 + [False] * 28  # 848 updates of 68 an epoch, at scale 0.1
    assert not np.isnan(beta_curve(warm).beta).any()
    assert np.array_equal(beta_curve(cold).beta[12:], beta_curve(warm).beta[12:])
    (line,) = shared_notes([("cold", cold_remarks(cold)), ("warm", cold_remarks(warm))])
    assert line.startswith("cold: epochs 1 to 12 are left out")


@pytest.mark.parametrize(
    ("loss", "level"), [(2.92, 3.0), (2.0, 2.0), (0.0123, 0.013), (99.1, 100.0), (-0.5, -0.5)]
)
def test_a_common_loss_is_rounded_up_to_two_digits(loss: float, level: float) -> None:
    from initmem.measures.fit import _rounded_up

    assert _rounded_up(loss) == pytest.approx(level)


def rewarded(metric: str, train: str, seeds: int = 6) -> list[RunRecord]:
    """Runs whose reward falls with the scale, also where they fit equally well, and which fit unequally."""
    records = []
    for seed in range(seeds):
        for scale in SCALES:
            noise = 0.002 * np.random.default_rng(100 * seed + int(10 * scale)).standard_normal()
            progress = np.linspace(0, 1 / (1 + 0.1 * scale), 9)
            history = {
                train: 10 * progress if "reward" in train else 2 - progress,
                "val_loss": 2 - progress + 0.2 * scale + noise,
                metric: progress - 0.3 * scale + noise,
            }
            run = Run(PipelineRecipe.parse({"pipeline": "reinforce"}), scale, seed)
            records.append(RunRecord(run, "completed", summarize(history, norm_init=None), history))
    return records


def test_the_mode_follows_the_direction_of_a_metric_of_user_code() -> None:
    assert memory(rewarded("mean_reward", "train_loss"), "mean_reward").mode == "generalization"
    assert memory(rewarded("cost", "train_loss"), "cost").mode == "trainability"
    unclear = memory(rewarded("elo", "train_loss"), "elo")
    assert unclear.mode == "fit unknown"
    assert any("whether a higher or a lower elo is better is not known" in note for note in unclear.notes)


def test_a_train_reward_is_matched_at_a_level_that_all_runs_reach() -> None:
    found = fit(rewarded("reward", "train_reward"), "reward")
    assert found is not None and not isinstance(found.matched, str)
    assert (found.metric, found.matched.by) == ("train_reward", "train_reward")
    assert found.matched.level == pytest.approx(10 / (1 + 0.1 * max(SCALES)))
    assert found.matched.memory == pytest.approx(0.2 * (max(SCALES) - min(SCALES)), abs=0.02)
    assert fit(rewarded("elo", "train_elo"), "elo") is None
    notes = memory(rewarded("elo", "train_elo"), "elo").notes
    assert any("whether a higher or a lower train_elo is better is not known" in note for note in notes)


def test_a_rising_train_reward_is_progress() -> None:
    records = rewarded("reward", "train_reward")
    alone = [replace(r, history={"train_reward": r.history["train_reward"]}) for r in records]
    assert failures(alone).untrained == 0


@pytest.mark.parametrize("total", [1e300, math.inf, math.nan, 1e7])
def test_absurd_clocks_cost_nothing(total: float, monkeypatch) -> None:
    """A clock from an archive of somebody else may stand for any number of updates."""
    asked = []

    def rates(recipe: Recipe, n_train: int, epoch: int) -> np.ndarray:
        asked.append(n_train // recipe.batch_size)
        return np.full(1, recipe.learning_rate)

    monkeypatch.setattr("initmem.measures.fit.epoch_rates", rates)
    recipe = Recipe.parse({"learning_rate": 1e-3})
    history = {"clock_adaptive": np.array([total])}
    record = RunRecord(Run(recipe, 0.1, 0), "completed", Summary(epochs=1), history)
    assert cold_epochs(record) >= 0
    assert max(asked) <= 1e6
