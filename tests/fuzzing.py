"""Feeds readers with damaged and ill-meant input: whatever comes, only a clear error may come of it.

Every reader gets good samples that are mutated: as bytes, and where a format has an inner structure or a
checksum, also inside it, with the checksum made right again. A watch on the interpreter notices whatever
would be executed, fetched, or written outside of the work folder.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from conftest import fake_record
from faultlab import memory_folder
from initmem.data.sources import load
from initmem.errors import InitmemError
from initmem.recipe import Recipe
from initmem.record import crashed
from initmem.store import claims
from initmem.store.claims import new_claim, read_claim
from initmem.store.encoding import decode, decode_study, encode, encode_study
from initmem.store.faults import Fault, to_line
from initmem.store.results import Archive, pack
from initmem.store.store import Store
from initmem.study import Run, Study
from initmem.study_file import bundled, load_study

ROOM = 1 << 30  # bytes that reading a small file may take at most
SECONDS = 60  # for one input: endless, not slow
FORBIDDEN = {
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"),
    *("socket.connect", "pickle.find_class", "ctypes.dlopen"),
}
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
SPICE = [
    *(b"", b"\x00", b"\xff", b"\n", b"\r\n", b'"', b"'", b"{", b"}", b"[", b"]", b",", b"=", b"#", b"\\"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0", b"9" * 400, b"9" * 5000, b"0x7f"),
    *(b"../../../etc/passwd", b"/dev/zero", b"\xed\xa0\x80", "é\u202e".encode(), b"[" * 3000, b'{"a":' * 999),
    *(b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x7f" * 8, b"__class__", b"cos\nsystem\n", b"PK\x05\x06"),
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 1 << 63, 10**400, 0.5, 1e308, -0.0, "", "x", "nan", "1", "../x", "é" * 50),
    *([], {}, [1], [[1.0]], {"a": 1}, [None], [1, "x"], ["1.0"], [1e308] * 3, [10**400], {"": {}}, "0" * 16),
]


class Mutator:
    """Damages what it is given, in a way that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def bytes(self, data: bytes, other: bytes) -> bytes:
        """One to four small disasters."""
        for _ in range(self.random.choice([1, 1, 2, 4])):
            data = self.random.choice(self.disasters)(self, data, other)
        return data

    def _flip(self, data: bytes, other: bytes) -> bytes:
        if not data:
            return data
        out = bytearray(data)
        out[self.random.randrange(len(out))] ^= 1 << self.random.randrange(8)
        return bytes(out)

    def _cut(self, data: bytes, other: bytes) -> bytes:
        return data[: self.random.randrange(len(data) + 1)]

    def _drop(self, data: bytes, other: bytes) -> bytes:
        at = self.random.randrange(len(data) + 1)
        return data[:at] + data[at + self.random.randint(1, 64) :]

    def _spice(self, data: bytes, other: bytes) -> bytes:
        at = self.random.randrange(len(data) + 1)
        return data[:at] + self.random.choice(SPICE) + data[at + self.random.choice([0, 1, 8]) :]

    def _repeat(self, data: bytes, other: bytes) -> bytes:
        at = self.random.randrange(len(data) + 1)
        piece = data[at : at + self.random.randint(1, 200)]
        return data[:at] + piece * self.random.choice([2, 3, 50]) + data[at:]

    def _splice(self, data: bytes, other: bytes) -> bytes:
        return data[: self.random.randrange(len(data) + 1)] + other[self.random.randrange(len(other) + 1) :]

    def _number(self, data: bytes, other: bytes) -> bytes:
        found = list(NUMBER.finditer(data[:20000]))
        if not found:
            return data
        spot = self.random.choice(found)
        new = self.random.choice([b"-1", b"0", b"1e400", b"99999999999", b"0.1", b"9" * 5000, b"x", b"[1]"])
        return data[: spot.start()] + new + data[spot.end() :]

    disasters = (_flip, _flip, _cut, _drop, _spice, _spice, _repeat, _splice, _number)

    def value(self, content: Any) -> Any:
        """Replace, remove or add something in a tree of plain values."""
        if isinstance(content, dict) and content and self.random.random() < 0.85:
            key = self.random.choice(list(content))
            deed = self.random.random()
            if deed < 0.08:
                return {k: v for k, v in content.items() if k != key}
            if deed < 0.14:
                new = self.random.choice(["", "x", "\x00", key + "x"])
                return content | {new: self.random.choice(VALUES)}
            return content | {key: self.value(content[key])}
        if isinstance(content, list) and content and self.random.random() < 0.6:
            at = self.random.randrange(len(content))
            return [*content[:at], self.value(content[at]), *content[at + 1 :]]
        return self.random.choice(VALUES)


