"""Metrics: units, bounds and directions by type, also of what user code records."""

from __future__ import annotations

import math

import pytest

from initmem.metric import METRICS, metric_of
from initmem.record import COLUMNS, SUMMARY_FIELDS


def test_every_metric_that_records_hold_has_a_row() -> None:
    assert {*SUMMARY_FIELDS, *COLUMNS} <= set(METRICS)
    assert all(metric.title for metric in METRICS.values())


@pytest.mark.parametrize(
    "name", ["test_accuracy", "val_accuracy_best", "val_top5_accuracy", "balancedaccuracy"]
)
def test_accuracies_are_percentages(name: str) -> None:
    metric = metric_of(name)
    assert (metric.unit, metric.factor, metric.widest, metric.better) == ("pp", 100.0, 100.0, "higher")
    assert metric.is_percentage
    assert metric.title == f"{name.replace('_', ' ')} (%)"


@pytest.mark.parametrize("name", ["test_cross_entropy", "bleu", "norm_best", "inaccuracyrate"])
def test_anything_else_has_its_own_unit(name: str) -> None:
    metric = metric_of(name)
    assert (metric.unit, metric.factor, metric.widest) == ("", 1.0, math.inf)
    assert not metric.is_percentage


def test_a_gap_between_accuracies_is_in_points_and_may_be_negative() -> None:
    gap = metric_of("repair_gap")
    assert (gap.unit, gap.bounds, gap.is_percentage) == ("pp", (-100.0, 100.0), False)


def test_held_out_metrics_are_those_of_new_data() -> None:
    of_new_data = ["test_accuracy", "val_loss", "bleu"]
    others = ["train_accuracy", "train_bleu", "norm_best", "clock_sgd", "epochs"]
    assert [name for name in of_new_data + others if metric_of(name).held_out] == of_new_data


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("mean_reward", "higher"),
        ("episode/return_mean", "higher"),
        ("Val_F1_score", "higher"),
        ("recall@5", "higher"),
        ("train_cross_entropy", "lower"),
        ("rmse", "lower"),
        ("td_error_10", "lower"),
        ("elo", None),
        ("reward_std", None),
        ("policy_entropy", None),
        ("brier_score", None),
        ("neg_mean_squared_error", None),
        ("updates_to_90", None),
        ("norm", None),
    ],
)
def test_the_last_word_of_a_name_tells_the_direction_or_nothing_does(name: str, better: str | None) -> None:
    assert metric_of(name).better == better
