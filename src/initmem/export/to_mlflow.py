"""Log runs to MLflow: an experiment per study, with parameters, metrics per epoch and tags."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from initmem.errors import ConfigError
from initmem.export.rows import (
    NamedRun,
    known,
    needs,
    plain_names,
    provenance,
    settings,
    spent,
    studies_of,
    summary,
)
from initmem.record import RunRecord

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


def log_runs(runs: Sequence[NamedRun], place: str) -> int:
    """Log the runs that are new to an SQLite file or a tracking server, and return their number."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    address = place if "://" in place else f"sqlite:///{Path(place).resolve()}"
    written = 0
    try:
        client = MlflowClient(tracking_uri=address)
        for title in dict.fromkeys(title for run in runs for title in studies_of(run)):
            experiment = _experiment(client, title)
            logged = _logged(client, experiment)
            for run in runs:
                if title in studies_of(run) and run.record.id not in logged:
                    _log(client, experiment, run)
                    written += 1
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError) as error:
        raise ConfigError(f"{place}: {error}") from None
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
    took = [int(1000 * seconds) for seconds in spent(record)]
    end = int(1000 * time.time())
    start = end - max(took, default=0)
    created = client.create_run(experiment, start_time=start, run_name=f"{run.recipe} {run.name}")
    address = created.info.run_id
    client.log_batch(address, params=_params(record), tags=_tags(run))
    metrics = list(_metrics(record, [start + moment for moment in took], end))
    for first in range(0, len(metrics), BATCH):
        client.log_batch(address, metrics=metrics[first : first + BATCH])
    client.set_terminated(address, "FAILED" if record.status == "crashed" else "FINISHED", end_time=end)
    client.set_tag(address, ID, record.id)  # last, so that an interrupted export logs the run again


def _params(record: RunRecord) -> list[Param]:
    return [Param(name, str(value)) for name, value in known(settings(record)).items()]


def _tags(run: NamedRun) -> list[RunTag]:
    record = run.record
    tags = {"recipe": run.recipe, "status": record.status} | ({"error": record.error} if record.error else {})
    origin = provenance(record)
    tags |= {f"provenance.{plain}": str(origin[name]) for name, plain in plain_names(origin).items()}
    return [RunTag(f"initmem.{name}", value[-LONGEST_TAG:]) for name, value in tags.items()]


def _metrics(record: RunRecord, times: Sequence[int], end: int) -> Iterator[Metric]:
    """Every column at every epoch, and the summary at the last epoch."""
    for name, plain in plain_names(record.history).items():
        for epoch, (moment, value) in enumerate(zip(times, record.history[name], strict=True), start=1):
            yield Metric(plain, float(value), moment, epoch)
    results = known(summary(record))
    for name, plain in plain_names(results).items():
        yield Metric(f"summary/{plain}", float(results[name]), end, record.summary.epochs)
