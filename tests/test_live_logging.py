"""Callbacks while runs train: for trackers of experiments, without a say in the result."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import initmem

pytestmark = pytest.mark.usefixtures("empty_folder")

HOW = {"scales": [1.0, 2.0], "seeds": [0, 1], "progress": False}


def train(init: initmem.Init, tracker: initmem.Tracker) -> None:
    for _ in range(3):
        noise = random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002
        tracker.end_epoch(val_loss=init.scale * noise)


def rows_of(result: initmem.Result) -> dict[tuple[float, int], list[float]]:
    return {(r.run.scale, r.run.seed): r.history["val_loss"].tolist() for r in result.records}


def test_every_epoch_is_told_where_it_is_trained(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def log(run: initmem.Run, row: dict[str, float]) -> None:
        with Path("log.jsonl").open("a") as stream:  # in the folder of the study, not in that of the run
            line = {"id": run.id, "scale": run.scale, "seed": run.seed, "pid": os.getpid()} | row
            stream.write(json.dumps(line) + "\n")

    result = initmem.run(train, **HOW, store=tmp_path / "store", workers=1, on_epoch=log)
    lines = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    told: dict[tuple[float, int], list[float]] = {}
    for line in lines:
        told.setdefault((line["scale"], line["seed"]), []).append(line["val_loss"])
    assert told == rows_of(result)
    assert [line["epoch"] for line in lines[:3]] == [1, 2, 3]
    assert {line["id"] for line in lines} == {record.id for record in result.records}
    assert os.getpid() not in {line["pid"] for line in lines}
    assert not any("log.jsonl" in note for note in result.notes)


def test_a_callback_changes_no_result_and_its_errors_are_told(tmp_path: Path, capfd) -> None:
    def draws_and_fails(run: initmem.Run, row: dict[str, float]) -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
        row["val_loss"] = 0.0
        if run.scale == 2.0 and row["epoch"] > 1:
            raise ConnectionError("no route to the server")

    quiet = initmem.run(train, **HOW, store=tmp_path / "quiet", engine="inline")
    loud = initmem.run(train, **HOW, store=tmp_path / "loud", engine="inline", on_epoch=draws_and_fails)
    assert rows_of(quiet) == rows_of(loud)
    assert {record.status for record in loud.records} == {"completed"}
    (note,) = (note for note in loud.notes if "on_epoch" in note)
    assert "2 of 4 runs" in note and "ConnectionError: no route to the server" in note
    complaint = capfd.readouterr().err
    assert complaint.count("ConnectionError") == 2  # once for each of the two runs
    # Logging is no part of the code: another callback does not make old results stale.
    again = initmem.run(train, **HOW, store=tmp_path / "loud", engine="inline", on_epoch=print)
    assert rows_of(again) == rows_of(quiet)


def test_logs_of_wandb_are_no_files_that_runs_share(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def log(run: initmem.Run, row: dict[str, float]) -> None:
        own, latest = Path("wandb", run.id), Path("wandb", "latest-run")
        own.mkdir(parents=True, exist_ok=True)
        (own / "debug.log").write_text(f"{row}")
        latest.unlink(missing_ok=True)
        latest.symlink_to(run.id)

    result = initmem.run(train, **HOW, store=tmp_path / "store", engine="inline", on_epoch=log)
    assert len(list(Path("wandb").glob("*/debug.log"))) == 4 + 1
    assert not any("wandb" in note for note in result.notes)


def test_what_a_callback_reads_is_no_input_of_training(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.txt").write_text("project")

    def log(run: initmem.Run, row: dict[str, float]) -> None:
        Path("settings.txt").read_text()

    result = initmem.run(train, **HOW, store=tmp_path / "store", engine="inline", on_epoch=log)
    assert not any("settings.txt" in str(record.provenance.get("opened", ())) for record in result.records)
