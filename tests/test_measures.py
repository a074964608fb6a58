"""Norm elasticity, interpolation, chaos, seed variance and differences, on planted records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import planted
from conftest import fake_record
from initmem.errors import ConfigError
from initmem.measures.chaos import chaos, seed_variance
from initmem.measures.design import curves, levels, plain
from initmem.measures.difference import controlled_pairs, difference
from initmem.measures.elasticity import norm_elasticity
from initmem.measures.measure import measure
from initmem.measures.memory import memory
from initmem.measures.scales import median_interpolation
from initmem.recipe import PipelineRecipe, Recipe
from initmem.record import RunRecord, crashed, summarize
from initmem.store.results import Collection
from initmem.study import PERTURBATION, Run, Study

RECIPE = Recipe(dataset="digits")
SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)


def with_summary(run: Run, **fields):
    record = fake_record(run, fields.pop("test_accuracy", 0.5))
    return replace(record, summary=replace(record.summary, **fields))


@pytest.mark.parametrize("power", [0.0, 0.4, 1.0])
def test_norm_elasticity_is_the_slope_of_the_log_norms(power: float) -> None:
    rng = np.random.default_rng(0)
    records = [
        with_summary(
            Run(RECIPE, s, k), norm_init=10 * s, norm_best=7 * s**power * np.exp(0.01 * rng.normal())
        )
        for s in SCALES
        for k in range(4)
    ]
    found = norm_elasticity(records)
    x, y = np.log([[r.summary.norm_init, r.summary.norm_best] for r in records]).T
    assert found.elasticity == pytest.approx(stats.linregress(x, y).slope, rel=1e-9, abs=1e-12)
    assert found.low <= power <= found.high or abs(found.elasticity - power) < 0.01
    assert (found.n_runs, found.n_seeds) == (20, 4)
    assert norm_elasticity(records[:1]) is None
    # At the level of an interim analysis the interval is wider by the ratio of Student's quantiles.
    interim = norm_elasticity(records, alpha=0.01)
    ratio = stats.t.isf(0.005, 3) / stats.t.isf(0.025, 3)
    assert (interim.high - interim.low) / (found.high - found.low) == pytest.approx(ratio)
    plan = Study("s", "", "full", "", (RECIPE,), SCALES, tuple(range(4)), schedule=(4, 8))
    (row,) = measure(Collection(records, [plan]), "radial")
    level = levels((4, 8))[0]
    assert row["high"] == pytest.approx(norm_elasticity(records, alpha=level).high) != found.high


def test_the_median_interpolation_epoch_is_from_the_product_over_event_times() -> None:
    """Kaplan and Meier's product, with Greenwood's variance on the log(-log) scale, step by step."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        times, reached = rng.integers(1, 30, 40), rng.random(40) < rng.uniform(0.3, 1.0)
        records = [
            with_summary(Run(RECIPE, 1.0, seed), epochs=int(t), tau_interp=int(t) if r else None)
            for seed, (t, r) in enumerate(zip(times, reached, strict=True))
        ]
        halves: dict[str, float] = {}
        share, variance = 1.0, 0.0
        for t in sorted(set(times[reached])):
            at_risk, events = (times >= t).sum(), ((times == t) & reached).sum()
            share *= 1 - events / at_risk
            limits = {"median": share, "low": share, "high": share}
            if share > 0:
                variance += events / (at_risk * (at_risk - events))
                half = stats.norm.ppf(0.975) * np.sqrt(variance) / abs(np.log(share))
                limits |= {"low": share ** np.exp(half), "high": share ** np.exp(-half)}
            for name, limit in limits.items():
                if limit <= 0.5:
                    halves.setdefault(name, float(t))
        found = median_interpolation(records)
        assert found[:3] == tuple(halves.get(name) for name in ("median", "low", "high"))
        assert (found.n, found.n_censored) == (40, (~reached).sum())


def test_runs_that_never_interpolate_count_as_late() -> None:
    def record(seed: int, tau: int | None):
        return with_summary(Run(RECIPE, 1.0, seed), epochs=30, tau_interp=tau)

    early = [record(k, 10 + k) for k in range(3)]
    late = [record(10 + k, None) for k in range(2)]
    found = median_interpolation(early + late)
    assert (found.median, found.n, found.n_censored) == (12.0, 5, 2)
    mostly_late = median_interpolation(early[:2] + late + [record(99, None)])
    assert mostly_late.median is None
    assert median_interpolation(early).median == 11.0


def perturbed_replicates(study: Study, drift: float):
    rng = np.random.default_rng(2)
    base = {(s, k): 0.8 + 0.01 * rng.normal() for s in study.scales for k in study.seeds}
    return [
        fake_record(run, base[run.scale, run.seed] + (drift * rng.normal() if run.perturbation != 1 else 0))
        for run in study.all_runs()
    ]


