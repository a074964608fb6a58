"""Runs for TensorBoard, MLflow, Weights & Biases and Trackio. A library is imported where it is used."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout, suppress
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from initmem.errors import ConfigError
from initmem.export import NamedRun, plain, plain_names, present
from initmem.files import write_output

if TYPE_CHECKING:
    from mlflow import MlflowClient

# -- TensorBoard ------------------------------------------------------------------------------------------

EVENTS = "events.out.tfevents.0.initmem"  # a constant name, so that a second export replaces the first


def write_tensorboard(runs: Sequence[NamedRun], output: str) -> int:
    """Write an event file per run, in a directory per recipe; TensorBoard has single precision."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    recipes = plain_names(dict.fromkeys(run.recipe for run in runs))
    names = plain_names(dict.fromkeys(run.name for run in runs))
    for run in runs:
        folder = Path(output) / recipes[run.recipe] / names[run.name]
        folder.mkdir(parents=True, exist_ok=True)
        buffer = BytesIO()
        writer = RecordWriter(buffer)
        for event in _events(run):
            writer.write(event.SerializeToString())
        write_output(folder / EVENTS, buffer.getvalue())
    return len(runs)


def _events(run: NamedRun) -> Iterator[Any]:
    """Version, hyperparameters, epochs, summary, end. Wall time starts at zero."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams import plugin_data_pb2 as hparams

    def about(tag: str, **content: Any) -> Summary:
        data = metadata.create_summary_metadata(hparams.HParamsPluginData(**content))
        return Summary(value=[Summary.Value(tag=tag, metadata=data, tensor=metadata.NULL_TENSOR)])

    def scalars(values: dict[str, float]) -> Summary:
        return Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])

    record, columns, times = run.record, plain(run.record.history), run.seconds.tolist()
    end = max(times, default=0.0)
    started = hparams.SessionStartInfo()
    for name, value in present(run.settings).items():
        kind = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
        setattr(started.hparams[name], kind, value)
    status = api_pb2.STATUS_FAILURE if record.status == "crashed" else api_pb2.STATUS_SUCCESS
    ended = hparams.SessionEndInfo(status=status, end_time_secs=end)
    yield Event(wall_time=0.0, file_version="brain.Event:2")
    yield Event(wall_time=0.0, summary=about(metadata.SESSION_START_INFO_TAG, session_start_info=started))
    for i, moment in enumerate(times):
        row = {name: float(column[i]) for name, column in columns.items()}
        yield Event(wall_time=moment, step=i + 1, summary=scalars(row))
    yield Event(wall_time=end, step=record.summary.epochs, summary=scalars(run.summary))
    yield Event(wall_time=end, summary=about(metadata.SESSION_END_INFO_TAG, session_end_info=ended))


# -- MLflow -----------------------------------------------------------------------------------------------

ID = "initmem.run"  # the tag that identifies runs that were logged before
BATCH = 1000  # metrics that MLflow accepts per call
LONGEST_TAG = 5000


def write_mlflow(runs: Sequence[NamedRun], output: str) -> int:
    """Log the runs that are new to an SQLite file or a tracking server, an experiment per study."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # an export must not call home
    import alembic  # noqa: F401  (mlflow loads it when it opens a database)
    import sqlalchemy
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    address = output if "://" in output else f"sqlite:///{Path(output).resolve()}"
    written = 0
    try:
        client = MlflowClient(tracking_uri=address)
        for title in dict.fromkeys(title for run in runs for title in run.groups):
            existing = client.get_experiment_by_name(title)
            experiment = str(existing.experiment_id if existing else client.create_experiment(title))
            logged = _logged(client, experiment)
            new = [run for run in runs if title in run.groups and run.record.id not in logged]
            for run in new:
                _log(client, experiment, run)
            written += len(new)
    except (MlflowException, sqlalchemy.exc.SQLAlchemyError) as error:
        raise ConfigError(f"{output}: {error}") from None
    return written


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
    from mlflow.entities import Metric, Param, RunTag

    record = run.record
    took = [int(1000 * seconds) for seconds in run.seconds]
    end = int(1000 * time.time())
    start = end - max(took, default=0)
    created = client.create_run(experiment, start_time=start, run_name=f"{run.recipe} {run.name}")
    address = created.info.run_id
    tags = {"recipe": run.recipe, "status": record.status, "error": record.error or ""}
    tags |= {f"provenance.{name}": str(value) for name, value in plain(run.provenance).items()}
    client.log_batch(
        address,
        params=[Param(name, str(value)) for name, value in present(run.settings).items()],
        tags=[RunTag(f"initmem.{name}", value[-LONGEST_TAG:]) for name, value in tags.items() if value],
    )
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


