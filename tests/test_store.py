from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import multiprocessing
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import fake_record
from initmem.errors import StoreError
from initmem.record import RunRecord, crashed, finite
from initmem.store import claims as claims_module
from initmem.store.encoding import decode, encode
from initmem.store.store import Store
from initmem.study import Run, Study


@pytest.fixture
def runs(tiny_study: Study) -> list[Run]:
    return tiny_study.all_runs()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def claim_path(store: Store, run: Run) -> Path:
    return store.path / "runs" / run.id / "claim.json"


def test_a_record_comes_back_as_it_was(store: Store, runs: list[Run]) -> None:
    record = fake_record(runs[0], 0.7)
    store.commit([record])
    found = store.read(runs[0].id)
    assert found.same_result(record)
    assert found.provenance == record.provenance
    assert store.records()[0].id == runs[0].id
    trouble = crashed(runs[1], "Traceback: boom", {})
    assert decode(encode(trouble)).error == "Traceback: boom"


def test_a_committed_record_never_changes(store: Store, runs: list[Run]) -> None:
    store.commit([fake_record(runs[0], 0.7)])
    store.commit([fake_record(runs[0], 0.1)])
    assert store.read(runs[0].id).summary.test_accuracy == 0.7
    with pytest.raises(ValueError, match="read-only"):
        store.read(runs[0].id).history["norm"][0] = 1.0


def test_only_the_record_is_left_of_a_finished_run(store: Store, runs: list[Run]) -> None:
    store.claims.take([runs[0]])
    store.live.append(runs[0], [{"epoch": 1}], fresh=True)
    store.checkpoints.write({runs[0]: ({"now/a": torch.ones(2)}, {"epoch": 1})}, 1)
    store.commit([fake_record(runs[0], 0.7)])
    assert [p.name for p in (store.path / "runs" / runs[0].id).iterdir()] == ["record.json"]


@pytest.mark.parametrize("position", [0, 70, 200, -3, -2, -1])
def test_a_flipped_bit_is_noticed_and_the_run_is_open_again(
    store: Store, runs: list[Run], position: int
) -> None:
    store.commit([fake_record(run, 0.5) for run in runs[:2]])
    path = store.path / "runs" / runs[0].id / "record.json"
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
    assert [record.id for record in store.records()] == [runs[1].id]
    assert len(store.survey()[1]) == 1
    store.recover()
    assert store.survey()[1] == []
    assert not store.has(runs[0])
    assert store.has(runs[1])
    assert len(list((store.path / "aside").iterdir())) == 1


def test_a_claim_is_exclusive_until_it_is_released(store: Store, runs: list[Run]) -> None:
    other = Store(store.path)
    assert store.claims.take(runs[:2]) == runs[:2]
    assert other.claims.take(runs[:2]) == []
    assert other.claims.take(runs[1:3]) == []  # who does not get the first run leaves the pack alone
    assert store.in_flight() == sorted(run.id for run in runs[:2])
    store.claims.release(runs[:2])
    assert other.claims.take(runs[:2]) == runs[:2]


def test_finished_runs_are_not_claimed(store: Store, runs: list[Run]) -> None:
    store.commit([fake_record(runs[0], 0.5)])
    assert store.claims.take(runs[:3]) == runs[1:3]


def _claim_and_die(path: Path, run: Run) -> None:
    Store(path).claims.take([run])
    os._exit(9)


def test_a_claim_dies_with_its_process(store: Store, runs: list[Run]) -> None:
    process = multiprocessing.get_context("fork").Process(target=_claim_and_die, args=(store.path, runs[0]))
    process.start()
    process.join()
    assert claim_path(store, runs[0]).exists()
    assert store.live_run(runs[0].id).heartbeat_age == float("inf")
    assert store.claims.take([runs[0]]) == [runs[0]]
    assert store.faults.attempt(runs[0].id) == 2


def foreign_claim(store: Store, run: Run) -> Path:
    """A claim from another machine, of which only the heartbeat can tell whether it lives."""
    store.claims.take([run])
    path = claim_path(store, run)
    claim = json.loads(path.read_text())
    path.write_text(json.dumps(claim | {"host": "elsewhere", "pid": 1}))
    return path


