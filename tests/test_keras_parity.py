"""The same weights and batches give the same trajectory as in Keras 3."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from conftest import Deferred
from initmem.data.sources import load
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train import layers, loop, optimizers
from initmem.train.layers import Conv, LayerNorm, MovingStatistics
from initmem.train.loop import train_epoch
from initmem.train.optimizers import Adam, Momentum, Muon, Rule, orthogonalize
from initmem.train.pack import Pack

keras_peer = Deferred("keras_peer")

# Keras has not yet learnt numpy's newest copy keyword.
pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")

TOLERANCE = 1e-6  # relative, in float64


def recipe_of(**fields) -> Recipe:
    common = {
        "dataset": "synthetic:100x3x8x8",
        "width": 3,
        "batch_size": 16,
        "epochs": 13,  # of 4 updates, the last of them smaller: 52 in all
        "learning_rate": 0.01,
    }
    return Recipe.parse(common | fields)


def train_both(
    recipe: Recipe, dtype: torch.dtype = torch.float64
) -> tuple[Pack, keras_peer.Peer, list[float]]:
    """Train a pack of one and its Keras peer on the same batches; the peer's mean loss per epoch."""
    data = load(recipe)
    pack = Pack([Run(recipe, 1.3, 5)], data, dtype=dtype)
    name = "float64" if dtype == torch.float64 else "float32"
    n, size = len(data.train), recipe.batch_size
    updates = recipe.epochs * math.ceil(n / size)
    peer = keras_peer.Peer(recipe, data.sizes.shape, updates, name)
    peer.take_weights(pack)
    losses = []
    while not pack.finished:
        order = pack.order(pack.epoch + 1)[:, 0].numpy()
        train_epoch(pack)
        total = 0.0
        for start in range(0, n, size):
            index = order[start : start + size]
            peer.model.reset_metrics()
            logs = peer.model.train_on_batch(data.train.x[index], data.train.y[index], return_dict=True)
            total += len(index) * float(logs["loss"])
        losses.append(total / n)
    return pack, peer, losses


def largest_difference(pack: Pack, peer: keras_peer.Peer) -> float:
    """Of every variable, relative to the size of that variable."""
    pairs = zip(keras_peer.pack_variables(pack), peer.variables(), strict=True)
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, (_, theirs) in pairs)


CASES = [
    {"optimizer": optimizer, **fields}
    for optimizer in ("sgd", "momentum", "adam", "adamw", "muon")
    for fields in (
        {"norm": "batch", "l2": 1e-2, "weight_decay": 1e-2},
        {"norm": "layer", "weight_decay": 0.0},
    )
] + [
    {"optimizer": "adam", "model": "resnet9-avgpool", "dataset": "synthetic:50x3x16x16", "epochs": 8},
    {"optimizer": "muon", "model": "mlp", "dataset": "synthetic:100x1x8x8"},  # flattened alike
    {"optimizer": "sgd", "schedule": "constant"},
    {"optimizer": "sgd", "model": "resnet56", "width": 2, "epochs": 2, "l2": 1e-3},
]


@pytest.mark.parametrize("fields", CASES, ids=lambda f: " ".join(f"{k}={v}" for k, v in f.items()))
def test_trajectories_agree_in_float64(fields, record_property) -> None:
    recipe = recipe_of(**fields)
    pack, peer, _ = train_both(recipe)
    difference = largest_difference(pack, peer)
    data = load(recipe)
    loss, accuracy = peer.model.evaluate(data.val.x, data.val.y, batch_size=7, verbose=0)
    history = pack.history[0]
    evaluation = abs(history["val_objective"][-1] - loss) / loss
    record_property("parity", f"{difference:.1e} variables, {evaluation:.1e} validation loss")
    assert difference < TOLERANCE
    # The metrics of evaluation are float32 in both stacks, so its agreement ends there.
    assert evaluation < TOLERANCE
    assert history["val_accuracy"][-1] == pytest.approx(accuracy)


@pytest.mark.parametrize(("optimizer", "norm"), [("momentum", "layer"), ("adam", "batch")])
def test_losses_agree_in_float32(optimizer: str, norm: str, record_property) -> None:
    pack, _, losses = train_both(recipe_of(optimizer=optimizer, norm=norm, learning_rate=1e-3), torch.float32)
    ours = np.array(pack.history[0]["train_cross_entropy"])
    difference = float(np.max(np.abs(ours - losses) / losses))
    record_property("parity", f"{difference:.1e} training losses in float32")
    assert difference < 1e-3


def test_evaluation_mode_gives_the_same_logits() -> None:
    pack, peer, _ = train_both(recipe_of(optimizer="adam"))
    x = load(pack.recipe).test.x
    with torch.no_grad():
        ours = pack.network.eval()(torch.from_numpy(x).double().permute(0, 3, 1, 2))
    theirs = peer.model.predict(x, verbose=0)
    assert np.abs(ours.numpy() - theirs).max() / np.abs(theirs).max() < TOLERANCE


# Every place where PyTorch differs from Keras 3: undo it, and parity must break.


def _torch_momentum(self, gradients, rate, k):
    velocity = self.slots["velocity"]
    torch._foreach_mul_(velocity, self.recipe.momentum)
    torch._foreach_add_(velocity, gradients)
    torch._foreach_add_(self.variables, velocity, alpha=-rate)


