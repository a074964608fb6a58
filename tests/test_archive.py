from __future__ import annotations

import hashlib
import json
import lzma
import os
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import fake_record
from initmem.errors import InitmemError, StoreError
from initmem.record import RunRecord, Summary, failed
from initmem.store import archive as archive_module
from initmem.store.archive import Archive, pack, restore, write_archive
from initmem.store.results import open_results
from initmem.store.store import Store
from initmem.study import Run, Study

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@pytest.fixture
def records(tiny_study: Study) -> list[RunRecord]:
    """Of every kind: completed, with awkward numbers and columns of its own, failed, without an epoch."""
    rng = np.random.default_rng(0)
    one, two, three, *rest = tiny_study.all_runs()
    odd = fake_record(one, 0.1 + 0.2)
    columns = {'beauty, of "mine"': np.array([-0.0, 5e-324, 1.7976931348623157e308, 1 / 3])}
    odd = replace(odd, finals={"score": 1 / 3})
    found = [
        replace(odd, history=dict(odd.history) | columns, provenance={"z": 1, "a": [None, "\ud800é", 1e-7]}),
        failed(two, "Traceback: boom", {"attempts": 3}),
        RunRecord(three, "diverged", Summary(epochs=0, tau_best=0), {"norm": np.array([])}),
    ]
    return found + [replace(fake_record(run, rng.random()), history=_random(run, rng)) for run in rest]


