"""Checkpoints: safetensors with a digest, so that a flipped bit never becomes a trajectory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from initmem.errors import StoreError
from initmem.files import open_regular, reason, write_atomic
from initmem.store.paths import Paths, writes
from initmem.study import Run

if TYPE_CHECKING:
    from torch import Tensor


SCHEMA = 2  # 1 did not say whose checkpoint it is; it is not read any more: its run starts again


LARGEST_HEADER = 64 << 20  # bytes: the history of a run is in there


class Saved(NamedTuple):
    """A checkpoint as it is stored: whose it is, and its state as tensors and plain values."""

    run_id: str
    update: int
    tensors: dict[str, Tensor]
    meta: Any


class Checkpoints:
    """The checkpoints of runs in training, each as (tensors, meta): plain values beside tensors.

    A checkpoint that is damaged, or that belongs to another run or update than its name says, is not used.
    """

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def newest(self, run_id: str) -> int:
        """How many updates the newest checkpoint of a run holds; 0 when there is none."""
        return max(self.paths.checkpoints(run_id), default=0)

    @writes
    def write(self, saved: Mapping[Run, tuple[Mapping[str, Tensor], Any]], update: int) -> None:
        """Write the checkpoints of a pack, then drop the older ones: one set is always complete."""
        for run, (tensors, meta) in saved.items():
            self.paths.open_run(run.id)
            data = encode(run.id, update, tensors, meta)
            write_atomic(self.paths.checkpoint(run.id, update), data, self.paths.mode)
        for run in saved:
            self._drop(run, keep=update)

    def read(self, runs: Sequence[Run]) -> list[tuple[dict[str, Tensor], Any]] | None:
        """The newest checkpoints that all these runs have in common; None when there are none.

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

    @writes
    def drop(self, runs: Sequence[Run]) -> None:
        """Let runs start again from the beginning."""
        for run in runs:
            self._drop(run, keep=None)

    def _read(self, run: Run, update: int) -> tuple[dict[str, Tensor], Any]:
        with open_regular(self.paths.checkpoint(run.id, update)) as stream:
            saved = decode(_content(stream))
        if (saved.run_id, saved.update) != (run.id, update):
            raise StoreError(f"checkpoint of run {saved.run_id} at update {saved.update}, under another name")
        return saved.tensors, saved.meta

    def _drop(self, run: Run, *, keep: int | None) -> None:
        for update in self.paths.checkpoints(run.id) - {keep}:
            self.paths.checkpoint(run.id, update).unlink(missing_ok=True)


def _content(stream: BinaryIO) -> bytes:
    """The bytes of a checkpoint. A file that is not as long as its header says is not read."""
    size = os.fstat(stream.fileno()).st_size
    length = int.from_bytes(stream.read(8), "little")
    try:
        header = json.loads(stream.read(length if length <= LARGEST_HEADER else 0))
        end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        if size != 8 + length + end:
            raise ValueError(f"{size:,} bytes")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise StoreError(f"not a checkpoint ({type(error).__name__}: {error})") from None
    stream.seek(0)
    return stream.read(size)


def encode(run_id: str, update: int, tensors: Mapping[str, Tensor], meta: Any) -> bytes:
    """Serialize the state of a run after so many updates."""
    from safetensors.torch import save

    here = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps({"schema": SCHEMA, "run": run_id, "update": update, "meta": meta})
    return save(here, metadata={"initmem": text, "sha256": digest(here, text)})


def decode(data: bytes) -> Saved:
    """Read a checkpoint back; anything that is not exactly what was written is an error."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
        # Only from a file does safetensors give its metadata. It has checked the header by now.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        notes = header["__metadata__"]
        if notes["sha256"] != digest(tensors, notes["initmem"]):
            raise StoreError("damaged checkpoint (checksum does not match)")
        content = json.loads(notes["initmem"])
        if content["schema"] != SCHEMA:
            raise StoreError(f"checkpoint of schema {content['schema']!r} (allowed: {SCHEMA})")
        return Saved(content["run"], content["update"], tensors, content["meta"])
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"not a checkpoint ({type(error).__name__}: {error})") from None


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """A digest of the names, types, shapes and values of tensors, and of the text beside them."""
    import torch

    summary = [[name, str(t.dtype), list(t.shape)] for name, t in sorted(tensors.items())]
    hashed = hashlib.sha256(json.dumps([summary, text]).encode())
    for _, tensor in sorted(tensors.items()):
        hashed.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
