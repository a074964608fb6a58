"""Records and studies as bytes.

A record is one JSON object whose first member is the SHA-256 of the bytes of the second, so that a damaged
file is noticed before it is parsed. The largest parts, the history and the arrays, come last: everything
before them, the head, can be read alone. Arrays of whole numbers, such as predicted classes, are packed bits
in base 85: four bits for each of up to 16 classes. Other arrays are lists.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NotRequired, TypeAlias

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from initmem.errors import ConfigError, Damaged, StoreError
from initmem.record import LARGEST_VALUE, SCHEMA, Arrays, History, RunRecord, Status, Stored, Summary
from initmem.study import Run, Study

if TYPE_CHECKING:
    from numpy.typing import NDArray

_START = b'{"sha256":"%s","record":'
_HISTORY = b',"history":'
_ARRAYS = b',"arrays":'
LARGEST_ARRAY = 1 << 20  # values
MOST_BITS = 16  # of a whole number in an array
LARGEST_CLASS = (1 << MOST_BITS) - 1


class Encoded(NamedTuple):
    """A record as it is stored: the digest of its content, its head as plain values, the rest as bytes."""

    sha256: str
    head: Mapping[str, Any]
    history: bytes
    arrays: bytes


def encode(record: RunRecord) -> bytes:
    """Serialize a record."""
    check_history(record.history, record.summary.epochs, gaps=record.run.recipe.is_pipeline)
    head = {
        "schema": SCHEMA,
        "id": record.id,
        "run": record.run.to_json(),
        "status": record.status,
        "summary": asdict(record.summary),
        "provenance": dict(record.provenance),
        "error": record.error and record.error.encode(errors="backslashreplace").decode(),
    }
    if record.finals:
        head["finals"] = dict(record.finals)
    history = {name: column.tolist() for name, column in record.history.items()}
    if record.run.recipe.is_pipeline:  # a metric of user code may be missing in some epochs
        history = {name: plain_values(column) for name, column in history.items()}
    tail: dict[str, Any] = {"history": history}
    if record.arrays:
        tail["arrays"] = {name: encode_array(array) for name, array in record.arrays.items()}
    try:
        payload = json.dumps(head | tail, separators=(",", ":"), allow_nan=False).encode()
        orjson.loads(payload)  # as it will be read
    except (ValueError, TypeError) as error:
        raise StoreError(f"run {record.id} cannot be recorded ({error})") from None
    return _START % hashlib.sha256(payload).hexdigest().encode() + payload + b"}\n"


def decode(data: bytes) -> RunRecord:
    """Read a record back; anything that is not exactly what was written is an error."""
    record = decode_head(data)
    len(record.history), len(record.arrays)  # parsed now, not when they are first used
    return record


def decode_head(data: bytes) -> RunRecord:
    """Read a record back whose history and arrays are parsed when they are first used."""
    encoded = split(data)
    return join(encoded.head, lambda parse: parse(encoded))


def split(data: bytes) -> Encoded:
    """Verify the bytes of a record and separate its head from the rest, which is not parsed."""
    start = len(_START % (b"0" * 64))
    payload = data[start:-2]
    digest = hashlib.sha256(payload).hexdigest()
    if data[:start] != _START % digest.encode() or data[-2:] != b"}\n":
        raise Damaged("damaged record (checksum does not match)")
    # The last occurrence: quotes inside a text are escaped, and after it no other value has this name.
    end = payload.rfind(_HISTORY + b"{")
    try:
        head = orjson.loads(payload[: max(end, 0)] + b"}")  # no NaN, and no half of a surrogate pair
    except ValueError as error:
        raise StoreError(f"not a record ({error})") from None
    history, _, arrays = payload[end + len(_HISTORY) : -1].partition(_ARRAYS + b"{")
    return Encoded(digest, head, history, b"{" + (arrays or b"}"))


def join(head: Mapping[str, Any], rest: Callable[[Callable[[Encoded], Arrays]], Arrays]) -> RunRecord:
    """Rebuild a record from its head, and from what reads a part of the rest when it is first used."""
    try:
        checked = _HEAD.validate_python(head)
        record = RunRecord(
            run=Run.from_json(checked["run"]),
            status=checked["status"],
            summary=_summary(checked["summary"]),
            history=Stored(partial(rest, parse_history)),
            provenance=head["provenance"],  # the checked one has its keys in another order
            error=checked["error"],
            finals=checked.get("finals", {}),
            arrays=Stored(partial(rest, parse_arrays)),
        )
    except ConfigError as error:
        raise StoreError(f"record of no known run ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        value = "" if first["type"] == "missing" else f" = {first['input']!r}"
        raise StoreError(f"record with {where}{value} ({first['msg']})") from None
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise StoreError(f"not a record ({error!r})") from None
    if record.id != checked["id"]:
        raise StoreError(f"record of run {record.id} under the id {checked['id']!r}")
    return record


class Provenance(TypedDict, total=False):
    """The parts of a provenance that are read; any other is shown as it is."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)  # type: ignore[misc]

    fingerprint: dict[str, str]
    pack: int
    pack_id: str
    attempts: int
    faults: dict[str, int]
    seconds: float
    device: str
    scale_used: bool
    updates: int
    opened: dict[str, str]
    versions: dict[str, str]
    shared_files_changed: list[str]


Value: TypeAlias = Annotated[float, Field(ge=-LARGEST_VALUE, le=LARGEST_VALUE)]
Number: TypeAlias = Annotated[int, Field(ge=-(2**53), le=2**53)] | Value


