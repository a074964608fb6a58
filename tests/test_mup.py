"""muP: the learning rate of every layer, and activations that move as far at every width."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from initmem.data.dataset import Sizes, noise
from initmem.errors import ConfigError
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.init import replica_tensors
from initmem.train.loop import train_epoch
from initmem.train.pack import Pack

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from mup import LAYERS, moved, slope

DATA = noise(Sizes(8, 8, 8, 1, 8, 8, 3), n_train=8, n_val=8)
SMALL = {"dataset": "digits", "batch_size": 8, "epochs": 1, "schedule": "constant", "learning_rate": 0.01}
INPUT, HIDDEN, OUTPUT = "input, biases, norms", "hidden", "output"
# Table 3 of Yang and Hu 2021 with n = 4.
TABLE = {"sgd": {INPUT: 4.0, HIDDEN: 1.0, OUTPUT: 1 / 4}, "adam": {INPUT: 1.0, HIDDEN: 1 / 4, OUTPUT: 1 / 4}}


def kind(name: str) -> str:
    if name == "head.kernel":
        return OUTPUT
    return HIDDEN if name.endswith("kernel") and name not in ("hidden1.kernel", "stem.conv.kernel") else INPUT


def one_update(runs: int = 1, **fields: object) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The variables of the last replica before and after an update."""
    pack = Pack([Run(Recipe.parse(SMALL | fields), 1.0, s) for s in range(runs)], DATA, dtype=torch.float64)
    names = {name for name, _ in pack.network.named_parameters()}
    before = {n: v.clone() for n, v in replica_tensors(pack.network, runs - 1).items() if n in names}
    train_epoch(pack)
    return before, {n: v for n, v in replica_tensors(pack.network, runs - 1).items() if n in names}


@pytest.mark.parametrize("optimizer", TABLE)
@pytest.mark.parametrize("model", ["mlp", "resnet9"])
def test_an_update_is_as_much_larger_as_the_table_says(model: str, optimizer: str) -> None:
    """The usual parametrization has the same initial weights with an output of half the size."""
    fields = {"model": model, "width": 16, "optimizer": optimizer}
    start, usual = one_update(2, **fields, layer_scales="output=0.5")
    same, ours = one_update(2, **fields, mup_base=4)
    for name in start:
        torch.testing.assert_close(same[name], start[name], rtol=1e-12, atol=0)
        factor = 1.0 if name == "head.bias" and optimizer == "sgd" else TABLE[optimizer][kind(name)]
        expected = factor * (usual[name] - start[name])
        torch.testing.assert_close(ours[name] - start[name], expected, rtol=1e-6, atol=1e-14)


@pytest.mark.parametrize(
    "fields", [{"optimizer": "sgd", "l2": 0.1}, {"optimizer": "adamw", "weight_decay": 0.5}]
)
def test_at_the_base_width_it_is_the_usual_parametrization(fields: dict[str, object]) -> None:
    fields = {"model": "mlp", "width": 16} | fields
    for one, other in zip(one_update(**fields), one_update(**fields, mup_base=16), strict=True):
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-12, atol=1e-15)


def test_decoupled_decay_is_the_same_in_every_layer() -> None:
    fields = {"model": "mlp", "width": 16, "mup_base": 4, "optimizer": "adamw"}
    start, plain = one_update(**fields, weight_decay=0.0)
    _, decayed = one_update(**fields, weight_decay=0.5)
    for name in start:
        torch.testing.assert_close(decayed[name], plain[name] - 0.01 * 0.5 * start[name])


@pytest.mark.parametrize("optimizer", TABLE)
def test_the_coordinate_check(optimizer: str) -> None:
    widths = (64, 256, 1024)
    powers = {}
    for base in (None, 64):
        rows = {width: moved(optimizer, width, base, seeds=2) for width in widths}
        powers[base] = {name: slope({w: row[name] for w, row in rows.items()}) for name in LAYERS}
    assert all(abs(power) < 0.2 for power in powers[64].values()), powers
    assert powers[None]["head"] > 0.4, powers  # a negative control


@pytest.mark.parametrize(("field", "value"), [("optimizer", "lion"), ("model", "vit")])
def test_what_has_no_table_is_refused(field: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"mup_base = 8 with {field} = {value!r} (allowed: ")):
        Recipe.parse({"mup_base": 8, field: value})
