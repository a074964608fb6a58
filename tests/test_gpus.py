"""One GPU per worker. There is none here: what counts is which number each of the workers is given."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

import initmem
from initmem.engines.engine import gpu_slots
from initmem.errors import ConfigError
from initmem.store.store import Store

LIMIT = 300.0  # seconds; what is waited for takes a few


def sharing(folder: Path, gpus: int):
    """Training code that holds its GPU alone, and waits until all GPUs are held at the same time."""

    def train(init, tracker):
        gpu = os.environ["CUDA_VISIBLE_DEVICES"]
        if init.seed == 0 and not (folder / "died").exists():
            (folder / "died").touch()
            os._exit(3)  # another worker takes its place
        held = folder / f"held-{gpu}"
        os.close(os.open(held, os.O_CREAT | os.O_EXCL))  # raises if a second worker has the same GPU
        end = time.monotonic() + LIMIT
        while not (folder / "met").exists():
            if len(list(folder.glob("held-*"))) == gpus:
                (folder / "met").touch()
            assert time.monotonic() < end, "the GPUs were never in use all at the same time"
            time.sleep(0.02)
        held.unlink()
        tracker.end_epoch(val_loss=1.0, gpu=float(gpu))

    return train


def test_every_gpu_has_one_worker_at_a_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    result = initmem.run(
        sharing(tmp_path, 2), [1.0], range(4), tmp_path / "store", gpus=2, progress=False, workdir="shared"
    )
    assert result.crashes == {} and len(result.records) == 4
    assert {record.history["gpu"][-1] for record in result.records} == {4, 6}
    assert (tmp_path / "died").exists()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,6"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu_slots(2) == ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"})


SCRIPT = """
    import json, os, sys, time
    from pathlib import Path
    gpu, history, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    (folder / f"slot-{gpu}").touch()
    end = time.monotonic() + 300
    while len(list(folder.glob("slot-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.02)
    left_alone = os.environ.get("CUDA_VISIBLE_DEVICES", "") == ""
    Path(history).write_text(json.dumps({"val_loss": 1.0, "gpu": float(gpu), "alone": float(left_alone)}))
"""


def test_a_program_is_told_its_gpu(tmp_path: Path, monkeypatch, command) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    program = f"{sys.executable} {script} {{gpu}} {{history}} {tmp_path} {{scale}} {{seed}}"
    how = ("--set", "scales=[1.0]", "--set", "seeds=[0, 1, 2, 3]", "--store", "store")
    code, _, complaint = command("run", "--command", program, *how, "--gpus", "2")
    assert code == 0, complaint
    records = Store(tmp_path / "store").records()
    assert {record.history["gpu"][-1] for record in records} == {0.0, 1.0}
    assert all(record.history["alone"][-1] for record in records)  # it chooses the GPU itself: cuda:{gpu}
    code, _, complaint = command("run", "--command", program, *how)
    assert code == 2 and "{gpu}" in complaint and "--gpus" in complaint
    code, _, complaint = command("run", "quickstart", "--gpus", "2")
    assert code == 2 and "--device cuda" in complaint


def test_mistakes_about_gpus_are_found_first(tmp_path: Path, monkeypatch) -> None:
    def train(init, tracker):
        raise AssertionError("nothing is trained")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for words, how in {
        "allowed: 1 to 2": {"gpus": 3},
        "gpus = 0": {"gpus": 0},
        "one worker per GPU": {"gpus": 2, "workers": 3},
        "engine = 'inline'": {"gpus": 2, "engine": "inline"},
        "engine = 'ray'": {"gpus": 2, "engine": "ray"},
    }.items():
        with pytest.raises(ConfigError, match=words):
            initmem.run(train, [1.0], [0], tmp_path / "store", progress=False, **how)
