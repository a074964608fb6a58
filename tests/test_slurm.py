"""The Slurm engine: jobs that have to make way save, are queued again, and go on."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusters import STUDY_FILE, assert_same, environment, wait_for
from faultlab import residue
from initmem.engines import slurm as slurm_engine
from initmem.errors import InitmemError
from initmem.record import RunRecord
from initmem.store.store import Store

SCRIPT = Path(__file__).parents[1] / ".ci" / "slurm"


def preempted(
    folder: Path, *options: str, give_notice: Callable[[Path], None], env: dict[str, str] | None = None
) -> Path:
    """Run the study, and tell a job in the middle that it has to make way; the store."""
    file, store = folder / "study.toml", folder / "store"
    file.write_text(STUDY_FILE)
    command = [sys.executable, "-m", "initmem", "run", file, "--store", store, "--pack", "2", "--json"]
    driver = subprocess.Popen(
        [*command, "--engine", "slurm", "--workers", "2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | (env or {}),
    )
    try:
        wait_for(lambda: list(store.glob("runs/*/history.jsonl")))
        give_notice(store)
        out, err = driver.communicate(timeout=3600)
    finally:
        driver.kill()
    assert driver.returncode == 0, err
    assert json.loads(out)["summary"]["missing"] == 0
    return store


def assert_went_on(store: Path, wanted: dict[str, RunRecord]) -> None:
    logs = "".join(path.read_text() for path in store.parent.glob("store.slurm-*/*_log.*"))
    assert "Requeued job" in logs
    assert_same(store, wanted)
    assert list(residue(store)) == []
    # They were given back in good order: nobody had to find out that a worker was lost.
    assert [record.provenance["faults"] for record in Store(store).records()] == [{}] * len(wanted)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_job_of_the_local_executor_that_has_to_make_way_goes_on(
    tmp_path: Path, undisturbed: dict[str, RunRecord]
) -> None:
    def give_notice(store: Path) -> None:
        claim = next(json.loads(path.read_text()) for path in store.glob("runs/*/claim.json"))
        os.kill(parent(parent(claim["pid"])), signal.SIGUSR2)  # the job has a server, the server has workers
        wait_for(lambda: list(store.glob("runs/*/checkpoint-*")))

    store = preempted(tmp_path, "--engine-option", "cluster=local", give_notice=give_notice)
    assert_went_on(store, undisturbed)


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A real Slurm on this machine, where it is installed and starts."""
    if shutil.which("slurmctld") is None or shutil.which("munged") is None or os.geteuid() != 0:
        pytest.skip("no slurm-wlm and munge here, or not the superuser")
    place = tmp_path / "slurm"
    started = subprocess.run([SCRIPT, "start", place], capture_output=True, text=True, timeout=600)
    if started.returncode != 0:
        pytest.skip(f"Slurm does not start here: {started.stderr}")
    yield {"SLURM_CONF": str(place / "slurm.conf")}
    subprocess.run([SCRIPT, "stop", place], check=True, timeout=600)


def test_a_job_of_a_real_slurm_that_has_to_make_way_goes_on(
    slurm: dict[str, str], tmp_path: Path, undisturbed: dict[str, RunRecord]
) -> None:
    def give_notice(store: Path) -> None:
        queue = ["squeue", "--noheader", "--array", "--format=%i", "--states=RUNNING"]
        running = subprocess.run(queue, capture_output=True, text=True, env=os.environ | slurm).stdout.split()
        notice = ["scancel", "--signal=USR2", running[0]]  # what a time limit or a preemption sends
        subprocess.run(notice, check=True, env=os.environ | slurm)
        wait_for(lambda: list(store.glob("runs/*/checkpoint-*")))

    assert_went_on(preempted(tmp_path, give_notice=give_notice, env=slurm), undisturbed)


class Job:
    """As much of a submitit job as the engine looks at, in a folder that others can write to."""

    job_id = "7"

    def __init__(self, folder: Path) -> None:
        self.paths = SimpleNamespace(folder=folder, result_pickle=folder / "7_0_result.pkl")

    def results(self) -> list[object]:
        return [pickle.loads(self.paths.result_pickle.read_bytes())]


class Planted:
    def __init__(self, sign: Path) -> None:
        self.sign = sign

    def __reduce__(self):
        return (os.mkdir, (str(self.sign),))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
def test_nothing_is_unpickled_where_others_can_write(tmp_path: Path, mode: int) -> None:
    folder, sign = tmp_path / "store.slurm", tmp_path / "code ran"
    folder.mkdir()
    folder.chmod(mode)
    (folder / "7_0_result.pkl").write_bytes(pickle.dumps(Planted(sign)))
    with pytest.raises(InitmemError, match="no result was read"):
        slurm_engine._mistake(Job(folder))
    assert not sign.exists()


def test_files_of_jobs_are_in_a_new_folder_of_the_user_alone(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    folders = [slurm_engine._new_folder(store) for _ in range(2)]
    assert folders[0] != folders[1]
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {0o700}
    assert {folder.parent for folder in folders} == {tmp_path}
