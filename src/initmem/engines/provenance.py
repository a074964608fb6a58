"""Where a record comes from: the one place where its provenance is put together, and where old code shows.

A trainer notes what only it knows (seconds, device, what user code did). The engine adds the
machine, the versions, the code of the user, and how the run came to its record. Records of code that has
changed since are refused, kept on request, and tried again if they crashed.
"""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from initmem import __version__
from initmem.engines.engine import Settings
from initmem.errors import ConfigError, StoreError, first_of
from initmem.files import left_behind, processor_lines
from initmem.recipe import AnyRecipe, content_id
from initmem.record import RunRecord, crashed
from initmem.store.faults import CAUSES
from initmem.store.store import Store
from initmem.study import Run, Study

WORKDIR = "initmem-run-"  # the names of working directories of user code begin with it


def with_provenance(record: RunRecord, store: Store, settings: Settings, pack: Sequence[Run]) -> RunRecord:
    """The record with where, with what and in which pack it was trained, after which faults.

    What a trainer has noted about the machine and the code is kept.
    """
    run, noted = record.run, record.provenance
    code = settings.fingerprint(run.recipe)
    faults = Counter(fault.cause for fault in store.faults.of(run.id))
    faults["divergence"] += record.status == "diverged"  # which nobody has noted in the store
    provenance = {
        **environment(str(noted.get("device", settings.device))),
        **({"fingerprint": code} if code else {}),
        **settings.about,
        **noted,
        "pack": len(pack),
        "pack_id": content_id({"runs": [one.id for one in pack]}),  # in this order
        "attempts": store.faults.attempt(run.id),
        "faults": {cause: faults[cause] for cause in CAUSES if faults[cause]},
    }
    return replace(record, provenance=provenance)


def crash_record(
    run: Run, error: str, store: Store, settings: Settings, about: Mapping[str, Any] | None = None
) -> RunRecord:
    """The record of a run that raised, exited or was lost alone; its faults are noted in the store."""
    return with_provenance(crashed(run, error, about or {}), store, settings, [run])


def environment(device: str) -> dict[str, Any]:
    """Machine and versions. PyTorch counts only where it was loaded: not every pipeline uses it."""
    torch = sys.modules.get("torch")
    return {
        "initmem": __version__,
        "torch": "not used" if torch is None else str(torch.__version__),
        "python": platform.python_version(),
        "device": device,
        "hardware": hardware(device),
        "threads": 1 if torch is None else torch.get_num_threads(),
    }