def test_the_chaos_is_what_perturbed_replicates_differ_by() -> None:
    study = Study("s", "", "full", "", (RECIPE,), SCALES, tuple(range(40)), perturbation=PERTURBATION)
    assert len(study.all_runs()) == 2 * 200
    found = chaos(perturbed_replicates(study, drift=0.02))
    # Only one of each pair drifted here, so a run's own share is the drift over the root of two.
    assert found["deviation"] == pytest.approx(2 / np.sqrt(2), rel=0.15)
    assert found["n_pairs"] == 200
    assert found["noise_range"] == pytest.approx(2.326 * found["deviation"] / np.sqrt(40), rel=0.05)
    none = chaos(perturbed_replicates(study, drift=0.0))
    assert (none["deviation"], none["noise_range"], none["n_pairs"]) == (None, None, 0)
    assert none["note"] == "not measured: the perturbation changed nothing in 200 of 200 pairs"
    some = perturbed_replicates(study, drift=0.0)[:-100] + perturbed_replicates(study, drift=0.02)[-100:]
    assert chaos(some)["n_pairs"] == 100 and chaos(some)["note"].endswith("in 100 of 200 pairs")
    assert chaos(some)["deviation"] == pytest.approx(2 / np.sqrt(2), rel=0.2)
    assert chaos([r for r in perturbed_replicates(study, 0.1) if r.run.perturbation == 1]) is None


def test_seed_variance_is_split_by_role() -> None:
    study = Study(
        "s", "", "full", "", (RECIPE,), SCALES, tuple(range(30)), split=("init", "order", "augment")
    )
    rng = np.random.default_rng(3)
    effect = {(role, seed): rng.normal() for role in ("init", "order", "augment") for seed in range(30)}
    size = {"init": 0.03, "order": 0.01, "augment": 0.0}

    def value(run: Run) -> float:
        return 0.5 + sum(size[role] * effect[role, run.seed_of(role)] for role in size)

    rows = {row["role"]: row for row in seed_variance([fake_record(r, value(r)) for r in study.all_runs()])}
    for role in size:
        expected = 100 * size[role] * np.std([effect[role, s] for s in range(30)], ddof=1)
        assert rows[role]["deviation"] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert rows["init"]["low"] < rows["init"]["deviation"] < rows["init"]["high"]
    assert rows["init"]["share"] == pytest.approx(0.9, abs=0.2)
    assert rows["augment"]["share"] == pytest.approx(0, abs=1e-9)


def test_perturbed_and_split_runs_do_not_enter_the_memory() -> None:
    study = Study(
        "s", "", "full", "", (RECIPE,), SCALES, (0, 1, 2), perturbation=PERTURBATION, split=("init",)
    )
    records = [
        fake_record(run, 0.5 if run.perturbation == 1 and not run.pins else 0.1 * run.scale)
        for run in study.all_runs()
    ]
    assert len(plain(records)) == 15
    assert memory(records).memory == 0
    values, scales, _ = curves(records, "val_accuracy")
    assert values.shape == (3, 5, 4)
    assert tuple(scales) == SCALES
    assert len({run.id for run in study.all_runs()}) == len(study.all_runs()) == 15 + 15 + 10


def test_a_pinned_study_is_a_plain_one() -> None:
    study = Study("s", "", "full", "", (RECIPE,), SCALES, (0, 1), pins=(("order", 7),))
    records = [fake_record(run, 0.9 - 0.1 * run.scale) for run in study.all_runs()]
    assert memory(records).n_seeds == 2
    assert len(plain(records)) == 10


def test_more_seeds_for_one_recipe() -> None:
    adam = Recipe(dataset="digits", optimizer="adam")
    study = Study("s", "", "full", "", (RECIPE, adam), SCALES, (0, 42))
    more = study.with_more_seeds(adam, 3)
    assert len(more.runs(RECIPE)) == 10
    assert [run.seed for run in more.runs(adam)[::5]] == [0, 42, 1, 2, 3]
    assert Study.from_json(more.to_json()) == more


def planted_memory(recipe: Recipe, memory: float, *, seeds: int = 5, scales=SCALES, noise: float = 0.002):
    """Test accuracy falls by `memory` from the first to the last scale."""
    rng = np.random.default_rng(int(1000 * memory) + recipe.batch_size)
    return [
        fake_record(Run(recipe, s, k), 0.8 - memory * i / (len(scales) - 1) + noise * rng.normal())
        for k in range(seeds)
        for i, s in enumerate(scales)
    ]


