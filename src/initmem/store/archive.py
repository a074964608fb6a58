"""An archive: the studies and records of a store in one compact file, to keep, to send, to cite.

    initmem archive 1                   what it is, and its format
    {"records": ..., "history": ...}    per section: bytes packed and unpacked, SHA-256 of the packed ones
    records, xz                         JSON: studies, and every record except its history
    history, xz                         little endian float64: by record, then column, then epoch

Nothing is lost: a restored record has the same bytes as in the store it came from. The same records give the
same archive. An archive may come from a stranger: every size is bounded, every value checked, and no name in
it is used as a path.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from initmem.errors import InitmemError, StoreError, allowed
from initmem.files import open_regular, reason, write_atomic
from initmem.record import History, RunRecord
from initmem.store.claims import Flight
from initmem.store.encoding import encode, head_of, history_of, join, parse_json, split, with_history
from initmem.store.store import Store
from initmem.study import Study

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FORMAT = 1
MAGIC = b"initmem archive %d\n"
SUFFIX = ".initmem"

# The most that is ever unpacked: sixteen times the paper's main grid, and more than ten times.
LARGEST = {"records": 64 << 20, "history": 2 << 30}
LONGEST_LINE = 1 << 12
UNPACKING_MEMORY = 64 << 20
CHUNK = 1 << 20
OVERHEAD = 1 << 16  # bytes by which packing may make a section longer, besides a sixteenth of it
# Numbers of eight bytes: the next byte depends on its position in the number more than on the last byte.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 3, "pb": 3}]

# What reading anything but what was written may raise.
NONSENSE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


class Section(NamedTuple):
    """How long a section of an archive is, packed and unpacked, and the digest of its packed bytes."""

    packed: int
    size: int
    sha256: str


def pack(studies: Sequence[Study], records: Sequence[RunRecord]) -> bytes:
    """The bytes of an archive."""
    # Runs of one recipe side by side have much in common.
    ordered = sorted(records, key=lambda record: (record.run.recipe.id, record.id))
    histories = [history_of(record) for record in ordered]
    layouts = list(dict.fromkeys(map(tuple, histories)))
    content = {
        "studies": [study.to_json() for study in studies],
        "layouts": layouts,
        "records": [
            {
                "sha256": _record_digest(record),
                "layout": layouts.index(tuple(history)),
                "head": head_of(record),
            }
            for record, history in zip(ordered, histories, strict=True)
        ],
    }
    values = [column.astype("<f8").tobytes() for history in histories for column in history.values()]
    sections = {
        "records": json.dumps(content, separators=(",", ":"), allow_nan=False).encode(),
        "history": b"".join(values),
    }
    for name, data in sections.items():
        if len(data) > LARGEST[name]:
            raise StoreError(f"{len(data):,} bytes of {name} (an archive takes {LARGEST[name]:,})")
    packed = {name: lzma.compress(data, filters=FILTERS) for name, data in sections.items()}
    sizes = {
        name: Section(len(packed[name]), len(data), _digest(packed[name])) for name, data in sections.items()
    }
    line = json.dumps(sizes, separators=(",", ":")).encode() + b"\n"
    return MAGIC % FORMAT + line + b"".join(packed.values())


def of_study(
    name: str, studies: Sequence[Study], records: Sequence[RunRecord]
) -> tuple[list[Study], list[RunRecord]]:
    """A study at all its efforts, and the records of its runs, whichever study they were trained for."""
    chosen = [study for study in studies if study.name == name]
    if not chosen:
        raise StoreError(f"study {name!r} is not in the store ({allowed(study.name for study in studies)})")
    wanted = {run.id for study in chosen for run in study.all_runs()}
    return chosen, [record for record in records if record.id in wanted]


def write_archive(path: Path, studies: Sequence[Study], records: Sequence[RunRecord]) -> int:
    """Write an archive; how many bytes it has."""
    data = pack(studies, records)
    try:
        write_atomic(path, data)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})") from None
    return len(data)


class Archive:
    """The results in an archive; read-only."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with open_regular(self.path) as stream:
                self._check_format(stream.readline(len(MAGIC) + 10))
                self._sections = _sizes(stream.readline(LONGEST_LINE))
                self._start = stream.tell()
                real = stream.seek(0, os.SEEK_END)
            stated = self._start + sum(section.packed for section in self._sections.values())
            if stated != real:
                raise StoreError(f"damaged archive ({real:,} bytes, not {stated:,})")
            self._studies, self._digests, records = self._read_records()
        except OSError as error:
            raise StoreError(f"{path}: cannot be read ({reason(error)})") from None
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
        self._records = sorted(records, key=lambda record: record.id)

    @staticmethod
    def _check_format(line: bytes) -> None:
        if line == MAGIC % FORMAT:
            return
        if line.startswith(b"initmem archive "):
            version = line.removeprefix(b"initmem archive ").decode(errors="replace").strip()
            raise StoreError(f"archive of format {version} (allowed: {FORMAT})")
        raise StoreError("no archive (allowed: a store directory, or a file that initmem archive wrote)")

    def _repr_html_(self) -> str:
        from initmem.plots.columns import results_table
        from initmem.plots.table_text import html
        from initmem.store.results import store_status

        return html(results_table(store_status(self)))

    # -- as in a store ---------------------------------------------------------------------------

    def studies(self) -> list[Study]:
        """What was asked of the store."""
        return list(self._studies)

    def records(self) -> list[RunRecord]:
        """All records, in a fixed order."""
        return list(self._records)

    def survey(self) -> tuple[list[RunRecord], list[str]]:
        """All records; none is damaged, or the archive would not open."""
        return self.records(), []

    def in_flight(self) -> list[str]:
        """None: nothing is claimed in an archive."""
        return []

    def training(self) -> list[str]:
        """None: nothing is trained in an archive."""
        return []

    def flight(self, run_id: str) -> Flight:
        """Nothing is trained in an archive."""
        return Flight(None, math.inf, [])

    def verify(self) -> list[str]:
        """Check every record against the checksum it had in its store."""
        return [
            f"{self.path}: record {record.id} (checksum does not match)"
            for record in self._records
            if _record_digest(record) != self._digests[record.id]
        ]

    # -- reading -----------------------------------------------------------------------------------------

    def _read_records(self) -> tuple[list[Study], dict[str, str], list[RunRecord]]:
        try:
            content = parse_json(self._unpacked("records"))
            studies = [Study.from_json(study) for study in content["studies"]]
            layouts = [tuple(map(str, names)) for names in content["layouts"]]
            digests: dict[str, str] = {}
            records: list[RunRecord] = []
            offset = 0
            for item in content["records"]:
                record = join(item["head"])
                columns = layouts[item["layout"]]
                load = partial(self._read_history, columns, offset, record.summary.epochs)
                if record.id != item["head"]["id"] or record.id in digests:
                    raise StoreError(f"damaged archive (run {record.id} under another name, or twice)")
                digests[record.id] = str(item["sha256"])
                records.append(with_history(record, load))
                offset += len(columns) * record.summary.epochs
        except StoreError:
            raise
        except InitmemError as error:
            raise StoreError(f"not a readable archive ({error})") from None
        except NONSENSE as error:
            raise StoreError(f"not a readable archive ({error!r})") from None
        if 8 * offset != self._sections["history"].size:
            raise StoreError("damaged archive (histories of another length)")
        return studies, digests, records

    def _read_history(self, columns: Sequence[str], offset: int, epochs: int) -> History:
        values = self._values[offset : offset + len(columns) * epochs].reshape(len(columns), epochs)
        return dict(zip(columns, values, strict=True))

    @cached_property
    def _values(self) -> NDArray[np.float64]:
        """All histories, unpacked when the first of them is used."""
        import numpy as np

        try:
            values = np.frombuffer(self._unpacked("history"), dtype="<f8").astype(np.float64, copy=False)
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be read ({error.strerror})") from None
        except StoreError as error:
            raise StoreError(f"{self.path}: {error}") from None
        if not np.isfinite(values).all():
            raise StoreError(f"{self.path}: damaged archive (a history has a value that is not finite)")
        return values

    def _unpacked(self, name: str) -> bytes:
        """One section, verified before it is unpacked, never more than it should be, read in chunks."""
        before = 0 if name == "records" else self._sections["records"].packed
        section = self._sections[name]
        with open_regular(self.path) as stream:
            stream.seek(self._start + before)
            digest = hashlib.sha256()
            for chunk in _chunks(stream, section.packed):
                digest.update(chunk)
            if digest.hexdigest() != section.sha256:
                raise StoreError(f"damaged archive (checksum of its {name} does not match)")
            stream.seek(self._start + before)
            try:
                data = _decompressed(_chunks(stream, section.packed), section.size)
            except (lzma.LZMAError, EOFError) as error:
                raise StoreError(f"damaged archive ({name}: {error})") from None
        if data is None:
            raise StoreError(f"damaged archive ({name} of another length)")
        return data