class Readers:
    """All that reads files, with good samples of each. A reader may raise nothing but InitmemErrors.

    Files of a store are damaged as a disk would do it; archives and data files may be ill-meant as well.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        recipe = Recipe(dataset="synthetic:60x1x4x4", model="mlp", width=4, epochs=4)
        runs = [Run(recipe, scale, seed) for scale in (0.5, 1.0) for seed in (0, 1)]
        self.runs = runs
        self.store = Store.create(folder / "store")
        self.records = [encode(fake_record(run, 0.5)) for run in runs[:3]]
        self.records.append(encode(crashed(runs[3], "Traceback: boom", {"attempts": 1})))
        study = Study("s", "", "full", "", (recipe,), (0.5, 1.0), (0, 1))
        self.study = encode_study(study)
        package = Path(sys.modules["initmem"].__file__ or "").parent
        self.studies = [(package / "paper" / "studies" / f"{name}.toml").read_bytes() for name in bundled()]
        meta = {"epoch": 1, "history": {"val_loss": [0.5]}, "norm_init": 1.0, "status": None}
        tensors = {"now/a": torch.arange(6.0).reshape(2, 3), "now/n": torch.tensor(3)}
        self.checkpoints = [claims.encode_checkpoint(runs[0].id, 1, saved, meta) for saved in (tensors, {})]
        self.archived = pack([study], [decode(data) for data in self.records])
        self.npz = self._npz_samples()

    def _path(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path

    def study_files(self, mutator: Mutator, number: int) -> None:
        good = self.studies[number % len(self.studies)]
        data = mutator.bytes(good, mutator.random.choice(self.studies))
        study = load_study(str(self._path("study.toml", data)))
        assert study.recipes

    def overrides(self, mutator: Mutator, number: int) -> None:
        texts = [b"epochs=3", b"optimizer=adam", b"learning_rate=[0.1, 2]", b"scales=[0.5]", b"dataset=x.npz"]
        text = mutator.bytes(texts[number % len(texts)], mutator.random.choice(texts))
        load_study("quickstart", None, [text.decode(errors="replace")])

    def record_files(self, mutator: Mutator, number: int) -> None:
        good = self.records[number % len(self.records)]
        decode(mutator.bytes(good, mutator.random.choice(self.records)))

    def signed_records(self, mutator: Mutator, number: int) -> None:
        record = decode(self._signed(mutator, number))
        assert encode(record)  # what is accepted can be written again
        record.metric("test_accuracy"), record.metric("norm")

    def _signed(self, mutator: Mutator, number: int) -> bytes:
        """A record with the right checksum around something else."""
        content = json.loads(self.records[number % len(self.records)])["record"]
        if number % 3:
            payload = json.dumps(mutator.value(content), separators=(",", ":")).encode()
        else:
            payload = mutator.bytes(json.dumps(content).encode(), b"").replace(b"\n", b" ")
        return b'{"sha256":"%s","record":%s}\n' % (hashlib.sha256(payload).hexdigest().encode(), payload)

    def packs_of_records(self, mutator: Mutator, number: int) -> None:
        """A store in which a commit was cut short, by a file that is not what it was."""
        pending = self.store.path / "pending" / "p.json"
        pending.write_bytes(mutator.bytes(b"".join(self.records), self.records[0]))
        self.store.recover()
        assert not list((self.store.path / "pending").iterdir())

    def checkpoint_files(self, mutator: Mutator, number: int) -> None:
        good = self.checkpoints[number % len(self.checkpoints)]
        claims.decode_checkpoint(mutator.bytes(good, self.checkpoints[0]))

    def small_files(self, mutator: Mutator, number: int) -> None:
        """What else a store holds: claims, faults and studies."""
        run = self.runs[1]
        folder = self.store.paths.make_run(run.id)
        match number % 3:
            case 0:
                (folder / "claim.json").write_bytes(mutator.bytes(new_claim(session="s", pack=1), b"{}"))
                lease = read_claim(folder / "claim.json")
                assert lease is not None
                if lease.claim is not None:
                    lease.claim.process_has_ended(), lease.claim.is_mine()
                self.store.claims.take([run])
                self.store.claims.release([run])
            case 1:
                lines = to_line(Fault("timeout", "s", 2, 3, "words")) + to_line(Fault("exception"))
                (folder / "faults.jsonl").write_bytes(mutator.bytes(lines, lines))
                self.store.faults.of(run.id), self.store.faults.attempt(run.id)
            case 2:
                assert decode_study(mutator.bytes(self.study, self.study)).all_runs()[0].id

    def archive_files(self, mutator: Mutator, number: int) -> None:
        self._read_archive(mutator.bytes(self.archived, self.archived))

    def signed_archives(self, mutator: Mutator, number: int) -> None:
        """An archive with the right checksums around something else."""
        study = mutator.value({k: v for k, v in json.loads(self.study).items() if k != "sha256"})
        if isinstance(study, dict):
            digest = hashlib.sha256(json.dumps(study, sort_keys=True).encode()).hexdigest()
            study = study | {"sha256": digest}
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as file:
            version = b'{"archive": 2}'
            file.writestr("store.json", version if number % 5 else mutator.bytes(version, b""))
            file.writestr("studies/s.json", self.study if number % 2 else json.dumps(study))
            file.writestr("records.jsonl", self._signed(mutator, number))
        self._read_archive(stream.getvalue())

    def _read_archive(self, data: bytes) -> None:
        archive = Archive(self._path("results.initmem", data))
        archive.studies(), archive.verify()
        for record in archive.records():
            assert all(len(column) == record.summary.epochs for column in record.history.values())

    def _npz_samples(self) -> list[bytes]:
        rng = np.random.default_rng(0)
        x, y = rng.random((30, 4, 4)).astype(np.float32), np.arange(30) % 3
        samples = []
        for write, arrays in (
            (np.savez, {"x": x, "y": y}),
            (np.savez_compressed, {"x": (255 * x).astype(np.uint8), "y": y.astype(np.uint8)}),
            (np.savez, {"x_train": x, "y_train": y, "x_test": x[:5], "y_test": y[:5]}),
        ):
            stream = io.BytesIO()
            write(stream, **arrays)
            samples.append(stream.getvalue())
        return samples

    def npz_files(self, mutator: Mutator, number: int) -> None:
        """As bytes; or a good zip around arrays whose headers lie."""
        good = self.npz[number % len(self.npz)]
        if number % 2:
            data = mutator.bytes(good, mutator.random.choice(self.npz))
        else:
            stream = io.BytesIO()
            with zipfile.ZipFile(io.BytesIO(good)) as old, zipfile.ZipFile(stream, "w") as new:
                for name in old.namelist():
                    new.writestr(name, _lying(mutator, old.read(name)))
            data = stream.getvalue()
        load(Recipe(dataset=str(self._path("data.npz", data)), model="mlp"))


def _lying(mutator: Mutator, data: bytes) -> bytes:
    """An array file whose header says something else, of the right length."""
    size = int.from_bytes(data[8:10], "little")
    header = mutator.bytes(data[10 : 10 + size], data[10 : 10 + size])
    shape = mutator.random.choice([b"(3,)", b"(9999999999,)", b"(3, 4, 9999999)", b"(-1,)", b"()", b"(3, 0)"])
    if mutator.random.random() < 0.4:
        header = re.sub(rb"\([^)]*\)", shape, data[10 : 10 + size], count=1)
    if mutator.random.random() < 0.2:
        kind = mutator.random.choice([b"|O", b"<U9", b"<M8", b"<c8", b"|V8", b"<f8", b"|b1", b"<i8", b">u8"])
        header = re.sub(rb"'[<>|][a-zA-Z0-9]+'", b"'" + kind + b"'", header, count=1)
    return data[:8] + len(header).to_bytes(3, "little")[:2] + header + data[10 + size :]


# Inputs per thousand. What is quick to read and rich in structure gets more of them.
SHARES = {
    "study_files": 150,
    "overrides": 80,
    "record_files": 100,
    "signed_records": 200,
    "packs_of_records": 20,
    "checkpoint_files": 100,
    "small_files": 100,
    "archive_files": 80,
    "signed_archives": 80,
    "npz_files": 100,
}


class Watch:
    """Notices what no reader has any business to do."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.on, self.seen = str(folder), False, Counter[str]()
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in FORBIDDEN:
            self.seen[event] += 1
        elif event == "open" and isinstance(args[0], str) and isinstance(args[2], int):
            writes = args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes and not args[0].startswith(self.folder):
                self.seen[f"writing {args[0]}"] += 1


def too_long(*_: object) -> None:
    raise TimeoutError("took too long")


def fuzz(count: int, seed: int) -> dict[str, Any]:
    """Read so many inputs in all: per reader how many were read, refused, and what went wrong."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, too_long)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        readers, watch = Readers(Path(name)), Watch(Path(name))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, resource.RLIM_INFINITY))
        for reader, share in SHARES.items():
            started = time.monotonic()
            counts = Counter[str]()
            problems: list[str] = []
            for number in range(count * share // sum(SHARES.values()) + 1):
                mutator = Mutator((seed << 40) + (list(SHARES).index(reader) << 32) + number)
                signal.alarm(SECONDS)
                watch.on = True
                try:
                    getattr(readers, reader)(mutator, number)
                    counts["read"] += 1
                except InitmemError:
                    counts["refused"] += 1
                except Exception:
                    problems.append(f"{reader} {number}: {traceback.format_exc()}")
                finally:
                    watch.on = False
                    signal.alarm(0)
            counts["inputs"] = counts["read"] + counts["refused"] + len(problems)
            found[reader] = counts | {"problems": problems, "seconds": round(time.monotonic() - started, 1)}
        found["breaches"] = dict(watch.seen)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(json.dumps(fuzz(asked.count, asked.seed)))
