"""A working directory for every run: parallel runs do not read each other's files."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import initmem
from initmem.cli import app
from initmem.errors import ConfigError
from initmem.pipeline import workdir
from initmem.pipeline.workdir import Workdir
from initmem.store.store import Store

LIMIT = 120.0  # seconds; what is waited for takes a few


def wait_for(path: Path) -> None:
    end = time.monotonic() + LIMIT
    while not path.exists():
        assert time.monotonic() < end, f"waited for {path}"
        time.sleep(0.02)


def crossing(barrier: Path):
    """Training code of two parallel runs: each writes a checkpoint, the first to write reads last."""

    def train(init, tracker):
        first = init.scale == 1.0
        if not first:
            wait_for(barrier / "1.0")
        Path("best.json").write_text(json.dumps(init.scale))
        (barrier / str(init.scale)).touch()
        if first:
            wait_for(barrier / "2.0")
        tracker.end_epoch(val_loss=json.loads(Path("best.json").read_text()))

    return train


def losses(result: initmem.Result) -> dict[float, float]:
    return {record.run.scale: float(record.history["val_loss"][-1]) for record in result.records}


@pytest.mark.parametrize(("choice", "of_first"), [("own", 1.0), ("shared", 2.0)])
def test_parallel_runs_read_what_they_wrote_unless_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, of_first: float
) -> None:
    project, barrier = tmp_path / "project", tmp_path / "barrier"
    project.mkdir()
    barrier.mkdir()
    (project / "best.json").write_text("7.0")  # of an earlier study
    monkeypatch.chdir(project)
    result = initmem.run(
        crossing(barrier), scales=[1.0, 2.0], seeds=[0], store="runs/x", workers=2, workdir=choice
    )
    assert losses(result) == {1.0: of_first, 2.0: 2.0}
    assert json.loads((project / "best.json").read_text()) == (7.0 if choice == "own" else 2.0)
    assert any("removed with the runs' own working directories: best.json" in n for n in result.notes) == (
        choice == "own"
    )


PROGRAM = """
    import json, sys, time
    from pathlib import Path
    scale, out, barrier = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    def wait_for(path):
        end = time.monotonic() + 120
        while not path.exists():
            assert time.monotonic() < end
            time.sleep(0.02)
    if scale == "2.0":
        wait_for(barrier / "1.0")
    Path("best.json").write_text(scale)
    (barrier / scale).touch()
    if scale == "1.0":
        wait_for(barrier / "2.0")
    bias = float(Path("data/bias.txt").read_text())
    out.write_text(json.dumps({"val_loss": float(Path("best.json").read_text()) + bias}) + "\\n")
"""


@pytest.mark.parametrize(("choice", "of_first"), [("own", 1.5), ("shared", 2.5)])
def test_programs_run_in_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str, of_first: float
) -> None:
    project, barrier = tmp_path / "project", tmp_path / "barrier"
    (project / "data").mkdir(parents=True)
    barrier.mkdir()
    (project / "data" / "bias.txt").write_text("0.5")
    (project / "train.py").write_text(textwrap.dedent(PROGRAM))
    monkeypatch.chdir(project)
    command = f"{sys.executable} train.py {{scale}} {{history}} {barrier}"
    arguments = ["--set", "scales=[1.0,2.0]", "--set", "seeds=[0]", "--workers", "2", "--workdir", choice]
    app(["run", "--command", command, "--store", "runs/x", *arguments], standalone_mode=False)
    final = {r.run.scale: float(r.history["val_loss"][-1]) for r in Store(project / "runs/x").records()}
    assert final == {1.0: of_first, 2.0: 2.5}


KERAS = """
    import os
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy as np
    import initmem

    def train(init, tracker):
        data = np.load("data/x.npz")
        keras.utils.set_random_seed(init.seed)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
        kernel = model.layers[0].kernel
        kernel.assign(kernel * init.scale)
        model.compile("sgd", "mse")
        saved = [
            keras.callbacks.ModelCheckpoint("best_model.keras", save_best_only=True),
            keras.callbacks.ModelCheckpoint("checkpoints/{epoch}.weights.h5", save_weights_only=True),
        ]
        fit = model.fit(
            data["x"], data["y"], validation_split=0.25, epochs=4, callbacks=saved, verbose=0
        )
        for loss in fit.history["val_loss"]:
            tracker.end_epoch(val_loss=loss)
        best = keras.models.load_model("best_model.keras")
        model.load_weights("checkpoints/1.weights.h5")
        test = data["x"][:16]
        return {
            "best": float(best.predict(test, verbose=0).sum()),
            "first": float(model.predict(test, verbose=0).sum()),
        }

    if __name__ == "__main__":
        for workers in (1, 2):
            initmem.run(train, scales=[0.5, 1, 2], seeds=[0, 1], store=f"runs/{workers}", workers=workers)