def restore(archive: Archive, store: Store) -> int:
    """Write studies and records into a store, with the same bytes; how many records are new there.

    What the store already has stays as it is.
    """
    if broken := archive.verify():
        raise StoreError(broken[0])
    known = {(study.name, study.effort) for study in store.studies()}
    for study in archive.studies():
        if (study.name, study.effort) not in known:
            store.add_study(study)
    new = [record for record in archive.records() if not store.has(record.run)]
    for record in new:
        store.commit([record])
    return len(new)


def _chunks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := stream.read(min(size, CHUNK))):
        size -= len(chunk)
        yield chunk


def _decompressed(chunks: Iterable[bytes], size: int) -> bytes | None:
    """So many bytes; None when there are more or fewer."""
    xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=UNPACKING_MEMORY)
    pieces: list[bytes] = []
    left = size + 1  # one more than there should be, to notice it
    for chunk in chunks:
        if xz.eof:
            return None
        while left and not xz.eof and (chunk or not xz.needs_input):
            pieces.append(xz.decompress(chunk, max_length=left))
            left -= len(pieces[-1])
            chunk = b""
    return b"".join(pieces) if left == 1 and xz.eof and not xz.unused_data else None


def _sizes(line: bytes) -> dict[str, Section]:
    try:
        stated = parse_json(line)
        sections = {
            name: Section(int(packed), int(size), str(sha256))
            for name, (packed, size, sha256) in ((name, stated[name]) for name in LARGEST)
        }
    except NONSENSE:
        raise StoreError("damaged archive (its second line is not readable)") from None
    for name, section in sections.items():
        if section.packed < 0 or not 0 <= section.size <= LARGEST[name]:
            raise StoreError(f"{section.size:,} bytes of {name} (allowed: up to {LARGEST[name]:,})")
        most = section.size + (section.size >> 4) + OVERHEAD
        if section.packed > most:
            raise StoreError(f"{section.packed:,} packed bytes of {name} (allowed: up to {most:,})")
    return sections


def _record_digest(record: RunRecord) -> str:
    """The digest of a record in its store."""
    try:
        return split(encode(record)).sha256
    except ValueError as error:
        raise StoreError(f"run {record.id}: {error}") from None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
