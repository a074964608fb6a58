"""Results to read: a store, or an archive of one; and the progress of its studies.

An archive holds the studies and records of a store in one compact file, to keep, to send, to cite. It is a
zip file with the same content as the store:

    store.json       the format of the archive
    studies/*.json   the study files
    records.jsonl    the record files, one per line: together they compress much better

Nothing is lost: a restored record has the same bytes as in the store it came from. The same records give the
same archive. An archive may come from a stranger: its size is bounded, every value is checked, and no name in
it is used as a path.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from initmem.errors import StoreError, allowed
from initmem.files import readable, reason, retried, write_output
from initmem.record import RunRecord
from initmem.store.claims import LiveRun
from initmem.store.encoding import decode, decode_head, decode_study, encode, encode_study
from initmem.store.faults import crash_causes
from initmem.store.paths import Paths
from initmem.store.store import Store
from initmem.study import Study

FORMAT = 2
SUFFIX = ".initmem"
LARGEST = 2 << 30  # bytes that an archive may unpack to
LARGEST_STUDY = 64 << 20  # bytes of the files other than the records
PIECE = 1 << 12  # bytes that are unpacked at once: the most that a bomb can make of them is some 30 MB
DATE = (1980, 1, 1, 0, 0, 0)  # the same content gives the same bytes


def pack(studies: Sequence[Study], records: Sequence[RunRecord]) -> bytes:
    """The bytes of an archive."""
    names = Paths(Path())
    files = {"store.json": json.dumps({"archive": FORMAT}).encode() + b"\n"}
    for study in studies:
        files[str(names.study(study.name, study.preset))] = encode_study(study)
    # Runs of one recipe next to each other have much in common.
    ordered = sorted(records, key=lambda record: (record.run.recipe.id, record.id))
    files["records.jsonl"] = b"".join(map(encode, ordered))
    if (size := sum(map(len, files.values()))) > LARGEST:
        raise StoreError(f"{size:,} bytes (an archive takes {LARGEST:,}; --study NAME takes one study)")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        for name, data in files.items():
            file.writestr(zipfile.ZipInfo(name, DATE), data, zipfile.ZIP_LZMA)
    return stream.getvalue()


def of_study(
    name: str, studies: Sequence[Study], records: Sequence[RunRecord]
) -> tuple[list[Study], list[RunRecord]]:
    """A study at all its presets, and the records of its runs, whichever study they were trained for."""
    chosen = [study for study in studies if study.name == name]
    if not chosen:
        raise StoreError(f"study {name!r} is not in the store ({allowed(study.name for study in studies)})")
    wanted = {run.id for study in chosen for run in study.all_runs()}
    return chosen, [record for record in records if record.id in wanted]


def write_archive(path: Path, studies: Sequence[Study], records: Sequence[RunRecord]) -> int:
    """Write an archive; how many bytes it has."""
    data = pack(studies, records)
    write_output(path, data)
    return len(data)


class Archive:
    """The results in an archive; read-only. Every checksum is verified when it is opened."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lines: dict[str, bytes] = {}  # the record file of each run
        records = []
        with _opened(self.path) as file:
            studies = [name for name in file.namelist() if name.startswith("studies/")]
            self._studies = [decode_study(_read(file, name)) for name in studies]
            for line in io.BufferedReader(file.open("records.jsonl"), PIECE):  # type: ignore[type-var]
                record = decode_head(line)
                if record.id in self._lines:
                    raise StoreError(f"run {record.id} twice")
                self._lines[record.id] = line
                records.append(record)
        self._records = sorted(records, key=lambda record: record.id)

    def studies(self) -> list[Study]:
        """The studies that were requested of the store."""
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

    training = in_flight

    def live_run(self, run_id: str) -> LiveRun:
        """Nothing is trained in an archive."""
        return LiveRun(None, math.inf, [])

    def verify(self) -> list[str]:
        """Read every record with its history; what is wrong with each bad one."""
        problems = []
        for run_id, line in self._lines.items():
            try:
                decode(line)
            except StoreError as error:
                problems.append(f"{self.path}: run {run_id}: {error}")
        return problems

    _repr_html_ = Store._repr_html_  # store_status takes either


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive to read from, once its format and size are checked; whatever is wrong is one line."""
    try:
        with zipfile.ZipFile(path) as file:
            if (size := sum(info.file_size for info in file.infolist())) > LARGEST:
                raise StoreError(f"unpacks to {size:,} bytes (allowed: up to {LARGEST:,})")
            version = json.loads(_read(file, "store.json"))["archive"]
            if version != FORMAT:
                raise StoreError(f"archive of format {version!r} (allowed: {FORMAT})")
            yield file
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({reason(error)})") from None
    except (zipfile.BadZipFile, KeyError) as error:
        kinds = "allowed: a store directory, or a file that initmem archive wrote"
        raise StoreError(f"{path}: no archive, or a damaged one ({error}; {kinds})") from None
    except Exception as error:  # changed bytes may seem encrypted, of a newer version, or huge
        raise StoreError(f"{path}: damaged archive ({error!r})") from None


def _read(file: zipfile.ZipFile, name: str) -> bytes:
    """One of the smaller files of an archive."""
    if (size := file.getinfo(name).file_size) > LARGEST_STUDY:
        raise StoreError(f"{name} has {size:,} bytes (allowed: up to {LARGEST_STUDY:,})")
    stream = io.BufferedReader(file.open(name), PIECE)  # type: ignore[type-var]
    return b"".join(iter(partial(stream.read, PIECE), b""))


def restore(archive: Archive, store: Store) -> int:
    """Write studies and records into a store, with the same bytes; how many records are new there.

    What the store already has stays as it is.
    """
    if problems := archive.verify():
        raise StoreError(problems[0])
    present = {(study.name, study.preset) for study in store.studies()}
    for study in archive.studies():
        if (study.name, study.preset) not in present:
            store.add_study(study)
    new = [record for record in archive.records() if not store.has(record.run)]
    for record in new:
        store.commit([record])
    return len(new)


Results: TypeAlias = Store | Archive  # reports, figures and tables read either


COUNTED = ("completed", "diverged", "crashed", "training", "missing")


def open_results(path: str | Path) -> Results:
    """Open results for reading; both kinds have `studies()` and `records()`.

    Args:
        path: the directory of a store, or the file of an archive.
    """
    with readable(Path(path)):
        is_file = retried(Path(path).is_file)
    return Archive(path) if is_file else Store(path)


class Collection(NamedTuple):
    """Records, and the studies that requested them as far as they are known; of one store also its state."""

    records: Sequence[RunRecord]
    studies: Sequence[Study]
    damaged: Sequence[str] = ()  # what is wrong with each record that cannot be read
    training: Set[str] = frozenset()  # ids of the runs that a living worker has claimed


Source: TypeAlias = str | Path | Results | Collection | Iterable[str | Path | Results | RunRecord]


def collected(source: Source) -> Collection:
    """What several stores, archives, paths of these, or plain records hold; a run that several hold, once.

    The same run with another result is an error.
    """
    if isinstance(source, Collection):
        return source
    records: dict[str, tuple[RunRecord, str]] = {}  # with where each is from
    studies: list[Study] = []
    for part in [source] if isinstance(source, str | Path | Results) else source:
        if isinstance(part, RunRecord):
            origin, more = "the records given", [part]
        else:
            results = open_results(part) if isinstance(part, str | Path) else part
            origin, more = str(results.path), results.records()
            studies += results.studies()
        for record in more:
            before, where = records.setdefault(record.id, (record, origin))
            if before is not record and not before.same_result(record):
                both = f"{where} and {origin}"
                raise StoreError(f"run {record.id} has different results in {both} (allowed: one of them)")
    return Collection([record for record, _ in records.values()], studies)


def surveyed(results: Results) -> Collection:
    """A store with its state. Claims come first: a run that ends meanwhile is seen twice, not missed."""
    training = set(results.training())
    records, damaged = results.survey()
    return Collection(records, results.studies(), damaged, training - {record.id for record in records})


def store_status(results: Results) -> dict[str, Any]:
    """Counts per study and recipe."""
    survey = surveyed(results)
    return {"store": str(results.path), "studies": study_status(survey), "damaged": list(survey.damaged)}


def study_status(survey: Collection) -> list[dict[str, Any]]:
    """Counts per study and, below it, per recipe."""
    statuses = {record.id: record.status for record in survey.records}
    studies = []
    for study in survey.studies:
        rows: list[dict[str, Any]] = []
        for recipe, label in zip(study.recipes, study.labels(), strict=True):
            runs = study.runs(recipe)
            counts = Counter(statuses.get(run.id, "missing") for run in runs)
            counts["training"] = sum(run.id in survey.training for run in runs)
            rows.append({"recipe": label, "runs": len(runs)} | {name: counts[name] for name in COUNTED})
        requested = {run.id for run in study.all_runs()}
        causes = crash_causes(record for record in survey.records if record.id in requested)
        total, missing = (sum(row[name] for row in rows) for name in ("runs", "missing"))
        of_study = {"name": study.name, "preset": study.preset, "runs": total, "done": total - missing}
        studies.append(of_study | {"recipes": rows, "crashes": [cause._asdict() for cause in causes]})
    return studies
