"""The layers in C against the library in float64, and that they are used where they should be."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from initmem.data.dataset import Dataset, Examples
from initmem.recipe import Recipe
from initmem.register import Tokens
from initmem.study import Run
from initmem.train import compiled, native
from initmem.train import lanes as in_one_call
from initmem.train.layers import (
    NORM_EPSILON,
    BatchNorm,
    Conv,
    ConvNormRelu,
    Dense,
    LayerNorm,
    MovingStatistics,
    by_replica,
)
from initmem.train.loop import train_epoch
from initmem.train.networks import GPT, ResNet9, ViT
from initmem.train.optimizers import optimizer_for
from initmem.train.pack import Pack

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C compiler")


def plain_copy(network: ResNet9) -> ResNet9:
    """The network in float64 and in PyTorch's own operations."""
    plain = deepcopy(network).double()
    plain.lanes = None
    return plain


@pytest.fixture(autouse=True)
def one_thread_and_one_seed():
    """A fixed seed: a value that rounding moves across the kink of ReLU would change the gradient."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[8, 16])
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Each width of vectors that this processor has."""
    library = compiled.library()
    if library.widest < request.param:
        pytest.skip("no vectors of this width")
    monkeypatch.setattr(compiled, "library", lambda: library._replace(widest=request.param))
    return request.param


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions in C, as they are called."""
    called: list[str] = []

    class Code:
        def __getattr__(self, name: str) -> object:
            called.append(name)
            return getattr(compiled.library().code, name)

    monkeypatch.setattr(native, "library", Code)
    return called


def test_the_library_has_every_function_that_the_header_declares():
    library = compiled.library()
    for name in dir(library.code):
        if library.widest > 8 or not name.endswith("_wide"):
            assert callable(getattr(library.code, name))


def images(n: int, channels: int, side: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, channels, side, side, generator=generator).to(memory_format=torch.channels_last)


def reference(x: Tensor, gamma: Tensor, beta: Tensor, *, pool: bool) -> Tensor:
    """Pooling after ReLU, as a textbook has it; all in float64."""
    mean, variance = torch.zeros_like(gamma), torch.ones_like(gamma)
    y = F.relu(torch.batch_norm(x, gamma, beta, mean, variance, True, 1.0, NORM_EPSILON, False))
    return F.max_pool2d(y, 2) if pool else y


def off(found: Tensor, expected: Tensor) -> float:
    return float(((found.double() - expected).norm() / expected.norm()).detach())


def assert_gradients(found, given, expected, exact, grad_output, limit: float) -> None:
    ours = torch.autograd.grad(found, given, grad_output)
    theirs = torch.autograd.grad(expected, exact, grad_output.double())
    for a, b in zip(ours, theirs, strict=True):
        assert off(a, b) < limit


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(("n", "channels", "side"), [(5, 24, 4), (1, 16, 2)])
def test_normalization_and_its_gradients(n, channels, side, pool):
    x = images(n, channels, side) * 2 + 3
    gamma, beta = torch.randn(channels), torch.randn(channels)  # also negative factors
    grad_output = images(n, channels, side // 2 if pool else side, seed=1)
    layer = BatchNorm(1, channels)
    given = x.requires_grad_(), layer.gamma, layer.beta
    with torch.no_grad():
        layer.gamma.copy_(gamma), layer.beta.copy_(beta)
    exact = tuple(t.detach().double().requires_grad_() for t in (x, gamma, beta))

    assert native.can_normalize(x, pool=pool)
    found, expected = layer.then_relu(x, pool=pool), reference(*exact, pool=pool)
    assert off(found, expected) < 1e-6
    assert_gradients(found, given, expected, exact, grad_output, 2e-6)
    flat = exact[0].detach().movedim(1, 0).flatten(1)
    assert off(layer.batch_mean, flat.mean(1)) < 1e-6
    assert off(layer.batch_variance, flat.var(1)) < 1e-6


@pytest.mark.parametrize(("n", "channels", "side"), [(3, 8, 5), (5, 24, 4)])
def test_normalization_with_a_skip_connection(n, channels, side):
    x, skip = (
        (images(n, channels, side) * 2 + 3).requires_grad_(),
        images(n, channels, side, 2).requires_grad_(),
    )
    layer, grad_output = BatchNorm(1, channels), images(n, channels, side, seed=1)
    torch.nn.init.normal_(layer.gamma), torch.nn.init.normal_(layer.beta)
    given = x, layer.gamma, layer.beta, skip
    exact = tuple(t.detach().double().requires_grad_() for t in given)
    assert native.can_normalize(x, pool=False, skip=skip)
    found = layer.then_relu(x, skip=skip)
    mean, variance = (
        exact[0].mean((0, 2, 3), keepdim=True),
        exact[0].var((0, 2, 3), correction=0, keepdim=True),
    )
    unit = (exact[0] - mean) / (variance + NORM_EPSILON).sqrt()
    expected = F.relu(unit * exact[1][:, None, None] + exact[2][:, None, None] + exact[3])
    assert off(found, expected) < 1e-6
    assert_gradients(found, given, expected, exact, grad_output, 2e-6)
    layer.eval()
    layer.moving_mean.uniform_(-1, 1), layer.moving_variance.uniform_(0.5, 2)
    with torch.no_grad():
        found = layer.then_relu(x, skip=skip)
        assert off(found, F.relu(layer.double()(x.double()) + skip)) < 1e-6


def test_a_skip_connection_in_another_layout_is_left_to_the_library():
    x, layer = images(2, 8, 4), BatchNorm(1, 8)
    assert not native.can_normalize(x, pool=False, skip=x.contiguous())
    assert not native.can_normalize(x, pool=True, skip=x)
    found = layer.then_relu(x, skip=images(2, 8, 4, seed=1).contiguous())
    assert off(found, layer.then_relu(x, skip=images(2, 8, 4, seed=1)).double()) < 1e-6


def test_another_default_type_changes_nothing():
    """New tensors are of the type of the images, whatever a user's process prefers."""
    x, layer = images(2, 8, 4), Conv(1, 8, 8).to(memory_format=torch.channels_last)
    torch.nn.init.normal_(layer.kernel)
    norm = BatchNorm(1, 8)
    before = norm.then_relu(layer(x), pool=True)
    torch.set_default_dtype(torch.float64)
    try:
        after = norm.then_relu(layer(x), pool=True)
        (grad_output,) = torch.autograd.grad(after.sum(), layer.kernel)
    finally:
        torch.set_default_dtype(torch.float32)
    assert after.dtype == grad_output.dtype == torch.float32
    assert torch.equal(before, after)


