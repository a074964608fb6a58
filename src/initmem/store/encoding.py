"""Records and studies as bytes.

A record is one JSON object whose first member is the SHA-256 of the bytes of the second, so that a damaged
file is noticed before it is parsed. The history, by far the largest part, comes last: everything before it,
the head, can be read alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeAlias

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from initmem.errors import ConfigError, Damaged, StoreError
from initmem.record import LARGEST_VALUE, SCHEMA, STATUSES, History, RunRecord, StoredHistory, Summary
from initmem.study import Run, Study

FIELDS = frozenset({"schema", "id", "run", "status", "summary", "provenance", "error", "finals"})
STRICT = ConfigDict(strict=True, allow_inf_nan=False)

_START = b'{"sha256":"%s","record":'
_HISTORY = b',"history":'


class Encoded(NamedTuple):
    """A record as it is stored: the digest of its content, its head as plain values, its history as bytes."""

    sha256: str
    head: Mapping[str, Any]
    history: bytes


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
    try:
        payload = json.dumps(head | {"history": history}, separators=(",", ":"), allow_nan=False).encode()
        orjson.loads(payload)  # as it will be read
    except (ValueError, TypeError) as error:
        raise StoreError(f"run {record.id} cannot be recorded ({error})") from None
    return _START % hashlib.sha256(payload).hexdigest().encode() + payload + b"}\n"


def decode(data: bytes) -> RunRecord:
    """Read a record back; anything that is not exactly what was written is an error."""
    record = decode_head(data)
    len(record.history)  # parsed now, not when it is first used
    return record


def decode_head(data: bytes) -> RunRecord:
    """Read a record back whose history is parsed when it is first used."""
    encoded = split(data)
    return join(encoded.head, partial(parse_history, encoded))


def split(data: bytes) -> Encoded:
    """Verify the bytes of a record and separate its head from its history, which is not parsed."""
    start = len(_START % (b"0" * 64))
    payload = data[start:-2]
    digest = hashlib.sha256(payload).hexdigest()
    if data[:start] != _START % digest.encode() or data[-2:] != b"}\n":
        raise Damaged("damaged record (checksum does not match)")
    # The last occurrence: quotes inside a text are escaped, and in a history no value is an object.
    end = payload.rfind(_HISTORY + b"{")
    try:
        head = orjson.loads(payload[: max(end, 0)] + b"}")  # no NaN, and no half of a surrogate pair
    except ValueError as error:
        raise StoreError(f"not a record ({error})") from None
    return Encoded(digest, head, payload[end + len(_HISTORY) : -1])


def join(head: Mapping[str, Any], load: Callable[[], History]) -> RunRecord:
    """Rebuild a record from its head and a function that reads its history when it is first used."""
    try:
        if head["schema"] != SCHEMA:
            raise StoreError(f"record of schema {head['schema']} (allowed: {SCHEMA})")
        if unknown := head.keys() - FIELDS:
            raise StoreError(f"record with the unknown field {min(unknown)!r} (of a newer version?)")
        if head["status"] not in STATUSES:
            raise StoreError(f"record of status {head['status']!r} (allowed: {STATUSES})")
        if not isinstance(head["error"], str | None):
            raise StoreError(f"record with the error {head['error']!r} (allowed: a text, or null)")
        record = RunRecord(
            run=Run.from_json(head["run"]),
            status=head["status"],
            summary=_summary(head["summary"]),
            history=StoredHistory(load),
            provenance=_PROVENANCE.validate_python(head["provenance"]),
            error=head["error"],
            finals=_FINALS.validate_python(head.get("finals", {})),
        )
    except ConfigError as error:
        raise StoreError(f"record of no known run ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(f"record with {where} = {first['input']!r} ({first['msg']})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StoreError(f"not a record ({error!r})") from None
    if record.id != head.get("id"):
        raise StoreError(f"record of run {record.id} under the id {head.get('id')!r}")
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


_PROVENANCE = TypeAdapter(Provenance)
Value: TypeAlias = Annotated[float, Field(ge=-LARGEST_VALUE, le=LARGEST_VALUE)]
Number: TypeAlias = Annotated[int, Field(ge=-(2**53), le=2**53)] | Value
_SUMMARY = TypeAdapter(dict[str, Number | None], config=STRICT)
_FINALS = TypeAdapter(dict[str, Number], config=STRICT)


def _summary(content: Mapping[str, Any]) -> Summary:
    """A summary whose values are numbers, and whose epochs are epochs of the run."""
    summary = Summary(**_SUMMARY.validate_python(content))  # type: ignore[arg-type]
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


def check_history(history: History, epochs: int, *, gaps: bool) -> None:
    """Every column has one finite value per epoch; `gaps`: a metric of user code may be missing in some."""
    for name, column in history.items():
        if column.shape != (epochs,):
            raise StoreError(f"column {name!r} has shape {column.shape} (allowed: {(epochs,)})")
        allowed = abs(column) <= LARGEST_VALUE
        if not (allowed | (gaps & (column != column))).all():  # a null is read as NaN
            raise StoreError(
                f"column {name!r} with values that are no finite numbers up to {LARGEST_VALUE:g}"
            )


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
