"""Interventions in user code: words of initmem and functions of the user, at the start and in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import initmem
from initmem.errors import ConfigError
from initmem.pipeline.init import Init
from initmem.pipeline.tracker import Tracker
from initmem.recipe import PipelineRecipe
from initmem.study import Run

pytestmark = pytest.mark.usefixtures("empty_folder")

EPOCHS = 4


def train(init: Init, tracker: Tracker) -> None:
    """Three numbers under weight decay alone: the norm is that of the last intervention, decayed."""
    model = init.apply(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
    tracker.attach(model, optimizer, batch_size=1)
    for _ in range(EPOCHS):
        model = tracker.intervene(model, optimizer)
        optimizer.zero_grad()
        (0 * model(torch.ones(1, 3))).sum().backward()
        optimizer.step()
        velocity = optimizer.state[model.weight]["momentum_buffer"]
        tracker.end_epoch(val_loss=model.weight.norm().item(), velocity=velocity.norm().item())


def forgetful(init: Init, tracker: Tracker) -> None:
    init.apply(torch.nn.Linear(3, 1))
    for _ in range(EPOCHS):
        tracker.end_epoch(val_loss=1.0)


def double(model: torch.nn.Linear) -> None:
    with torch.no_grad():
        model.weight *= 2


def halve(model: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    assert isinstance(optimizer, torch.optim.Optimizer)
    with torch.no_grad():
        model.weight /= 2


def losses(interventions: Any, folder: Path, column: str = "val_loss") -> dict[Any, list[float]]:
    result = initmem.run(
        train, seeds=[0], interventions=interventions, store=folder, engine="inline", progress=False
    )
    assert not result.crashes
    return {record.run.level: record.history[column].tolist() for record in result.records}


def test_words_and_functions_act_alike(tmp_path: Path) -> None:
    words = losses(["none", "scale=2", "scale=0.5@2"], tmp_path / "words")
    own = losses({"none": None, "double": double, "half@2": halve}, tmp_path / "own")
    assert words["none"] == own["none"]
    assert words["scale=2"] == own["double"] == pytest.approx([2 * x for x in words["none"]])
    assert words["scale=0.5@2"] == own["half@2"]
    assert words["none"][:2] == own["half@2"][:2] and words["none"][2] != own["half@2"][2]


def test_an_optimizer_is_reset_once(tmp_path: Path) -> None:
    speed = losses(["none", "reset-optimizer@2"], tmp_path, "velocity")
    assert speed["none"][:2] == speed["reset-optimizer@2"][:2]
    weights = losses(["none", "reset-optimizer@2"], tmp_path)
    # After the reset a velocity is the decay of the weights of that moment, 0.5 * w, and nothing before.
    assert speed["reset-optimizer@2"][2] == pytest.approx(0.5 * weights["reset-optimizer@2"][1], rel=1e-5)
    assert speed["none"][2] > 1.5 * speed["reset-optimizer@2"][2]


def test_an_intervention_that_was_never_made_is_a_crash_not_a_result(tmp_path: Path) -> None:
    result = initmem.run(
        forgetful,
        seeds=[0],
        interventions=["none", "scale=2@2"],
        store=tmp_path,
        engine="inline",
        progress=False,
        keep_going=True,
    )
    ((level, _),) = result.crashes
    assert level == "scale=2@2"
    assert "never made (needed: tracker.intervene(model, optimizer)" in result.crashes[level, 0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["scael=2"], "unknown word"),
        ({"scale": double}, "a name not taken"),
        ({"double": double, "later@9": halve}, "the recipe has 4 epochs"),
    ],
)
def test_bad_interventions_are_refused_before_training(given: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        initmem.run(train, seeds=[0], interventions=given, store=tmp_path, recipe={"epochs": EPOCHS})
    with pytest.raises(ConfigError, match="scales and interventions"):
        initmem.run(train, [0.5, 2.0], interventions=["none"], store=tmp_path)


def test_an_edited_intervention_is_another_version_of_the_code() -> None:
    from initmem.pipeline.code_version import fingerprint

    assert fingerprint(train, double) != fingerprint(train) != fingerprint(train, halve)


def test_pytrees_are_returned_anew() -> None:
    jax = pytest.importorskip("jax")
    recipe = PipelineRecipe.parse({"pipeline": "mine"})
    tree = {"dense": {"kernel": jax.numpy.ones((3, 2)), "bias": jax.numpy.zeros(2)}}

    def triple(model: Any, optimizer: Any = None) -> Any:
        return jax.tree_util.tree_map(lambda leaf: 3 * leaf, model)

    for text, factor in (("scale=2", 2.0), ("triple", 3.0)):
        init = Init.of(Run(recipe, 1.0, 0, intervention=text), {"triple": triple})
        assert float(init.apply(tree)["dense"]["kernel"][0, 0]) == factor
    for text, factor in (("scale=2@1", 2.0), ("triple@1", 3.0)):
        init = Init.of(Run(recipe, 1.0, 0, intervention=text), {"triple@1": triple})
        tracker, model = Tracker(init), init.apply(tree)
        model = tracker.intervene(model)
        assert float(model["dense"]["kernel"][0, 0]) == 1.0
        tracker.end_epoch(val_loss=1.0)
        for _ in range(2):  # once, however often it is called
            model = tracker.intervene(model)
        assert float(model["dense"]["kernel"][0, 0]) == factor


def test_what_cannot_be_reset_is_said() -> None:
    run = Run(PipelineRecipe.parse({"pipeline": "mine"}), 1.0, 0, intervention="reset-optimizer@1")
    for optimizer, message in ((None, "no optimizer"), ({"m": 0}, "optimizers of torch")):
        with pytest.raises(ConfigError, match=message):
            Init.of(run).intervene(torch.nn.Linear(2, 1), 1, optimizer)
