from __future__ import annotations

import csv
import importlib
import json
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import polars as pl
import pytest

from conftest import fake_record
from initmem.errors import ConfigError
from initmem.export import export, plain_names
from initmem.recipe import PipelineRecipe
from initmem.record import COLUMNS, RunRecord, crashed
from initmem.store.results import open_results, write_archive
from initmem.store.store import Store
from initmem.study import Run, Study

OWN = "own score, of mine"


@pytest.fixture
def records(tiny_study: Study) -> list[RunRecord]:
    """A study of six runs, one with columns of its own, one failed; and a run that nobody asked for."""
    rng = np.random.default_rng(0)
    mine = PipelineRecipe.parse({"pipeline": "mine", "batch_size": 7})
    runs = [*tiny_study.all_runs(), Run(mine, 0.1, 7, (("init", 3),), 1.001)]
    found = []
    for run in runs:
        record = fake_record(run, rng.random())
        found.append(replace(record, history={name: rng.normal(size=4) ** 2 for name in COLUMNS}))
    found[0] = replace(
        found[0], history=dict(found[0].history) | {OWN: rng.random(4), "epoch": rng.random(4)}
    )
    found[6] = replace(found[6], finals={"own score": 0.25})
    found[1] = crashed(runs[1], 'Traceback:\n  "boom", they said', {"attempts": 3, "nested": {"a": 1}})
    return found


@pytest.fixture
def store(tmp_path: Path, tiny_study: Study, records: list[RunRecord]) -> Store:
    store = Store.create(tmp_path / "store")
    store.add_study(tiny_study)
    store.add_study(replace(tiny_study, name="other", seeds=(0,)))  # shares half of its runs
    store.commit(records)
    return store


def test_csv_holds_every_number_exactly(store: Store, records: list[RunRecord], tmp_path: Path) -> None:
    done = export(store, "csv")
    assert (done.output, done.runs, done.written) == (str(tmp_path / "store-csv"), 7, 7)
    with (tmp_path / "store-csv" / "history.csv").open(newline="") as stream:
        rows = {(row["run"], int(row["epoch"])): row for row in csv.DictReader(stream)}
    with (tmp_path / "store-csv" / "runs.csv").open(newline="") as stream:
        runs = {row["run"]: row for row in csv.DictReader(stream)}
    assert len(rows) == 6 * 4
    assert set(runs) == {record.id for record in records}
    for record in records:
        for name, column in record.history.items():
            read = [
                float(rows[record.id, epoch + 1]["own_epoch" if name == "epoch" else name])
                for epoch in range(4)
            ]
            assert read == column.tolist()
        row = runs[record.id]
        expected = asdict(record.summary)
        expected["epochs_done"] = expected.pop("epochs")
        for name, value in expected.items():
            assert (float(row[name]) if row[name] else None) == value
        recipe = ("", "", "7") if record is records[6] else ("sgd", "3", "16")
        assert (row["optimizer"], row["epochs"], row["batch_size"]) == recipe
        assert row["status"] == record.status
        assert (float(row["scale"]), int(row["seed"])) == (record.run.scale, record.run.seed)
        assert row["error"] == (record.error or "")
    assert rows[records[2].id, 1][OWN] == ""
    assert runs[records[0].id]["studies"] == "other full; tiny full"
    assert (runs[records[6].id]["studies"], runs[records[6].id]["seed_init"]) == ("", "3")
    assert runs[records[1].id]["provenance_attempts"] == "3"
    assert float(runs[records[6].id]["final_own score"]) == 0.25


def test_parquet_and_csv_say_the_same_of_a_store_and_of_its_archive(store: Store, tmp_path: Path) -> None:
    write_archive(tmp_path / "kept.initmem", store.studies(), store.records())
    export(open_results(tmp_path / "kept.initmem"), "parquet")
    export(store, "csv", str(tmp_path / "csv"))
    for name in ("runs", "history"):
        one = pl.read_parquet(tmp_path / "kept-parquet" / f"{name}.parquet")
        other = pl.read_csv(tmp_path / "csv" / f"{name}.csv", schema=one.schema)
        assert one.equals(other), name
        assert pl.Null not in one.dtypes
    assert one.schema["scale"] == pl.Float64
    assert one.schema["epoch"] == pl.Int64