def test_a_silent_claim_of_another_host_expires_on_the_observers_clock(
    store: Store, runs: list[Run], monkeypatch
) -> None:
    path = foreign_claim(store, runs[0])
    now = 1000.0
    monkeypatch.setattr(claims_module.time, "monotonic", lambda: now)
    observer = Store(store.path)
    os.utime(path, (0, 0))  # a system clock far off must not matter
    assert observer.claims.take([runs[0]]) == []
    now += 0.9 * claims_module.EXPIRY
    assert observer.claims.take([runs[0]]) == []
    os.utime(path, (5, 5))  # a heartbeat
    now += 0.9 * claims_module.EXPIRY
    assert observer.claims.take([runs[0]]) == []
    now += 1.1 * claims_module.EXPIRY
    assert observer.claims.take([runs[0]]) == [runs[0]]
    assert observer.claims.owns(runs[0])
    assert not Store(store.path).claims.take([runs[0]])


def test_who_takes_over_a_pack_takes_all_of_it(store: Store, runs: list[Run], monkeypatch) -> None:
    store.claims.take(runs[:3])
    for run in runs[:3]:
        path = claim_path(store, run)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "elsewhere"}))
    now = 1000.0
    monkeypatch.setattr(claims_module.time, "monotonic", lambda: now)
    observer = Store(store.path)
    assert observer.claims.take(runs[:3]) == []  # so far it has looked at the first run only
    now += 1.1 * claims_module.EXPIRY
    assert observer.claims.take(runs[:3]) == runs[:3]


