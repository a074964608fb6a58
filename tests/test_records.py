"""Reading records: only what has changed, histories when they are used, and nothing that is damaged."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from conftest import fake_record
from initmem.errors import StoreError
from initmem.recipe import Recipe
from initmem.record import RunRecord, Summary, crashed
from initmem.store.encoding import decode, encode, split
from initmem.store.store import Store
from initmem.study import Run, Study


@pytest.fixture
def records(tiny_study: Study) -> list[RunRecord]:
    made = [fake_record(run, 0.9 - 0.1 * run.scale) for run in tiny_study.all_runs()]
    made[0] = crashed(made[0].run, "Traceback: boom", {"attempts": 3})
    return sorted(made, key=lambda record: record.id)


@pytest.fixture
def store(tmp_path: Path, records: list[RunRecord]) -> Store:
    store = Store.create(tmp_path / "store")
    store.commit(records)
    return store


@pytest.fixture
def files_read(monkeypatch) -> list[Path]:
    """Every file whose bytes are read, in order."""
    files: list[Path] = []
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.name != "store.json":
            files.append(path)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    return files


def file_of(store: Store, record: RunRecord) -> Path:
    return store.path / "runs" / record.id / "record.json"


def same(found: list[RunRecord], expected: list[RunRecord]) -> None:
    assert [record.id for record in found] == [record.id for record in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.same_result(other)
        assert (one.provenance, one.error) == (other.provenance, other.error)
        assert np.array_equal(one.history.get("seconds", ()), other.history.get("seconds", ()))


def flip(path: Path, *, keep_time: bool) -> None:
    """Change one bit near the end, in the history; size stays, and the time of change if asked."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(bytes(data))
    later = before.st_mtime_ns + (0 if keep_time else 1)
    os.utime(path, ns=(before.st_atime_ns, later))


def test_a_history_is_read_when_it_is_first_used_and_kept(
    store: Store, records: list[RunRecord], files_read: list[Path]
) -> None:
    found = Store(store.path).records()
    assert files_read == [file_of(store, record) for record in records]
    same(found, records)
    assert files_read[len(records) :] == [file_of(store, record) for record in records]
    for record in found:
        for column in record.history.values():
            assert not column.flags.writeable
    assert len(files_read) == 2 * len(records)


def test_only_folders_named_like_runs_count(store: Store, records: list[RunRecord]) -> None:
    data = file_of(store, records[0]).read_bytes()
    for name in ("backup", records[0].id + "~", records[0].id.upper() + "x"):
        (store.path / "runs" / name).mkdir()
        (store.path / "runs" / name / "record.json").write_bytes(data)
    (store.path / "runs" / "0123456789abcdef").touch()
    assert store.survey()[1] == []
    same(store.records(), records)


def test_a_record_in_the_folder_of_another_run_is_damaged(store: Store, records: list[RunRecord]) -> None:
    file_of(store, records[1]).write_bytes(file_of(store, records[2]).read_bytes())
    assert f"holds run {records[2].id}" in store.survey()[1][0]
    same(store.records(), [records[0], *records[2:]])


def test_only_new_and_changed_records_are_read(
    store: Store, records: list[RunRecord], tiny: Recipe, files_read: list[Path]
) -> None:
    store.records()
    new = fake_record(Run(tiny, 3.0, 7), 0.4)
    store.commit([new])
    os.utime(file_of(store, records[1]))
    file_of(store, records[2]).unlink()
    files_read.clear()
    expected = sorted([*records[:2], *records[3:], new], key=lambda record: record.id)
    found = store.records()
    assert set(files_read) == {file_of(store, new), file_of(store, records[1])}
    same(found, expected)


@pytest.mark.parametrize("cut", [0, -1, None])
def test_a_record_that_changes_after_it_was_read_is_noticed(
    store: Store, records: list[RunRecord], cut: int | None
) -> None:
    assert len(store.records()) == len(records)
    path = file_of(store, records[1])
    if cut is None:
        flip(path, keep_time=False)
    else:
        time = path.stat().st_mtime_ns
        path.write_bytes(path.read_bytes()[:cut])
        os.utime(path, ns=(time, time))  # the size alone tells
    for opened in (store, Store(store.path)):
        left, damaged = opened.survey()
        assert len(left) == len(records) - 1
        assert len(damaged) == 1
        assert str(path) in damaged[0]
    Store(store.path).recover()
    assert not path.exists()
    assert Store(store.path).survey()[1] == []


def test_what_leaves_size_and_time_alone_is_found_by_verify_and_by_who_reads_the_history(
    store: Store, records: list[RunRecord]
) -> None:
    victim = next(record for record in store.records() if record.status == "completed")
    flip(file_of(store, victim), keep_time=True)
    assert store.survey()[1] == []
    with pytest.raises(StoreError, match="checksum does not match"):
        len(victim.history)
    assert len(store.verify()) == 1
    assert len(store.survey()[1]) == 1  # it stays known
    flip(file_of(store, victim), keep_time=True)
    same(store.records(), records)  # mended, by a copy that kept size and time


def test_a_history_is_never_that_of_another_record(store: Store, records: list[RunRecord]) -> None:
    victim = next(record for record in store.records() if record.status == "completed")
    file_of(store, victim).write_bytes(encode(fake_record(victim.run, 0.123)))
    with pytest.raises(StoreError, match="changed since the store was opened"):
        len(victim.history)
    file_of(store, victim).unlink()
    with pytest.raises(StoreError, match="No such file"):
        victim.metric("norm")


def test_a_store_without_runs_is_empty(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    (store.path / "runs").rmdir()  # as after a copy that leaves empty folders out
    assert Store(store.path).survey() == ([], [])


texts = some.text(some.characters(codec="utf-8"), max_size=8) | some.sampled_from(
    [',"history":{', '"history":', ',"history":{"a":[1.0]}}']
)
values = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-(2**63), 2**63 - 1)
    | some.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
numbers = some.lists(some.floats(-1e100, 1e100), min_size=2, max_size=2)


@settings(deadline=None)
@example(provenance={"a": 1, "history": {"norm": [1.0]}}, history={"norm": [2.0, 0.0]}, error=None)
@example(provenance={}, history={"history": [3.0, 4.0], ',"history":{': [5.0, -0.0]}, error=',"history":{}')
@given(
    provenance=some.dictionaries(texts.map("own {}".format), values, max_size=3),  # known keys have types
    history=some.dictionaries(some.text(some.characters(codec="utf-8"), max_size=9), numbers, max_size=3),
    error=some.none() | texts,
)
def test_head_and_history_are_parted_in_the_right_place(provenance, history, error) -> None:
    run = Run(Recipe(), 1.0, 0)
    arrays = {name: np.array(column, dtype=float) for name, column in history.items()}
    record = RunRecord(run, "crashed", Summary(epochs=2), arrays, provenance, error)
    data = encode(record)
    plain = json.loads(data)["record"]
    assert split(data).head == {key: value for key, value in plain.items() if key != "history"}
    found = decode(data)
    assert (found.provenance, found.error) == (plain["provenance"], error)
    assert {name: column.tolist() for name, column in found.history.items()} == history
