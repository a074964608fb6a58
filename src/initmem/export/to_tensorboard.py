"""Event files for TensorBoard: a directory per run, with its hyperparameters and scalars per epoch.

TensorBoard stores scalars in single precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path

from initmem.export import NamedRun, needs, plain, plain_names, present
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


def write(runs: Sequence[NamedRun], output: str) -> int:
    """Write an event file per run, in a directory per recipe, and return their number."""
    recipes = plain_names(dict.fromkeys(run.recipe for run in runs))
    names = plain_names(dict.fromkeys(run.name for run in runs))
    for run in runs:
        folder = Path(output) / recipes[run.recipe] / names[run.name]
        folder.mkdir(parents=True, exist_ok=True)
        buffer = BytesIO()
        writer = RecordWriter(buffer)
        for event in _events(run):
            writer.write(event.SerializeToString())
        write_atomic(folder / FILE, buffer.getvalue())
    return len(runs)


def _events(run: NamedRun) -> Iterator[Event]:
    """Version, hyperparameters, epochs, summary, end. Wall time starts at zero."""
    record, columns, times = run.record, plain(run.record.history), run.seconds.tolist()
    end = max(times, default=0.0)
    start = SessionStartInfo()
    for name, value in present(run.settings).items():
        kind = {bool: "bool_value", str: "string_value"}.get(type(value), "number_value")
        setattr(start.hparams[name], kind, value)
    status = api_pb2.STATUS_FAILURE if record.status == "crashed" else api_pb2.STATUS_SUCCESS
    yield Event(wall_time=0.0, file_version="brain.Event:2")
    yield _hparams(metadata.SESSION_START_INFO_TAG, 0.0, session_start_info=start)
    for epoch, time in enumerate(times, start=1):
        yield _scalars({name: column[epoch - 1] for name, column in columns.items()}, epoch, time)
    yield _scalars(run.summary, record.summary.epochs, end)
    ended = SessionEndInfo(status=status, end_time_secs=end)
    yield _hparams(metadata.SESSION_END_INFO_TAG, end, session_end_info=ended)


def _scalars(values: Mapping[str, float], step: int, time: float) -> Event:
    entries = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
    return Event(wall_time=time, step=step, summary=Summary(value=entries))


def _hparams(tag: str, time: float, **content: SessionStartInfo | SessionEndInfo) -> Event:
    about = metadata.create_summary_metadata(HParamsPluginData(**content))
    entry = Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
    return Event(wall_time=time, summary=Summary(value=[entry]))
