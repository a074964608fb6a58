"""Checkpoints: safetensors with a digest, so that a flipped bit never becomes a trajectory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from initmem.errors import StoreError
from initmem.files import explained, reason, retried, write_atomic
from initmem.store.paths import Paths
from initmem.study import Run

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = 2


class Checkpoints:
    """The checkpoints of runs in training, each as (tensors, meta): plain values next to tensors.

    A checkpoint that is damaged, or that belongs to another run or update than its name says, is not used.
    """

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def newest(self, run_id: str) -> int:
        """How many updates the newest checkpoint of a run holds; 0 if there is none."""
        return max(self.paths.checkpoints(run_id), default=0)

    def write(self, saved: Mapping[Run, tuple[Mapping[str, Tensor], Any]], update: int) -> None:
        """Write the checkpoints of a pack, then drop the older ones: one set is always complete."""
        with explained(self.paths.root):
            for run, (tensors, meta) in saved.items():
                self.paths.make_run(run.id)
                data = encode(run.id, update, tensors, meta)
                write_atomic(self.paths.checkpoint(run.id, update), data)
            self._drop(list(saved), keep=update)

    def read(self, runs: Sequence[Run]) -> list[tuple[dict[str, Tensor], Any]] | None:
        """The newest checkpoints that all these runs have in common; None if there are none.

        What the disk refuses to read may be intact: it is an error, and no training is thrown away.
        """
        common = set.intersection(*(self.paths.checkpoints(run.id) for run in runs))
        for update in sorted(common, reverse=True):
            try:
                return [self._read(run, update) for run in runs]
            except (StoreError, FileNotFoundError):
                continue
            except OSError as error:
                raise StoreError(f"{error.filename or self.paths.root}: {reason(error)}") from None
        return None

    def drop(self, runs: Sequence[Run]) -> None:
        """Let runs start again from the beginning."""
        with explained(self.paths.root):
            self._drop(runs, keep=None)

    def _read(self, run: Run, update: int) -> tuple[dict[str, Tensor], Any]:
        run_id, at, tensors, meta = decode(retried(self.paths.checkpoint(run.id, update).read_bytes))
        if (run_id, at) != (run.id, update):
            raise StoreError(f"checkpoint of run {run_id} at update {at}, under another name")
        return tensors, meta

    def _drop(self, runs: Sequence[Run], *, keep: int | None) -> None:
        for run in runs:
            for update in self.paths.checkpoints(run.id) - {keep}:
                self.paths.checkpoint(run.id, update).unlink(missing_ok=True)


def encode(run_id: str, update: int, tensors: Mapping[str, Tensor], meta: Any) -> bytes:
    """Serialize the state of a run after so many updates."""
    from safetensors.torch import save

    here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"schema": SCHEMA, "run": run_id, "update": update, "meta": meta})
    return save(here, metadata={"initmem": text, "sha256": digest(here, text)})


def decode(data: bytes) -> tuple[str, int, dict[str, Tensor], Any]:
    """Read back the arguments of `encode`; anything that is not exactly what was written is an error."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
        # Only from a file does safetensors return its metadata. It has checked the header by now.
        notes = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if notes["sha256"] != digest(tensors, notes["initmem"]):
            raise StoreError("damaged checkpoint (checksum does not match)")
        about = json.loads(notes["initmem"])
        if about["schema"] != SCHEMA:
            raise StoreError(f"checkpoint of schema {about['schema']!r} (allowed: {SCHEMA})")
        return about["run"], about["update"], tensors, about["meta"]
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"not a checkpoint ({type(error).__name__}: {error})") from None


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """A digest of the names, types, shapes and values of tensors, and of the text next to them."""
    import torch

    summary = [[name, str(t.dtype), list(t.shape)] for name, t in sorted(tensors.items())]
    hashed = hashlib.sha256(json.dumps([summary, text]).encode())
    for _, tensor in sorted(tensors.items()):
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
