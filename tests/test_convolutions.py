"""Two ways to compute the convolutions of a pack, and which of them a GPU gets."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from initmem.data.sources import load
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train import convolutions
from initmem.train.layers import Conv
from initmem.train.loop import provenance
from initmem.train.models import build
from initmem.train.pack import Pack


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(6, 6), (5, 8)])
def test_both_ways_agree(stride: int, size: int, shared: bool, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer = Conv(3, 2, 4, size, stride).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(5, 2 if shared else 6, *shape, dtype=torch.float64, requires_grad=True)
    found = []
    for layer.unfolds in (False, True):
        y = layer(x)
        found.append([y, *torch.autograd.grad(y.sin().sum(), [x, *layer.parameters()])])
    for grouped, unfolded in zip(*found, strict=True):
        assert grouped.shape == unfolded.shape and grouped.abs().max() > 0.1
        torch.testing.assert_close(grouped, unfolded, rtol=1e-12, atol=1e-12)


def planted(slow: Callable[[Conv, bool], bool]) -> tuple[convolutions.Clock, Counter[bool]]:
    """A clock that does everything and takes the times as given; every seventh one is an outlier."""
    calls: Counter[bool] = Counter()

    def clock(device: torch.device, function: Callable[[], object]) -> float:
        function()
        layer = function.__closure__[0].cell_contents  # type: ignore[attr-defined, index]
        assert isinstance(layer, Conv)
        calls[layer.unfolds] += 1
        outlier = 100.0 if calls[layer.unfolds] % 7 == 0 else 1.0
        return outlier * (2.0 if slow(layer, layer.unfolds) else 1.0)

    return clock, calls


@pytest.mark.parametrize("model", ["resnet9", "resnet56"])
def test_the_choice_follows_the_times(model: str) -> None:
    """Unfolding is planted to be faster from 8 input channels on."""
    network = build(model, replicas=2, shape=(3, 16, 16), classes=2, width=4, norm="batch")
    x = torch.rand(4, 6, 16, 16)
    clock, calls = planted(lambda layer, unfolds: unfolds != (layer.inputs >= 8))
    chosen = convolutions.choose(network, x, clock)
    inputs = {shape: int(shape.partition("-")[0]) for shape in chosen}
    assert {chosen[shape] for shape, n in inputs.items() if n < 8} == {"grouped"}
    assert {chosen[shape] for shape, n in inputs.items() if n >= 8} == {"unfolded"}
    layers = [layer for layer in network.modules() if isinstance(layer, Conv)]
    dense = [layer for layer in layers if model == "resnet9" and layer.inputs == 32]  # on 2x2 pixels
    assert all(layer.unfolds == (layer.inputs >= 8 and layer not in dense) for layer in layers)
    each = len(chosen) * (1 + convolutions.ROUNDS)
    assert calls == {False: each, True: each} and len(chosen) < len(layers)
    assert "3-4 3x3/1, 4 images of 16x16" in chosen


def test_a_pack_on_another_device_measures_with_its_own_batches(
    tiny: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stop(Exception):
        pass

    def choose(network: object, x: torch.Tensor) -> None:
        raise Stop(tuple(x.shape))

    monkeypatch.setattr(convolutions, "choose", choose)
    monkeypatch.setattr(Pack, "_autocast", lambda pack: contextlib.nullcontext())
    runs = [Run(tiny, scale, 0) for scale in (0.5, 1.0, 2.0)]
    with pytest.raises(Stop, match=r"\(16, 3, 8, 8\)"):
        Pack(runs, load(tiny), device="meta")
    pack = Pack(runs, load(tiny))  # on the CPU there is nothing to choose
    assert "convolutions" not in provenance(pack, 0.0)
    assert not any(layer.unfolds for layer in pack.network.modules() if isinstance(layer, Conv))


def test_the_choice_is_recorded(tiny: Recipe) -> None:
    pack = Pack([Run(tiny, scale, 0) for scale in (0.5, 1.0)], load(tiny))
    pack.convolutions = {"1-2 3x3/1, 16 images of 8x8": "unfolded"}  # as if it had been measured
    assert provenance(pack, 0.0)["convolutions"] == pack.convolutions
    assert pack.checkpoint()[0].meta["sessions"][-1]["convolutions"] == pack.convolutions
