"""A published value belongs to the procedure that it was published for, and to no other."""

from __future__ import annotations

import re

import pytest

import planted
from initmem.paper import figures, tables
from initmem.paper.reference import clock_of, find, memory_of, references, stated
from initmem.plots.model import Plot
from initmem.recipe import PipelineRecipe, Recipe
from initmem.theory.figure9 import adam_path, gradient_path
from initmem.train.modules import catalogue

MAIN = {"batch_size": 16}


@pytest.mark.parametrize(
    "fields",
    [
        {"scaled": "biases"},
        {"distribution": "orthogonal"},
        {"bias_std": 0.0},
        {"mup_base": 16},
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
def test_an_preset_may_change_the_size(size: dict[str, object]) -> None:
    assert str(find("figure 1", Recipe.parse(MAIN | size), "spread")) == "22.8"


@pytest.mark.parametrize("reading", [{"select_by": "cross-entropy"}, {"train_eval": True}])
def test_a_value_stands_beside_either_reading_of_what_the_paper_leaves_open(
    reading: dict[str, object],
) -> None:
    recipe = Recipe.parse(MAIN | reading)
    assert recipe.id != Recipe.parse(MAIN).id
    assert str(find("figure 1", recipe, "spread")) == "22.8"


def test_where_several_values_are_published_the_one_of_the_place_is_shown() -> None:
    adam = Recipe.parse({"optimizer": "adam"})
    augmented = adam.replace(augment="flip-crop")
    assert [str(memory_of(adam, where)) for where in ("figure 1", "table 6", "")] == ["4.3", "≤ 3.5", "4.3"]
    assert [str(memory_of(augmented, where)) for where in ("table 7", "figure 8")] == ["0.6", "≤ 3.5"]
    assert str(memory_of(augmented, "figure 5")) == "≤ 3.5"  # shown nowhere there, but of this procedure
    assert memory_of(adam.replace(l2=1e-3)) is None


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


def test_published_clocks_are_those_of_a_constant_rate() -> None:
    """The paper's arithmetic: K = epochs x 40,000 / b updates, without the cosine."""
    cases = [
        ({"batch_size": 128}, "sgd", 300 * 40_000 / 128 * 1e-6 / 128),
        (
            {"batch_size": 128, "schedule": "constant", "epochs": 5000},
            "sgd",
            5000 * 40_000 / 128 * 1e-6 / 128,
        ),
        ({"batch_size": 16, "learning_rate": 1e-2}, "sgd", 300 * 40_000 / 16 * 1e-4 / 16),
        ({"learning_rate": 1e-2, "l2": 1e-3}, "l2", 300 * 40_000 / 128 * 1e-2 * 1e-3),
        ({"learning_rate": 1e-2, "l2": 5e-3}, "l2", 300 * 40_000 / 128 * 1e-2 * 5e-3),
    ]
    for fields, clock, by_hand in cases:
        assert clock_of(Recipe.parse(fields), clock) == pytest.approx(by_hand, rel=0.02)
        assert clock_of(Recipe.parse(fields | {"epochs": 12}), clock) is None  # a clock depends on the size
    assert clock_of(Recipe.parse({"batch_size": 128}), "l2") is None


def test_other_published_numbers_agree_with_what_is_computed_here() -> None:
    def millions(model: str) -> float | None:
        return stated("parameters", model=model).get("millions")

    def imbalance(panel: str, eta: float) -> float | None:
        return stated("imbalance", panel=panel, eta=eta).get("D")

    assert all(millions(row["name"]) in (None, round(row["total"] / 1e6, 2)) for row in catalogue())
    assert [millions(name) for name in ("resnet9", "resnet56", "mlp")] == [6.58, 0.86, None]
    for path, panel, targets in ((gradient_path, "a", [1.0] * 20), (adam_path, "c", [1.0] * 5000)):
        a, b = path(0.04, targets)[-1]
        assert imbalance(panel, 0.04) == round(a * a - b * b)
    assert imbalance("b", 0.01) == imbalance("d", 0.04) == 0
    assert imbalance("a", 0.02) is None


def test_every_place_that_a_value_is_said_to_be_shown_shows_it() -> None:
    """By making every figure and table of a planted store of all studies."""
    studies = planted.everything()
    studies.append(
        planted.study("more", planted.grid(optimizer=planted.OPTIMIZERS, batch_size=(32, 64, 256)))
    )
    records = planted.records(*studies)
    (best,) = (study for study in studies if study.name == "best-recipe")
    alone = planted.records(best)  # figures 1 and 2 prefer the main grid
    shown = {
        f"figure {n}": drawn(figures.plot_of(n, records, studies, True))
        | drawn(figures.plot_of(n, alone, [best], True))
        for n in figures.NAMES
    }
    for name in tables.NAMES:
        table = tables.make(name, records, studies, reference=True)
        shown[f"table {name}"] = {cell.text for row in table.rows for cell in row}
    for item in references():
        for place in item.shown:
            value = str(item) if place.startswith("table") else item.value
            assert value in shown[place], (place, item)


def drawn(plot: Plot) -> set[float | str | None]:
    """All published values of a figure."""
    marks = {y for panel in plot.panels for mark in panel.published for y in mark.y}
    levels = {panel.published_level for panel in plot.panels}
    words = {float(number) for text in plot.published for number in re.findall(r"≈ (\d+)", text)}
    return marks | levels | words | {row.reference for row in plot.intervals}
