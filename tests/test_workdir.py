"""A working directory for every run: parallel runs do not read each other's files."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import initmem
from initmem.engines.worker import Interrupted
from initmem.errors import ConfigError
from initmem.files import temporary_folder
from initmem.pipeline import workdir
from initmem.pipeline.command import CommandTrainer
from initmem.pipeline.run import PipelineTrainer
from initmem.pipeline.workdir import own_workdir
from initmem.recipe import PipelineRecipe
from initmem.study import Run


def reading_and_writing(init, tracker):
    """What most training code does with its checkpoint."""
    before = json.loads(Path("best.json").read_text())
    Path("best.json").write_text(json.dumps(init.scale))
    tracker.end_epoch(val_loss=json.loads(Path("best.json").read_text()), before=before)


@pytest.mark.parametrize("choice", ["own", "shared"])
def test_runs_read_what_they_wrote_unless_they_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command, choice: str
) -> None:
    (tmp_path / "best.json").write_text("7.0")  # of an earlier study
    monkeypatch.chdir(tmp_path)
    how = {"scales": [1.0, 2.0], "seeds": [0], "store": "runs/x", "engine": "inline"}
    result = initmem.run(reading_and_writing, **how, workdir=choice)
    is_own = choice == "own"
    before = {record.run.scale: float(record.history["before"][0]) for record in result.records}
    assert before == {1.0: 7.0, 2.0: 7.0 if is_own else 1.0}
    assert json.loads(Path("best.json").read_text()) == (7.0 if is_own else 2.0)
    removed = "removed with the runs' own working directories: best.json"
    assert any(removed in note for note in result.notes) == is_own
    _, printed, _ = command("measure", "runs/x", "--metric", "val_loss")
    words = "runs changed files that all runs share: best.json; a run may have read another's"
    assert (words in " ".join(printed.split())) == (not is_own)


def meet(init, tracker, pipes: Path) -> None:
    """Write a file, wait until the other run has written its own, and read it before either run ends."""
    Path("best.json").write_text(json.dumps(init.scale))
    modes = ("w", "r") if init.scale == 1.0 else ("r", "w")
    for pipe, mode in zip("ab", modes, strict=True):
        with (pipes / pipe).open(mode):  # waits until the other run opens the other end
            own = json.loads(Path("best.json").read_text())
    tracker.end_epoch(val_loss=own)


def test_runs_that_overlap_in_time_do_not_see_each_others_files(tmp_path: Path, monkeypatch) -> None:
    project, pipes = tmp_path / "project", tmp_path / "pipes"
    for folder in (project, pipes):
        folder.mkdir()
    for name in "ab":
        os.mkfifo(pipes / name)
    monkeypatch.chdir(project)
    train = functools.partial(meet, pipes=pipes)
    # One after the other, the first would wait for ever: it is then a crashed run.
    result = initmem.run(train, [1.0, 2.0], [0], "runs", workers=2, timeout=300, progress=False)
    assert {r.run.scale: r.history["val_loss"].tolist() for r in result.records} == {1.0: [1.0], 2.0: [2.0]}
    assert not (project / "best.json").exists()


PROGRAM = """
    import json, sys
    from pathlib import Path
    Path("best.json").write_text(sys.argv[1])
    loss = float(Path("best.json").read_text()) + float(Path("data/bias.txt").read_text())
    Path(sys.argv[2]).write_text(json.dumps({"val_loss": loss}))
"""


def test_programs_run_in_directories_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bias.txt").write_text("0.5")
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    trainer = CommandTrainer((sys.executable, "train.py", "{scale}", "{history}"), tmp_path)
    (record,) = trainer([Run(PipelineRecipe.parse({"pipeline": "x"}), 2.0, 0)], lambda run, row: None)
    assert record.history["val_loss"].tolist() == [2.5]
    assert record.provenance["files_removed"] == ["best.json"] and not (tmp_path / "best.json").exists()


def crash(init, tracker):
    Path("left.txt").write_text(str(init.scale))
    raise ValueError("on purpose")


def test_a_crashed_run_keeps_its_directory_and_names_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = initmem.run(crash, scales=[1.0, 2.0], seeds=[0], store="runs", engine="inline")
    assert Path.cwd() == tmp_path
    for record in result.records:
        kept = Path(record.provenance["workdir"])
        assert (kept / "left.txt").read_text() == str(record.run.scale)
        assert str(kept) not in (record.error or "")
    assert f"files in {result.records[0].provenance['workdir']}" in result.notes[0]
    assert "2 with ValueError: on purpose" in result.notes[0]  # alike, whatever the directory


def test_stopped_and_completed_runs_leave_nothing(tmp_path: Path, monkeypatch) -> None:
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


def die(work: Callable[[], object]) -> None:
    """Do something in another process, which is then killed."""
    if not (child := os.fork()):
        try:
            work()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_the_next_run_removes_what_a_killed_worker_left(tmp_path: Path, monkeypatch) -> None:
    project, temporary = tmp_path / "project", tmp_path / "temporary"
    project.mkdir()
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def lost() -> None:
        with own_workdir(project, "x"):
            os.kill(os.getpid(), signal.SIGKILL)

    die(lost)
    assert len(list(temporary.iterdir())) == 1
    with pytest.raises(ValueError, match="on purpose"), own_workdir(project, "y") as crashed:
        raise ValueError("on purpose")
    with own_workdir(project, "z") as running:
        with own_workdir(project, "w"):
            pass
        # A lost run is tried again, or its record names its directory.
        assert len(list(temporary.iterdir())) == 3
        choose()
        assert len(list(temporary.iterdir())) == 2
        assert crashed.path.is_dir()
        assert running.path.is_dir()


def choose() -> None:
    """What every study begins with."""
    assert workdir.project_of("own") == Path.cwd()


def killed(init, tracker):
    Path("left.txt").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_lost_run_names_its_last_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))  # of the workers
    result = initmem.run(killed, scales=[1.0], seeds=[0], store="runs", workers=1, progress=False)
    (record,) = result.records
    kept = Path(record.provenance["workdir"])
    assert (kept / "left.txt").read_text().isdecimal()
    assert [path for path in folder.iterdir() if path in kept.parents] == list(folder.iterdir())
    assert f"files in {kept}" in result.notes[0]


def test_the_history_of_a_killed_program_is_swept(tmp_path: Path, monkeypatch) -> None:
    """A worker is killed while its program runs: the next study removes the folder of the history."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))

    def program() -> None:
        with temporary_folder() as own:
            (own / "history.jsonl").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    die(program)
    assert len(list(folder.glob(".*/history.jsonl"))) == 1
    choose()
    assert list(folder.iterdir()) == []


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
    assert words in result.memory().notes
    assert words.partition(";")[0] in result.report().read_text()


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
    with own_workdir(project, "x") as made:
        links = {path.name for path in made.path.iterdir() if path.is_symlink()}
        assert links == {"b", "many", "nowhere"}
        assert {path.name for path in made.path.iterdir()} == {"a", "b", "c", "many", "nowhere", "small"}
        assert (made.path / "small/inner/x").read_text() == "x"
        assert (made.path / "../data/y").read_text() == "y"
        (made.path / "small/inner/x").write_text("changed")
        assert made.changes() == {"files_removed": ["small/inner/x"]}
    assert len((project / "b").read_text()) == 90
    assert not made.path.exists()
    with own_workdir(tmp_path / "of another machine", "x") as elsewhere:
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
    with own_workdir(project, "0" * 16) as made:
        assert (made.path / "data" / "file").exists()
