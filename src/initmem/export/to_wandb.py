"""Runs for Weights & Biases, offline: a directory per study, which `wandb sync` can upload."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from initmem.errors import ConfigError
from initmem.export.rows import (
    NamedRun,
    known,
    needs,
    plain_names,
    provenance,
    settings,
    studies_of,
    summary,
)

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # an export must not call home
try:
    import wandb
except ModuleNotFoundError:
    raise needs("wandb", "wandb") from None

DONE = "initmem-export"  # a file that marks a run as written completely


def write_runs(runs: Sequence[NamedRun], folder: Path) -> int:
    """Write the runs that are new, in a directory per study, and return their number."""
    homes: list[Path] = []
    titles = plain_names(dict.fromkeys(title for run in runs for title in studies_of(run)))
    try:
        for title, project in titles.items():
            place = folder / project
            place.mkdir(parents=True, exist_ok=True)
            new = [run for run in runs if title in studies_of(run) and not _is_written(place, run.record.id)]
            homes += [_write(run, project, place) for run in new]
    except wandb.Error as error:
        raise ConfigError(f"{folder}: {error}") from None
    finally:
        wandb.teardown()  # `finish` does not wait for the process that writes the files; its end does
    for home in homes:
        (home / DONE).touch()
    return len(homes)


def _is_written(place: Path, run_id: str) -> bool:
    """Whether a run is there; what an interrupted export left of it is removed."""
    for folder in place.glob(f"wandb/offline-run-*-{run_id}"):
        if (folder / DONE).exists():
            return True
        shutil.rmtree(folder)
    return False


def _write(named: NamedRun, project: str, place: Path) -> Path:
    """Hand one run to the process that writes it, and return its directory."""
    record = named.record
    options = wandb.Settings(
        mode="offline", silent=True, console="off", disable_code=True, disable_git=True,
        x_disable_machine_info=True, x_disable_stats=True, x_save_requirements=False,
    )  # fmt: skip
    run = wandb.init(
        project=project,
        dir=place,
        id=record.id,
        group=named.recipe,
        name=f"{named.recipe} {named.name}",
        config=known(settings(record)) | {f"provenance_{k}": v for k, v in provenance(record).items()},
        notes=record.error,
        tags=[record.status],
        reinit="create_new",
        settings=options,
    )
    for epoch in range(record.summary.epochs):
        row = {
            plain: float(record.history[name][epoch]) for name, plain in plain_names(record.history).items()
        }
        run.log(row, step=epoch + 1)
    results = known(summary(record))
    run.summary.update({f"summary/{plain}": results[name] for name, plain in plain_names(results).items()})
    home = Path(run.dir).parent
    run.finish(exit_code=1 if record.status == "crashed" else 0)
    return home