def test_a_difference_of_memories_has_an_interval_that_holds_the_truth() -> None:
    much, little = planted_memory(RECIPE, 0.2), planted_memory(Recipe(dataset="digits", l2=0.01), 0.05)
    found = difference(much, little)
    assert found["low"] < -15 < found["high"] < 0
    assert found["significant"]
    assert (found["n_scales"], found["n_seeds"]) == (5, 5)
    back = difference(little, much)
    assert (back["low"], back["high"]) == pytest.approx((-found["high"], -found["low"]), abs=0.1)
    same = difference(much, planted_memory(Recipe(dataset="digits", batch_size=16), 0.2))
    assert same["low"] < 0 < same["high"]
    assert not same["significant"]
    none = difference(planted_memory(RECIPE, 0.0), planted_memory(Recipe(dataset="digits", l2=0.01), 0.0))
    assert (found["method"], none["method"]) == ("paired", "intervals")
    assert none["p"] > 0.05 and not none["significant"]


def test_a_difference_is_taken_over_shared_scales_and_seeds() -> None:
    whole = planted_memory(RECIPE, 0.2)
    part = planted_memory(Recipe(dataset="digits", l2=0.01), 0.05, seeds=3, scales=SCALES[:3])
    found = difference(whole, part)
    assert (found["n_scales"], found["n_seeds"]) == (3, 3)
    assert found["before"] == pytest.approx(10, abs=0.5)  # of 20 points, half the way
    assert difference(whole, part[:3]) is None  # one seed
    assert difference(whole, [r for r in part if r.run.scale == SCALES[0]]) is None


def test_controlled_pairs_differ_in_one_field() -> None:
    recipes = planted.grid(optimizer=["sgd", "adamw"], batch_size=[16, 32], l2=[0.0, 0.1])
    pairs = controlled_pairs(recipes)
    assert len(pairs) == 3 * 4  # the edges of a cube; adamw's own weight decay is no change beside it
    assert {field for _, _, field in pairs} == {"optimizer", "batch_size", "l2"}
    for one, other, field in pairs:
        assert one.model_copy(update={field: getattr(other, field)}).changes()[field] == getattr(other, field)


def test_differences_are_adjusted_over_all_pairs_as_asked() -> None:
    every = [
        r
        for i, lr in enumerate((0.1, 0.2, 0.3))
        for r in planted_memory(RECIPE.replace(learning_rate=lr), 0.05 + 0.003 * i)
    ]
    ps = [row["p"] for row in measure(every, "difference")]
    assert len(ps) == 3
    for method, expected in (("bh", list(stats.false_discovery_control(ps))), ("none", ps)):
        rows = measure(every, "difference", adjust=method)
        assert [row["p_adjusted"] for row in rows] == pytest.approx(expected)
    with pytest.raises(ConfigError, match=r"adjust = 'best' \(allowed: bh, none\)"):
        measure(every, "difference", adjust="best")
    with pytest.raises(
        ConfigError, match=r"adjust does nothing with what = 'beta' \(allowed: memory, fit, diff"
    ):
        measure(every, "beta", adjust="none")


def test_failures_are_counted_by_scale() -> None:
    records = [
        replace(r, status="diverged") if r.run.scale == 2.5 and r.run.seed < 3 else r
        for r in planted_memory(RECIPE, 0.0)
    ]
    rows = measure(records, "failures")
    assert [(row["scale"], row["untrained"], row["n"]) for row in rows] == [
        *((scale, 0, 5) for scale in SCALES[:-1]),
        (2.5, 3, 5),
    ]
    assert rows[-1]["low"] == pytest.approx(stats.binomtest(3, 5).proportion_ci(method="exact").low)
    assert rows[0]["p"] == rows[-1]["p"] < 0.05


def test_where_no_accuracy_was_recorded_the_slope_is_that_of_the_loss() -> None:
    recipe = PipelineRecipe.parse({"pipeline": "gpt", "optimizer": "sgd"})
    study = planted.study("own", [recipe], scales=[0.5, 1.0, 2.0])
    epochs = np.arange(1.0, 9.0)
    records = []
    for run in study.all_runs():
        loss = 2.0 + 0.4 * run.scale * 0.5**epochs + 0.001 * run.seed  # halves with every epoch
        summary = summarize({"val_loss": loss}, norm_init=None, test_accuracy=None, test_loss=None)
        ticks = {"clock_sgd": epochs, "clock_momentum": epochs}
        records.append(RunRecord(run, "completed", summary, {"val_loss": loss, **ticks}))
    (row,) = measure(records, "beta")
    assert (row["metric"], row["peak_epoch"]) == ("val_loss", 1)
    assert (row["peak"], row["last"]) == pytest.approx((0.2, 0.4 * 0.5**8))
    lives = measure(records, "half-life")
    assert {(life["metric"], life["unit"]) for life in lives} == {("val_loss", "epochs"), ("val_loss", "sgd")}
    assert lives[0]["value"] == pytest.approx(1.0)
    (chosen,) = measure(records, "beta", metric="clock_sgd")
    assert chosen["metric"] == "clock_sgd"
    assert measure([crashed(record.run, "ValueError", {}) for record in records], "beta") == []