# -- Weights & Biases -------------------------------------------------------------------------------------

DONE = "initmem-export"  # a file that marks a run as written completely


def write_wandb(runs: Sequence[NamedRun], output: str) -> int:
    """Write the runs that are new, offline, in a directory per study, which `wandb sync` can upload."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # an export must not call home
    import wandb

    homes: list[Path] = []
    titles = plain_names(dict.fromkeys(title for run in runs for title in run.groups))
    try:
        for title, project in titles.items():
            folder = Path(output) / project
            folder.mkdir(parents=True, exist_ok=True)
            new = [run for run in runs if title in run.groups and not _is_written(folder, run.record.id)]
            homes += [_hand_over(run, project, folder) for run in new]
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


def _hand_over(named: NamedRun, project: str, folder: Path) -> Path:
    """Hand one run to the process that writes it, and return its directory."""
    import wandb

    record = named.record
    settings = wandb.Settings(
        mode="offline", silent=True, console="off", disable_code=True, disable_git=True,
        x_disable_machine_info=True, x_disable_stats=True, x_save_requirements=False,
    )  # fmt: skip
    about = {"dir": folder, "id": record.id, "notes": record.error, "tags": [record.status]}
    run = _with_epochs(wandb, named, project, {}, **about, reinit="create_new", settings=settings)
    run.summary.update(named.summary)
    home = Path(run.dir).parent
    run.finish(exit_code=1 if record.status == "crashed" else 0)
    return home


def _with_epochs(tracker: Any, named: NamedRun, project: str, config: dict[str, Any], **options: Any) -> Any:
    """A run with all of its epochs, by the calls that wandb and Trackio have in common; it is still open."""
    settings = present(named.settings) | {f"provenance_{k}": v for k, v in named.provenance.items()}
    name = f"{named.recipe} {named.name}"
    run = tracker.init(project=project, name=name, group=named.recipe, config=settings | config, **options)
    columns = plain(named.record.history)
    for epoch in range(named.record.summary.epochs):
        run.log({name: float(column[epoch]) for name, column in columns.items()}, step=epoch + 1)
    return run


# -- Trackio, which has the calls of wandb ----------------------------------------------------------------


def write_trackio(runs: Sequence[NamedRun], output: str) -> int:
    """Write the runs that are new to a project per study, in a folder that `trackio show` displays."""
    folder = Path(output).resolve()
    os.environ["TRACKIO_DIR"] = str(folder)  # read when it is imported
    for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        os.environ.pop(name, None)  # an export must not call home
    import trackio

    if trackio.TRACKIO_DIR.resolve() != folder:
        raise ConfigError(f"{output}: this process writes to {trackio.TRACKIO_DIR} (allowed: a new process)")
    written = 0
    titles = plain_names(dict.fromkeys(title for run in runs for title in run.groups))
    with redirect_stdout(StringIO()):  # it prints what it does
        for title, project in titles.items():
            done = folder / DONE / project
            done.mkdir(parents=True, exist_ok=True)
            new = [run for run in runs if title in run.groups and not (done / run.record.id).exists()]
            ids = {run.record.id for run in new}
            with suppress(ValueError):  # there is no such project yet
                for left in trackio.Api().runs(project):  # by an interrupted export
                    if (left.config or {}).get("run") in ids:
                        left.delete()
            for named in new:
                record = named.record
                about = present({"run": record.id, "status": record.status, "error": record.error})
                quiet = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
                run = _with_epochs(trackio, named, project, about, **quiet)
                run.log(named.summary, step=record.summary.epochs)
                trackio.finish()
                (done / record.id).touch()
            written += len(new)
    return written


WRITERS = {
    "tensorboard": write_tensorboard,
    "mlflow": write_mlflow,
    "wandb": write_wandb,
    "trackio": write_trackio,
}
