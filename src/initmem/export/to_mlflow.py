"""Runs in an MLflow tracking store: an experiment per study, with parameters, metrics per epoch and tags."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from initmem.errors import ConfigError
from initmem.export.rows import NamedRun, known, needs, plain_names, provenance, settings, spent, summary
from initmem.store.record import RunRecord

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # an export tells nobody but its reader
try:
    import alembic  # noqa: F401  (mlflow loads it when it opens a database)
    import sqlalchemy
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException
except ModuleNotFoundError:
    raise needs("mlflow-skinny", "mlflow") from None

ID = "initmem.run"  # the tag that tells which runs are there already
ALONE = "initmem"  # the experiment of runs that no study asks for
BATCH = 1000  # metrics that MLflow takes at a time
LONGEST_TAG = 5000


def log_runs(runs: Sequence[NamedRun], place: str) -> int:
    """Log the runs that are not there yet, to an SQLite file or to the address of a tracking server."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    address = place if "://" in place else f"sqlite:///{Path(place).resolve()}"
    written = 0
    try:
        client = MlflowClient(tracking_uri=address)
        for title in dict.fromkeys(title for run in runs for title in run.studies or (ALONE,)):
            experiment = _experiment(client, title)
            there = _logged(client, experiment)
            for run in runs:
                if title in (run.studies or (ALONE,)) and run.record.id not in there:
                    _log(client, experiment, run)
                    written += 1
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError) as error:
        raise ConfigError(f"{place}: {error}") from None
    return written


def _experiment(client: MlflowClient, title: str) -> str:
    found = client.get_experiment_by_name(title)
    return str(found.experiment_id if found else client.create_experiment(title))


def _logged(client: MlflowClient, experiment: str) -> set[str]:
    """Ids of the runs that were logged before, from beginning to end."""
    found: set[str] = set()
    token = None
    while True:
        page = client.search_runs([experiment], max_results=BATCH, page_token=token)
        found |= {run.data.tags[ID] for run in page if ID in run.data.tags}
        token = page.token
        if not token:
            return found


def _log(client: MlflowClient, experiment: str, run: NamedRun) -> None:
    """Log one run: it ends now, and its epochs lie as far back as they took."""
    record = run.record
    took = [int(1000 * seconds) for seconds in spent(record)]
    end = int(1000 * time.time())
    start = end - max(took, default=0)
    created = client.create_run(experiment, start_time=start, run_name=f"{run.recipe} {run.name}")
    address = created.info.run_id
    client.log_batch(address, params=_params(record), tags=_tags(run))
    metrics = list(_metrics(record, [start + moment for moment in took], end))
    for first in range(0, len(metrics), BATCH):
        client.log_batch(address, metrics=metrics[first : first + BATCH])
    client.set_terminated(address, "FAILED" if record.status == "failed" else "FINISHED", end_time=end)
    client.set_tag(address, ID, record.id)  # last: a run that was cut off is logged again


def _params(record: RunRecord) -> list[Param]:
    return [Param(name, str(value)) for name, value in known(settings(record)).items()]


def _tags(run: NamedRun) -> list[RunTag]:
    record = run.record
    tags = {"recipe": run.recipe, "status": record.status} | ({"error": record.error} if record.error else {})
    origin = provenance(record)
    tags |= {f"provenance.{plain}": str(origin[name]) for name, plain in plain_names(origin).items()}
    return [RunTag(f"initmem.{name}", value[-LONGEST_TAG:]) for name, value in tags.items()]


def _metrics(record: RunRecord, times: Sequence[int], end: int) -> Iterator[Metric]:
    """Every column at every epoch, and the summary at the last one."""
    for name, plain in plain_names(record.history).items():
        for epoch, (moment, value) in enumerate(zip(times, record.history[name], strict=True), start=1):
            yield Metric(plain, float(value), moment, epoch)
    results = known(summary(record))
    for name, plain in plain_names(results).items():
        yield Metric(f"summary/{plain}", float(results[name]), end, record.summary.epochs)