def _race(path: Path, run: Run, barrier, winners) -> None:
    store = Store(path)
    barrier.wait()
    if store.claims.take([run]):
        winners.put(os.getpid())
    barrier.wait()  # stay alive until all have tried, or the claim would be dead again


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_claimants_exactly_one_wins(store: Store, runs: list[Run], stale: bool) -> None:
    context = multiprocessing.get_context("fork")
    if stale:
        process = context.Process(target=_claim_and_die, args=(store.path, runs[0]))
        process.start()
        process.join()
    barrier, winners = context.Barrier(6), context.Queue()
    racers = [context.Process(target=_race, args=(store.path, runs[0], barrier, winners)) for _ in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert winners.get(timeout=60)
    assert winners.empty()


def test_an_interrupted_pack_commit_is_completed(store: Store, runs: list[Run], monkeypatch) -> None:
    records = [fake_record(run, 0.5) for run in runs]
    commit_one = Store._commit_one
    done = []

    def crash(self, run_id, data):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(run_id)
        commit_one(self, run_id, data)

    monkeypatch.setattr(Store, "_commit_one", crash)
    with pytest.raises(KeyboardInterrupt):
        store.commit(records)
    monkeypatch.undo()
    assert sum(store.has(run) for run in runs) == 2
    store.recover()
    assert all(store.has(run) for run in runs)
    assert list((store.path / "pending").iterdir()) == []


def test_checkpoints_of_a_pack_agree_on_an_epoch(store: Store, runs: list[Run]) -> None:
    def saved(epoch: int, which: list[Run]):
        return {run: ({"now/a": torch.full((2,), float(epoch))}, {"epoch": epoch}) for run in which}

    pair = runs[:2]
    assert store.checkpoints.read(pair) is None
    store.checkpoints.write(saved(3, pair), 3)
    store.checkpoints.write(saved(5, pair[:1]), 5)  # as if a crash fell between two files
    assert [meta["epoch"] for _, meta in store.checkpoints.read(pair[1:])] == [3]
    store.checkpoints.write(saved(3, pair[:1]), 3)
    store.checkpoints.write(saved(7, pair), 7)
    tensors, meta = store.checkpoints.read(pair)[0]
    assert meta["epoch"] == 7
    assert torch.equal(tensors["now/a"], torch.full((2,), 7.0))
    path = store.paths.checkpoint(pair[0].id, 7)
    path.write_bytes(path.read_bytes()[:20])
    assert store.checkpoints.read(pair) is None


def test_a_checkpoint_is_safetensors_and_notices_every_flipped_bit() -> None:
    from safetensors.torch import load

    tensors = {"now/a": torch.arange(6.0).reshape(2, 3), "now/n": torch.tensor(7)}
    data = claims_module.encode_checkpoint("0" * 16, 3, tensors, {"epoch": 3})
    assert {name: t.tolist() for name, t in load(data).items()} == {n: t.tolist() for n, t in tensors.items()}
    run_id, epoch, found, meta = claims_module.decode_checkpoint(data)
    assert (run_id, epoch, meta) == ("0" * 16, 3, {"epoch": 3})
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 4
        with pytest.raises(StoreError, match="checkpoint"):
            claims_module.decode_checkpoint(bytes(flipped))


def test_studies_are_kept_by_safe_names(store: Store, tiny_study: Study) -> None:
    store.add_study(tiny_study)
    store.add_study(replace(tiny_study, name="../../evil"))
    assert tiny_study in store.studies()
    assert len(store.studies()) == 2
    assert not (store.path.parent.parent / "evil.full.json").exists()


def test_studies_of_different_names_never_share_a_file(store: Store, tiny_study: Study) -> None:
    names = ["a b", "a_b", "a.b", "a~b", "", "../../evil", "ä", "x" * 300, "x" * 301, "a\n"]
    asked = [replace(tiny_study, name=name) for name in names]
    asked += [replace(tiny_study, name="a", preset=preset) for preset in ("b c", "b_c", "b.c", "..")]
    for study in asked:
        store.add_study(study)
    assert {(study.name, study.preset) for study in store.studies()} == {(s.name, s.preset) for s in asked}
    assert {path.parent for path in store.path.glob("**/*.json")} == {store.path, store.paths.studies}
    store.add_study(replace(asked[0], seeds=(7,)))
    assert len(store.studies()) == len(asked)
    assert [study.seeds for study in store.studies() if study.name == "a b"] == [(7,)]
    with pytest.raises(StoreError, match=r"study '.ud800' cannot be stored"):
        store.add_study(replace(tiny_study, name="\ud800"))


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no store here"):
        Store(tmp_path)
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(StoreError, match="not a readable store"):
        Store(tmp_path)
    (tmp_path / "store.json").write_text('{"format": 99}')
    with pytest.raises(StoreError, match=r"format 99 .allowed: 1"):
        Store(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        Store.create(tmp_path / "file" / "below")


def test_history_is_appended_line_by_line(store: Store, runs: list[Run]) -> None:
    store.live.append(runs[0], [{"epoch": 9}], fresh=True)
    store.live.append(runs[0], [{"epoch": 1}], fresh=True)
    store.live.append(runs[0], [{"epoch": 2}], fresh=False)
    lines = (store.path / "runs" / runs[0].id / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]


def resealed(record: RunRecord, change: Callable[[dict], object]) -> bytes:
    """A record with other content and a checksum that fits: as a stranger could write it."""
    content = json.loads(encode(record))["record"]
    change(content)
    for name in ("history", "arrays"):
        if name in content:
            content[name] = content.pop(name)  # the last, as always
    payload = json.dumps(content, separators=(",", ":")).encode()
    return b'{"sha256":"%s","record":%s}\n' % (hashlib.sha256(payload).hexdigest().encode(), payload)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(schema=9), "schema = 9"),
        (lambda c: c.update(status="splendid"), "splendid"),
        (lambda c: c.update(id="0123456789abcdef"), "under the id '0123"),
        (lambda c: c["run"].update(seed=99), "under the id"),
        (lambda c: c["run"]["recipe"].update(color="red"), "unknown field color"),
        (lambda c: c["summary"].update(test_accuracy="high"), "test_accuracy.* = 'high'"),
        (lambda c: c["summary"].update(test_accuracy=float("nan")), "not a record"),
        (lambda c: c["summary"].update(test_accuracy=True), "test_accuracy.* = True"),
        (lambda c: c["summary"].update(tau_best=5), "impossible epochs"),
        (lambda c: c["summary"].update(tau_interp=-1), "impossible epochs"),
        (lambda c: c["summary"].update(epochs=None), "impossible epochs"),
        (lambda c: c["summary"].update(epochs=4.0), "impossible epochs"),
        (lambda c: c["summary"].update(epochs=-1), "impossible epochs"),
        (lambda c: c["summary"].pop("epochs"), "not a record"),
        (lambda c: c.update(finals={"score": "high"}), "score.* = 'high'"),
        (lambda c: c.update(finals={"score": None}), "score.* = None"),
        (lambda c: c.update(finals=[1.0]), "valid dictionary"),
        (lambda c: c.update(provenance=3), "valid dictionary"),
        (lambda c: c.update(error=3), "error = 3"),
        (lambda c: c.pop("run"), r"record with run .Field required"),
        (lambda c: c.pop("history"), "not a record"),
        (lambda c: c.update(history={"norm": "abc"}), "not a history"),
        (lambda c: c.update(history={"norm": [[1.0]]}), "column 'norm' has shape"),
        (lambda c: c.update(history={"norm": [1.0]}), "column 'norm' has shape"),
    ],
)
def test_what_is_no_record_is_refused_in_words(runs: list[Run], change, said: str) -> None:
    record = fake_record(runs[0], 0.5)
    assert decode(resealed(record, lambda content: None)).same_result(record)
    with pytest.raises(StoreError, match=said):
        decode(resealed(record, change))


