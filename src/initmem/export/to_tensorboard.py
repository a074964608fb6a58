"""Event files for TensorBoard: a directory per run, with its hyperparameters and scalars per epoch.

TensorBoard stores scalars in single precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path

from initmem.export.rows import NamedRun, Value, known, needs, plain_names, settings, spent, summary
from initmem.files import write_atomic

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import (
        HParamsPluginData,
        SessionEndInfo,
        SessionStartInfo,
    )
    from tensorboard.summary.writer.record_writer import RecordWriter
except ModuleNotFoundError:
    raise needs("tensorboard", "tensorboard") from None

FILE = "events.out.tfevents.0.initmem"  # a constant name, so that a second export replaces the first


def write_events(runs: Sequence[NamedRun], folder: Path) -> int:
    """Write an event file per run, in a directory per recipe, and return their number."""
    recipes = plain_names(dict.fromkeys(run.recipe for run in runs))
    names = plain_names(dict.fromkeys(run.name for run in runs))
    for run in runs:
        place = folder / recipes[run.recipe] / names[run.name]
        place.mkdir(parents=True, exist_ok=True)
        write_atomic(place / FILE, _events(run))
    return len(runs)


def _events(run: NamedRun) -> bytes:
    buffer = BytesIO()
    writer = RecordWriter(buffer)
    writer.write(Event(wall_time=0.0, file_version="brain.Event:2").SerializeToString())
    for event in _all_events(run):
        writer.write(event.SerializeToString())
    return buffer.getvalue()


def _all_events(run: NamedRun) -> Iterator[Event]:
    """Hyperparameters, epochs, summary, end. Wall time starts at zero."""
    record = run.record
    history = record.history
    times = spent(record).tolist()
    tags = plain_names(history)
    yield _hparams_event(
        metadata.SESSION_START_INFO_TAG, 0.0, session_start_info=_start(known(settings(record)))
    )
    for epoch, time in enumerate(times, start=1):
        values = {tags[name]: column[epoch - 1] for name, column in history.items()}
        yield _scalars(values, epoch, time)
    end = max(times, default=0.0)
    results = known(summary(record))
    results = {f"summary/{plain}": results[name] for name, plain in plain_names(results).items()}
    yield _scalars(results, record.summary.epochs, end)
    status = api_pb2.STATUS_FAILURE if record.status == "crashed" else api_pb2.STATUS_SUCCESS
    yield _hparams_event(
        metadata.SESSION_END_INFO_TAG, end, session_end_info=SessionEndInfo(status=status, end_time_secs=end)
    )


def _scalars(values: Mapping[str, float], step: int, time: float) -> Event:
    entries = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
    return Event(wall_time=time, step=step, summary=Summary(value=entries))


def _start(values: Mapping[str, Value]) -> SessionStartInfo:
    info = SessionStartInfo()
    for name, value in values.items():
        if isinstance(value, bool):
            info.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            info.hparams[name].number_value = value
        else:
            info.hparams[name].string_value = value
    return info


def _hparams_event(tag: str, time: float, **content: SessionStartInfo | SessionEndInfo) -> Event:
    about = metadata.create_summary_metadata(HParamsPluginData(**content))
    entry = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
    return Event(wall_time=time, summary=Summary(value=[entry]))
