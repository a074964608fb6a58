"""Records as bytes.

A record is one JSON object whose first member is the SHA-256 of the bytes of the second, so that a damaged
file is noticed before it is parsed. The history, by far the largest part, comes last: everything before it,
the head, can be read alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import orjson

from initmem.errors import ConfigError, Damaged, StoreError
from initmem.record import SCHEMA, STATUSES, History, RunRecord, StoredHistory, Summary
from initmem.study import Run

READABLE = (1, SCHEMA)
LARGEST_RECORD = 64 << 20  # bytes: a hundred thousand epochs

FIELDS = frozenset({"schema", "id", "run", "status", "summary", "provenance", "error", "finals"})

_START = b'{"sha256":"%s","record":'
_HISTORY = b',"history":'


class TooLarge(StoreError):
    """A record has more bytes than any reader accepts."""


class Encoded(NamedTuple):
    """A record as it is stored: the digest of its content, its head as plain values, its history as bytes."""

    sha256: str
    head: Mapping[str, Any]
    history: bytes


def head_of(record: RunRecord) -> dict[str, Any]:
    """A record without its history, as plain values."""
    return {
        "schema": record.schema,
        "id": record.id,
        "run": record.run.to_json(),
        "status": record.status,
        "summary": _summary_of(record),
        "provenance": dict(record.provenance),
        "error": record.error,
    } | ({"finals": dict(record.finals)} if record.finals else {})


# Most stores hold no record of an old schema: `old_names` is imported where one is found.


def _summary_of(record: RunRecord) -> Mapping[str, Any]:
    """The summary of a record under the names of its schema."""
    if record.schema == SCHEMA:
        return asdict(record.summary)
    from initmem.store.old_names import former_summary

    return former_summary(record.summary, record.run.recipe)


def history_of(record: RunRecord) -> History:
    """The columns of a record under the names of its schema."""
    if record.schema == SCHEMA:
        return record.history
    from initmem.store.old_names import former_history

    return former_history(record.history, record.run.recipe)


def encode(record: RunRecord) -> bytes:
    """Serialize a record for the store, in the schema that it has."""
    check_history(record.history, record.summary.epochs)
    history = {name: column.tolist() for name, column in history_of(record).items()}
    payload = json.dumps(
        head_of(record) | {"history": history}, separators=(",", ":"), allow_nan=False
    ).encode()
    data = _START % hashlib.sha256(payload).hexdigest().encode() + payload + b"}\n"
    check_size(data)
    return data


def check_size(data: bytes) -> None:
    """Refuse a record that is too large, when it is written as when it is read."""
    if len(data) > LARGEST_RECORD:
        raise TooLarge(f"record of {len(data):,} bytes (allowed: up to {LARGEST_RECORD:,})")


def split(data: bytes) -> Encoded:
    """Verify the bytes of a record and separate its head from its history, which is not parsed."""
    check_size(data)
    start = len(_START % (b"0" * 64))
    payload = data[start:-2]
    digest = hashlib.sha256(payload).hexdigest()
    if data[:start] != _START % digest.encode() or data[-2:] != b"}\n":
        raise Damaged("damaged record (checksum does not match)")
    # The last occurrence: quotes inside a text are escaped, and in a history no value is an object.
    end = payload.rfind(_HISTORY + b"{")
    try:
        head = parse_json(payload[: max(end, 0)] + b"}")
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not a record ({error})") from None
    return Encoded(digest, head, payload[end + len(_HISTORY) : -1])


def parse_json(text: bytes) -> Any:
    """Read JSON of finite numbers: NaN, Infinity and 1e999, which Python would let pass, are errors."""
    return json.loads(text, parse_constant=_no_number, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def join(head: Mapping[str, Any]) -> RunRecord:
    """Rebuild a record from its head, still without its history."""
    try:
        if (schema := head["schema"]) not in READABLE:
            raise StoreError(f"record of schema {schema} (allowed: {', '.join(map(str, READABLE))})")
        if unknown := head.keys() - FIELDS:
            raise StoreError(f"record with the unknown field {min(unknown)!r} (of a newer version?)")
        if head["status"] not in STATUSES:
            raise StoreError(f"record of status {head['status']!r} (allowed: {STATUSES})")
        if not isinstance(head["error"], str | None):
            raise StoreError(f"record with the error {head['error']!r} (allowed: a text, or null)")
        run, summary = Run.from_json(head["run"]), _summary(head["summary"])
        if schema != SCHEMA:
            from initmem.store.old_names import present_summary

            summary = present_summary(summary, run.recipe)
        return RunRecord(
            run=run,
            status=head["status"],
            summary=summary,
            history={},
            provenance=dict(head["provenance"]),
            error=head["error"],
            finals=_numbers(head.get("finals", {})),
            schema=schema,
        )
    except ConfigError as error:
        raise StoreError(f"record of no known run ({error})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StoreError(f"not a record ({error!r})") from None


def with_history(record: RunRecord, load: Callable[[], History]) -> RunRecord:
    """The record with a history that is loaded, and its columns renamed if need be, when first used."""
    if record.schema == SCHEMA:
        return replace(record, history=StoredHistory(load))
    from initmem.store.old_names import present_history

    return replace(record, history=StoredHistory(lambda: present_history(load(), record.run.recipe)))


def _summary(content: Mapping[str, Any]) -> Summary:
    """A summary whose numbers are numbers, and whose epochs are epochs of the run."""
    summary = Summary(**content)
    _numbers({name: value for name, value in content.items() if value is not None})
    epochs = (summary.epochs, summary.tau_best or 0, summary.tau_interp or 0)
    if not all(type(epoch) is int and 0 <= epoch <= summary.epochs for epoch in epochs):
        raise StoreError(f"record with epochs that are none ({content})")
    return summary


def _numbers(content: Mapping[str, Any]) -> dict[str, float]:
    values = content.values()
    if not (set(map(type, values)) <= {int, float} and all(map(math.isfinite, values))):
        raise StoreError(f"record with values that are no finite numbers ({content})")
    return dict(content)


def parse_history(text: bytes, epochs: int) -> History:
    """Read the history that `split` left as bytes."""
    import numpy as np

    try:
        columns = orjson.loads(text)
        history = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"not a history ({error})") from None
    check_history(history, epochs)
    if not all(np.isfinite(column).all() for column in history.values()):  # a null is read as NaN
        raise StoreError("history with values that are no finite numbers")
    return history


def check_history(history: History, epochs: int) -> None:
    """Every column has one value per epoch."""
    for name, column in history.items():
        if column.shape != (epochs,):
            raise StoreError(f"column {name!r} has shape {column.shape} (allowed: {(epochs,)})")


def decode(data: bytes) -> RunRecord:
    """Read a record back; anything that is not exactly what was written is an error."""
    encoded = split(data)
    record = join(encoded.head)
    if record.id != encoded.head.get("id"):
        raise StoreError(f"record of run {record.id} under the id {encoded.head.get('id')!r}")
    history = parse_history(encoded.history, record.summary.epochs)
    return with_history(record, lambda: history)


def plain_values(value: Any) -> Any:
    """The same as JSON has it: lists for tuples, and None for infinities and NaN."""
    if isinstance(value, Mapping):
        return {key: plain_values(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
