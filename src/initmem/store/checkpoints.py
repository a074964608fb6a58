"""Checkpoints as bytes: safetensors with a digest, so that a flipped bit never becomes a trajectory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from initmem.errors import StoreError

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_HEADER = 64 << 20


def encode(tensors: Mapping[str, Tensor], meta: Any) -> bytes:
    """Serialise tensors and plain values."""
    from safetensors.torch import save

    text = json.dumps(meta)
    header, body = _parts(save(dict(tensors)))
    notes = {"initmem": text, "sha256": _digest(header, text, body)}
    said = json.dumps({"__metadata__": notes} | header).encode()
    said += b" " * (-len(said) % 8)  # tensors begin at a multiple of eight
    return len(said).to_bytes(8, "little") + said + body


def decode(data: bytes) -> tuple[dict[str, Tensor], Any]:
    """Read a checkpoint back; anything that is not exactly what was written is an error."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        header, body = _parts(data)
        notes = header.pop("__metadata__")
        if notes["sha256"] != _digest(header, notes["initmem"], body):
            raise StoreError("damaged checkpoint (checksum does not match)")
        return load(data), json.loads(notes["initmem"])
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"not a checkpoint ({type(error).__name__}: {error})") from None


def _parts(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """The header of a safetensors file, and the bytes of its tensors."""
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= min(len(data) - 8, LARGEST_HEADER):
        raise StoreError(f"not a checkpoint (a header of {size} in {len(data)} bytes)")
    return json.loads(data[8 : 8 + size]), memoryview(data)[8 + size :]


def _digest(header: Mapping[str, Any], text: str, body: memoryview) -> str:
    digest = hashlib.sha256(json.dumps([header, text], sort_keys=True).encode())
    digest.update(body)
    return digest.hexdigest()
