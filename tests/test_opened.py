"""Files that training code opens are a part of its version."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import initmem
from initmem import content
from initmem.cli import app
from initmem.errors import ConfigError
from initmem.pipeline.hook import sitecustomize
from initmem.pipeline.opened import HOOK
from initmem.store.store import Store

PROGRAM = """
    import importlib, importlib.util, json, os, sys
    sys.path.insert(0, "src")
    import mine.model
    importlib.import_module("extra")
    spec = importlib.util.spec_from_file_location("_bisect", "compiled.so")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    open("conf.yaml").read()
    open("conf.json").read()
    open("written.txt", "w").write("x")
    open("written.txt").read()
    os.close(os.open("data/raw.bin", os.O_RDONLY))
    open(sys.argv[2], "w").write(json.dumps({"val_loss": float(sys.argv[1])}) + "\\n")
"""


def trained(*more: str) -> None:
    command = "sh run.sh {scale} {history}"
    arguments = ["--set", "scales=[1.0]", "--set", "seeds=[0]", "--workers", "1", "--store", "runs"]
    app(["run", "--command", command, *arguments, *more], standalone_mode=False)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with results of a program behind a shell script."""
    root = tmp_path_factory.mktemp("project")
    contents = {
        "run.sh": f'exec {sys.executable} train.py "$@"\n',
        "train.py": textwrap.dedent(PROGRAM),
        "src/mine/__init__.py": "",
        "src/mine/model.py": "WIDTH = 3\n",
        "extra.py": "DEPTH = 2\n",
        "conf.yaml": "lr: 0.1\n",
        "conf.json": '{"depth": 2}',
        "data/raw.bin": "abc",
        "data/not_opened.bin": "abc",
        "written.txt": "before",
    }
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    extension = importlib.util.find_spec("_bisect")
    assert extension is not None
    assert extension.origin is not None
    (root / "compiled.so").write_bytes(Path(extension.origin).read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        trained()
    return root


@pytest.mark.parametrize(
    "name", ["train.py", "src/mine/model.py", "extra.py", "conf.yaml", "data/raw.bin", "compiled.so"]
)
def test_an_edit_of_what_a_program_opened_is_refused(project: Path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(project)
    path, before = project / name, (project / name).read_bytes()
    path.write_bytes(before + b"\nCHANGED = 1\n")
    try:
        with pytest.raises(ConfigError, match=f"before this changed: file {name} was edited"):
            trained()
        path.unlink()
        with pytest.raises(ConfigError, match=f"file {name} is gone"):
            trained()
    finally:
        path.write_bytes(before)


def test_other_edits_raise_no_alarm(project: Path, monkeypatch) -> None:
    monkeypatch.chdir(project)
    for name in ("data/not_opened.bin", "written.txt"):
        (project / name).write_text("something else")
    (project / "extra.py").write_text('"""What it does."""\nDEPTH = 2  # a comment\n')
    (project / "conf.json").write_text('{"depth":\n  2}')
    trained()
    (record,) = Store(project / "runs").records()
    assert set(record.provenance["opened"]) == {
        *("train.py", "src/mine/__init__.py", "src/mine/model.py", "extra.py", "conf.yaml"),
        *("conf.json", "data/raw.bin", "compiled.so"),
    }
    assert record.provenance["versions"]["python"] == record.provenance["python"]


def test_the_versions_are_those_of_the_program(tmp_path: Path) -> None:
    """Also: a sitecustomize that ours hides is imported, and a kill loses nothing."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = 1\n")
    (tmp_path / "pack.py").write_text("__version__ = '4.5'\n")
    log = tmp_path / "log"
    environment = os.environ | {"PYTHONPATH": f"{HOOK}{os.pathsep}{tmp_path}", sitecustomize.LOG: str(log)}
    ends = {"print(theirs)": 0, "open('pack.py'); import os; os.kill(os.getpid(), 9)": -9}
    for end, code in ends.items():
        done = subprocess.run(
            [sys.executable, "-c", f"import pack; {end}"], env=environment, cwd=tmp_path, check=False
        )
        assert done.returncode == code
    lines = log.read_text().splitlines()
    assert "version pack 4.5" in lines
    assert f"read {tmp_path / 'pack.py'}" in lines


def test_a_program_that_is_not_python_is_named(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text('echo "{\\"val_loss\\": $1}" > $2\n')
    trained()
    assert "a change to files that the program reads goes unnoticed" in capfd.readouterr().err


def train(init, tracker):
    import late_module  # type: ignore[import-not-found]

    tracker.end_epoch(val_loss=float(np.load("x.npy").sum()) + late_module.BIAS)


def test_files_that_a_function_opens_are_a_part_of_its_version(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    np.save("x.npy", np.arange(3))
    Path("late_module.py").write_text("from other_late import BIAS\n")
    Path("other_late.py").write_text("BIAS = 1\n")
    Path("watched.txt").write_text("1")

    def run() -> initmem.Result:
        seeds = {"scales": [1.0], "seeds": [0, 1], "store": "runs", "engine": "inline"}
        return initmem.run(train, **seeds, watch=["watched.txt"])

    result = run()
    opened = [set(record.provenance["opened"]) for record in result.records]
    assert opened == [{"x.npy", "late_module.py", "other_late.py"}] * 2  # the second uses what is loaded
    assert result.records[0].provenance["versions"]["numpy"] == np.__version__
    run()
    for name, words in {
        "x.npy": "file x.npy was edited",
        "watched.txt": "file watched.txt was edited",
    }.items():
        before = Path(name).read_bytes()
        Path(name).write_bytes(before + b"1")
        with pytest.raises(ConfigError, match=words):
            run()
        Path(name).write_bytes(before)
    np.save("x.npy", np.arange(4))
    mixed = initmem.run(train, [1.0], range(3), "runs", engine="inline", keep_old=True, watch=["watched.txt"])
    assert "runs read different versions of files: x.npy" in mixed.memory().notes
    assert "2 of 3 runs were trained before this changed: file x.npy was edited" in mixed.notes
    with pytest.raises(ConfigError, match=r"--watch nothing\.txt: cannot be read"):
        initmem.run(train, store="runs", watch=["nothing.txt"])


def test_large_files_count_by_size_and_that_is_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(content, "LARGE", 100)
    monkeypatch.chdir(tmp_path)
    np.save("large.npy", np.arange(100.0))

    def load(init, tracker):
        tracker.end_epoch(val_loss=float(np.load("large.npy").sum()))

    result = initmem.run(load, scales=[1.0], seeds=[0], store="runs", engine="inline")
    assert "files too large to compare except for their size: large.npy" in result.notes
    assert json.dumps(result.records[0].provenance["opened"]) == '{"large.npy": "928 bytes"}'


def test_compiled_python_counts_as_its_source_whoever_compiled_it() -> None:
    from initmem.pipeline.opened import _relative

    names = ["model.cpython-311.pyc", "model.cpython-311.opt-1.pyc", "model.cpython-311-pytest-9.2.0.pyc"]
    compiled = [f"/project/src/__pycache__/{name}" for name in names]
    assert list(_relative(compiled, [Path("/project")])) == ["src/model.py"] * 3
    assert list(_relative(["/project/data.pyc", "/other/a"], [Path("/project")])) == ["data.pyc"]