def _random(run: Run, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {name: rng.normal(size=4) for name in fake_record(run, 0.5).history}


@pytest.fixture
def store(tmp_path: Path, records: list[RunRecord], tiny_study: Study) -> Store:
    store = Store.create(tmp_path / "store")
    store.add_study(tiny_study)
    store.add_study(replace(tiny_study, name="../../evil", more_seeds=(("abc", (7, 8)),)))
    for record in records:
        store.commit([record])
    return store


@pytest.fixture
def path(tmp_path: Path, store: Store) -> Path:
    path = tmp_path / "results.initmem"
    write_archive(path, store.studies(), store.records())
    return path


def files(store: Store) -> dict[str, bytes]:
    """The truth of a store: names and bytes of its studies and records."""
    found = [*store.path.glob("runs/*/*"), *store.path.glob("studies/*")]
    return {str(file.relative_to(store.path)): file.read_bytes() for file in found}


def test_records_come_back_exactly(path: Path, store: Store, records: list[RunRecord]) -> None:
    opened = open_results(path)
    assert opened.studies() == store.studies()
    assert [record.id for record in opened.records()] == sorted(record.id for record in records)
    known = {record.id: record for record in records}
    for record in opened.records():
        other = known[record.id]
        assert record.same_result(other)
        assert list(record.provenance.items()) == list(other.provenance.items())
        assert (record.error, record.finals) == (other.error, other.finals)
        assert list(record.history) == list(other.history)
        for name, column in record.history.items():
            assert column.tobytes() == other.history[name].tobytes()  # also the sign of a zero
            assert not column.flags.writeable
    assert opened.survey() == (opened.records(), [])
    assert (opened.in_flight(), opened.verify()) == ([], [])


def test_what_is_restored_is_the_same_bytes(path: Path, store: Store, tmp_path: Path) -> None:
    again = Store.create(tmp_path / "again")
    assert restore(Archive(path), again) == 6
    assert files(again) == files(store)
    assert restore(Archive(path), again) == 0
    assert not (tmp_path.parent / "evil.full.json").exists()


def test_the_same_records_give_the_same_bytes(path: Path, store: Store, records: list[RunRecord]) -> None:
    data = path.read_bytes()
    assert pack(store.studies(), random.Random(1).sample(records, len(records))) == data
    opened = Archive(path)
    assert pack(opened.studies(), opened.records()) == data
    assert pack(store.studies(), records[1:]) != data


def test_a_store_keeps_what_it_has(
    path: Path, tmp_path: Path, records: list[RunRecord], tiny_study: Study
) -> None:
    mine = Store.create(tmp_path / "mine")
    run = records[1].run
    mine.commit([fake_record(run, 0.123)])
    wider = replace(tiny_study, seeds=(0, 1, 2))
    mine.add_study(wider)
    assert restore(Archive(path), mine) == 5
    assert mine.read(run.id).summary.test_accuracy == 0.123
    assert wider in mine.studies()
    assert tiny_study not in mine.studies()


def test_opening_an_archive_unpacks_no_history(path: Path, monkeypatch) -> None:
    unpacked: list[str] = []
    real = Archive._unpacked
    monkeypatch.setattr(Archive, "_unpacked", lambda self, name: unpacked.append(name) or real(self, name))
    found = Archive(path).records()
    assert [record.status for record in found].count("failed") == 1
    assert unpacked == ["records"]
    assert all(len(record.history) in (0, 1, 14, 15) for record in found)
    assert unpacked == ["records", "history"]  # once for all


def test_any_damage_is_an_error_in_words(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    rng = random.Random(0)
    places = [*range(150), *rng.sample(range(150, len(data)), 150), len(data) - 1]
    copy = tmp_path / "copy.initmem"
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << rng.randrange(8)
        copy.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"copy\.initmem"):
            Archive(copy).verify()
    for length in [*range(0, 200, 7), len(data) - 1]:
        copy.write_bytes(data[:length])
        with pytest.raises(StoreError, match=r"copy\.initmem"):
            Archive(copy)
    copy.write_bytes(data + b"\0")
    with pytest.raises(StoreError, match="bytes, not"):
        Archive(copy)


def crafted(
    content: object,
    history: bytes,
    *,
    told: dict[str, list[object]] | None = None,
    packing: dict | None = None,
) -> bytes:
    """An archive whose checksums fit: as a stranger could write it."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    parts = {"records": text, "history": history}
    packed = {name: lzma.compress(data, **(packing or {})) for name, data in parts.items()}
    line = {
        name: [len(packed[name]), len(data), hashlib.sha256(packed[name]).hexdigest()]
        for name, data in parts.items()
    } | (told or {})
    return b"initmem archive 1\n" + json.dumps(line).encode() + b"\n" + b"".join(packed.values())


def taken_apart(path: Path) -> tuple[dict, bytes]:
    opened = Archive(path)
    return json.loads(opened._unpacked("records")), opened._unpacked("history")


def first(content: dict) -> dict:
    """The first record that has a history."""
    return next(item for item in content["records"] if item["head"]["summary"]["epochs"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["records"].append(c["records"][0]), "twice"),
        (lambda c: first(c)["head"].update(id="../../evil"), "under another name"),
        (lambda c: first(c)["head"].update(schema=3), "schema 3"),
        (lambda c: first(c)["head"]["run"].update(scale="large"), "record of no known run"),
        (lambda c: first(c)["head"]["run"]["recipe"].update(width=-1), "width = -1"),
        (lambda c: first(c)["head"]["summary"].update(epochs=10**15), "histories of another length"),
        (lambda c: first(c).update(layout=99), "IndexError"),
        (lambda c: first(c).update(layout="a"), "TypeError"),
        (lambda c: first(c).pop("sha256"), "KeyError"),
        (lambda c: c["records"].remove(first(c)), "histories of another length"),
        (lambda c: c["layouts"][first(c)["layout"]].append("more"), "histories of another length"),
        (lambda c: c.update(layouts=3), "TypeError"),
        (lambda c: c.update(studies=[{}]), "not a readable archive"),
        (lambda c: c.update(studies=[3]), "not a readable archive"),
        (lambda c: c.pop("records"), "KeyError"),
        (lambda c: first(c).update(sha256="0" * 64), "checksum does not match"),
    ],
)
def test_what_fits_its_checksums_is_looked_at_all_the_same(
    path: Path, change: Callable[[dict], object], words: str
) -> None:
    content, history = taken_apart(path)
    path.write_bytes(crafted(content, history))
    assert Archive(path).verify() == []
    change(content)
    path.write_bytes(crafted(content, history))
    with pytest.raises(StoreError, match=words):
        raise StoreError("; ".join(Archive(path).verify()))


def test_no_archive_unpacks_to_more_than_it_should(path: Path) -> None:
    content, history = taken_apart(path)
    bomb = bytes(1_000_000)
    honest = crafted(content, history)
    for data, words in [
        (crafted(content, bomb), "histories of another length"),
        (crafted(bomb, history), "not a number|Expecting value|not a readable archive"),
        (crafted(content, bomb, told={"history": [7000, len(history), "?"]}), "bytes, not"),
        (honest.replace(b", %d," % len(history), b", %d," % (len(history) - 8)), "another length"),
        (honest.replace(b", %d," % len(history), b", %d," % 10**15), "allowed: up to"),
        (honest.replace(b", %d," % len(history), b", 1e999,"), "second line"),
        (crafted(b"[" * 100_000, history), "RecursionError"),
        (crafted({}, history), "KeyError"),
        (crafted([], history), "TypeError"),
        (
            crafted(content, history, packing={"filters": [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 28}]}),
            "mem|limit",
        ),
        (honest.replace(b"archive 1", b"archive 2"), r"format 2 \(allowed: 1\)"),
        (b"PK\x03\x04" + bytes(100), "no archive"),
        (b"", "no archive"),
    ]:
        path.write_bytes(data)
        with pytest.raises(StoreError, match=words):
            Archive(path)
    packed = lzma.compress(bytes(50_000_000), preset=0)
    lying = crafted(content, b"")
    start = lying.index(b"\n", 20)
    line = json.loads(lying[18:start])
    body = lying[start + 1 :][: line["records"][0]]
    line["history"] = [len(packed), len(history), hashlib.sha256(packed).hexdigest()]
    path.write_bytes(lying[:18] + json.dumps(line).encode() + b"\n" + body + packed)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="history of another length"):
            Archive(path).verify()
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_value_that_is_not_finite_is_refused(path: Path) -> None:
    content, history = taken_apart(path)
    path.write_bytes(crafted(content, np.array([np.nan]).tobytes() + history[8:]))
    opened = Archive(path)
    with pytest.raises(StoreError, match="not finite"):
        opened.verify()


def test_what_is_too_large_for_an_archive_is_not_written(store: Store, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(archive_module.LARGEST, "history", 100)
    with pytest.raises(StoreError, match="an archive takes 100"):
        write_archive(tmp_path / "large.initmem", store.studies(), store.records())
    with pytest.raises(InitmemError, match="cannot be written"):
        monkeypatch.undo()
        write_archive(tmp_path / "nowhere" / "a.initmem", store.studies(), store.records())


def test_the_commands_take_an_archive_like_a_store(tmp_path: Path, tiny_study: Study, command) -> None:
    store, file = Store.create(tmp_path / "store"), tmp_path / "store.initmem"
    store.add_study(tiny_study)
    store.commit([fake_record(run, 0.9 - 0.1 * run.scale + 0.01 * run.seed) for run in tiny_study.all_runs()])
    code, out, _ = command("archive", store.path, "--json")
    (made,) = json.loads(out)["rows"]
    assert (code, made["archive"], made["records"], made["damaged"]) == (0, str(file), 6, [])
    for words in (["measure"], ["measure", "--what", "beta"], ["table", "1"]):
        assert command(*words, file, "--json") == command(*words, store.path, "--json")
    of_file = json.loads(command("status", file, "--verify", "--json")[1])
    of_store = json.loads(command("status", store.path, "--json")[1])
    assert of_file["rows"] == of_store["rows"]
    assert of_file["summary"] == of_store["summary"] | {"store": str(file)}
    assert command("report", file) == (0, f"report: {tmp_path / 'store.html'}\n", "")
    assert command("figure", "1", file, "-o", tmp_path / "one.svg")[0] == 0
    back = tmp_path / "back"
    code, out, _ = command("restore", file, "--store", back, "--json")
    assert [(row["records"], row["new"]) for row in json.loads(out)["rows"]] == [(6, 6)]
    assert files(Store(back)) == files(store)
    for words, said in [
        (["run", "quickstart", "--store", file], "initmem restore makes a store"),
        (["status", tmp_path / "one.svg"], "one.svg: no archive"),
        (["restore", tmp_path / "nothing.initmem", "--store", back], "nothing.initmem: cannot be read"),
        (["archive", tmp_path / "nothing"], "no store here"),
    ]:
        code, out, complaint = command(*words)
        assert (code, out) == (2, "")
        assert said in complaint
        assert complaint.count("\n") == 1


def test_one_study_of_several_takes_the_runs_it_shares(tmp_path: Path, tiny_study: Study, command) -> None:
    store, file = Store.create(tmp_path / "store"), tmp_path / "part.initmem"
    part = replace(tiny_study, name="part", scales=tiny_study.scales[:1])
    for study in (tiny_study, part):
        store.add_study(study)
    store.commit([fake_record(run, 0.5) for run in tiny_study.all_runs()])
    assert command("archive", store.path, "--study", "part", "-o", file)[0] == 0
    found = Archive(file)
    assert [study.name for study in found.studies()] == ["part"]
    assert {record.id for record in found.records()} == {run.id for run in part.all_runs()}
    assert len(found.records()) < len(tiny_study.all_runs())
    code, _, complaint = command("archive", store.path, "--study", "other", "-o", tmp_path / "no")
    assert (code, complaint.count("\n")) == (2, 1)
    assert f"allowed: {tiny_study.name}, part" in complaint or f"part, {tiny_study.name}" in complaint


def test_a_damaged_record_is_left_out_and_said(store: Store, tmp_path: Path, command) -> None:
    victim = next(store.path.glob("runs/*/record.json"))
    victim.write_bytes(victim.read_bytes()[:-5])
    code, out, _ = command("archive", store.path, "-o", tmp_path / "a.initmem")
    assert code == 1
    assert f"damaged, left out: {victim}" in out
    assert len(Archive(tmp_path / "a.initmem").records()) == 5


def test_an_archive_is_measured_before_it_is_read(path: Path, tmp_path: Path) -> None:
    sizes = b'{"records":[%d,%d,"?"],"history":[0,0,"?"]}\n'
    for packed, size, words in [
        (1 << 31, 100, "packed bytes of records"),
        (1 << 31, 1 << 40, "bytes of records .allowed"),
        (50_000_000, 60_000_000, "checksum of its records"),
    ]:
        head = b"initmem archive 1\n" + sizes % (packed, size)
        path.write_bytes(head)
        with path.open("r+b") as stream:
            stream.truncate(len(head) + packed)  # sparse: it takes no room on the disk
        tracemalloc.start()
        try:
            with pytest.raises(StoreError, match=words):
                Archive(path)
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()
    os.mkfifo(tmp_path / "pipe.initmem")
    with pytest.raises(StoreError, match="not a regular file"):
        Archive(tmp_path / "pipe.initmem")


def test_an_archive_cannot_ask_for_a_grid_without_end(path: Path) -> None:
    content, history = taken_apart(path)
    content["studies"][0]["scales"] = [0.001 * n for n in range(1, 1001)]
    content["studies"][0]["seeds"] = list(range(100_000))
    path.write_bytes(crafted(content, history))
    assert path.stat().st_size < 100_000
    with pytest.raises(StoreError, match=r"has 100,00\d,000 runs .allowed: up to 1,000,000"):
        Archive(path)


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.initmem")), ids=lambda file: file.stem)
def test_the_published_archives_are_what_they_were(file: Path, tmp_path: Path) -> None:
    opened = Archive(file)
    assert opened.verify() == []  # bytes for bytes, although some fields have other names by now
    store = Store.create(tmp_path / "store")
    assert restore(opened, store) == len(opened.records()) > 0
    again = Archive(file)
    assert [record.id for record in Store(store.path).records()] == [record.id for record in again.records()]
    assert store.verify() == []