def hardware(device: str) -> str:
    """The name of the processor that a device is; a program may see devices that this process does not."""
    if device.startswith("cuda"):
        import torch

        index = torch.device(device).index or 0
        return torch.cuda.get_device_name(index) if index < torch.cuda.device_count() else "not known"
    names = [line.partition(":")[2].strip() for line in processor_lines("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def workdir_prefix(run_id: str) -> str:
    """How the name of a run's working directory begins."""
    return f"{WORKDIR}{run_id}-"


def kept_workdir(root: Path, run_id: str) -> Path:
    """Give a working directory a name that is not swept."""
    return root.rename(tempfile.mkdtemp(prefix=workdir_prefix(run_id)))


def lost_workdir(run_id: str) -> dict[str, str]:
    """For the record of a run that was lost on this machine: its last working directory, which is kept."""
    with suppress(OSError, StoreError):
        for root in left_behind(Path(tempfile.gettempdir()), workdir_prefix(run_id)):
            kept = kept_workdir(root, run_id)
            mirror = kept.joinpath(*Path.cwd().parts[1:])
            return {"workdir": str(mirror if mirror.is_dir() else kept)}
    return {}


Fingerprint = Mapping[str, str]  # of code: a text for each of its parts
DIGEST = re.compile("#[0-9a-f]{16}$")  # of a value too large to show
SHOWN = 4  # changes that a message lists
HOW = "keep_old=True (--keep-old) keeps them as they are, a new `name` (--name) trains all runs anew"
HOW_PLUGINS = "--keep-old keeps them as they are, another --store trains all runs anew"


def refuse_stale(store: Store, study: Study, settings: Settings, *, keep_old: bool) -> None:
    """Refuse to mix results of the present code with those of other code.

    Crashed runs of other code are moved aside, so that they are tried again with the present code.
    """
    wanted = {run.id for run in study.all_runs()}
    records = [record for record in store.records() if record.id in wanted]
    now = {recipe: settings.fingerprint(recipe) for recipe in study.recipes}
    if (stale := _stale(records, now)) and not keep_old:
        raise ConfigError(f"{store.path}: {stale} ({HOW_PLUGINS if settings.trainer is None else HOW})")
    outdated = {r.id for r in records if r.status == "crashed" and _fingerprint(r) != now[r.run.recipe]}
    if outdated:  # it reads every record
        store.set_aside(lambda record: record.id in outdated)


def stale_note(records: Iterable[RunRecord], current: Callable[[AnyRecipe], Fingerprint]) -> str:
    """One sentence about records that were kept although the code has changed; empty if there are none."""
    done = [record for record in records if record.status != "crashed"]
    now = {record.run.recipe: current(record.run.recipe) for record in done}
    if stale := _stale(done, now):
        return stale
    unknown = sum(not _fingerprint(record) for record in done)
    if unknown and any(now.values()):
        return f"{unknown} of {len(done)} runs do not say what code trained them: the present code may differ"
    return ""


def run_notes(records: Iterable[RunRecord]) -> list[str]:
    """What the reader should know of runs of user code next to the notes of a verdict; a line for each."""
    records = list(records)
    about = [record.provenance for record in records if record.status != "crashed"]
    diverged = [str(one.provenance.get("diverged", "")) for one in records if one.status == "diverged"]
    what = " or ".join(filter(None, dict.fromkeys(text.partition(" ")[0] for text in diverged)))
    opened = [item for one in about for item in one.get("opened", {}).items()]
    large = sorted({name for name, digest in opened if digest.endswith(" bytes")})
    more = max((one.get("opened_more", 0) for one in about), default=0)
    unknown = any(one.get("files_unknown") for one in about)
    lines = {
        f"{len(diverged)} of {len(records)} runs diverged ({{}} is not finite); each counts with the epoch "
        "selected before that": [what or "a metric"] * bool(diverged),
        "left out, because not every epoch has them: {} (attach the tracker before the first epoch ends)": (
            _all_of(about, "dropped")
        ),
        "clocks not measured: {}": _all_of(about, "clocks_missing"),
        "removed with the runs' own working directories: {} (workdir = 'shared' keeps such files)": (
            _all_of(about, "files_removed")
        ),
        "files too large to compare except for their size: {}": large,
        "a run reads more files than are compared when it is started again: {} more": [str(more)]
        * bool(more),
        "a change to files that the program reads goes unnoticed, unless the command or --watch names them: "
        "it is {}": ["not Python, or python -S, -I or -E"] * unknown,
    }
    return [line.format(first_of(names, SHOWN)) for line, names in lines.items() if names]


def _all_of(about: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    return sorted({name for one in about for name in one.get(key, ())})


def _fingerprint(record: RunRecord) -> Fingerprint:
    """Of the code that trained a run; empty where the record does not say."""
    return dict(record.provenance.get("fingerprint", {}))


def _stale(records: Sequence[RunRecord], now: Mapping[AnyRecipe, Fingerprint]) -> str:
    """How many runs are not of the present code, and what changed; crashed ones are left out."""
    changes = []
    for record in records:
        old, new = _fingerprint(record), now[record.run.recipe]
        if record.status != "crashed" and old and new:
            changes.append(differences(old, new) or _changed_files(record.provenance))
    if not (stale := list(filter(None, changes))):
        return ""
    which = f"{len(stale)} of {len(records)} runs were trained before this changed"
    return f"{which}: {first_of(stale[0], SHOWN)}"


def _changed_files(about: Mapping[str, Any]) -> list[str]:
    """Files of the project that a run has read, and that are no longer as they were."""
    from initmem.content import content_digest  # only user code opens files of its own

    changed = []
    for name, before in about.get("opened", {}).items():
        paths = [Path.cwd() / name, Path(about["project"]) / name]
        path = next((path for path in paths if path.is_file()), None)
        if path is None or content_digest(path) != before:
            changed.append(f"file {name} {'is gone' if path is None else 'was edited'}")
    return changed


def differences(before: Fingerprint, now: Fingerprint) -> list[str]:
    """What changed from one fingerprint to another, edits first, then what was added and removed."""
    edited = []
    for name in [name for name in before if name in now and before[name] != now[name]]:
        how = f"{before[name]} -> {now[name]}"
        if re.match(r"(function|class|module|file) ", name):
            how = "was edited"
        elif DIGEST.search(before[name]) or DIGEST.search(now[name]):
            how = "changed"
        edited.append(f"{name} {how}")
    gone = [f"{name} is no longer used" for name in before if name not in now]
    return edited + gone + [f"{name} is now used" for name in now if name not in before]
