from __future__ import annotations

import hashlib
import json
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import fake_record
from initmem.errors import StoreError
from initmem.record import RunRecord, Summary, crashed
from initmem.store import results as results_module
from initmem.store.results import Archive, open_results, pack, restore, write_archive
from initmem.store.store import Store
from initmem.study import Run, Study

RESULTS = Path(__file__).parents[1] / "docs" / "results"


@pytest.fixture
def records(tiny_study: Study) -> list[RunRecord]:
    """Of every kind: completed, with awkward numbers and columns of its own, crashed, without an epoch."""
    rng = np.random.default_rng(0)
    one, two, three, *rest = tiny_study.all_runs()
    odd = fake_record(one, 0.1 + 0.2)
    columns = {'beauty, of "mine"': np.array([-0.0, 5e-324, 1e100, 1 / 3])}
    odd = replace(odd, finals={"score": 1 / 3})
    found = [
        replace(odd, history=dict(odd.history) | columns, provenance={"z": 1, "a": [None, "é", 1e-7]}),
        crashed(two, "Traceback: boom", {"attempts": 3}),
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


def test_any_damage_is_an_error_in_words(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    rng = random.Random(0)
    copy = tmp_path / "copy.initmem"
    whole = [(r.id, r.summary) for r in Archive(path).records()]
    refused = 0
    for position in rng.sample(range(len(data)), 200):
        damaged = bytearray(data)
        damaged[position] ^= 1 << rng.randrange(8)
        copy.write_bytes(damaged)
        try:  # zip files have fields without a meaning here, such as dates
            assert [(r.id, r.summary) for r in Archive(copy).records()] == whole
            assert Archive(copy).verify() == []
        except StoreError as error:
            refused += "copy.initmem: " in str(error)
    assert refused > 100
    for length in [*range(0, 200, 7), len(data) - 1]:
        copy.write_bytes(data[:length])
        with pytest.raises(StoreError, match=r"copy\.initmem"):
            Archive(copy)


def crafted(path: Path, **changes: bytes) -> None:
    """Write other content into an archive, as a stranger could; names have _ for /, and none for a dot."""
    with zipfile.ZipFile(path) as file:
        content = {name: file.read(name) for name in file.namelist()}
    for key, data in changes.items():
        name = next(name for name in [*content, "more.json"] if name.startswith(key))
        content[name] = data
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        for name, data in content.items():
            file.writestr(name, data)


def resealed(line: bytes, change: Callable[[dict], object]) -> bytes:
    """A record with other content and a checksum that fits."""
    content = json.loads(line)["record"]
    change(content)
    payload = json.dumps(content, separators=(",", ":")).encode()
    return b'{"sha256":"%s","record":%s}\n' % (hashlib.sha256(payload).hexdigest().encode(), payload)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(id="../../evil"), "under the id '../../evil'"),
        (lambda c: c.update(schema=9), "schema = 9"),
        (lambda c: c["run"].update(scale="large"), "record of no known run"),
        (lambda c: c["run"]["recipe"].update(width=-1), "width = -1"),
        (lambda c: c["summary"].update(epochs=10**15), "has shape"),
        (lambda c: c["summary"].update(test_accuracy=10**400), "number is infinity"),
        (lambda c: c["history"].update(norm=[None] * 4), "no finite numbers"),
        (lambda c: c["history"].update(norm="abcd"), "not a history"),
        (lambda c: c["history"].update(norm=[1e308] * 4), "no finite numbers up to 1e"),
        (lambda c: c["summary"].update(test_accuracy=1e308), "test_accuracy.* = 1e.308"),
        (lambda c: c.update(finals={"score": -1e308}, history=c.pop("history")), "score.* = -1e.308"),
        (lambda c: c.update(finals={"a\ud800": 1.0}, history=c.pop("history")), "not a record .*surrogate"),
        (lambda c: c["run"]["recipe"].update(batch_size=2**64), "batch_size = "),
        (lambda c: c["run"]["recipe"].update(epochs=2**63), "epochs = 9223372036854775808 "),
        (lambda c: c["run"]["recipe"].update(train_size=2**60), "train_size = "),
        (lambda c: c["run"].update(recipe={"pipeline": "a", "lr": "\udfff"}), "surrogate"),
        (lambda c: c.update(provenance=["x"]), "Input should be a valid dictionary"),
        (lambda c: c["provenance"].update(fingerprint={"a": 1}), "fingerprint.a = 1"),
        (lambda c: c["provenance"].update(faults=3), "faults = 3"),
        (lambda c: c["provenance"].update(seconds="long"), "seconds = 'long'"),
        (lambda c: c["provenance"].update(scale_used="no"), "scale_used = 'no'"),
    ],
)
def test_what_fits_its_checksums_is_checked_all_the_same(
    path: Path, change: Callable[[dict], object], words: str
) -> None:
    with zipfile.ZipFile(path) as file:
        lines = file.read("records.jsonl").splitlines(keepends=True)
    chosen = next(line for line in lines if json.loads(line)["record"]["summary"]["epochs"])
    crafted(path, records=resealed(chosen, lambda content: None))
    assert Archive(path).verify() == []
    crafted(path, records=resealed(chosen, change))
    with pytest.raises(StoreError, match=words):
        raise StoreError("; ".join(Archive(path).verify()))
    with pytest.raises(StoreError, match=words):
        restore(Archive(path), Store.create(path.with_suffix("")))


