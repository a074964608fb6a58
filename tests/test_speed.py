"""What was made quick gives the same numbers; measurements of speed are remembered and told."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmarks.bench import compare
from benchmarks.bench.command import asked_peers, asked_workloads, ratio_table
from benchmarks.bench.compare import AS_IS, Setting, time_initmem, time_peer, whole
from benchmarks.bench.workloads import CORE, WORKLOADS, Workload

from initmem.data.sources import sizes
from initmem.engines.packs import pack_size
from initmem.engines.plan import run_flops
from initmem.errors import ConfigError
from initmem.recipe import Recipe
from initmem.train.layers import Conv, ConvNormRelu

SMALL = {"dataset": "synthetic:60x1x8x8", "width": 2}
TINY = Workload("tiny", Recipe.parse(SMALL | {"epochs": 5}), runs=4, timed=1)


@pytest.mark.parametrize("side", [(1, 1), (2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_tiny_image_is_convolved_by_a_matrix_product(side: tuple[int, int], shared: bool) -> None:
    conv = Conv(3, 4, 5).double()
    torch.nn.init.normal_(conv.kernel)
    torch.nn.init.normal_(conv.bias)
    x = torch.randn(6, 4 if shared else 12, *side, dtype=torch.double, requires_grad=True)
    expected = F.conv2d(x, conv.kernel, conv.bias, padding=1, groups=x.shape[1] // 4)
    found = conv(x)
    torch.testing.assert_close(found, expected)
    grad_output = torch.randn_like(expected)
    gradients = [torch.autograd.grad(y, (x, conv.kernel, conv.bias), grad_output) for y in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_pooling_before_relu_is_pooling_after_it() -> None:
    block = ConvNormRelu(2, 3, 4, "batch", pool=True).double()
    torch.nn.init.normal_(block.conv.kernel)
    torch.nn.init.normal_(block.norm.gamma)  # of both signs
    x = torch.randn(5, 6, 8, 8, dtype=torch.double, requires_grad=True)
    expected = F.max_pool2d(F.relu(block.norm(block.conv(x))), 2)
    found = block(x)
    assert torch.equal(found, expected)
    grad_output = torch.randn_like(expected)
    variables = [x, *block.parameters()]
    torch.testing.assert_close(*(torch.autograd.grad(y, variables, grad_output) for y in (found, expected)))


def test_packs_are_chosen_by_shape_whatever_an_old_cache_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement taken under load was once kept for good, in this file."""
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path))
    (tmp_path / "packs.json").write_text('{"any processor: resnet9 w4 batch sgd b16 1x8x8": 1}')
    for width, pack in ((4, 16), (8, 8), (16, 4), (64, 1)):
        recipe = Recipe.parse({"dataset": "digits", "width": width, "batch_size": 16})
        assert pack_size(recipe, sizes(recipe)) == pack
    assert pack_size(Recipe(), sizes(Recipe())) == 1


def test_the_first_epoch_counts_once() -> None:
    assert whole([10.0, 3.0, 2.0, 4.0], 0.5, epochs=30) == 10 + 29 * 2 + 0.5


def test_all_take_turns_and_of_each_the_quickest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, quick = Setting(2, 1), Setting(2, 1, channels_last=True)
    times = {AS_IS: [9.0, 8.0], slow: [6.0], quick: [3.0, 4.0]}
    ours = [2.0, 1.0]
    asked: list[Setting] = []
    monkeypatch.setattr(compare, "settings", lambda peer: [AS_IS, slow, quick])
    monkeypatch.setattr(compare, "time_initmem", lambda workload: (ours.pop(0), 4))
    monkeypatch.setattr(
        compare, "time_peer", lambda _, __, setting, best: asked.append(setting) or times[setting].pop(0)
    )
    found = compare.compare(TINY, ["torch"], 1e9, lambda line: None)
    assert asked == [AS_IS, slow, quick, AS_IS, quick]  # what is twice as slow is not tried again
    assert (found.seconds, found.ratio("torch", best=False), found.ratio("torch", best=True)) == (
        1.0,
        8.0,
        3.0,
    )
    assert found.share == pytest.approx(TINY.runs * run_flops(TINY.recipe, TINY.sizes) / 1e9)


def test_peer_and_initmem_are_timed_on_a_tiny_workload() -> None:
    seconds, pack = time_initmem(TINY)
    assert seconds > 0
    assert 1 <= pack <= TINY.runs
    found = compare.Comparison(TINY, seconds, pack, 0.1)
    spent = time_peer("torch", TINY, AS_IS)
    assert spent is not None
    best = Setting(2, 1, channels_last=True)
    found.peers["torch"] = {str(AS_IS): spent, str(best): spent / 2}
    assert found.ratio("torch", best=False) == spent / seconds == 2 * found.ratio("torch", best=True)
    assert found.row()["best_settings"] == {"torch": "2 at once, 1 thread, channels_last"}
    assert found.ratio("keras", best=True) is None
    row = json.loads(json.dumps(found.row()))
    about = {"cores": 2, "processor": "x"}
    table = ratio_table([row], about)
    values = {str(column): cell.text for column, cell in zip(table.columns, table.rows[0], strict=True)}
    assert values["torch as is"] == f"{spent / seconds:.2f}"
    assert values["workload"] == "tiny"


def test_a_setting_far_slower_than_the_best_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[float] = []
    monkeypatch.setattr(compare, "race", lambda command, at_once, longest: allowed.append(longest) or [])
    for best in (100.0, math.inf):
        for setting in (AS_IS, Setting(2, 1, compile=True)):
            with pytest.raises(statistics.StatisticsError):  # nothing was told
                time_peer("jax", TINY, setting, best)
    # One of 4 runs, 2 of 5 epochs, 1.3 times as long as the best; compiling takes as long as it takes.
    assert allowed == [60 + 100 / 4 * 2 / 5 * 1.3, 600, 600, 600]


def test_a_peer_that_does_not_run_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.sys, "executable", shutil.which("false"))
    assert time_peer("torch", TINY, AS_IS) is None


def test_what_bench_is_asked() -> None:
    assert tuple(w.name for w in asked_workloads([], everything=False)) == CORE
    assert len(asked_workloads([], everything=True)) == len(WORKLOADS)
    assert [w.recipe.model for w in asked_workloads(["resnet56"], everything=False)] == ["resnet56"]
    assert asked_peers("torch, keras") == ["torch", "keras"]
    assert asked_peers("none") == []
    with pytest.raises(ConfigError, match=r"'resnet7' .*quickstart"):
        asked_workloads(["resnet7"], everything=False)
    with pytest.raises(ConfigError, match=r"'tinygrad' .*keras"):
        asked_peers("tinygrad")