def test_variance_far_from_zero_keeps_its_digits():
    x = (images(4, 8, 8) * 0.1 + 1000).requires_grad_()
    layer = BatchNorm(1, 8)
    layer.then_relu(x)
    expected = x.detach().double().movedim(1, 0).flatten(1).var(1)
    assert off(layer.batch_variance, expected) < 1e-5


@pytest.mark.parametrize("pool", [False, True])
def test_evaluation_uses_the_moving_statistics(pool):
    x, layer = images(3, 16, 8), BatchNorm(1, 16).eval()
    layer.moving_mean.uniform_(-1, 1), layer.moving_variance.uniform_(0.5, 2)
    with torch.no_grad():
        found = layer.then_relu(x, pool=pool)
        expected = F.relu(layer.double()(x.double()))
    assert off(found, F.max_pool2d(expected, 2) if pool else expected) < 1e-6


def test_of_equal_values_the_first_has_the_slope_as_in_the_library():
    x = torch.ones(1, 8, 4, 4).to(memory_format=torch.channels_last)
    x[..., 2:] += images(1, 8, 4)[..., 2:].round()
    x.requires_grad_()
    layer = BatchNorm(1, 8)
    (found,) = torch.autograd.grad(layer.then_relu(x, pool=True).sum(), x)
    y = layer.double()(x.double())
    (expected,) = torch.autograd.grad(F.relu(F.max_pool2d(y, 2)).sum(), x)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_what_is_not_a_number_stays_so(training):
    """A run that diverges must show it."""
    for place in range(4):
        x = images(2, 8, 4)
        x[1, 3, place // 2, place % 2] = float("nan")
        with torch.no_grad():
            y = BatchNorm(1, 8).train(training).then_relu(x, pool=True)
        assert y[1, 3].isnan().any()
        assert not y[:, 4].isnan().any()


@pytest.mark.parametrize(
    ("n", "inputs", "outputs", "side"),
    [(1, 8, 8, 4), (5, 16, 32, 16), (33, 32, 24, 8), (3, 24, 8, 12), (70, 160, 112, 4), (33, 16, 16, 32)],
)
def test_convolution_and_its_gradients(vectors, n, inputs, outputs, side):
    layer = Conv(1, inputs, outputs)
    with torch.no_grad():
        layer.kernel.normal_(), layer.bias.normal_()
    layer.to(memory_format=torch.channels_last)
    x, grad_output = images(n, inputs, side).requires_grad_(), images(n, outputs, side, seed=1)
    given = x, layer.kernel, layer.bias
    exact = tuple(t.detach().double().requires_grad_() for t in given)
    assert native.can_convolve(x, layer.kernel)
    found, expected = layer(x), F.conv2d(*exact, padding=1)
    assert off(found, expected) < 5e-6  # Winograd rounds more than the plain sum
    assert_gradients(found, given, expected, exact, grad_output, 5e-6)


@pytest.mark.parametrize(
    ("n", "inputs", "outputs", "height", "width"),
    [(3, 3, 16, 8, 32), (5, 1, 8, 28, 28), (1, 2, 24, 4, 12), (2, 7, 32, 8, 4)],
)
def test_a_convolution_of_few_channels(n, inputs, outputs, height, width):
    layer = Conv(1, inputs, outputs).to(memory_format=torch.channels_last)
    torch.nn.init.normal_(layer.kernel), torch.nn.init.normal_(layer.bias)
    x = images(n, inputs, max(height, width))[:, :, :height, :width]
    x = x.contiguous(memory_format=torch.channels_last)
    given = layer.kernel, layer.bias
    exact = tuple(t.detach().double().requires_grad_() for t in given)
    assert native.can_convolve(x, layer.kernel)
    found, expected = layer(x), F.conv2d(x.double(), *exact, padding=1)
    assert off(found, expected) < 1e-6
    assert_gradients(found, given, expected, exact, torch.randn_like(found), 2e-6)


LANES = [native.lanes_for(replicas) for replicas in (4, 8, 10, 17)]


def in_lanes(x: Tensor, lanes: native.Lanes) -> Tensor:
    return native.into_lanes(x, x.shape[1] // lanes.replicas, lanes)


def out_of_lanes(y: Tensor, lanes: native.Lanes) -> Tensor:
    """Rearrange (batch, channel * lane, h, w) back to (batch, replica * channel, h, w)."""
    channels = y.unflatten(1, (-1, lanes.lanes))[:, :, : lanes.replicas]
    return channels.transpose(1, 2).flatten(1, 2)


def layer_reference(x: Tensor, gamma: Tensor, beta: Tensor, replicas: int, *, pool: bool) -> Tensor:
    """Mean and variance over the channels of each replica, written out; pooling after ReLU; in float64."""
    y = x.unflatten(1, (replicas, -1))
    variance, mean = torch.var_mean(y, 2, correction=0, keepdim=True)
    y = ((y - mean) / (variance + NORM_EPSILON).sqrt()).flatten(1, 2)
    y = F.relu(y * gamma[:, None, None] + beta[:, None, None])
    return F.max_pool2d(y, 2) if pool else y


def layer_norm(replicas: int, channels: int) -> LayerNorm:
    layer = LayerNorm(replicas, channels)
    torch.nn.init.normal_(layer.gamma), torch.nn.init.normal_(layer.beta)  # also negative factors
    return layer


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize(("n", "channels", "side"), [(5, 24, 4), (1, 16, 2)])
def test_layer_normalization_and_its_gradients(n, channels, side, pool):
    x, layer = (images(n, channels, side) * 2 + 3).requires_grad_(), layer_norm(1, channels)
    grad_output = images(n, channels, side // 2 if pool else side, seed=1)
    given = x, layer.gamma, layer.beta
    exact = tuple(t.detach().double().requires_grad_() for t in given)
    assert native.can_normalize(x, pool=pool)
    found, expected = layer.then_relu(x, pool=pool), layer_reference(*exact, 1, pool=pool)
    assert off(found, expected) < 1e-6
    assert_gradients(found, given, expected, exact, grad_output, 2e-6)
    of_library = F.relu(layer(x))
    assert off(found, (F.max_pool2d(of_library, 2) if pool else of_library).double()) < 1e-6


def test_layer_normalization_far_from_zero_keeps_its_digits():
    x, layer = images(4, 8, 8) * 0.1 + 1000, layer_norm(1, 8)
    expected = layer_reference(x.double(), layer.gamma.double(), layer.beta.double(), 1, pool=False)
    assert off(layer.then_relu(x), expected) < 1e-3  # the inputs themselves have seven digits
    assert off(F.relu(layer(x)), expected) < 1e-3


def test_of_equal_values_the_first_has_the_slope_in_layer_normalization():
    x = images(1, 8, 1).expand(2, 8, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    layer = layer_norm(1, 8)
    grad_output = images(2, 8, 2)
    (found,) = torch.autograd.grad(layer.then_relu(x, pool=True), x, grad_output)
    y = F.relu(F.max_pool2d(layer.double()(x.double()), 2))
    (expected,) = torch.autograd.grad(y, x, grad_output.double())
    assert torch.allclose(found, expected, atol=1e-5)


def test_what_is_not_a_number_stays_so_in_layer_normalization():
    for place in range(4):
        x = images(2, 8, 4)
        x[1, 3, place // 2, place % 2] = float("nan")
        with torch.no_grad():
            y = LayerNorm(1, 8).then_relu(x, pool=True)
        assert y[1, :, 0, 0].isnan().all()
        assert not y[0].isnan().any()


def test_images_that_all_replicas_share_are_in_every_lane():
    lanes, x = native.lanes_for(5), torch.randn(2, 3, 4, 4)
    assert torch.equal(out_of_lanes(native.into_lanes(x, 3, lanes), lanes), x.repeat(1, 5, 1, 1))


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("replicas", [4, 10])
def test_a_pack_in_lanes_goes_the_way_of_a_pack_of_the_library(replicas, norm, monkeypatch):
    """And a replica that is not a number disturbs no other."""

    def trained() -> Pack:
        packed = pack(replicas, width=4, norm=norm)
        with torch.no_grad():
            by_replica(packed.network.kernels()[0], replicas)[2].fill_(float("nan"))
        for _ in range(2):
            train_epoch(packed)
        return packed

    ours = trained()
    assert ours.network.lanes == native.lanes_for(replicas)
    monkeypatch.setattr(native, "library", lambda: None)
    theirs = trained()
    assert theirs.network.lanes is None
    assert ours.status == theirs.status
    assert [status == "diverged" for status in ours.status] == [r == 2 for r in range(replicas)]
    for r in set(range(replicas)) - {2}:
        for name in ("train_cross_entropy", "val_objective", "norm"):
            assert ours.history[r][name] == pytest.approx(theirs.history[r][name], rel=1e-4), name


def test_packs_that_lanes_do_not_suit_are_left_to_the_library():
    assert pack(4, width=4).network.lanes is not None
    assert pack(2, width=4).network.lanes is None  # three lanes of four would be empty
    assert pack(4, width=6).network.lanes is None
    assert pack(4, width=4, norm="layer").network.lanes is not None
    assert not hasattr(pack(4, width=4, model="resnet56").network, "lanes")
    assert pack(1, side=32).network.lanes == native.SINGLE
    assert pack(1, side=16).network.lanes is None  # the last images are no whole tiles
    assert pack(1, width=12, side=32).network.lanes is None
    torch.set_num_threads(2)
    assert pack(4, width=4).network.lanes is None


def pack(replicas: int = 1, dtype: torch.dtype = torch.float32, side: int = 16, **fields: object) -> Pack:
    rng = np.random.default_rng(0)

    def part(n: int) -> Examples:
        return Examples(rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8), rng.integers(0, 10, n))

    recipe = Recipe.model_validate({"width": 8, "batch_size": 8, "epochs": 3, "learning_rate": 1e-4} | fields)
    return Pack(
        [Run(recipe, 1.0, seed) for seed in range(replicas)],
        Dataset(part(36), part(12), part(12), 10),
        dtype=dtype,
    )


# -- several layers in one call -----------------------------------------------------------------------------


def features(norm: str, replicas: int, width: int, side: int) -> tuple[ResNet9, Tensor]:
    """A network with random variables and, in lanes or channels last, a batch for it."""
    network = ResNet9(replicas, (3, side, side), 10, width, norm, pool="max")
    for name, parameter in network.named_parameters():
        size = 0.3 if "kernel" in name else 1.0  # also negative factors
        torch.nn.init.normal_(parameter, 1.0 if "gamma" in name else 0.0, size)
    n = 33 if width == 16 else 5  # on fewer pixels, kernels of 128 channels are left to the library
    x = torch.randn(n, replicas * 3, side, side)
    if network.fits_lanes:
        network.lanes = native.lanes_for(replicas)
    if replicas > 1:
        return network, x
    return network.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)


def block_by_block(network: ResNet9, x: Tensor) -> Tensor:
    """The same layers of a single network, each in C with two calls."""

    def block(layer: ConvNormRelu, x: Tensor) -> Tensor:
        return layer.norm.then_relu(native.convolve(x, layer.conv.kernel, layer.conv.bias), pool=layer.pool)

    x = block(network.down1, network.stem(x))
    x = x + block(network.residual1[1], block(network.residual1[0], x))
    x = block(network.down3, block(network.down2, x))
    return x + block(network.residual2[1], block(network.residual2[0], x))


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize("width", [8, 16])
def test_a_network_in_one_call_is_its_blocks_one_by_one(norm, width, calls):
    network, x = features(norm, 1, width, 32)
    variables = [p for name, p in network.named_parameters() if "head" not in name]
    statistics = [b for name, b in network.named_buffers() if "batch" in name]
    found = network._features(x)
    assert "chain" in calls
    grad_output = torch.randn_like(found)
    ours = [*torch.autograd.grad(found, variables, grad_output), *(b.clone() for b in statistics)]
    expected = block_by_block(network, x)
    theirs = [*torch.autograd.grad(expected, variables, grad_output), *statistics]
    assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    random_statistics(network)
    network.eval()
    with torch.no_grad():
        assert torch.equal(network._features(x), block_by_block(network, x))


def random_statistics(network: ResNet9) -> None:
    for name, buffer in network.named_buffers():
        if "moving" in name:
            buffer.uniform_(0.5, 2)


@pytest.mark.parametrize("norm", ["batch", "layer"])
@pytest.mark.parametrize(("replicas", "width", "side"), [(1, 8, 32), (4, 4, 8), (10, 4, 16), (17, 4, 8)])
def test_a_network_in_one_call_has_the_gradients_of_float64(vectors, norm, replicas, width, side):
    torch.manual_seed(1)  # with 0, rounding moves one value across the kink of ReLU
    network, x = features(norm, replicas, width, side)
    random_statistics(network)
    plain = plain_copy(network)

    def outputs() -> tuple[Tensor, Tensor]:
        ours, exact = network._features(x), plain._features(x.double())
        return ours if network.lanes is None else out_of_lanes(ours, network.lanes), exact

    found, expected = outputs()
    assert off(found, expected) < 1e-5
    for ours, exact in zip(network.buffers(), plain.buffers(), strict=True):
        assert off(ours, exact) < 1e-5
    grad_output = torch.randn_like(expected)
    ours = torch.autograd.grad(found, list(network.parameters())[:-2], grad_output.float())
    exact = torch.autograd.grad(expected, list(plain.parameters())[:-2], grad_output)
    for (name, _), a, b in zip(network.named_parameters(), ours, exact, strict=False):
        if norm == "layer" or "bias" not in name:  # batch normalization takes a bias away: its gradient is 0
            assert off(a, b) < 1e-4, name
    network.eval(), plain.eval()
    with torch.no_grad():
        assert off(*outputs()) < 1e-5


def test_a_network_in_one_call_leaves_replicas_to_themselves():
    network, x = features("batch", 4, 4, 8)
    x[1, 3:6] = float("nan")  # the second replica
    found = network._features(x)
    gradients = torch.autograd.grad(found.sum(), [*network.parameters()][:-2])
    assert out_of_lanes(found, network.lanes).isnan().any((0, 2, 3)).view(4, -1).any(1).tolist() == [
        r == 1 for r in range(4)
    ]
    for gradient in gradients:
        assert by_replica(gradient, 4)[[0, 2, 3]].isfinite().all()


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("lanes", [native.SINGLE, *LANES])
@pytest.mark.parametrize("side", [1, 4])
def test_the_head_is_pooling_and_a_dense_layer(lanes, side, largest):
    x = torch.randn(3, lanes.replicas * 16, side, side)
    x[1] = x[1].round()  # equal maxima share the gradient
    layer = Dense(lanes.replicas, 16, 7)
    torch.nn.init.normal_(layer.kernel), torch.nn.init.normal_(layer.bias)
    given = x.requires_grad_(), layer.kernel, layer.bias
    single = lanes == native.SINGLE
    arranged = x.contiguous(memory_format=torch.channels_last) if single else in_lanes(x, lanes)
    found = native.head(arranged, layer.kernel, layer.bias, lanes, largest=largest)
    exact = tuple(t.detach().double().requires_grad_() for t in given)
    features = exact[0].amax((2, 3)) if largest else exact[0].mean((2, 3))
    kernels, biases = by_replica(exact[1], lanes.replicas), by_replica(exact[2], lanes.replicas)
    products = torch.einsum("nrc,roc->nro", features.unflatten(1, (lanes.replicas, -1)), kernels)
    expected = (products + biases).flatten(1)
    assert off(found, expected) < 1e-6
    assert_gradients(found, given, expected, exact, torch.randn(found.shape), 1e-6)


def test_a_maximum_that_is_not_a_number_has_no_gradient_either():
    x = images(2, 8, 2)
    x[1, 3, 1, 0] = float("nan")
    x.requires_grad_()
    layer = Dense(1, 8, 4)
    torch.nn.init.normal_(layer.kernel)
    found = native.head(x, layer.kernel, layer.bias, native.SINGLE, largest=True)
    expected = layer(x.amax((2, 3)))
    assert torch.equal(found.isnan(), expected.isnan())
    ours, theirs = (
        torch.autograd.grad(y, (x, layer.kernel, layer.bias), torch.ones(2, 4)) for y in (found, expected)
    )
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_networks_that_are_not_all_in_c_are_left_to_their_layers(calls):
    for width, side, norm in ((8, 16, "batch"), (6, 32, "batch"), (8, 24, "layer")):
        network, x = features(norm, 1, width, side)
        assert off(network._features(x), plain_copy(network)._features(x.double())) < 1e-4
        assert "chain" not in calls


@pytest.mark.parametrize(
    ("model", "norm", "function"),
    [
        ("resnet9", "batch", "normalize"),
        ("resnet56", "batch", "normalize"),
        ("resnet9", "layer", "layer_normalize"),
    ],
)
def test_a_run_goes_the_same_way_with_and_without(model, norm, function, calls, monkeypatch):
    ours = pack(model=model, norm=norm)
    train_epoch(ours)
    assert {function, "convolve"} <= set(calls)
    assert not {"normalize", "layer_normalize"} - {function} & set(calls)
    monkeypatch.setattr(native, "library", lambda: None)
    theirs = pack(model=model, norm=norm)
    train_epoch(theirs)
    for name in ("train_cross_entropy", "val_objective", "norm"):
        assert ours.history[0][name] == pytest.approx(theirs.history[0][name], rel=1e-4), name


# -- between two batches ------------------------------------------------------------------------------------

SHAPES = ((12, 8, 3, 3), (12, 5), (12,), (4, 3, 3, 3))  # replica-major, of four replicas
RULES = [("sgd", 0.1), ("momentum", 0.0), ("adam", 0.0), ("adamw", 0.1), ("muon", 0.0)]


def updated(recipe: Recipe, steps: int, spoil: float | None) -> list[Tensor]:
    """Variables and state after updates with fixed gradients, one of which is spoiled in replica 2."""
    generator = torch.Generator().manual_seed(0)

    def draw(shape: tuple[int, ...], size: float) -> Tensor:
        return size * torch.randn(shape, generator=generator)

    variables = [draw(shape, 1.0) for shape in SHAPES]
    variables[0] = variables[0].to(memory_format=torch.channels_last)
    optimizer = optimizer_for(recipe, variables, 4, [0, 1, 3])
    for k in range(1, steps + 1):
        gradients = [draw(shape, 10.0 ** (k % 5 - 3)) for shape in SHAPES]  # the first in another layout
        gradients[3] = gradients[3].to(memory_format=torch.channels_last)
        if spoil is not None and k == steps // 2:
            gradients[0][7, 3] = spoil
        optimizer.step(gradients, 0.01 / k**0.5, k)
    return [*variables, *optimizer.state([str(i) for i in range(len(SHAPES))]).values()]


@pytest.mark.parametrize(("optimizer", "decay"), RULES)
@pytest.mark.parametrize("spoil", [None, float("nan")])
def test_updates_are_those_of_the_library(optimizer, decay, spoil, calls, monkeypatch):
    """Over 100 steps, to rounding; what is not a number stays in its replica."""
    recipe = Recipe(optimizer=optimizer, weight_decay=decay)
    found = updated(recipe, 100, spoil)
    rule = {"sgd": "add_scaled", "momentum": "momentum_step"}.get(optimizer, "adam_step")
    assert set(calls) == {rule}
    monkeypatch.setattr(native, "library", lambda: None)
    expected = updated(recipe, 100, spoil)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours.isfinite(), theirs.isfinite())
        assert torch.allclose(ours, theirs, rtol=2e-5, atol=1e-6, equal_nan=True)
        assert by_replica(ours, 4)[[0, 1, 3]].isfinite().all()
    assert all(t.isfinite().all() for t in found) == (spoil is None)


@pytest.mark.parametrize("replicas", [1, 4])
def test_sums_of_squares_are_those_of_each_replica(replicas):
    tensors = [torch.randn(shape) * 10**i for i, shape in enumerate((*SHAPES, (8, 3000)))]
    tensors[0] = tensors[0].to(memory_format=torch.channels_last)
    found = native.Together(tensors).sum_of_squares(replicas)
    parts = [t.double().reshape(replicas, -1).square().sum(1) for t in tensors]
    assert torch.allclose(found.double(), torch.stack(parts).sum(0), rtol=1e-6)
    tensors[1][-1, 2] = float("nan")
    assert native.Together(tensors).sum_of_squares(replicas).isnan().tolist() == [
        r == replicas - 1 for r in range(replicas)
    ]


@pytest.mark.parametrize("rate", [None, 0.5, 1.0])
def test_moving_statistics_are_those_of_the_library(rate, calls, monkeypatch):
    def absorbed() -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        norms = [BatchNorm(1, 3), BatchNorm(2, 4), BatchNorm(1, 2)]
        statistics = MovingStatistics(norms)
        for step in range(5):
            for norm, count in zip(norms, (7, 2, 1), strict=True):
                norm.count = count
                (
                    norm.batch_mean.normal_(generator=generator),
                    norm.batch_variance.uniform_(generator=generator),
                )
                if count == 1:
                    norm.batch_variance.fill_(float("nan"))  # as undefined as it is
            if step == 3:
                norms[0].batch_mean[1] = float("inf")
            statistics.absorb(rate)
        return [tensor for norm in norms for tensor in (norm.moving_mean, norm.moving_variance)]

    found = absorbed()
    assert set(calls) == {"absorb"}
    monkeypatch.setattr(native, "library", lambda: None)
    for ours, theirs in zip(found, absorbed(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_tensors_with_gaps_or_of_another_type_are_left_to_the_library():
    whole = torch.zeros(4, 8, 3, 3)
    assert native.Together([whole]).ready
    assert native.Together([whole.to(memory_format=torch.channels_last), whole[0]]).ready
    assert not native.Together([]).ready
    assert not native.Together([whole, whole[:, ::2]]).ready
    assert not native.Together([whole.mT]).ready
    assert not native.Together([whole, whole.double()]).ready
    assert not native.Together([whole], [whole.to(memory_format=torch.channels_last)]).ready
    torch.set_num_threads(2)
    assert not native.Together([whole]).ready


BETWEEN = {1: {"absorb", "sum_of_squares", "adam_step"}, 4: {"train", "sum_of_squares"}}  # by replicas


@pytest.mark.parametrize(("replicas", "width"), [(1, 8), (4, 4)])
def test_a_checkpoint_continues_with_and_without(replicas, width, calls, monkeypatch):
    """Trained in C and continued by the library, or the other way round, a run goes the same way."""
    fields = {"width": width, "optimizer": "adamw", "weight_decay": 0.1, "l2": 0.01, "learning_rate": 1e-3}

    def begun() -> Pack:
        packed = pack(replicas, **fields)
        train_epoch(packed)
        return packed

    def continued(before: Pack) -> list[dict[str, list[float]]]:
        packed = pack(replicas, **fields)
        packed.restore(before.checkpoint())
        train_epoch(packed)
        return packed.history

    ours = begun()
    assert set(calls) >= BETWEEN[replicas]
    histories = [continued(ours)]
    with monkeypatch.context() as changed:
        changed.setattr(native, "library", lambda: None)
        calls.clear()
        theirs = begun()
        histories += [continued(ours), continued(theirs)]
        assert not calls
    histories.append(continued(theirs))
    for history in histories[1:]:
        for one, other in zip(histories[0], history, strict=True):
            for name in ("train_cross_entropy", "val_objective", "norm", "clock_angular"):
                # The gradient of a bias before batch norm is mere rounding, and Adam follows it.
                assert one[name] == pytest.approx(other[name], rel=1e-3), name


@pytest.mark.parametrize(
    ("optimizer", "fields"),
    [
        ("sgd", {"l2": 1.0}),
        ("sgd", {"batch_statistics": "re-estimated", "augment": "flip-crop"}),
        ("momentum", {"weight_decay": 0.1}),
        ("adamw", {"norm": "layer", "weight_decay": 0.1, "l2": 0.01, "decay_on": "kernels"}),
    ],
)
@pytest.mark.parametrize(("replicas", "width", "side"), [(10, 4, 16), (1, 8, 32)])
def test_many_batches_in_one_call_go_the_way_of_float64(
    optimizer, fields, replicas, width, side, calls, monkeypatch
):
    """Also if an epoch is interrupted between two calls, and resumed from its checkpoints."""
    fields = {"width": width, "side": side, "optimizer": optimizer, "learning_rate": 1e-3} | fields
    ours = pack(replicas, **fields)
    for _ in range(3):
        assert train_epoch(ours)
    assert "train" in calls
    assert "chain_backward" not in calls
    exact = pack(replicas, dtype=torch.float64, **fields)
    for _ in range(3):
        train_epoch(exact)
    for one, other in zip(ours.history, exact.history, strict=True):
        for name in ("train_cross_entropy", "train_accuracy", "val_objective", "norm", "clock_angular"):
            assert one[name] == pytest.approx(other[name], rel=5e-4), name  # a few signs of ReLU differ

    monkeypatch.setattr(in_one_call, "BATCHES_AT_ONCE", 2)
    parts = pack(replicas, **fields)
    while parts.epoch < 3:
        if not train_epoch(parts, pause=lambda: True):
            saved, parts = parts.checkpoint(), pack(replicas, **fields)
            parts.restore(saved)
    for name, value in ours.network.state_dict().items():
        assert torch.equal(value, parts.network.state_dict()[name]), name


def test_a_convolution_of_oblong_images_without_gradients():
    layer, x = Conv(1, 8, 8).to(memory_format=torch.channels_last), images(3, 8, 16)[:, :, :4]
    torch.nn.init.normal_(layer.kernel)
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert native.can_convolve(x, layer.kernel)
        found, expected = layer(x), F.conv2d(x.double(), layer.kernel.double(), padding=1)
    assert off(found, expected) < 5e-6


@pytest.mark.parametrize(("channels", "wide"), [(16, True), (24, False)])
def test_the_widest_vectors_that_are_filled_are_used(vectors, channels, wide, calls):
    layer = Conv(1, channels, channels).to(memory_format=torch.channels_last)
    native.convolve(images(1, channels, 4), layer.kernel, layer.bias)
    assert [name.endswith("_wide") for name in calls] == [wide and vectors == 16]


@pytest.mark.parametrize(
    ("n", "inputs", "outputs", "height", "width"),
    [
        (1, 128, 128, 4, 4),  # one tile
        (16, 128, 160, 4, 4),  # a vector of tiles, and inputs or outputs that are no whole blocks
        (16, 128, 128, 8, 8),  # as many tiles as are processed at a time
        (97, 256, 256, 4, 4),  # more than that, and no whole vector of them
        (65, 128, 128, 4, 4),  # too many for this size
        (16, 144, 128, 4, 4),  # no whole blocks of 32 channels
    ],
)
def test_large_kernels_on_few_tiles(vectors, n, inputs, outputs, height, width):
    x = images(n, inputs, max(height, width))[:, :, :height, :width]
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    layer = Conv(1, inputs, outputs).to(memory_format=torch.channels_last)
    for variable in layer.parameters():
        torch.nn.init.normal_(variable)
    assert native.can_convolve(x, layer.kernel)
    found = native.convolve(x, layer.kernel, layer.bias)
    given = [x, layer.kernel, layer.bias]
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    expected = F.conv2d(*exact, padding=1)
    assert off(found, expected) < 5e-6
    assert_gradients(found, given, expected, exact, torch.randn_like(found), 5e-6)


def test_left_to_the_library_where_it_was_not_written_for_it():
    x, kernel = images(2, 16, 8), torch.zeros(16, 16, 3, 3).to(memory_format=torch.channels_last)
    assert native.can_normalize(x, pool=True)
    assert native.can_convolve(x, kernel)
    assert not native.can_normalize(x.double(), pool=True)
    assert not native.can_normalize(x.contiguous(), pool=True)
    assert not native.can_normalize(images(2, 12, 8), pool=True)
    assert not native.can_normalize(images(2, 16, 7), pool=True)
    assert not native.can_convolve(images(2, 32, 8), kernel)  # replicas
    assert native.can_head(x, torch.zeros(10, 16))
    assert not native.can_head(images(2, 32, 8), torch.zeros(20, 16))
    assert not native.can_head(images(2, 12, 8), torch.zeros(10, 12))
    assert not native.can_head(x.double(), torch.zeros(10, 16))
    assert not native.can_convolve(x, kernel.contiguous())
    assert not native.can_convolve(images(2, 16, 6), kernel)  # no whole tiles
    few = torch.zeros(16, 3, 3, 3).to(memory_format=torch.channels_last)
    assert native.can_convolve(images(2, 3, 8), few)
    assert not native.can_convolve(images(2, 3, 8).requires_grad_(), few)  # it has no gradient of images
    assert not native.can_convolve(images(2, 12, 8), torch.zeros(16, 12, 3, 3))
    torch.set_num_threads(2)
    assert not native.can_normalize(x, pool=True)


# -- transformers -------------------------------------------------------------------------------------------

TRANSFORMERS = {  # positions, heads and widths that fill no tile, and batches that fill no vector
    "vit": lambda: ViT((1, 8, 8), 5, 32, patch=2, depth=2),
    "odd vit": lambda: ViT((3, 15, 15), 10, 12, patch=5, depth=3, heads=2),
    "gpt": lambda: GPT(Tokens(vocabulary=11, length=9), 11, 16, depth=2),
    "tied gpt": lambda: GPT(Tokens(vocabulary=11, length=2), 11, 20, depth=1, heads=5, tied=True),
}


def transformer(name: str, n: int) -> tuple[nn.Module, Tensor]:
    """A network whose biases and norms are not those of a new one, and a batch for it."""
    network = TRANSFORMERS[name]()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    if isinstance(network, GPT):
        return network, torch.randint(0, 11, (n, len(network.positions.weight)))
    return network, torch.randn(n, *((1, 8, 8) if name == "vit" else (3, 15, 15)))


def outputs_and_gradients(network: nn.Module, x: Tensor, parameters: dict[str, Tensor]) -> list[Tensor]:
    y = functional_call(network, parameters, (x,))
    weights = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).view_as(y).to(y.dtype)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), list(parameters.values()))]


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize("n", [1, 11, 37])
def test_transformers_and_their_gradients(vectors, name, n, calls):
    network, x = transformer(name, n)
    found = outputs_and_gradients(network, x, dict(network.named_parameters()))
    suffix = "_wide" if vectors == 16 and n > 8 else ""
    assert {f"transformer{suffix}", f"transformer_backward{suffix}"} <= set(calls)
    exact = deepcopy(network).double()
    x = x.double() if x.is_floating_point() else x
    expected = outputs_and_gradients(exact, x, dict(exact.named_parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        assert off(ours, theirs) < 2e-5
    with torch.no_grad():
        assert off(network(x.float() if x.is_floating_point() else x), expected[0]) < 2e-6


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_in_a_pack_transformers_are_as_they_are_alone(name):
    """Outputs bit by bit; gradients, which PyTorch passes back through the head, nearly so."""
    networks, x = [transformer(name, 1)[0] for _ in range(3)], transformer(name, 19)[1]
    each = [dict(network.named_parameters()) for network in networks]
    alone = [outputs_and_gradients(networks[0], x, own) for own in each]
    stacked = {key: torch.stack([own[key].detach() for own in each]).requires_grad_() for key in each[0]}
    y = vmap(lambda own: functional_call(networks[0], own, (x,)))(stacked)
    weights = torch.linspace(-1, 2, y[0].numel(), dtype=torch.float64).view_as(y[0]).float()
    packed = [y, *torch.autograd.grad((y * weights).sum(), list(stacked.values()))]
    for r, own in enumerate(alone):
        assert torch.equal(packed[0][r], own[0])
        for ours, theirs in zip(packed, own, strict=True):
            assert off(ours[r], theirs) < 2e-5


@pytest.mark.parametrize("name", ["vit", "gpt"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_so_in_transformers(name, value):
    network, x = transformer(name, 3)
    with torch.no_grad():
        network.get_parameter("blocks.0.expand.bias")[3] = value
        assert not network(x).isfinite().any()


def test_attention_of_large_values_is_finite():
    network, x = transformer("gpt", 3)
    with torch.no_grad():
        network.get_parameter("blocks.0.attention.query_key_value.weight").mul_(1e4)
        assert off(network(x), deepcopy(network).double()(x)) < 1e-2


def test_transformers_that_c_does_not_know_are_left_to_the_library(calls):
    network = ViT((1, 8, 8), 5, 6, patch=4, depth=1, heads=3)
    assert network(torch.randn(2, 1, 8, 8)).shape == (2, 5)
    assert not calls