def test_what_is_no_archive_is_refused(path: Path, tiny_study: Study) -> None:
    with zipfile.ZipFile(path) as file:
        lines = file.read("records.jsonl").splitlines(keepends=True)
    huge = tiny_study.to_json() | {"scales": [0.001 * n for n in range(1, 1001)], "seeds": [*range(100_000)]}
    digest = hashlib.sha256(json.dumps(huge, sort_keys=True).encode()).hexdigest()
    odd = tiny_study.to_json() | {"title": "x\ud800"}
    odd_digest = hashlib.sha256(json.dumps(odd, sort_keys=True).encode()).hexdigest()
    for changes, words in [
        ({"records": b"".join([*lines, lines[0]])}, "twice"),
        ({"records": b"".join([*lines, lines[0][:-9]])}, "checksum does not match"),
        ({"records": b"[" * 100_000 + b"\n"}, "checksum does not match"),
        ({"store": b'{"archive": 9}'}, r"format 9 \(allowed: 2\)"),
        ({"store": b"[" * 100_000}, "RecursionError"),
        ({"studies": b"{}"}, "checksum does not match"),
        ({"studies": json.dumps(huge | {"sha256": digest}).encode()}, "100,000,000 runs .allowed: up to"),
        ({"studies": json.dumps(odd | {"sha256": odd_digest}).encode()}, "surrogate"),
    ]:
        before = path.read_bytes()
        crafted(path, **changes)
        with pytest.raises(StoreError, match=words):
            Archive(path)
        path.write_bytes(before)
    entry = path.read_bytes().index(b"PK\x01\x02")  # of the directory
    for offset, value in [(6, 191), (8, 1)]:  # of a zip version to come; encrypted
        data = bytearray(path.read_bytes())
        data[entry + offset] = value
        copy = path.with_name("copy.initmem")
        copy.write_bytes(data)
        with pytest.raises(StoreError, match=r"copy.initmem: damaged archive"):
            Archive(copy)
    for data in (b"", b"initmem archive 1\n", b"PK\x03\x04" + bytes(100)):
        path.write_bytes(data)
        with pytest.raises(StoreError, match="no archive"):
            Archive(path)


def test_no_archive_unpacks_to_more_than_it_should(path: Path, monkeypatch) -> None:
    bomb = bytes(200_000_000)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("store.json", b'{"archive": 2}')
        file.writestr("records.jsonl", bomb)
    assert path.stat().st_size < 100_000
    del bomb
    monkeypatch.setattr(results_module, "LARGEST", 100_000_000)
    with pytest.raises(StoreError, match=r"unpacks to 200,000,014 bytes .allowed: up to 100,000,000"):
        Archive(path)
    # A directory that lies about the size: no more than it promises is unpacked.
    honest = (200_000_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(honest, (1000).to_bytes(4, "little")))
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match=r"damaged|checksum"):
            Archive(path)
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()


def test_what_cannot_be_written_is_one_line(store: Store, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        write_archive(tmp_path / "nowhere" / "a.initmem", store.studies(), store.records())
    monkeypatch.setattr(results_module, "LARGEST", 100)
    with pytest.raises(StoreError, match="an archive takes 100"):
        write_archive(tmp_path / "large.initmem", store.studies(), store.records())


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.initmem")), ids=lambda file: file.stem)
def test_the_published_archives_are_whole(file: Path) -> None:
    opened = Archive(file)
    assert opened.verify() == []
    requested = {run.id for study in opened.studies() for run in study.all_runs()}
    assert {record.id for record in opened.records()} <= requested


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


def test_results_that_contradict_each_other_are_refused(tmp_path: Path, tiny_study: Study, command) -> None:
    first, second, copy = (tmp_path / name for name in ("first.initmem", "second.initmem", "copy.initmem"))
    records = [fake_record(run, 0.8) for run in tiny_study.all_runs()]
    write_archive(first, [tiny_study], records)
    write_archive(copy, [tiny_study], records)
    write_archive(second, [tiny_study], [fake_record(records[0].run, 0.7), *records[1:]])
    for pair in ([first, second], [second, first]):
        code, _, complaint = command("measure", *pair)
        words = " ".join(complaint.split())
        assert code != 0 and f"run {records[0].id} has different results in" in words
        assert "first.initmem" in words and "second.initmem" in words
    assert command("measure", first, copy)[0] == 0
