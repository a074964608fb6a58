from __future__ import annotations

import pytest

from initmem.errors import ConfigError
from initmem.labels import labels
from initmem.recipe import Recipe


def test_defaults_are_the_main_grid() -> None:
    recipe = Recipe()
    assert (recipe.dataset, recipe.model, recipe.width) == ("cifar10", "resnet9", 64)
    assert (recipe.optimizer, recipe.learning_rate, recipe.lr_floor) == ("sgd", 1e-3, 0.01)
    assert (recipe.batch_size, recipe.epochs, recipe.bias_std) == (128, 300, 0.2)
    assert recipe.changes() == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model": "resnet56"}, {"width": 16}),
        ({"optimizer": "adamw"}, {"weight_decay": 1e-4}),
        ({"optimizer": "muon"}, {"weight_decay": 1e-4, "momentum": 0.95}),
        ({"optimizer": "adam"}, {"weight_decay": 0.0}),
    ],
)
def test_derived_defaults_are_filled_in_and_are_no_change(fields, expected) -> None:
    recipe = Recipe.parse(fields)
    assert {name: getattr(recipe, name) for name in expected} == expected
    assert recipe.changes() == fields
    assert Recipe.parse(fields | expected).id == recipe.id


def test_all_bad_fields_are_named_at_once_with_value_and_what_is_allowed() -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.parse(
            {"optimizer": "sgdd", "batch_size": 0, "learnin_rate": 1.0, "dataset": "imagenet", "l2": "much"}
        )
    text = str(caught.value)
    assert "optimizer = 'sgdd'" in text
    assert "muon-conv" in text
    assert "batch_size = 0 (allowed: greater than or equal to 1)" in text
    assert "unknown field learnin_rate = 1.0 (did you mean learning_rate?" in text
    assert "dataset = 'imagenet' (allowed: digits, cifar10, cifar100" in text
    assert "l2 = 'much'" in text
    assert "\n" not in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0, True, "1e-3"])
def test_a_learning_rate_is_a_positive_number(value) -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        Recipe.parse({"learning_rate": value})


def test_labels_say_what_tells_recipes_apart() -> None:
    recipes = [
        Recipe(optimizer="sgd", batch_size=16),
        Recipe(optimizer="adam", batch_size=16),
        Recipe(optimizer="sgd", batch_size=128, l2=1e-2),
    ]
    assert labels(recipes) == ["sgd b16", "adam b16", "sgd l2=0.01 b128"]
    assert labels(recipes[:1]) == ["sgd"]
    assert labels([]) == []
