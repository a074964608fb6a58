"""What a GPU would have to wait for, counted on the CPU: nothing within an epoch.

Every operation of a training epoch passes through a dispatch mode. Reading a value on the host, an output
whose shape depends on values, or a copy to another device would make the host wait for a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from initmem.data.dataset import Dataset, Examples
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train import loop, native
from initmem.train.loop import train_epoch
from initmem.train.pack import Pack

WAITS = {
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2",
    "unique_dim", "repeat_interleave",
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Notes each operation with the shapes of its tensors, batch by batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[tuple[str, tuple[object, ...]]]] = [[]]
        self.waits: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note one operation and do it."""
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if name in WAITS or (name == "_to_copy" and kwargs.get("device") is not None):
            self.waits.append(name)
        values, _ = tree_flatten((args, kwargs))
        shapes = tuple(tuple(v.shape) for v in values if isinstance(v, torch.Tensor))
        self.batches[-1].append((name, shapes))
        return function(*args, **kwargs)

    def next_batch(self) -> bool:
        """Between two batches; training goes on."""
        self.batches.append([])
        return False


class Stop(Exception):
    """Ends an epoch where its training ends: then the host has to read the results."""


def watched_epoch(monkeypatch: pytest.MonkeyPatch, **fields: object) -> Watch:
    """One epoch of 4 batches and a smaller one."""
    monkeypatch.setattr(native, "library", lambda: None)  # on a GPU, PyTorch computes the layers
    rng = np.random.default_rng(0)

    def part(n: int) -> Examples:
        return Examples(rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8), rng.integers(0, 10, n))

    recipe = Recipe.parse({"width": 4, "batch_size": 8, "epochs": 3, "learning_rate": 1e-3} | fields)
    pack = Pack([Run(recipe, 1.0, s) for s in range(2)], Dataset("noise", part(36), part(8), part(8), 10))
    train_epoch(pack)
    watch = Watch()

    def stop(*_: object) -> None:
        raise Stop

    for name in ("tolist", "numpy", "cpu", "__array__"):  # on the CPU, these bypass the dispatcher
        whole = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda t, *a, w=whole, n=name, **k: watch.waits.append(n) or w(t, *a, **k)
        )
    batches = pack.batches(2)  # made and copied before the first batch
    monkeypatch.setattr(pack, "batches", lambda epoch: batches)
    watch.waits.clear()
    with monkeypatch.context() as patched, watch, pytest.raises(Stop):
        patched.setattr(loop, "evaluated_model", stop)
        train_epoch(pack, watch.next_batch)
    return watch


KINDS = [
    {"optimizer": "sgd", "l2": 1e-3},
    {"optimizer": "momentum", "norm": "layer"},
    {"optimizer": "adamw", "weight_decay": 1e-2, "augment": "flip-crop"},
    {"optimizer": "muon-conv"},
    {"optimizer": "sgd", "model": "resnet56"},
    {"optimizer": "adam", "model": "mlp"},
]


@pytest.mark.parametrize("fields", KINDS, ids=lambda f: "-".join(map(str, f.values())))
def test_nothing_in_an_epoch_waits_for_the_device(fields, monkeypatch):
    watch = watched_epoch(monkeypatch, **fields)
    assert watch.waits == []
    assert len(watch.batches) == 5
    assert len(watch.batches[0]) > 50  # it does see the operations
    # All batches but the last, smaller one are the same operations and shapes.
    assert watch.batches[0] == watch.batches[1] == watch.batches[2] == watch.batches[3]
    assert watch.batches[4] != watch.batches[1]


def test_a_value_that_is_read_would_be_seen(monkeypatch):
    plain = Pack.kernel_squares
    monkeypatch.setattr(Pack, "kernel_squares", lambda pack: plain(pack) * float(plain(pack)[0]))
    watch = watched_epoch(monkeypatch)
    assert watch.waits == ["_local_scalar_dense"] * 5
    monkeypatch.setattr(Pack, "kernel_squares", lambda pack: plain(pack).to("cpu", copy=True))
    assert watched_epoch(monkeypatch).waits == ["_to_copy"] * 5
    monkeypatch.setattr(Pack, "kernel_squares", lambda pack: plain(pack) * plain(pack).tolist()[0])
    assert watched_epoch(monkeypatch).waits == ["tolist"] * 5
