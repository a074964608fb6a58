"""The Slurm engine: an array of jobs, each a local engine on its machine, that pull packs from the store.

The store is on a file system that all machines see. A job that is preempted or comes to its time limit lets
its workers finish their batch and save, and is queued again. The jobs do not need who submitted them.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from initmem.engines.engine import Event, Listener, Settings, Stopping, Tick, check_cluster_device
from initmem.engines.local import LocalEngine
from initmem.engines.watch import StopSign, Watch
from initmem.errors import ConfigError, InitmemError
from initmem.store.store import Store
from initmem.study import Run

ARRAY = 4  # jobs, unless told otherwise
PAUSE = 0.25  # seconds between two looks at the store
QUEUE_PAUSE = 10.0  # seconds between two looks at the queue
REQUEUES = 10_000  # how often a job may come to its time limit
SHARED = ("name", "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node")


class Shift:
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

            def listen(event: Event) -> None:
                if isinstance(event, Tick) and sign.is_up():
                    raise KeyboardInterrupt

            self._engine = LocalEngine(workers=workers, settings=settings)
            self._engine.run(store, packs, listen)
        except InitmemError as error:
            return error
        return None

    def checkpoint(self) -> Any:
        """Save, and say what to submit again."""
        if self._engine is not None:
            self._engine.stop()
        helpers = importlib.import_module("submitit.helpers")
        return helpers.DelayedSubmission(Shift(*self.work))


class SlurmEngine:
    """Submits an array of jobs and watches the store until they have done the work.

    With the option `cluster=local`, submitit starts the jobs as processes of this machine: to try it out.
    """

    def __init__(
        self, *, workers: int | None = None, settings: Settings | None = None, options: Sequence[str] = ()
    ) -> None:
        self.settings = settings or Settings()
        self.jobs = workers or ARRAY
        self.options = _parsed(["name=initmem", "cpus_per_task=1", "timeout_min=60", *options])
        self.cluster = str(self.options.pop("cluster", "slurm"))
        check_cluster_device(self.settings.device, self.settings.slots)
        # A core is a worker, and so is each slot of a GPU.
        gpus = int(self.options.get("gpus_per_node", 1)) * self.settings.slots
        self._each = int(self.options["cpus_per_task"]) if self.settings.device == "cpu" else gpus
        self._looked = 0.0

    @property
    def workers(self) -> int:
        """How many packs are trained at the same time, when all jobs run."""
        return self.jobs * self._each

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        watch = Watch(store, [run for pack in packs for run in pack], listen)
        jobs: list[Any] = []
        with StopSign(store) as sign:
            try:
                while watch.left:
                    if not jobs:
                        known = len(watch.left)
                        jobs = self._submit(store, packs)
                    time.sleep(PAUSE)
                    watch.look()
                    listen(Tick())
                    if jobs and not (jobs := self._alive(jobs)):
                        watch.look(at_once=True)
                        if len(watch.left) == known:
                            raise InitmemError(f"all jobs ended and no run was done: see {_folder(store)}")
            except KeyboardInterrupt:
                listen(Stopping())
                self._stop(jobs, sign)
                return False
            except InitmemError:
                self._stop(jobs, sign)
                raise
            self._stop(jobs, sign)  # those in the queue have nothing left to do
        return True

    def _submit(self, store: Store, packs: Sequence[list[Run]]) -> list[Any]:
        submitit = _submitit()
        left = [pack for pack in packs if not all(store.has(run) for run in pack)]
        count = min(self.jobs, -(-len(left) // self._each))
        shift = Shift(store.path.resolve(), store.session, left, self.settings, self._each)
        try:
            executor = submitit.AutoExecutor(
                _folder(store), self.cluster, slurm_max_num_timeout=REQUEUES, local_max_num_timeout=REQUEUES
            )
            executor.update_parameters(**self.options)
            with executor.batch():
                jobs = [executor.submit(shift) for _ in range(count)]
        except (NameError, ValueError, AssertionError) as error:
            raise ConfigError(f"slurm = {self.options} ({' '.join(str(error).split())})") from None
        except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
            raise InitmemError(f"no job could be submitted ({' '.join(str(error).split())})") from None
        return jobs

    def _alive(self, jobs: list[Any]) -> list[Any]:
        """The jobs that run or wait to; what one of them says is the mistake of all."""
        ended = [job for job in jobs if job.paths.result_pickle.exists()]
        for job in ended:
            if (mistake := _said(job)) is not None:
                raise mistake
        left = [job for job in jobs if job not in ended]
        if self.cluster != "slurm":
            return [job for job in left if not job.done()]
        if left and time.monotonic() - self._looked > QUEUE_PAUSE:
            self._looked = time.monotonic()
            queue = _queue(left)
            return [job for job in left if job.job_id in queue]
        return left

    def _stop(self, jobs: list[Any], sign: StopSign) -> None:
        """Take jobs out of the queue and let those that run finish their batch; Ctrl-C ends them at once."""
        if self._alive_quietly(jobs):
            sign.put_up()
        states = _queue(jobs) if self.cluster == "slurm" and jobs else {}
        for job in jobs:
            if states.get(job.job_id) == "PENDING":
                job.cancel()
        try:
            while jobs := self._alive_quietly(jobs):
                time.sleep(PAUSE)
        except KeyboardInterrupt:
            for job in jobs:
                job.cancel()

    def _alive_quietly(self, jobs: list[Any]) -> list[Any]:
        self._looked = 0.0
        try:
            return self._alive(jobs)
        except InitmemError:
            return []  # it is already known, or comes too late


def _said(job: Any) -> InitmemError | None:
    """What a job found to be a mistake. One that ended in any other way says nothing: its files do."""
    utils = importlib.import_module("submitit.core.utils")
    try:
        said = job.results()[0]
    except (utils.UncompletedJobError, utils.FailedJobError):
        return None
    return said if isinstance(said, InitmemError) else None


def _folder(store: Store) -> Path:
    """Where submitit keeps what it hands to the jobs, and what they print: beside the store, not in it."""
    path = store.path.resolve()
    return path.with_name(f"{path.name}.slurm")


def _parsed(options: Sequence[str]) -> dict[str, Any]:
    """Read `partition=long` and the like; what submitit does not share among clusters is Slurm's own."""
    parsed: dict[str, Any] = {}
    for text in options:
        key, sign, value = text.partition("=")
        if not sign or not key.isidentifier() or not value:
            raise ConfigError(f"slurm = {text!r} (allowed: KEY=VALUE, as in partition=long)")
        name = key if key in (*SHARED, "cluster") else f"slurm_{key}"
        parsed[name] = int(value) if value.isdecimal() else value
    return parsed


def _queue(jobs: Sequence[Any]) -> dict[str, str]:
    """The states of those jobs that Slurm still has in its queue."""
    command = ["squeue", "--noheader", "--array", "--format=%i %T"]
    said = subprocess.run(command, capture_output=True, text=True)
    if said.returncode != 0:  # the controller may be away for a moment: believe that all is well
        return {job.job_id: "UNKNOWN" for job in jobs}
    states = dict(line.split(maxsplit=1) for line in said.stdout.splitlines() if " " in line)
    return {job.job_id: states[job.job_id] for job in jobs if job.job_id in states}


def _submitit() -> Any:
    try:
        module = importlib.import_module("submitit")
    except ImportError:
        raise ConfigError("engine = 'slurm' (needs submitit: pip install 'initmem[slurm]')") from None
    logging.getLogger("submitit").setLevel(logging.ERROR)
    return module
