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
import lzma
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
import safetensors.torch
import torch
from safetensors.torch import save

from conftest import fake_record
from faultlab import memory_folder
from initmem.data.sources import load, sizes
from initmem.errors import InitmemError
from initmem.recipe import Recipe
from initmem.record import failed
from initmem.store import checkpoints
from initmem.store.archive import Archive, pack
from initmem.store.claims import look, new_claim
from initmem.store.encoding import decode, encode
from initmem.store.faults import Fault, to_line
from initmem.store.store import Store, decode_study
from initmem.study import Run, Study
from initmem.study_file import bundled, load_study

ROOM = 1 << 30  # bytes that reading a small file may take at most
SECONDS = 5  # for one input
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
    """All that reads files, with good samples of each. A reader may raise nothing but InitmemErrors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        recipe = Recipe(dataset="synthetic:60x1x4x4", model="mlp", width=4, epochs=4)
        runs = [Run(recipe, scale, seed) for scale in (0.5, 1.0) for seed in (0, 1)]
        self.runs = runs
        self.store = Store.create(folder / "store")
        self.records = [encode(fake_record(run, 0.5)) for run in runs[:3]]
        self.records.append(encode(failed(runs[3], "Traceback: boom", {"attempts": 1})))
        self.study = Study("s", "", "full", "", (recipe,), (0.5, 1.0), (0, 1))
        package = Path(sys.modules["initmem"].__file__ or "").parent
        self.studies = [(package / "paper" / "studies" / f"{name}.toml").read_bytes() for name in bundled()]
        row = {"epoch": 1, "val_loss": 0.5, "seconds": 1e-3}
        self.rows = b"".join(json.dumps(row | {"epoch": n}).encode() + b"\n" for n in range(1, 6))
        meta = {"epoch": 1, "history": {"val_loss": [0.5]}, "norm_init": 1.0, "status": None}
        tensors = {"now/a": torch.arange(6.0).reshape(2, 3), "now/n": torch.tensor(3)}
        self.checkpoints = [checkpoints.encode(runs[0].id, 1, saved, meta) for saved in (tensors, {})]
        self.archived = pack([self.study], [decode(data) for data in self.records])
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

    def history_lines(self, mutator: Mutator, number: int) -> None:
        folder = self.store.path / "runs" / self.runs[0].id
        folder.mkdir(exist_ok=True)
        (folder / "history.jsonl").write_bytes(mutator.bytes(self.rows, self.rows))
        for row in self.store.live.rows(self.runs[0].id):
            assert all(type(value) in (int, float) for value in row.values())
        self.store.live.epochs(self.runs[0].id)

    def record_files(self, mutator: Mutator, number: int) -> None:
        good = self.records[number % len(self.records)]
        decode(mutator.bytes(good, mutator.random.choice(self.records)))

    def signed_records(self, mutator: Mutator, number: int) -> None:
        content = json.loads(self.records[number % len(self.records)])["record"]
        if number % 3:
            payload = json.dumps(mutator.value(content), separators=(",", ":")).encode()
        else:
            payload = mutator.bytes(json.dumps(content).encode(), b"")
        digest = hashlib.sha256(payload).hexdigest().encode()
        record = decode(b'{"sha256":"' + digest + b'","record":' + payload + b"}\n")
        assert encode(record)  # what is accepted can be written again
        record.metric("test_accuracy"), record.metric("norm")

    def packs_of_records(self, mutator: Mutator, number: int) -> None:
        """A store in which a commit was cut short, by a file that is not what it was."""
        pending = self.store.path / "pending" / "p.json"
        pending.write_bytes(mutator.bytes(b"".join(self.records), self.records[0]))
        self.store.recover()
        assert not list((self.store.path / "pending").iterdir())

    def checkpoint_files(self, mutator: Mutator, number: int) -> None:
        good = self.checkpoints[number % len(self.checkpoints)]
        checkpoints.decode(mutator.bytes(good, self.checkpoints[0]))

    def signed_checkpoints(self, mutator: Mutator, number: int) -> None:
        data = save({"a": torch.arange(6.0), "b": torch.zeros(2, 2)})
        start = 8 + int.from_bytes(data[:8], "little")
        header = mutator.value(json.loads(data[8:start])) if number % 2 else json.loads(data[8:start])
        text = json.dumps(mutator.value({"schema": 2, "run": "0" * 16, "update": 1, "meta": {"history": {}}}))
        try:
            digest = checkpoints.digest(safetensors.torch.load(_safetensors(header, data[start:])), text)
        except Exception:  # the library refuses it whatever is beside it
            digest = ""
        if isinstance(header, dict):
            header = header | {"__metadata__": {"initmem": text, "sha256": digest}}
        checkpoints.decode(_safetensors(header, data[start:]))

    def small_files(self, mutator: Mutator, number: int) -> None:
        """What else a store holds: its own file, claims, faults and studies."""
        run = self.runs[1]
        folder = self.store.path / "runs" / run.id
        folder.mkdir(exist_ok=True)
        match number % 4:
            case 0:
                (folder / "claim.json").write_bytes(mutator.bytes(new_claim(session="s", pack=1), b"{}"))
                seen = look(folder / "claim.json")
                assert seen is not None
                if seen.claim is not None:
                    seen.claim.process_is_gone(), seen.claim.is_mine()
                self.store.claims.take([run])
                self.store.claims.release([run])
            case 1:
                lines = to_line(Fault("timeout", "s", 2, 3, "words")) + to_line(Fault("exception"))
                (folder / "faults.jsonl").write_bytes(mutator.bytes(lines, lines))
                self.store.faults.of(run.id), self.store.faults.attempt(run.id)
            case 2:
                other = Store.create(self.folder / "other")
                (other.path / "store.json").write_bytes(mutator.bytes(b'{"format": 1}\n', b"{}"))
                try:
                    Store(other.path)
                finally:
                    (other.path / "store.json").unlink()
            case 3:
                content = self.study.to_json()
                data = json.dumps(mutator.value(content) if number % 8 == 3 else content).encode()
                study = decode_study(data if number % 8 == 3 else mutator.bytes(data, data))
                assert study.all_runs()[0].id

    def archive_files(self, mutator: Mutator, number: int) -> None:
        self._read_archive(mutator.bytes(self.archived, self.archived))

    def signed_archives(self, mutator: Mutator, number: int) -> None:
        """An archive with the right checksums around something else."""
        head, line, rest = self.archived.split(b"\n", 2)
        sizes = json.loads(line)
        packed = rest[: sizes["records"][0]]
        content = json.dumps(mutator.value(json.loads(lzma.decompress(packed)))).encode()
        new = lzma.compress(content, preset=0)
        sizes["records"] = [len(new), len(content), hashlib.sha256(new).hexdigest()]
        self._read_archive(b"\n".join([head, json.dumps(sizes).encode(), new + rest[len(packed) :]]))

    def _read_archive(self, data: bytes) -> None:
        archive = Archive(self._path("results.initmem", data))
        archive.studies(), archive.verify()
        for record in archive.records():
            assert all(len(column) == record.summary.epochs for column in record.history.values())

    def indices(self, mutator: Mutator, number: int) -> None:
        """The index of a store that holds two records: damaged, they are found all the same."""
        place = self.folder / "indexed"
        if not place.exists():
            Store.create(place).commit([decode(data) for data in self.records[:2]])
            Store(place).records()
            self.index = (place / "index.json").read_bytes()
        _, _, body = self.index.partition(b"\n")
        if number % 2:
            data = mutator.bytes(self.index, self.index)
        else:
            body = json.dumps(mutator.value(json.loads(body))).encode()
            sign = {"index": 1, "sha256": hashlib.sha256(body).hexdigest()}
            data = json.dumps(sign).encode() + b"\n" + body
        (place / "index.json").write_bytes(data)
        assert len(Store(place).records()) == 2

    def _npz_samples(self) -> list[bytes]:
        rng = np.random.default_rng(0)
        x, y = rng.random((30, 4, 4)).astype(np.float32), np.arange(30) % 3
        found = []
        for write, arrays in (
            (np.savez, {"x": x, "y": y}),
            (np.savez_compressed, {"x": (255 * x).astype(np.uint8), "y": y.astype(np.uint8)}),
            (np.savez, {"x_train": x, "y_train": y, "x_test": x[:5], "y_test": y[:5]}),
        ):
            stream = io.BytesIO()
            write(stream, **arrays)
            found.append(stream.getvalue())
        return found

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
        recipe = Recipe(dataset=str(self._path("data.npz", data)), model="mlp")
        load(recipe)
        sizes(recipe)


def _safetensors(header: Any, body: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + body


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
    "study_files": 120,
    "overrides": 60,
    "history_lines": 90,
    "record_files": 80,
    "signed_records": 160,
    "packs_of_records": 15,
    "checkpoint_files": 80,
    "signed_checkpoints": 80,
    "small_files": 120,
    "archive_files": 40,
    "signed_archives": 40,
    "indices": 60,
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