def test_an_empty_store_gives_empty_tables(tmp_path: Path) -> None:
    export(Store.create(tmp_path / "empty"), "parquet", str(tmp_path / "out"))
    assert pl.read_parquet(tmp_path / "out" / "history.parquet").shape == (0, 5)
    assert len(pl.read_parquet(tmp_path / "out" / "runs.parquet")) == 0


def test_tensorboard_reads_what_was_written(store: Store, records: list[RunRecord], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    place = tmp_path / "events"
    export(store, "tensorboard", str(place))
    written = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert len(written) == 7
    assert export(store, "tensorboard", str(place)).written == 7
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == written
    for record in records:
        run = record.run
        folder = f"scale={run.scale}_seed={run.seed}" + ("_init=3_perturbation=1.001" if run.pins else "")
        (recipe,) = place.glob("mine*" if run.pins else "sgd*")
        found = EventAccumulator(str(recipe / folder), size_guidance={"scalars": 0, "tensors": 0})
        found.Reload()
        tags = set(found.Tags()["scalars"])
        for name, column in record.history.items():
            events = found.Scalars("own_score_of_mine" if name == OWN else name)
            assert [event.step for event in events] == [1, 2, 3, 4]
            assert [event.value for event in events] == np.float32(column).tolist()
        (epochs,) = found.Scalars("summary/epochs")
        assert (epochs.step, epochs.value) == (record.summary.epochs, record.summary.epochs)
        assert ("summary/final_own_score" in tags) == bool(run.pins)
        assert ("summary/test_accuracy" in tags) == (record.status == "completed")
        about = found.PluginTagToContent("hparams")
        start = metadata.parse_session_start_info_plugin_data(about[metadata.SESSION_START_INFO_TAG])
        assert start.hparams["scale"].number_value == run.scale
        assert start.hparams["batch_size"].number_value == (7 if run.pins else 16)
        assert ("optimizer" in start.hparams) == (not run.pins)
        assert "patience" not in start.hparams
        end = metadata.parse_session_end_info_plugin_data(about[metadata.SESSION_END_INFO_TAG])
        assert end.status == (2 if record.status == "crashed" else 1)  # STATUS_FAILURE, STATUS_SUCCESS
        if record.history:
            assert end.end_time_secs == pytest.approx(record.history["seconds"].sum())


@pytest.mark.filterwarnings("ignore")  # of the libraries below
def test_mlflow_reads_what_was_written(store: Store, records: list[RunRecord], tmp_path: Path) -> None:
    from mlflow import MlflowClient

    place = tmp_path / "ml.db"
    assert export(store, "mlflow", str(place)).written == 6 + 3 + 1
    client = MlflowClient(tracking_uri=f"sqlite:///{place}")
    logged = {
        title: {
            run.data.tags["initmem.run"]: run
            for run in client.search_runs([client.get_experiment_by_name(title).experiment_id])
        }
        for title in ("tiny full", "other full", "initmem")
    }
    assert [len(runs) for runs in logged.values()] == [6, 3, 1]
    for record in records:
        run = (logged["tiny full"] | logged["initmem"])[record.id]
        assert float(run.data.params["scale"]) == record.run.scale
        assert run.data.params.get("optimizer") == (None if record.run.pins else "sgd")
        assert run.data.tags["initmem.status"] == record.status
        assert run.info.status == ("FAILED" if record.status == "crashed" else "FINISHED")
        summary = {f"summary/{name}": v for name, v in asdict(record.summary).items() if v is not None}
        assert summary.items() <= run.data.metrics.items()
        if record in (records[0], records[2]):  # every column of two
            for name, column in record.history.items():
                history = client.get_metric_history(
                    run.info.run_id, "own_score_of_mine" if name == OWN else name
                )
                assert [(point.step, point.value) for point in history] == [
                    (epoch, value) for epoch, value in enumerate(column.tolist(), start=1)
                ]
    assert logged["initmem"][records[6].id].data.metrics["summary/final_own_score"] == 0.25
    assert "they said" in logged["tiny full"][records[1].id].data.tags["initmem.error"]
    assert logged["other full"].keys() < logged["tiny full"].keys()
    assert export(store, "mlflow", str(place)).written == 0
    with pytest.raises(ConfigError, match=r"ml\.db"):
        export(store, "mlflow", str(place / "ml.db"))


def offline_run(path: Path) -> dict[str, dict]:
    """What a file of an offline run holds: about the run, values by epoch, summary, exit code."""
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    source = DataStore()
    source.open_for_scan(str(path))
    found: dict[str, dict] = {"about": {}, "config": {}, "history": {}, "summary": {}}
    while (data := source.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)

        def values(items) -> dict:
            return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}

        if record.HasField("run"):
            run = record.run
            found["about"] = {"project": run.project, "group": run.run_group, "tags": list(run.tags)}
            found["about"] |= {"notes": run.notes}
            found["config"] = values(run.config.update)
        elif record.HasField("history"):
            found["history"][record.history.step.num] = values(record.history.item)
        elif record.HasField("summary"):
            found["summary"] |= values(record.summary.update)
        elif record.HasField("exit"):
            found["about"]["exit"] = record.exit.exit_code
    return found


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the reader in wandb
def test_wandb_reads_what_was_written_offline(
    store: Store, records: list[RunRecord], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")  # whatever the user's setting, an export stays here
    place = tmp_path / "wb"
    assert export(store, "wandb", str(place)).written == 6 + 3 + 1
    assert sorted(path.name for path in place.iterdir()) == ["initmem", "other_full", "tiny_full"]
    for record in records:
        home = place / ("initmem" if record.run.pins else "tiny_full")
        (path,) = home.glob(f"wandb/offline-run-*-{record.id}/run-{record.id}.wandb")
        found = offline_run(path)
        assert found["about"]["project"] == home.name
        assert found["about"]["tags"] == [record.status]
        assert found["about"]["exit"] == (1 if record.status == "crashed" else 0)
        assert found["config"]["scale"] == record.run.scale
        summary = {f"summary/{name}": v for name, v in asdict(record.summary).items() if v is not None}
        assert summary.items() <= found["summary"].items()
        for name, column in record.history.items():
            plain = "own_score_of_mine" if name == OWN else name
            assert [found["history"][i + 1][plain] for i in range(len(column))] == column.tolist()
    assert (
        "they said"
        in offline_run(next(place.glob(f"tiny_full/wandb/*-{records[1].id}/*.wandb")))["about"]["notes"]
    )

    assert export(store, "wandb", str(place)).written == 0
    (half,) = place.glob(f"tiny_full/wandb/offline-run-*-{records[2].id}")
    (half / "initmem-export").unlink()  # as an interrupted export leaves it
    assert export(store, "wandb", str(place)).written == 1
    assert len(list(place.glob(f"tiny_full/wandb/offline-run-*-{records[2].id}"))) == 1


class FakeTrackio(ModuleType):
    """What the export needs of Trackio 0.43, which cannot be installed next to Pillow 13."""

    def __init__(self, folder: Path) -> None:
        super().__init__("trackio")
        self.TRACKIO_DIR, self.projects = folder, {}
        self.Api = lambda: SimpleNamespace(runs=self._runs)

    def _runs(self, project: str) -> list[SimpleNamespace]:
        if project not in self.projects:
            raise ValueError(f"Project '{project}' does not exist")
        return list(self.projects[project])

    def init(self, *, project, name, group, config, embed, auto_log_gpu, auto_log_cpu) -> SimpleNamespace:
        print("* Trackio project initialized")
        run = SimpleNamespace(name=name, group=group, config=config, logs=[])
        run.log = lambda metrics, step: run.logs.append(metrics | {"step": step})
        self.finish = lambda: self.projects.setdefault(project, []).append(run)
        run.delete = lambda: self.projects[project].remove(run)
        return run


def trackio_logs(trackio: ModuleType, project: str, run_id: str) -> list[dict[str, float]]:
    """What is logged of the one run with this id."""
    (run,) = [run for run in trackio.Api().runs(project) if run.config["run"] == run_id]
    if isinstance(trackio, FakeTrackio):
        return run.logs
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage.get_logs(project, run.name, run_id=run.id)


def test_trackio_has_every_number_and_no_run_twice(
    store: Store, records: list[RunRecord], tmp_path: Path, monkeypatch, capsys
) -> None:
    place = tmp_path / "tracked"
    monkeypatch.setenv("TRACKIO_SPACE_ID", "someone/elsewhere")  # whatever is set, an export stays here
    monkeypatch.setenv("TRACKIO_DIR", str(place))
    if importlib.util.find_spec("trackio") is None:
        monkeypatch.setitem(sys.modules, "trackio", FakeTrackio(place))
    assert export(store, "trackio", str(place)).written == 6 + 3 + 1
    assert "TRACKIO_SPACE_ID" not in os.environ and capsys.readouterr().out == ""
    trackio = importlib.import_module("trackio")
    for record in records:
        project = "initmem" if record.run.pins else "tiny_full"
        *epochs, summary = trackio_logs(trackio, project, record.id)
        assert [row["step"] for row in epochs] == list(range(1, record.summary.epochs + 1))
        expected = {f"summary/{name}": v for name, v in asdict(record.summary).items() if v is not None}
        assert expected.items() <= summary.items()
        for name, column in record.history.items():
            plain = "own_score_of_mine" if name == OWN else name
            assert [row[plain] for row in epochs] == column.tolist()
    configs = {run.config["run"]: run.config for run in trackio.Api().runs("tiny_full")}
    assert configs[records[0].id]["scale"] == records[0].run.scale
    assert configs[records[1].id]["status"] == "crashed" and "they said" in configs[records[1].id]["error"]

    assert export(store, "trackio", str(place)).written == 0
    (place / "initmem-export" / "tiny_full" / records[2].id).unlink()  # as an interrupted export leaves it
    assert export(store, "trackio", str(place)).written == 1
    assert len(trackio_logs(trackio, "tiny_full", records[2].id)) == records[2].summary.epochs + 1
    with pytest.raises(ConfigError, match=r"other: this process writes to \S+tracked \("):
        export(store, "trackio", str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("to", "package", "hidden"),
    [
        ("tensorboard", "tensorboard", "tensorboard.compat.proto.event_pb2"),
        ("mlflow", "mlflow-skinny", "mlflow"),
        ("mlflow", "", "sqlalchemy"),
        ("wandb", "wandb", "wandb"),
    ],
)
def test_a_missing_library_is_named(store: Store, monkeypatch, to: str, package: str, hidden: str) -> None:
    monkeypatch.setitem(sys.modules, hidden, None)  # as if it were not installed
    with pytest.raises(ConfigError, match=rf"{package}.*pip install 'initmem\[{to}\]'"):
        export(store, to)
    monkeypatch.undo()
    assert importlib.util.find_spec(hidden)


def test_the_command(store: Store, records: list[RunRecord], tmp_path: Path, command) -> None:
    code, out, _ = command("export", store.path, "--to", "csv", "-o", tmp_path / "out", "--json")
    assert (code, json.loads(out)["rows"][0]["runs"]) == (0, 7)
    (tmp_path / "file").touch()
    for words, said in [
        (["--to", "excel"], "--to 'excel' (allowed: csv, parquet, tensorboard, mlflow, wandb, trackio)"),
        (["--to", "csv", "-o", tmp_path / "file"], "cannot be written"),
        ([], "--to"),
    ]:
        code, out, complaint = command("export", store.path, *words)
        assert (code, out, complaint.count("\n")) == (2, "", 1)
        assert said in complaint
    victim = store.path / "runs" / records[0].id / "record.json"
    victim.write_bytes(b"")
    code, out, _ = command("export", store.path, "--to", "csv", "-o", tmp_path / "out")
    assert code == 1
    assert f"damaged, left out: {victim}" in out


def test_names_become_plain_and_stay_apart() -> None:
    names = ["sgd lr=0.001", "../../evil", "..", "", "a b", "a/b", "a_b", "1.5e-05", "é"]
    found = plain_names(names)
    assert found["sgd lr=0.001"] == "sgd_lr=0.001"
    assert found["1.5e-05"] == "1.5e-05"
    assert len(set(found.values())) == len(names)
    assert not any(set(plain) & set("/\\ ") or plain.startswith(".") for plain in found.values())


def test_the_documented_code_runs(store: Store, tmp_path: Path, monkeypatch, capsys) -> None:
    page = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    export(store, "csv", str(tmp_path / "runs" / "mine-csv"))
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "export.md", "exec"), {})
    assert "test_accuracy" in capsys.readouterr().out
