"""Train a pack of runs and return their records."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from initmem.data.dataset import Dataset
from initmem.record import RunRecord
from initmem.study import Run
from initmem.train import native
from initmem.train.pack import Checkpoint, Pack
from initmem.train.requirements import Precision


def train_pack(
    runs: Sequence[Run],
    data: Dataset,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    precision: Precision = "float32",
    resume: Sequence[Checkpoint] | None = None,
    on_epoch: Callable[[Pack], None] | None = None,
    pause: Callable[[], bool] = lambda: False,
    on_pause: Callable[[Pack], None] | None = None,
) -> list[RunRecord]:
    """Train the runs of one recipe as a pack and return one record per run.

    Training resumes from the checkpoints in `resume`, if given. `on_epoch` is called after every epoch.
    `pause` is called between batches; if it returns true, `on_pause` is called, to save the pack. Both
    callbacks may raise to stop training.
    """
    started = time.perf_counter()
    # By default PyTorch allows TF32 in GPU convolutions; here it has to be requested.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    pack = Pack(runs, data, device=device, dtype=dtype, precision=precision)
    if resume is not None:
        pack.restore(resume)
    started -= pack.spent  # in earlier sessions
    while not pack.finished:
        completed = pack.train_epoch(pause)
        callback = on_epoch if completed else on_pause
        if callback is not None:
            callback(pack)
    return pack.records(provenance(pack, time.perf_counter() - started))


def provenance(pack: Pack, seconds: float) -> dict[str, Any]:
    """Provenance that only the pack knows; the engine adds the rest."""
    return {
        "device": str(pack.device),
        "precision": pack.precision,
        "native": native.ready(pack.device, pack.parameters[0].dtype),
        "layers": native.layers(pack.device, pack.parameters[0].dtype),
        "pack": pack.replicas,
        "seconds": round(seconds, 3),
    }
