"""Log runs to MLflow: an experiment per study, with parameters, metrics per epoch and tags."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from initmem.errors import ConfigError
from initmem.export import NamedRun, needs, plain, present

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # an export must not call home
try:
    import alembic  # noqa: F401  (mlflow loads it when it opens a database)
    import sqlalchemy
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException
except ModuleNotFoundError:
    raise needs("mlflow-skinny", "mlflow") from None

ID = "initmem.run"  # the tag that identifies runs that were logged before
BATCH = 1000  # metrics that MLflow accepts per call
LONGEST_TAG = 5000


def write(runs: Sequence[NamedRun], output: str) -> int:
    """Log the runs that are new to an SQLite file or a tracking server, and return their number."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    address = output if "://" in output else f"sqlite:///{Path(output).resolve()}"
    written = 0
    try:
        client = MlflowClient(tracking_uri=address)
        for title in dict.fromkeys(title for run in runs for title in run.groups):
            experiment = _experiment(client, title)
            logged = _logged(client, experiment)
            new = [run for run in runs if title in run.groups and run.record.id not in logged]
            for run in new:
                _log(client, experiment, run)
            written += len(new)
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError) as error:
        raise ConfigError(f"{output}: {error}") from None
    return written


def _experiment(client: MlflowClient, title: str) -> str:
    experiment = client.get_experiment_by_name(title)
    return str(experiment.experiment_id if experiment else client.create_experiment(title))


def _logged(client: MlflowClient, experiment: str) -> set[str]:
    """Ids of the runs that were logged completely before."""
    ids: set[str] = set()
    token = None
    while True:
        page = client.search_runs([experiment], max_results=BATCH, page_token=token)
        ids |= {run.data.tags[ID] for run in page if ID in run.data.tags}
        token = page.token
        if not token:
            return ids


def _log(client: MlflowClient, experiment: str, run: NamedRun) -> None:
    """Log one run as if it ended now: its epochs are dated back by the time they took."""
    record = run.record
    took = [int(1000 * seconds) for seconds in run.seconds]
    end = int(1000 * time.time())
    start = end - max(took, default=0)
    created = client.create_run(experiment, start_time=start, run_name=f"{run.recipe} {run.name}")
    address = created.info.run_id
    params = [Param(name, str(value)) for name, value in present(run.settings).items()]
    client.log_batch(address, params=params, tags=_tags(run))
    metrics = [
        Metric(name, float(value), start + moment, epoch)
        for name, column in plain(record.history).items()
        for epoch, (moment, value) in enumerate(zip(took, column, strict=True), start=1)
    ]
    metrics += [Metric(name, value, end, record.summary.epochs) for name, value in run.summary.items()]
    for first in range(0, len(metrics), BATCH):
        client.log_batch(address, metrics=metrics[first : first + BATCH])
    client.set_terminated(address, "FAILED" if record.status == "crashed" else "FINISHED", end_time=end)
    client.set_tag(address, ID, record.id)  # last, so that an interrupted export logs the run again


def _tags(run: NamedRun) -> list[RunTag]:
    tags = {"recipe": run.recipe, "status": run.record.status, "error": run.record.error or ""}
    tags |= {f"provenance.{name}": str(value) for name, value in plain(run.provenance).items()}
    return [RunTag(f"initmem.{name}", value[-LONGEST_TAG:]) for name, value in tags.items() if value]