def test_a_history_of_another_length_than_the_run_is_not_written(runs: list[Run]) -> None:
    record = fake_record(runs[0], 0.5)
    with pytest.raises(StoreError, match=r"allowed: \(3,"):
        encode(replace(record, summary=replace(record.summary, epochs=3)))


@pytest.mark.parametrize("when", ["before", "after"])
def test_who_clears_up_leaves_alone_what_others_are_writing(
    store: Store, runs: list[Run], monkeypatch, when: str
) -> None:
    """Another process commits a run, and clears its folder, just when this one names its claim or record."""
    link, other, record = os.link, Store(store.path), fake_record(runs[0], 0.5)

    def meanwhile(source: Path, target: Path, deed: Callable[[], None]) -> None:
        monkeypatch.setattr(os, "link", link)
        if when == "before":
            deed()
        link(source, target)
        if when == "after":
            deed()

    monkeypatch.setattr(os, "link", partial(meanwhile, deed=lambda: other.commit([record])))
    assert store.claims.take(runs[:1]) == []  # it is done, and claimed no more
    assert other.claims.take(runs[1:2]) == runs[1:2]
    second = fake_record(runs[1], 0.6)
    monkeypatch.setattr(os, "link", partial(meanwhile, deed=other.recover))
    other.commit([second])
    assert {r.id: r.summary.test_accuracy for r in store.records()} == {record.id: 0.5, second.id: 0.6}
    assert [path.name for path in store.path.glob("runs/*/*")] == ["record.json"] * 2


# -- what is moved aside, and what is not -------------------------------------------------------------------


def kept(store: Store) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in store.path.glob("**/*.json") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(schema=9), "schema = 9"),
        (lambda c: c["run"]["recipe"].update(color="red"), "unknown field color"),
        (lambda c: c["summary"].update(test_f1=0.5), "test_f1"),
        (lambda c: c.update(weights="kept", history=c.pop("history")), "weights = 'kept' (Extra"),
    ],
)
def test_an_intact_record_of_a_newer_version_is_never_moved(
    store: Store, runs: list[Run], change, said: str
) -> None:
    store.commit([fake_record(run, 0.5) for run in runs[:2]])
    newer = store.paths.record(runs[0].id)
    newer.write_bytes(resealed(fake_record(runs[0], 0.5), change))
    before = kept(store)
    for _ in range(2):
        with pytest.raises(StoreError, match=re.escape(said)) as error:
            store.recover()
        assert "\n" not in str(error.value)
        assert str(newer) in str(error.value)
    assert kept(store) | before == kept(store)
    assert store.has(runs[0])
    assert said in store.survey()[1][0]