class Head(TypedDict):
    """A record without its history and arrays. A field that is not known here is of a newer version."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # type: ignore[misc]

    schema: Annotated[int, Field(ge=SCHEMA, le=SCHEMA)]
    id: str
    run: dict[str, Any]
    status: Status
    summary: dict[str, Number | None]
    provenance: Provenance
    error: str | None
    finals: NotRequired[dict[str, Number]]


_HEAD = TypeAdapter(Head)


def _summary(content: Mapping[str, Any]) -> Summary:
    """A summary whose epochs are epochs of the run."""
    summary = Summary(**content)
    epochs = (summary.epochs, summary.tau_best or 0, summary.tau_interp or 0)
    if not all(type(epoch) is int and 0 <= epoch <= summary.epochs for epoch in epochs):
        raise StoreError(f"record with impossible epochs ({content})")
    return summary


def parse_history(encoded: Encoded) -> History:
    """Read the history that `split` left as bytes."""
    import numpy as np

    try:
        columns = orjson.loads(encoded.history)
        history = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"not a history ({error})") from None
    head = encoded.head
    check_history(history, head["summary"]["epochs"], gaps="pipeline" in head["run"]["recipe"])
    return history


def encode_array(array: NDArray[Any]) -> Any:
    """An array as plain values."""
    import numpy as np

    if array.dtype.kind not in "ui":
        return array.tolist()
    bits = max(int(array.max(initial=0)).bit_length(), 1)
    if int(array.min(initial=0)) < 0 or bits > MOST_BITS:
        raise StoreError(f"array values from {array.min()} to {array.max()} (allowed: 0 to {LARGEST_CLASS})")
    columns = array.astype(">u2").reshape(-1, 1).view(np.uint8)
    packed = np.packbits(np.unpackbits(columns, axis=1)[:, MOST_BITS - bits :])
    return {"shape": list(array.shape), "bits": bits, "data": base64.b85encode(packed.tobytes()).decode()}


def decode_array(content: Any) -> NDArray[Any]:
    """Read an array back."""
    import numpy as np

    if not isinstance(content, dict):
        array = np.asarray(content, dtype=np.float64)
        if not (abs(array) <= LARGEST_VALUE).all():
            raise ValueError(f"values that are no finite numbers up to {LARGEST_VALUE:g}")
        return array
    shape, bits, size = content["shape"], content["bits"], math.prod(content["shape"])
    if not (0 <= size <= LARGEST_ARRAY and 1 <= bits <= MOST_BITS):
        raise ValueError(f"shape {shape} of {bits} bits each")
    packed = np.frombuffer(base64.b85decode(content["data"]), dtype=np.uint8)
    if len(packed) != math.ceil(size * bits / 8):
        raise ValueError(f"{len(packed)} bytes for shape {shape} of {bits} bits each")
    columns = np.zeros((size, MOST_BITS), dtype=np.uint8)
    columns[:, MOST_BITS - bits :] = np.unpackbits(packed, count=size * bits).reshape(size, bits)
    return np.packbits(columns, axis=1).view(">u2").astype(np.uint16).reshape(shape)


def parse_arrays(encoded: Encoded) -> Arrays:
    """Read the arrays that `split` left as bytes; none where the record is of a run that kept none."""
    try:
        arrays = {name: decode_array(content) for name, content in orjson.loads(encoded.arrays).items()}
        for name, array in arrays.items():
            _check_array(name, array, arrays)
        return arrays
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise StoreError(f"record with arrays that cannot be read ({error})") from None


def _check_array(name: str, array: NDArray[Any], arrays: Arrays) -> None:
    """Classes are whole numbers, an alignment is one number, and layers have one for each of their epochs."""
    if name.endswith("predictions"):
        right = array.dtype.kind == "u" and array.ndim > 0
    elif name.startswith(("norm:", "cosine:")):
        right = array.dtype.kind == "f" and array.shape == arrays["layer_epochs"].shape
    else:
        right = array.ndim == (1 if name == "layer_epochs" else 0)
    if not right:
        raise ValueError(f"{name!r} of type {array.dtype} and shape {array.shape}")


def check_history(history: History, epochs: int, *, gaps: bool) -> None:
    """Every column has one finite value per epoch; `gaps`: a metric of user code may be missing in some."""
    for name, column in history.items():
        if column.shape != (epochs,):
            raise StoreError(f"column {name!r} has shape {column.shape} (allowed: {(epochs,)})")
        allowed = abs(column) <= LARGEST_VALUE
        if not (allowed | (gaps & (column != column))).all():  # a null is read as NaN
            raise StoreError(f"column {name!r} has values that are no finite numbers up to {LARGEST_VALUE:g}")


def encode_study(study: Study) -> bytes:
    """Serialize a study, with a checksum."""
    content = study.to_json()
    data = json.dumps({"sha256": _digest(content)} | content, indent=1).encode() + b"\n"
    try:
        orjson.loads(data)  # as it will be read
    except ValueError as error:
        raise StoreError(f"study {study.name!r} cannot be stored ({error})") from None
    return data


def decode_study(data: bytes) -> Study:
    """Read a study back; anything that is not exactly what was written is an error."""
    try:
        content = json.loads(data)
        intact = content.pop("sha256", None) == _digest(content)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from None
    if not intact:
        raise Damaged("checksum does not match")
    try:
        orjson.loads(data)  # it refuses half of a surrogate pair
        return Study.from_json(content)
    except (ConfigError, ValueError) as error:
        raise StoreError(str(error)) from None


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def plain_values(value: Any) -> Any:
    """The same as JSON has it: lists for tuples, and None for infinities and NaN."""
    if isinstance(value, Mapping):
        return {key: plain_values(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
