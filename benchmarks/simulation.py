"""Stories of faults: one integer decides all that happens to a store, and tells the same story again.

A story has up to six acts, then an undisturbed session. In an act a session is killed, in the middle of a
write too; meets errors of the disk, which pass or stay; or is stopped for so long that another one takes
over. Or the store is renamed, or the time of all its files jumps. Sessions train bundled networks or code of
the user. In every twentieth story one is a whole `run_study` with worker processes, killed with SIGKILL.

python benchmarks/simulation.py [--stories 200] [--first 0] [--workers 2]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from faultlab import DONE, OWN, SHORT_EXPIRY, SMALL, Counts, Job, Lab, Plan, memory_folder  # noqa: I001
import torch

from initmem.engines import worker
from initmem.engines.engine import Settings
from initmem.engines.local import LocalEngine
from initmem.session import run_study
from initmem.store import claims

ACTS = 6
CALLS = 90  # of a session, in which something happens
PATIENCE = 2 * SHORT_EXPIRY  # seconds: a session that is stopped may hold the lock of the store


def session_plan(chance: random.Random) -> Plan:
    """What goes wrong in one session."""
    at, every = chance.randint(1, CALLS), chance.choice([0.0, 60.0])
    deed = chance.choice(["kill", "kill", "tear", "EIO", "ESTALE", "ENOSPC", "EROFS"])
    if deed in ("EIO", "ESTALE"):
        return Plan(at, deed, every, reads=chance.random() < 0.7, times=chance.choice([1, 1, 2, 1000]))
    return Plan(at, deed, every)


def disturbed(lab: Lab, chance: random.Random) -> object:
    """One session that ends badly, or too early for it."""
    plan = session_plan(chance)
    return plan, lab.disturb(plan)


def overtaken(lab: Lab, chance: random.Random) -> object:
    """A session is stopped, another one takes over and may end badly, then the first continues."""
    first = lab.start(Plan(chance.randint(1, CALLS), "stop", chance.choice([0.0, 60.0]), times=1))
    options = os.WEXITED | os.WSTOPPED | os.WNOWAIT
    ended_early = (status := os.waitid(os.P_PID, first, options)) and status.si_code != os.CLD_STOPPED
    plan = session_plan(chance)
    second = lab.start(plan)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not os.waitid(os.P_PID, second, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        time.sleep(0.01)
    if not ended_early:
        os.kill(first, signal.SIGCONT)
    code = lab.seen(first, "overtaken")
    lab.expect(code == DONE, f"a session that was overtaken ended with {code}")
    return plan, lab.settled(lab.seen(second, plan), plan)


def jumped(lab: Lab, chance: random.Random) -> object:
    """The time of all files jumps by years."""
    jump = time.time() + chance.uniform(-3e8, 3e8)
    for path in lab.here.glob("**/*"):
        os.utime(path, (jump, jump))
    return ()


def renamed(lab: Lab, chance: random.Random) -> object:
    """The store gets another name."""
    target = lab.here.with_name(f"{lab.here.name}-moved")
    if lab.here.exists():
        lab.here = lab.here.rename(target)
    return ()


def killed(lab: Lab) -> None:
    """A whole session with worker processes, which is killed as soon as they have begun."""
    pid = os.fork()
    if not pid:
        try:
            engine = LocalEngine(workers=2, settings=Settings(trainer=lab.job.trainer))
            run_study(lab.job.study, lab.here, engine, pack=1)
        finally:
            os._exit(DONE)
    while not any(lab.here.glob("runs/*/*")) and not os.waitid(
        os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    lab.seen(pid, "killed")


ALL_ACTS: tuple[Callable[[Lab, random.Random], object], ...] = (disturbed, overtaken, jumped, renamed)


def tell(number: int) -> tuple[Counts, list[str]]:
    """One story: what came of it, and what happened."""
    chance = random.Random(number)
    job: Job = chance.choice([SMALL, OWN])
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        lab = Lab(Path(folder), job)
        lab.fresh()
        happened = []
        if number % 20 == 19 and job is OWN:
            killed(lab)
            happened.append("killed")
        for act in chance.choices(ALL_ACTS, weights=(6, 2, 1, 1), k=chance.randint(1, ACTS)):
            happened.append(f"{act.__name__} {act(lab, chance)}")
        lab.finish(f"story {number}")
        return lab.counts, happened


def prepare() -> None:
    """Let sessions save at every chance and claims expire soon."""
    torch.set_num_threads(1)
    worker.PAUSE, worker.LOOK_EVERY, claims.EXPIRY = 0.02, 0.0, SHORT_EXPIRY


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stories", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    names = [field.name for field in fields(Counts)]
    sums = dict.fromkeys(names[:-1], 0)
    problems = 0
    started = time.monotonic()
    numbers = range(given.first, given.first + given.stories)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(given.workers, context, prepare) as pool:
        for number, (counts, happened) in zip(numbers, pool.map(tell, numbers), strict=True):
            for name, value in zip(names[:-1], astuple(counts), strict=False):
                sums[name] += value
            if counts.problems:
                problems += 1
                print(f"story {number}:", *happened, *counts.problems, sep="\n  ", flush=True)
    print(f"{given.stories} stories, {time.monotonic() - started:.0f} s:", end=" ")
    print(", ".join(f"{value} {name}" for name, value in sums.items()))
    sys.exit(problems > 0)


if __name__ == "__main__":
    main()