def refuse_to_read(monkeypatch: pytest.MonkeyPatch, suffix: str, number: int) -> None:
    """Let the disk refuse some files with an error."""
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if str(path).endswith(suffix):
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
def test_a_passing_error_of_the_disk_moves_nothing(
    store: Store, runs: list[Run], monkeypatch, number: int
) -> None:
    store.commit([fake_record(run, 0.5) for run in runs])
    refuse_to_read(monkeypatch, "record.json", number)
    with pytest.raises(StoreError, match=rf"record.json: {os.strerror(number)}; and 5 more"):
        Store(store.path).recover()
    monkeypatch.undo()
    assert Store(store.path).recover() == []
    assert len(Store(store.path).records()) == len(runs)
    assert not store.paths.aside.exists()


def test_a_checkpoint_that_the_disk_refuses_is_not_thrown_away(
    store: Store, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.checkpoints.write({runs[0]: ({"now/w": torch.ones(3)}, {})}, 5)
    refuse_to_read(monkeypatch, ".safetensors", errno.EIO)
    with pytest.raises(StoreError, match=r"checkpoint-5\.safetensors: Input/output error"):
        store.checkpoints.read(runs[:1])
    monkeypatch.undo()
    assert store.checkpoints.read(runs[:1]) is not None


def test_a_record_made_anew_while_another_process_looks_is_not_moved(
    store: Store, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.commit([fake_record(runs[0], 0.5)])
    path = store.paths.record(runs[0].id)
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    real = Store._scan

    def slow(self: Store, **how: bool) -> tuple[dict[str, str], list[str]]:
        found = real(self, **how)
        path.write_bytes(good)  # moved aside and trained again by another process meanwhile
        return found

    monkeypatch.setattr(Store, "_scan", slow)
    assert store.recover() == []
    assert path.read_bytes() == good


def test_what_is_moved_aside_is_named_with_the_reason(
    store: Store, runs: list[Run], tiny_study: Study
) -> None:
    store.commit([fake_record(run, 0.5) for run in runs[:2]])
    store.add_study(tiny_study)
    victims = [store.paths.record(runs[0].id), next(store.paths.studies.iterdir())]
    for victim in victims:
        victim.write_bytes(victim.read_bytes().replace(b"0.5", b"0.6", 1))
    pending = store.paths.pending / "p.json"
    pending.write_bytes(encode(fake_record(runs[2], 0.5)) + encode(fake_record(runs[3], 0.5))[:-9])
    moved = store.recover()
    assert len(moved) == 3
    for line, path in zip(moved, [*victims, pending], strict=True):
        assert line.startswith(f"{path}: ")
        assert "checksum does not match" in line
        assert Path(line.rpartition("; moved to ")[2]).exists()
    assert store.has(runs[2])  # what was whole in it is committed
    assert store.recover() == []


def test_an_intact_study_of_a_newer_version_stops_and_stays(store: Store, tiny_study: Study) -> None:
    store.add_study(tiny_study)
    path = next(store.paths.studies.iterdir())
    content = json.loads(path.read_bytes())
    del content["sha256"]
    content["color"] = "red"
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"sha256": digest} | content))
    with pytest.raises(StoreError, match="color"):
        store.recover()
    assert path.exists()
    path.write_text(json.dumps(content))  # without a checksum it can only be damage
    assert "checksum does not match" in store.recover()[0]


# -- claims that must not be stolen -------------------------------------------------------------------------