def _torch_adam(self, gradients, rate, k):
    mean, square = self.slots["mean"], self.slots["square"]
    torch._foreach_lerp_(mean, gradients, 1 - self.recipe.beta1)
    torch._foreach_mul_(square, self.recipe.beta2)
    torch._foreach_addcmul_(square, gradients, gradients, 1 - self.recipe.beta2)
    correction = math.sqrt(1 - self.recipe.beta2**k)
    for variable, m, v in zip(self.variables, mean, square, strict=True):
        root = (v.sqrt() / correction).add_(self.recipe.epsilon)
        variable.addcdiv_(m, root, value=-rate / (1 - self.recipe.beta1**k))


def _unbiased(self):
    return [1.0 for _ in self.norms]


def _layer_norm_over_everything(self, x):
    normal = torch.nn.functional.layer_norm(x, x.shape[1:], eps=layers.NORM_EPSILON)
    return normal * self.gamma.view(1, -1, 1, 1) + self.beta.view(1, -1, 1, 1)


def _decay_after(self, gradients, rate, k):
    self.update(gradients, rate, k)
    decayed = [self.variables[i] for i in self.decayed]
    torch._foreach_mul_(decayed, 1 - rate * self.recipe.weight_decay)


def _decay_kernels_only(self):
    return self.kernel_indices


def _half_penalty(pack, gradients):
    for i in pack.kernel_indices:
        gradients[i].add_(pack.parameters[i], alpha=pack.recipe.l2)


def _muon_for_all(self, *arguments, axes):
    MUON_INIT(self, *arguments, axes=(2, 4))


def _symmetric_padding(self, side):
    return (self.size // 2, self.size // 2)


MUON_INIT = Muon.__init__
DIFFERENCES = {
    "batch norm momentum": (layers, "MOVING_AVERAGE", 0.9, {}),
    "norm epsilon": (layers, "NORM_EPSILON", 1e-5, {}),
    "moving variance": (MovingStatistics, "_biased", _unbiased, {}),
    "layer norm axes": (LayerNorm, "forward", _layer_norm_over_everything, {"norm": "layer"}),
    "momentum": (Momentum, "update", _torch_momentum, {"optimizer": "momentum"}),
    "adam epsilon": (Adam, "update", _torch_adam, {"optimizer": "adam", "epsilon": 1e-4}),
    "decay first": (Rule, "step", _decay_after, {"weight_decay": 1e-2}),
    "decay of everything": (Pack, "_decayed", _decay_kernels_only, {"weight_decay": 1e-2}),
    "l2 gradient": (loop, "add_l2", _half_penalty, {"l2": 1e-2}),
    "muon on matrices alone": (Muon, "__init__", _muon_for_all, {"optimizer": "muon"}),
    "padding of strides": (
        Conv,
        "_edges",
        _symmetric_padding,
        {"model": "resnet56", "width": 2, "epochs": 1},
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_between_the_stacks_matters(name: str, monkeypatch) -> None:
    home, attribute, spoiled, fields = DIFFERENCES[name]
    monkeypatch.setattr(home, attribute, spoiled)
    pack, peer, _ = train_both(recipe_of(**({"epochs": 2} | fields)))
    assert largest_difference(pack, peer) > 3 * TOLERANCE


def test_the_validation_loss_holds_the_penalty_and_the_plain_one_does_not() -> None:
    recipe = recipe_of(l2=0.05, epochs=2)
    pack, peer, _ = train_both(recipe)
    data = load(recipe)
    loss, _ = peer.model.evaluate(data.val.x, data.val.y, verbose=0)
    logits = peer.model.predict(data.val.x, verbose=0)
    keras = keras_peer.keras
    plain = float(
        keras.ops.mean(keras.losses.sparse_categorical_crossentropy(data.val.y, logits, from_logits=True))
    )
    assert pack.history[0]["val_objective"][-1] == pytest.approx(loss, rel=1e-6)
    assert pack.history[0]["val_cross_entropy"][-1] == pytest.approx(plain, rel=1e-6)
    assert loss > plain + 0.1


def test_muon_conv_flattens_a_kernel_to_out_by_everything_else() -> None:
    """A conv kernel takes the step that Keras' Muon takes on the same numbers as a matrix."""
    keras = keras_peer.keras
    keras.config.set_floatx("float64")
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(6, 4, 3, 3))
    gradients = rng.normal(size=(5, 6, 4, 3, 3))
    matrix = keras.Variable(kernel.reshape(6, 36), dtype="float64")
    theirs = keras.optimizers.Muon(0.01, weight_decay=None, adam_weight_decay=None)
    theirs.build([matrix])
    recipe = recipe_of(optimizer="muon-conv", weight_decay=0.0)
    variable = torch.from_numpy(kernel.copy())
    ours = optimizers.optimizer_for(recipe, [variable])
    for k, gradient in enumerate(gradients, start=1):
        theirs.apply([keras.ops.convert_to_tensor(gradient.reshape(6, 36))])
        ours.step([torch.from_numpy(gradient.copy())], 0.01, k)
    expected = keras.ops.convert_to_numpy(matrix).reshape(6, 4, 3, 3)
    assert np.allclose(variable.numpy(), expected, rtol=1e-9)


@pytest.mark.parametrize("shape", [(3, 7, 5), (3, 5, 7), (1, 4, 4)])
def test_orthogonalize_drives_singular_values_towards_one(shape) -> None:
    matrix = torch.from_numpy(np.random.default_rng(1).normal(size=shape))
    found = orthogonalize(matrix)
    assert torch.allclose(found[0], orthogonalize(matrix[0]))  # matrices do not see each other
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.5
    assert values.max() < 1.3
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    rotated = left.mT @ found @ right.mT  # the same singular vectors: only the values moved
    assert torch.allclose(rotated, torch.diag_embed(torch.diagonal(rotated, dim1=1, dim2=2)), atol=1e-9)
