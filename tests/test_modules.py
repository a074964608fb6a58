"""Packs of plain modules, their initialization, and the bundled transformers."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from initmem import catalog, register
from initmem.data.sources import load, sizes
from initmem.engines.packs import pack_size
from initmem.errors import ConfigError, ModelError
from initmem.pipeline.init import Init
from initmem.recipe import Recipe
from initmem.register import Tokens
from initmem.study import Run
from initmem.train.init import initialize_replica, initialized
from initmem.train.layers import by_replica
from initmem.train.loop import train_epoch, train_pack
from initmem.train.modules import build_module, check_module
from initmem.train.networks import GPT, GPT2_STD, MODULES, ViT
from initmem.train.pack import Checkpoint, Pack
from initmem.train.requirements import flops_per_image
from initmem.train.variables import torch_variables
from test_train import differences, runs_of

SMALL = {"width": 8, "depth": 1, "heads": 2, "batch_size": 12, "epochs": 2, "learning_rate": 0.05}
VIT = SMALL | {"model": "vit", "dataset": "synthetic:60x1x8x8"}
SUMS = SMALL | {"model": "gpt", "dataset": "modular-addition:7:0.5"}


@pytest.fixture
def text(tmp_path) -> dict[str, object]:
    path = tmp_path / "words.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 20)
    return SMALL | {"model": "gpt", "dataset": f"text:12:{path}", "tied": True}


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "muon"])
@pytest.mark.parametrize("values", [VIT, SUMS], ids=["vit", "gpt"])
def test_a_module_in_a_pack_follows_the_trajectory_it_follows_alone(values, optimizer: str) -> None:
    recipe = Recipe.parse(values | {"optimizer": optimizer, "l2": 1e-3})
    assert_same_alone(recipe, 1e-8 if optimizer == "momentum" else 1e-4)  # as in test_train


def test_a_tied_network_of_characters_does_too(text) -> None:
    assert_same_alone(Recipe.parse(text), 1e-8)


def assert_same_alone(recipe: Recipe, tolerance: float) -> None:
    data = load(recipe)
    packed = train_pack(runs_of(recipe), data, dtype=torch.float64)
    for run, record in zip(runs_of(recipe), packed, strict=True):
        (alone,) = train_pack([run], data, dtype=torch.float64)
        assert differences(record, alone) < tolerance
        assert record.summary.test_accuracy == pytest.approx(alone.summary.test_accuracy, rel=1e-6)
    assert differences(packed[0], packed[1]) > 0.01  # it would see a mix-up


@pytest.mark.parametrize("optimizer", ["momentum", "muon"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_pack_of_modules_saved_inside_an_epoch_continues_bit_by_bit(optimizer: str, replicas: int) -> None:
    assert_resumes(Recipe.parse(SUMS | {"optimizer": optimizer, "batch_size": 5}), replicas)


def test_dropout_draws_the_same_after_a_resumption() -> None:
    @register.model("own")
    def own(input, outputs, width):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, outputs))

    recipe = Recipe.parse({"model": "own", "dataset": "synthetic:60x1x8x8", "batch_size": 12, "epochs": 2})
    recipe = recipe.replace(batch_size=8)
    assert_resumes(recipe, 1)
    before = torch.get_rng_state()
    one, other = (train_pack([Run(recipe, 1.0, seed)], load(recipe))[0] for seed in (0, 1))
    assert differences(one, other) > 1e-3
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is left alone


def assert_resumes(recipe: Recipe, replicas: int) -> None:
    data, runs = load(recipe), runs_of(recipe)[:replicas]
    whole = train_pack(runs, data)
    first, calls = Pack(runs, data), iter(range(9))
    assert train_epoch(first)
    assert not train_epoch(first, lambda: next(calls) == 1)
    saved = [Checkpoint({k: t.clone() for k, t in c.tensors.items()}, c.meta) for c in first.checkpoint()]
    assert saved[0].meta["position"] == 2
    torch.manual_seed(123)  # what happened before in the process does not matter
    resumed = train_pack(runs, data, resume=saved)
    assert all(a.same_result(b) for a, b in zip(whole, resumed, strict=True))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scaled": "output"},
        {"scaled": "biases, blocks.0.attention.*"},
        {"layer_scales": "tokens=0.1, output=3", "distribution": "orthogonal"},
        {"bias_std": 0.0, "distribution": "uniform"},
        {"tied": True},
    ],
)
def test_a_module_is_initialized_as_init_does(fields) -> None:
    """Two ways to one network: by the pack, and by hand with `Init` as a user would."""
    recipe = Recipe.parse(SUMS | {"dataset": "text:12"} | fields)
    shape = sizes(recipe)
    runs = [Run(recipe, scale, seed) for scale, seed in ((0.5, 0), (2.0, 3))]
    pack = initialized(runs, shape, device=torch.device("cpu"), dtype=torch.float32)
    for replica, run in enumerate(runs):
        model = Init.of(run).apply(build_module(recipe, shape), draw="fan-in")
        for name, value in model.named_parameters():
            mine = by_replica(pack.get_parameter(f"net.{name}"), 2)[replica]
            assert torch.equal(mine.view_as(value), value), name
    names = {id(p): name.removeprefix("net.") for name, p in pack.named_parameters()}
    kernels = [names[id(kernel)] for kernel in pack.kernels()]
    assert {"tokens.weight", "positions.weight", "blocks.0.expand.weight"} < set(kernels)
    assert ("head.weight" in kernels) == (not recipe.get("tied"))


def test_rescaling_multiplies_the_initialization_of_gpt2() -> None:
    recipe = Recipe.parse(SUMS | {"width": 64, "depth": 2, "init_mode": "rescale"})
    assert recipe.id != recipe.replace(init_mode="redraw").id
    shape = sizes(recipe)
    own = build_module(recipe, shape)
    scaled = copy.deepcopy(own)
    initialize_replica(torch_variables(scaled), Run(recipe, 2.5, 0), {})
    for (name, before), after in zip(own.named_parameters(), scaled.parameters(), strict=True):
        kernel = name.endswith("weight") and "norm" not in name
        assert torch.equal(after, before * 2.5 if kernel else before), name
    deviation = {name: float(p.detach().std()) for name, p in own.named_parameters()}
    assert deviation["blocks.0.expand.weight"] == pytest.approx(GPT2_STD, rel=0.05)
    for name in ("blocks.1.project.weight", "blocks.0.attention.project.weight"):
        assert deviation[name] == pytest.approx(GPT2_STD / math.sqrt(2 * 2), rel=0.05)
    assert not own.get_parameter("blocks.0.expand.bias").any()


def test_a_perturbed_replicate_differs_in_one_weight() -> None:
    recipe = Recipe.parse(VIT)
    made = [build_module(recipe, sizes(recipe)) for _ in range(2)]
    for module, perturbation in zip(made, (1.0, 1.001), strict=True):
        initialize_replica(torch_variables(module), Run(recipe, 1.0, 0, (), perturbation), {})
    changed = sum(int((a != b).sum()) for a, b in zip(*(m.parameters() for m in made), strict=True))
    assert changed == 1


def test_weight_decay_can_spare_the_norms_of_a_plain_module() -> None:
    recipe = Recipe.parse(VIT | {"optimizer": "adamw", "decay_on": "no-norm"})
    pack = Pack([Run(recipe, 1.0, 0)], load(recipe))
    spared = set(pack.names) - {pack.names[i] for i in pack._decayed()}
    assert spared == {name for name in pack.names if "norm" in name}
    assert spared


def test_selectors_that_match_nothing_are_refused() -> None:
    recipe = Recipe.parse(VIT | {"scaled": "nothing*"})
    with pytest.raises(ConfigError, match=r"nothing here is named 'nothing\*'.*patches.weight"):
        check_module(recipe, sizes(recipe))


def test_frozen_and_unused_parameters_stay_as_they_are() -> None:
    class Partial(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.frozen, self.head = nn.Linear(64, 8).requires_grad_(False), nn.Linear(8, outputs)
            self.unused, self.gain = nn.Linear(3, 3), nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.gain * self.head(self.frozen(x.flatten(1)).relu())

    register.model("own")(lambda input, outputs, width: Partial(outputs))
    recipe = Recipe.parse({"model": "own", "dataset": "synthetic:60x1x8x8", "batch_size": 12, "epochs": 2})
    pack = Pack(runs_of(recipe), load(recipe))
    before = {name: value.clone() for name, value in pack.network.state_dict().items()}
    train_epoch(pack)
    changed = {
        name for name, value in pack.network.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {"net.head.weight", "net.head.bias", "net.gain"}
    assert pack.network.get_parameter("net.gain").shape == (3,)
    assert_same_alone(recipe.replace(learning_rate=0.05), 1e-8)


def test_batch_normalization_keeps_the_statistics_of_each_run() -> None:
    @register.model("own")
    def own(input, outputs, width):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs))

    recipe = Recipe.parse({"model": "own", "dataset": "synthetic:60x1x8x8", "batch_size": 12, "epochs": 2})
    assert_same_alone(recipe.replace(learning_rate=0.05), 1e-8)


def test_the_options_of_the_bundled_modules_are_those_of_their_builders() -> None:
    assert MODULES.keys() == catalog.NETWORKS.keys() - set(catalog.PACKED)
    for name, build in MODULES.items():
        assert register._options(name, build) == catalog.NETWORKS[name].options


def test_gpt_does_not_see_the_future_and_vit_sees_every_pixel() -> None:
    torch.manual_seed(0)
    network = GPT(Tokens(11, 6), 11, 8, depth=2, heads=2)
    x = torch.randint(0, 11, (1, 6))
    other = x.clone()
    other[0, 4] = (x[0, 4] + 1) % 11
    same = network(x).isclose(network(other), atol=1e-9).all(-1)[0]
    assert same.tolist() == [True] * 4 + [False] * 2
    image = torch.rand(1, 2, 8, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(ViT((2, 8, 8), 10, 8, patch=4, depth=1, heads=2)(image)[0, 3], image)
    assert (gradient != 0).all()


def test_the_head_of_a_tied_gpt_is_its_embedding() -> None:
    network = GPT(Tokens(11, 6), 11, 8, tied=True)
    assert network.head.weight is network.tokens.weight
    for call, text in (
        (lambda: GPT(Tokens(11, 6), 10, 8, tied=True), "tied = true with 10 classes and 11 tokens"),
        (lambda: GPT(Tokens(11, 6), 11, 9), "width = 9, depth = 4, heads = 4"),
        (lambda: ViT((1, 9, 9), 10, 8, patch=2), r"patch = 2 \(allowed: a divisor of 9 and 9\)"),
    ):
        with pytest.raises(ModelError, match=text):
            call()


def test_operations_and_kernels_of_a_module_are_counted() -> None:
    recipe = Recipe.parse(VIT | {"patch": 2, "depth": 3, "width": 8})
    shape = sizes(recipe)
    length, d = shape.height * shape.width // 4, 8
    blocks = 3 * length * (24 * d * d + 4 * length * d)
    expected = 2 * shape.channels * 4 * d * length + blocks + 2 * d * shape.classes
    counted = flops_per_image(recipe, shape)
    assert counted == (expected, 3 * expected, 2 + 3 * 4 + 1)  # patches and positions, blocks, head


def test_small_modules_are_packed_and_large_ones_are_not() -> None:
    small, large = Recipe.parse(VIT), Recipe.parse({"model": "vit", "dataset": "cifar10", "width": 128})
    assert (pack_size(small, sizes(small)), pack_size(large, sizes(large))) == (8, 1)


def test_gpt_learns_sums(text) -> None:
    changes = {"optimizer": "adam", "epochs": 60, "learning_rate": 0.01, "width": 32, "schedule": "constant"}
    (record,) = train_pack([Run(Recipe.parse(SUMS | changes), 1.0, 0)], load(Recipe.parse(SUMS)))
    assert record.history["train_accuracy"][-1] > 0.7
    (record,) = train_pack([Run(Recipe.parse(text | {"learning_rate": 0.5, "epochs": 20}), 0.5, 0)],
                           load(Recipe.parse(text)))  # fmt: skip
    assert record.history["val_cross_entropy"][-1] < 0.7 * np.log(28)