def test_a_process_that_is_hidden_is_alive_until_its_heartbeat_expires(
    store: Store, runs: list[Run], monkeypatch
) -> None:
    """As under /proc with hidepid=2, where processes of other users cannot be seen."""
    store.claims.take(runs[:1])
    path = claim_path(store, runs[0])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": 4_000_000, "born": "123"}))
    read, now = Path.read_text, 1000.0

    def hidden(self: Path, *args, **kwargs) -> str:
        if str(self) == "/proc/4000000/stat":
            raise FileNotFoundError
        return read(self, *args, **kwargs)

    def not_permitted(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", hidden)
    monkeypatch.setattr(os, "kill", not_permitted)
    monkeypatch.setattr(claims_module.time, "monotonic", lambda: now)
    observer = Store(store.path)
    assert observer.claims.take(runs[:1]) == []
    now += 0.9 * claims_module.EXPIRY
    assert observer.claims.take(runs[:1]) == []
    now += 0.2 * claims_module.EXPIRY
    assert observer.claims.take(runs[:1]) == runs[:1]


@pytest.mark.parametrize("content", [b"{", b"", b'{"token": 3}'])
def test_a_claim_that_cannot_be_read_expires_like_any_other(
    store: Store, runs: list[Run], monkeypatch, content: bytes
) -> None:
    store.claims.take(runs[:1])
    claim_path(store, runs[0]).write_bytes(content)
    now = 1000.0
    monkeypatch.setattr(claims_module.time, "monotonic", lambda: now)
    observer = Store(store.path)
    assert observer.claims.take(runs[:1]) == []
    now += 1.1 * claims_module.EXPIRY
    assert observer.claims.take(runs[:1]) == runs[:1]


def test_a_claim_of_a_newer_version_is_a_claim(store: Store, runs: list[Run]) -> None:
    store.claims.take(runs[:1])
    path = claim_path(store, runs[0])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"color": "red"}))
    assert store.claims.owns(runs[0])
    assert Store(store.path).claims.take(runs[:1]) == []


# -- records that could not be written ----------------------------------------------------------------------


def test_values_that_are_not_finite_are_no_part_of_a_record(store: Store, runs: list[Run]) -> None:
    bad = fake_record(runs[0], 0.7)
    bad = replace(bad, summary=replace(bad.summary, test_cross_entropy=float("nan"), norm_init=float("inf")))
    odd = replace(fake_record(runs[1], 0.6), finals={"score": float("inf"), "other": 1.0})
    broken = fake_record(runs[2], 0.5)
    columns = {name: column.copy() for name, column in broken.history.items()}
    columns["norm"][2] = np.nan
    broken, fine = replace(broken, history=columns), fake_record(runs[3], 0.4)
    for record in (bad, odd, broken):
        with pytest.raises(StoreError, match=r"cannot be recorded|no finite numbers"):
            store.commit([record])
    noted = finite(bad)
    assert finite(fine) is fine
    assert (noted.summary.test_cross_entropy, noted.summary.norm_init) == (None, None)
    assert (noted.summary.test_accuracy, noted.summary.epochs) == (0.7, 4)
    store.commit([noted, fine])
    assert [store.read(record.id).status for record in (noted, fine)] == ["diverged", "completed"]


# -- checkpoints --------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_run_or_epoch_is_not_used(store: Store, runs: list[Run]) -> None:
    one, two = runs[:2]
    saved = {run: ({"now/a": torch.ones(2)}, {"epoch": 3}) for run in (one, two)}
    store.checkpoints.write(saved, 3)
    path, other = store.paths.checkpoint(one.id, 3), store.paths.checkpoint(two.id, 3)
    good = path.read_bytes()
    path.write_bytes(other.read_bytes())
    assert store.checkpoints.read([one]) is None
    assert store.checkpoints.read([two]) is not None
    path.write_bytes(good)
    assert store.checkpoints.read([one, two]) is not None
    path.rename(store.paths.checkpoint(one.id, 4))
    assert store.checkpoints.read([one]) is None


# -- where a store is ---------------------------------------------------------------------------------------


