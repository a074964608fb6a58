"""A program with a Hydra configuration, in the two ways that its page describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import initmem
from initmem.cli import app
from initmem.store.store import Store

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "examples" / "hydra_app.py"
PAGE = (ROOT / "docs" / "frameworks.md").read_text("utf-8")


def test_inside_hydra_main_a_sweep_adds_recipes_to_one_store(tmp_path: Path) -> None:
    words = [
        "--multirun",
        "train.learning_rate=0.01,0.3",
        "train.epochs=3",
        "scales=[0.1,2.5]",
        "seeds=2",
        "workers=1",
    ]
    around = os.environ | {"PYTHONPATH": str(Path(initmem.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *words], cwd=tmp_path, env=around, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert (
        len(re.findall(r"^hydra_app .*test_accuracy .*\(2 scales x 2 seeds\)$", done.stdout, flags=re.M)) == 2
    )
    records = Store(tmp_path / "runs" / "hydra").records()
    assert {record.status for record in records} == {"completed"}
    assert {record.run.recipe.get("learning_rate") for record in records} == {0.01, 0.3}
    assert len(records) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "multirun.yaml",
        "runs",
    ]  # no directories of outputs


@pytest.mark.usefixtures("no_workers")
def test_a_study_file_with_a_command_is_a_grid_of_overrides(tmp_path: Path, monkeypatch) -> None:
    (study,) = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.M | re.S)
    (said,) = re.findall(r'^initmem run study\.toml .*?--command "(.*?)"$', PAGE, flags=re.M | re.S)
    (tmp_path / "study.toml").write_text(study)
    assert "learning_rate = [0.01, 0.3]" in study  # of which one is enough here: each run is a new process
    command = " ".join(said.split()).replace("python examples/hydra_app.py", f"{sys.executable} {PROGRAM}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(initmem.__file__).parents[1]))
    with pytest.raises(SystemExit) as ended:
        app(["run", "study.toml", "--store", "grid", "--set", "learning_rate=0.3", "--command", command])
    assert not ended.value.code
    records = Store(tmp_path / "grid").records()
    assert {record.status for record in records} == {"completed"}
    assert sorted(record.run.scale for record in records) == [0.1, 2.5]
    assert {record.summary.epochs for record in records} == {3}
    assert {rate for record in records for rate in record.history["learning_rate"]} == {0.3}
    norms = {record.run.scale: record.history["norm"][0] for record in records}
    assert norms[2.5] > 5 * norms[0.1]  # the scale did reach the program
