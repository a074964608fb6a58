"""Runs for Weights & Biases, offline: a directory per study, which `wandb sync` can upload."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from initmem.errors import ConfigError
from initmem.export import NamedRun, needs, plain, plain_names, present

os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # an export must not call home
try:
    import wandb
except ModuleNotFoundError:
    raise needs("wandb", "wandb") from None

DONE = "initmem-export"  # a file that marks a run as written completely


def write(runs: Sequence[NamedRun], output: str) -> int:
    """Write the runs that are new, in a directory per study, and return their number."""
    homes: list[Path] = []
    titles = plain_names(dict.fromkeys(title for run in runs for title in run.groups))
    try:
        for title, project in titles.items():
            folder = Path(output) / project
            folder.mkdir(parents=True, exist_ok=True)
            new = [run for run in runs if title in run.groups and not _is_written(folder, run.record.id)]
            homes += [_write(run, project, folder) for run in new]
    except wandb.Error as error:
        raise ConfigError(f"{output}: {error}") from None
    finally:
        wandb.teardown()  # `finish` does not wait for the process that writes the files; its end does
    for home in homes:
        (home / DONE).touch()
    return len(homes)


def _is_written(project: Path, run_id: str) -> bool:
    """Whether a run is there; what an interrupted export left of it is removed."""
    for folder in project.glob(f"wandb/offline-run-*-{run_id}"):
        if (folder / DONE).exists():
            return True
        shutil.rmtree(folder)
    return False


def _write(named: NamedRun, project: str, folder: Path) -> Path:
    """Hand one run to the process that writes it, and return its directory."""
    record = named.record
    options = wandb.Settings(
        mode="offline", silent=True, console="off", disable_code=True, disable_git=True,
        x_disable_machine_info=True, x_disable_stats=True, x_save_requirements=False,
    )  # fmt: skip
    run = wandb.init(
        project=project,
        dir=folder,
        id=record.id,
        group=named.recipe,
        name=f"{named.recipe} {named.name}",
        config=present(named.settings) | {f"provenance_{k}": v for k, v in named.provenance.items()},
        notes=record.error,
        tags=[record.status],
        reinit="create_new",
        settings=options,
    )
    columns = plain(record.history)
    for epoch in range(record.summary.epochs):
        run.log({name: float(column[epoch]) for name, column in columns.items()}, step=epoch + 1)
    run.summary.update(named.summary)
    home = Path(run.dir).parent
    run.finish(exit_code=1 if record.status == "crashed" else 0)
    return home