def test_a_store_stays_where_it_is_when_the_working_directory_changes(
    tmp_path: Path, runs: list[Run], monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.create("mine")
    again = Store("mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.commit([fake_record(runs[0], 0.5)])
    assert again.has(runs[0])
    assert store.path == tmp_path / "mine"
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("module", "name", "number", "said"),
    [(os, "link", errno.EPERM, "no hard links"), (fcntl, "flock", errno.ENOLCK, "no file locks")],
)
def test_a_file_system_that_lacks_something_is_named_at_once(
    tmp_path: Path, monkeypatch, module, name: str, number: int, said: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, name, refuse)
    with pytest.raises(StoreError, match=rf"{said} here .*needed: ext4.*exFAT") as error:
        Store.create(tmp_path / "store")
    assert "\n" not in str(error.value)
    assert list((tmp_path / "store").glob(".*")) == []


@pytest.mark.parametrize("skew", [-1e6, 1e6])
def test_a_skewed_clock_does_not_make_a_live_worker_look_dead(
    store: Store, runs: list[Run], monkeypatch, skew: float
) -> None:
    path, now = foreign_claim(store, runs[0]), 1000.0
    monkeypatch.setattr(claims_module.time, "monotonic", lambda: now)
    beat = path.stat().st_mtime + skew
    os.utime(path, (beat, beat))
    board = Store(store.path)
    assert board.live_run(runs[0].id).heartbeat_age == 0.0
    now += 50.0
    assert board.live_run(runs[0].id).heartbeat_age == 50.0
    os.utime(path, (beat + 10, beat + 10))
    assert board.live_run(runs[0].id).heartbeat_age == 0.0
    now += 50.0
    store.live.append(runs[0], [{"epoch": 1}], fresh=True)  # an epoch is a sign of life as well
    assert board.live_run(runs[0].id).heartbeat_age == 0.0
    now += 70.0
    assert board.live_run(runs[0].id).heartbeat_age > claims_module.EXPIRY


# -- links in a store that several users share --------------------------------------------------------------


@pytest.mark.parametrize("name", ["history.jsonl", "faults.jsonl", "hang.txt"])
def test_nothing_is_written_through_a_link(store: Store, runs: list[Run], tmp_path: Path, name: str) -> None:
    mine = tmp_path / "profile"
    mine.write_text("mine")
    mine.chmod(0o600)
    (store.paths.make_run(runs[0].id) / name).symlink_to(mine)
    with contextlib.suppress(StoreError):
        match name:
            case "history.jsonl":
                store.live.append(runs[0], [{"epoch": 1.0}], fresh=True)
            case "faults.jsonl":
                store.faults.note(runs[:1], "exception")
            case "hang.txt":
                with store.faults.time_limit(1e6, runs[:1]):
                    pass
    assert (mine.read_text(), mine.stat().st_mode & 0o777) == ("mine", 0o600)


def test_a_file_that_is_a_link_is_one_line(store: Store, runs: list[Run], tmp_path: Path) -> None:
    link = store.paths.make_run(runs[0].id) / "history.jsonl"
    link.symlink_to(tmp_path / "profile")
    with pytest.raises(StoreError, match=rf"^{link}: a symbolic link \(allowed: [^\n]*\)$"):
        store.live.append(runs[0], [{"epoch": 1.0}], fresh=False)


@pytest.mark.parametrize("name", ["runs", "studies", "pending", "aside"])
def test_a_store_has_no_folder_that_is_a_link(tmp_path: Path, name: str) -> None:
    Store.create(tmp_path / "store")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "settings.json").write_text("{}")
    folder = tmp_path / "store" / name
    if folder.exists():
        folder.rmdir()
    folder.symlink_to(mine)
    for open_store in (Store, Store.create):
        with pytest.raises(StoreError, match=f"^{folder}: a symbolic link"):
            open_store(tmp_path / "store")
    assert (mine / "settings.json").read_text() == "{}"


def test_a_run_folder_that_is_a_link_is_refused(store: Store, runs: list[Run], tmp_path: Path) -> None:
    store.commit([fake_record(runs[0], 0.5)])
    folder, mine = store.paths.run(runs[0].id), tmp_path / "mine"
    folder.rename(mine)
    (mine / "thesis.txt").write_text("mine")
    folder.symlink_to(mine)
    with pytest.raises(StoreError, match=f"^{folder}: a symbolic link"):
        store.recover()
    assert (mine / "thesis.txt").exists()


def test_a_traceback_with_odd_letters_can_be_read_again(store: Store, runs: list[Run]) -> None:
    store.commit([crashed(runs[0], "cannot open caf\udce9", {})])
    assert store.verify() == []
    assert store.read(runs[0].id).error == "cannot open caf\\udce9"
