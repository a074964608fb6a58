"""A published value belongs to the procedure that it was published for, and to no other."""

from __future__ import annotations

import pytest

from initmem.paper.reference import find, references
from initmem.recipe import PipelineRecipe, Recipe

MAIN = {"batch_size": 16}


@pytest.mark.parametrize(
    "fields",
    [
        {"scaled": "biases"},
        {"distribution": "orthogonal"},
        {"bias_std": 0.0},
        {"width_scaling": "mup"},
        {"layer_scales": "output=0.5"},
        {"lr_floor": 0.5},
        {"patience": 5},
        {"schedule": "constant"},
        {"warmup": 100},
        {"weight_decay": 0.1},
        {"dataset": "digits"},
        {"model": "resnet9-avgpool"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_another_procedure_has_no_published_value(fields: dict[str, object]) -> None:
    assert str(find("figure 1", Recipe.parse(MAIN), "spread")) == "22.8"
    assert find("figure 1", Recipe.parse(MAIN | fields), "spread") is None


@pytest.mark.parametrize("size", [{"width": 16}, {"epochs": 12}, {"train_size": 5000}])
def test_an_effort_may_change_the_size(size: dict[str, object]) -> None:
    assert str(find("figure 1", Recipe.parse(MAIN | size), "spread")) == "22.8"


def test_settings_of_the_optimizer_are_part_of_the_procedure() -> None:
    adamw = {"optimizer": "adamw"}
    assert str(find("figure 1", Recipe.parse(adamw), "spread")) == "4.7"
    assert find("figure 1", Recipe.parse(adamw | {"weight_decay": 0.1}), "spread") is None
    standard = {"optimizer": "momentum", "learning_rate": 0.1, "l2": 5e-4, "augment": "flip-crop"}
    assert str(find("table 7", Recipe.parse(standard), "gap")) == "0.0"
    assert find("table 7", Recipe.parse(standard | {"momentum": 0.5}), "gap") is None


def test_user_code_has_no_published_value() -> None:
    mine = PipelineRecipe.parse({"pipeline": "mine", "optimizer": "sgd", "batch_size": 16})
    assert not any(item.fits(mine) for item in references())


def test_every_spread_says_over_how_many_scales() -> None:
    for item in references():
        assert (item.n_scales is not None) == (item.quantity in ("spread", "gap"))
    assert {item.n_scales for item in references() if item.study == "main-grid"} == {25, None}


def test_adam_stays_within_limits_in_all_three_configurations() -> None:
    for fields in ({}, {"augment": "flip-crop"}, {"augment": "flip-crop", "norm": "layer"}):
        for batch_size in (16, 128):
            recipe = Recipe.parse({"optimizer": "adam", "batch_size": batch_size} | fields)
            assert str(find("table 6", recipe, "spread")) == "≤ 3.5"
