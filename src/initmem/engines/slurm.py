"""The Slurm engine: an array of jobs, each a local engine on its machine, that pull packs from the store.

The store is on a file system that all machines see. A job that is preempted or comes to its time limit lets
its workers finish their batch and save, and is queued again. The jobs do not need who submitted them.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from initmem.engines.engine import STOPPING, Listener, Settings, StopSign, StoreWatch, Tick, library
from initmem.engines.local import LocalEngine
from initmem.errors import ConfigError, InitmemError
from initmem.files import explained
from initmem.store.store import Store
from initmem.study import Run

JOBS = 4  # unless told otherwise
PAUSE = 0.25  # seconds between two looks at the store
QUEUE_PAUSE = 10.0  # seconds between two looks at the queue
REQUEUES = 10_000  # how often a job may come to its time limit
DEFAULTS = {"name": "initmem", "cpus_per_task": 1, "timeout_min": 60}
# Parameters that submitit has for all clusters; any other is one of Slurm's own.
SHARED = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")


class ArrayJob:
    """What one job of the array does. submitit calls `checkpoint` when the job has to make way."""

    def __init__(
        self, path: Path, session: str, packs: list[list[Run]], settings: Settings, workers: int
    ) -> None:
        self.work = (path, session, packs, settings, workers)
        self._engine: LocalEngine | None = None

    def __call__(self) -> InitmemError | None:
        """Pull packs until the store is done; the mistake that stops everything, if there is one."""
        path, session, packs, settings, workers = self.work
        try:
            store = Store(path, session=session)
            sign = StopSign(store)

            def listen(event: object) -> None:
                if isinstance(event, Tick) and sign.is_up():
                    raise KeyboardInterrupt

            self._engine = LocalEngine(workers=workers, settings=settings)
            self._engine.run(store, packs, listen)
        except InitmemError as error:
            return error
        return None

    def checkpoint(self) -> Any:
        """Save, and return what to submit again."""
        if self._engine is not None:
            self._engine.stop()
        helpers = importlib.import_module("submitit.helpers")
        return helpers.DelayedSubmission(ArrayJob(*self.work))


class SlurmEngine:
    """Submits an array of jobs and watches the store until they have done the work.

    The options are parameters of submitit and Slurm: `partition`, `timeout_min`, `cpus_per_task`... With
    `cluster=local`, submitit starts the jobs as processes of this machine: to try it out.
    """

    def __init__(self, *, workers: int | None, settings: Settings, options: Mapping[str, Any]) -> None:
        self.settings = settings
        given = DEFAULTS | dict(options)
        self.cluster = str(given.pop("cluster", "slurm"))
        self.options = {key if key in SHARED else f"slurm_{key}": value for key, value in given.items()}
        self.jobs = workers or JOBS
        # A worker per core, or per GPU.
        each = given["cpus_per_task"] if settings.device == "cpu" else given.get("gpus_per_node", 1)
        if type(each) is not int or each < 1:
            raise ConfigError(f"engine option cpus_per_task or gpus_per_node = {each!r} (allowed: from 1)")
        self._workers_of_job = each
        self.workers = self.jobs * each  # packs that are trained at the same time, when all jobs run
        self._looked_at = 0.0

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        watch = StoreWatch(store, packs, listen)
        jobs: list[Any] = []
        folder = _new_folder(store) if watch.left else None
        with contextlib.ExitStack() as stack:
            sign = StopSign(store)
            stack.callback(sign.path.unlink, missing_ok=True)
            try:
                while watch.left:
                    if not jobs:
                        left_before = len(watch.left)
                        jobs = self._submit(store, packs, folder)
                    time.sleep(PAUSE)
                    watch.look()
                    listen(Tick())
                    alive = self._alive(jobs)
                    for job in jobs:
                        if job not in alive and (mistake := _mistake(job)) is not None:
                            raise mistake
                    jobs = alive
                    if not jobs:
                        watch.look(at_once=True)
                        if len(watch.left) == left_before:
                            raise InitmemError(f"all jobs ended and no run was done: see {folder}")
            except KeyboardInterrupt:
                listen(STOPPING)
                return False
            finally:
                self._stop(jobs, sign)  # at the end, jobs in the queue have nothing left to do
        return True

    def _submit(self, store: Store, packs: Sequence[list[Run]], folder: Path | None) -> list[Any]:
        submitit = library("submitit", "slurm")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        left = [pack for pack in packs if not all(store.has(run) for run in pack)]
        count = min(self.jobs, -(-len(left) // self._workers_of_job))
        job = ArrayJob(store.path.resolve(), store.session, left, self.settings, self._workers_of_job)
        try:
            executor = submitit.AutoExecutor(
                folder, self.cluster, slurm_max_num_timeout=REQUEUES, local_max_num_timeout=REQUEUES
            )
            executor.update_parameters(**self.options)
            with executor.batch():
                jobs = [executor.submit(job) for _ in range(count)]
        except (NameError, ValueError, AssertionError) as error:
            raise ConfigError(f"engine options {self.options} ({' '.join(str(error).split())})") from None
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            raise InitmemError(f"no job could be submitted ({' '.join(str(error).split())})") from None
        return jobs

    def _alive(self, jobs: list[Any], *, at_once: bool = False) -> list[Any]:
        """The jobs that run or wait to; Slurm is asked now and then, or at once."""
        left = [job for job in jobs if not job.paths.result_pickle.exists()]
        if self.cluster != "slurm":
            return [job for job in left if not job.done()]
        if left and (at_once or time.monotonic() - self._looked_at > QUEUE_PAUSE):
            self._looked_at = time.monotonic()
            queue = _queue(left)
            return [job for job in left if job.job_id in queue]
        return left

    def _stop(self, jobs: list[Any], sign: StopSign) -> None:
        """Take jobs out of the queue and let those that run finish their batch; Ctrl-C ends them at once."""
        jobs = self._alive(jobs, at_once=True)
        if not jobs:
            return
        sign.put_up()
        states = _queue(jobs) if self.cluster == "slurm" else {}
        for job in jobs:
            if states.get(job.job_id) == "PENDING":
                job.cancel()
        try:
            while jobs := self._alive(jobs, at_once=True):
                time.sleep(PAUSE)
        except KeyboardInterrupt:
            for job in jobs:
                job.cancel()


def _mistake(job: Any) -> InitmemError | None:
    """The mistake that a job returned. One that ended in any other way returned nothing: see its files."""
    if not job.paths.result_pickle.exists():
        return None
    status = job.paths.folder.lstat()  # what is unpickled there runs as this user
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise InitmemError(f"{job.paths.folder}: others can write there, so no result was read")
    utils = importlib.import_module("submitit.core.utils")
    try:
        returned = job.results()[0]
    except (utils.UncompletedJobError, utils.FailedJobError):
        return None
    return returned if isinstance(returned, InitmemError) else None


def _new_folder(store: Store) -> Path:
    """Where submitit keeps pickled jobs and their output: next to the store, for this user alone."""
    path = store.path.resolve()
    with explained(path.parent):
        return Path(tempfile.mkdtemp(prefix=f"{path.name}.slurm-", dir=path.parent))


def _queue(jobs: Sequence[Any]) -> dict[str, str]:
    """The states of those jobs that Slurm still has in its queue."""
    command = ["squeue", "--noheader", "--array", "--format=%i %T"]
    listing = subprocess.run(command, capture_output=True, text=True)
    if listing.returncode != 0:  # the controller may be away for a moment: assume that all is well
        return {job.job_id: "UNKNOWN" for job in jobs}
    states = dict(line.split() for line in listing.stdout.splitlines())
    return {job.job_id: states[job.job_id] for job in jobs if job.job_id in states}