"""


def test_a_keras_script_with_two_workers_equals_one_worker(tmp_path: Path) -> None:
    if importlib.util.find_spec("keras") is None:
        pytest.skip("no keras")
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    x = rng.normal(size=(64, 4))
    np.savez(tmp_path / "data" / "x.npz", x=x, y=x.sum(axis=1))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "1.weights.h5").write_bytes(b"of an earlier study")
    (tmp_path / "best_model.keras").write_bytes(b"of an earlier study")
    (tmp_path / "study.py").write_text(textwrap.dedent(KERAS))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "study.py"], cwd=tmp_path, env=environment, check=True, timeout=600)
    one, two = ({record.id: record for record in Store(tmp_path / f"runs/{n}").records()} for n in ("1", "2"))
    assert len(one) == 6
    assert one.keys() == two.keys()
    for run_id, record in one.items():
        other = two[run_id]
        assert record.status == other.status == "completed", record.error
        assert dict(record.finals) == dict(other.finals)
        assert record.history["val_loss"].tolist() == other.history["val_loss"].tolist()
    assert len({record.finals["best"] for record in one.values()}) == 6
    assert (tmp_path / "best_model.keras").read_bytes() == b"of an earlier study"


def crash(init, tracker):
    Path("left.txt").write_text(str(init.scale))
    raise ValueError("on purpose")


def test_a_crashed_run_keeps_its_directory_and_names_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = initmem.run(crash, scales=[1.0, 2.0], seeds=[0], store="runs", workers=2)
    assert Path.cwd() == tmp_path
    for record in result.records:
        kept = Path(record.provenance["workdir"])
        assert (kept / "left.txt").read_text() == str(record.run.scale)
        assert str(kept) not in (record.error or "")
    assert f"files in {result.records[0].provenance['workdir']}" in result.notes[0]
    assert "2 with ValueError: on purpose" in result.notes[0]  # alike, whatever the directory


def test_stopped_and_completed_runs_leave_nothing(tmp_path: Path, monkeypatch) -> None:
    from initmem.engines.worker import Interrupted
    from initmem.pipeline.run import PipelineTrainer
    from initmem.recipe import PipelineRecipe
    from initmem.study import Run

    def stop(run: Run, row: dict[str, float]) -> None:
        raise Interrupted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trainer = PipelineTrainer(lambda init, tracker: tracker.end_epoch(val_loss=1.0), tmp_path)
    run = Run(PipelineRecipe.parse({"pipeline": "x"}), 1.0, 0)
    with pytest.raises(Interrupted):
        trainer([run], stop)
    trainer([run], lambda run, row: None)
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_removes_what_a_killed_worker_left(tmp_path: Path, monkeypatch) -> None:
    project, temporary = tmp_path / "project", tmp_path / "temporary"
    project.mkdir()
    temporary.mkdir()
    code = (
        "import os, sys; from pathlib import Path; from initmem.pipeline.workdir import Workdir\n"
        "Workdir(Path(sys.argv[1]), 'x'); os.kill(os.getpid(), 9)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", code, str(project)], env=environment, check=False)
    assert done.returncode == -9
    assert len(list(temporary.iterdir())) == 1
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    crashed, running = Workdir(project, "y"), Workdir(project, "z")
    crashed.keep()
    Workdir(project, "w").remove()
    assert len(list(temporary.iterdir())) == 2
    assert crashed.path.is_dir()
    assert running.path.is_dir()


def append_to_log(init, tracker):
    with Path("large.log").open("a") as stream:
        stream.write("x")
    tracker.end_epoch(val_loss=np.load("data/x.npz")["x"].sum())


def test_what_runs_change_behind_links_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workdir, "MOST_COPIED", 2)
    Path("large.log").write_text("large")
    Path("data").mkdir()
    np.savez("data/x.npz", x=np.arange(4))
    result = initmem.run(append_to_log, scales=[1.0], seeds=[0, 1], store="runs", engine="inline")
    assert [r.provenance["shared_files_changed"] for r in result.records] == [["large.log"]] * 2
    assert [r.history["val_loss"].tolist() for r in result.records] == [[6.0]] * 2
    words = "runs changed files that all runs share: large.log; a run may have read another's"
    assert words in result.notes


def test_a_mirror_is_cheap_whatever_the_project_is(tmp_path: Path, monkeypatch) -> None:
    project = tmp_path / "home"
    (project / "small" / "inner").mkdir(parents=True)
    (project / "small" / "inner" / "x").write_text("x")
    (project / "many").mkdir()
    for i in range(9):
        (project / "many" / str(i)).touch()
    for name, size in {"a": 3, "b": 90, "c": 4}.items():
        (project / name).write_text("x" * size)
    (project / "nowhere").symlink_to("not there")
    (project / "runs").mkdir()
    (project / "runs" / "store.json").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "y").write_text("y")
    monkeypatch.setattr(workdir, "MOST_COPIED", 50)
    monkeypatch.setattr(workdir, "MOST_FILES", 6)
    made = Workdir(project, "x")
    links = {path.name for path in made.path.iterdir() if path.is_symlink()}
    assert links == {"b", "many", "nowhere"}
    assert {path.name for path in made.path.iterdir()} == {"a", "b", "c", "many", "nowhere", "small"}
    assert (made.path / "small/inner/x").read_text() == "x"
    assert (made.path / "../data/y").read_text() == "y"
    (made.path / "small/inner/x").write_text("changed")
    assert (made.written(), made.changes()) == ({"files_removed": ["small/inner/x"]}, {})
    made.remove()
    assert len((project / "b").read_text()) == 90
    assert not made.path.exists()
    elsewhere = Workdir(tmp_path / "of another machine", "x")
    assert list(elsewhere.path.iterdir()) == []


def test_a_mistaken_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workdir = 'mine' \(allowed: own, shared\)"):
        initmem.run(crash, store=tmp_path, workdir="mine")


def test_a_folder_that_goes_while_it_is_mirrored_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    for name in ("build", "data"):
        (project / name).mkdir(parents=True)
        (project / name / "file").touch()
    access = os.access

    def readable(folder: Path, mode: int) -> bool:
        was = access(folder, mode)
        if Path(folder).name == "build":
            shutil.rmtree(folder)
        return was

    monkeypatch.setattr(os, "access", readable)
    made = Workdir(project, "0" * 16)
    assert (made.path / "data" / "file").exists()
    made.remove()
