"""Time initmem and its peers on the same workloads, one after the other, on an otherwise quiet machine."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from initmem.engines.engine import Claimed, EpochEnded, Event, Finished, cores
from initmem.engines.local import LocalEngine
from initmem.engines.packs import pack_size, packs
from initmem.engines.plan import run_flops
from initmem.store.store import Store

from .workloads import Workload

Tell = Callable[[str], None]

PEERS = {"keras": "tensorflow", "torch": "torch", "jax": "optax"}  # peer: the package it needs beside initmem
ROOT = Path(__file__).parents[2]  # from where peers are imported
LONGEST = 600  # seconds one measurement of a peer may take; a setting that takes longer has no number
COMPILING = 60  # seconds that a setting may take before its epochs; those with `compile` have LONGEST
HOPELESS = 1.3  # so many times a peer's best setting, and a setting is stopped, or not tried in another round


@dataclass(frozen=True, slots=True)
class Setting:
    """How a peer is run: how many processes at once, and its own switches."""

    at_once: int
    threads: int | None  # None: what the framework takes by default
    compile: bool = False
    channels_last: bool = False
    mode: str = ""  # how one process trains many replicas together; empty: a process trains one run

    def __str__(self) -> str:
        threads = "default threads" if self.threads is None else f"{self.threads} thread"
        switches = [name for name in ("compile", "channels_last") if getattr(self, name)]
        return ", ".join([f"{self.at_once} at once", threads, *filter(None, [self.mode]), *switches])


AS_IS = Setting(1, None)


@dataclass(slots=True)
class Comparison:
    """One workload: seconds for all its runs, ours and the peers', and how near the limit we are."""

    workload: Workload
    seconds: float
    pack: int
    share: float  # of the GEMM limit, counting convolutions and dense layers, evaluation included
    peers: dict[str, dict[str, float]] = field(default_factory=dict)  # peer -> setting -> seconds

    def ratio(self, peer: str, *, best: bool) -> float | None:
        """How many times longer a peer takes."""
        found = self.peers.get(peer, {})
        seconds = [s for name, s in found.items() if best or name == str(AS_IS)]
        return min(seconds) / self.seconds if seconds else None

    def row(self) -> dict[str, Any]:
        """For a table or a script."""
        best = {peer: min(found, key=found.__getitem__) for peer, found in self.peers.items() if found}
        return {
            "workload": self.workload.name,
            "runs": self.workload.runs,
            "epochs": self.workload.epochs,
            "seconds": self.seconds,
            "pack": self.pack,
            "gemm_share": self.share,
            **{f"{peer}_{kind}": self.ratio(peer, best=kind == "best")
               for peer in self.peers for kind in ("as_is", "best")},
            "best_settings": best,
            "peer_seconds": self.peers,
        }  # fmt: skip


def compare(
    workload: Workload, peers: Iterable[str], limit: float, tell: Tell, rounds: int = 2
) -> Comparison:
    """Time one workload with initmem and with each peer in every setting worth a try.

    On a machine that others use too, a minute may be twice as slow as the next. So all take turns, and of
    each the quickest round counts.
    """
    found = Comparison(workload, math.inf, 0, 0.0, {peer: {} for peer in peers})
    unable: set[tuple[str, Setting]] = set()  # settings that do not run here
    for _ in range(rounds):
        seconds, found.pack = time_initmem(workload)
        found.seconds = min(found.seconds, seconds)
        tell(f"{workload.name}: initmem {seconds:.1f} s, pack {found.pack}")
        for peer, timed in found.peers.items():
            for setting in settings(peer):
                if (peer, setting) in unable or not _may_count(setting, timed):
                    continue
                spent = time_peer(peer, workload, setting, min(timed.values(), default=math.inf))
                if spent is None:
                    tell(f"{workload.name}: {peer}, {setting}: does not run here, or is far slower")
                    unable.add((peer, setting))
                    continue
                timed[str(setting)] = min(spent, timed.get(str(setting), math.inf))
                tell(f"{workload.name}: {peer}, {setting}: {spent:.1f} s")
    for peer, timed in found.peers.items():
        if timed:
            best = min(timed, key=timed.__getitem__)
            tell(f"{workload.name}: best of {peer}: {best}, {timed[best] / found.seconds:.2f} times initmem")
    found.share = workload.runs * run_flops(workload.recipe, workload.sizes) / found.seconds / limit
    return found


def _may_count(setting: Setting, timed: dict[str, float]) -> bool:
    """Whether a peer's setting is as is, new, or near its best so far."""
    known = timed.get(str(setting))
    return setting == AS_IS or known is None or known < HOPELESS * min(timed.values())


def settings(peer: str) -> list[Setting]:
    """As it comes, and every way that might be its best. JAX has no training loop to come with."""
    if peer == "jax":
        one = Setting(1, None, mode="patches")  # all replicas in one process, which uses every core
        return [*(Setting(cores(), 1, mode=mode) for mode in ("patches", "map", "convolution")), one]
    together = [Setting(cores(), 1, compile, mode="vmap") for compile in (False, True) if peer == "torch"]
    layouts = (False, True) if peer == "torch" else (False,)  # TensorFlow has but one on a processor
    switches = itertools.product((False, True), layouts)
    return [AS_IS, *(Setting(cores(), 1, compile, layout) for compile, layout in switches), *together]


def missing(peer: str) -> str | None:
    """Why a peer cannot be run here, in a line; None if it can."""
    package = PEERS[peer]
    if importlib.util.find_spec(package) is None:
        return f"{peer}: {package} is not installed (pip install -e '.[bench]')"
    return None


def whole(laps: list[float], end: float, epochs: int) -> float:
    """Seconds of a whole run from a short one: the first epoch counts once, with all it took to begin.

    Of the others the quickest stands for the rest: what disturbs an epoch only makes it longer.
    """
    return laps[0] + (epochs - 1) * min(laps[1:]) + end


def time_initmem(workload: Workload) -> tuple[float, int]:
    """Seconds for all runs, by the engine and a store as `initmem run` uses them; and the pack size."""
    workers = cores()
    size = min(pack_size(workload.recipe, workload.sizes), math.ceil(workload.runs / workers))
    measured = min(workload.runs, size * workers)
    study = workload.study(measured)
    cut = packs(study, size=size, workers=workers)
    times: dict[str, list[float]] = {}

    def listen(event: Event) -> None:
        match event:
            case Claimed(runs) | EpochEnded(runs, _):
                times.setdefault(runs[0], []).append(time.perf_counter())
            case Finished(runs):
                times.setdefault(runs[0][0], []).append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        LocalEngine(workers=workers).run(Store.create(Path(folder) / "store"), cut, listen)
    seconds = []
    for stamps in times.values():
        *laps, end = [after - before for before, after in itertools.pairwise(stamps)]
        seconds.append(whole(laps, end, workload.epochs))
    return statistics.mean(seconds) * math.ceil(workload.runs / measured), size


def time_peer(peer: str, workload: Workload, setting: Setting, best: float = math.inf) -> float | None:
    """Seconds for all runs by a peer; None where it does not run, or takes far longer than `best`."""
    if setting.compile and peer == "torch" and not (shutil.which("g++") or shutil.which("clang++")):
        return None  # torch.compile writes C++
    replicas = math.ceil(workload.runs / setting.at_once) if setting.mode else 1
    task = workload.spec() | {
        "threads": setting.threads, "compile": setting.compile, "channels_last": setting.channels_last,
        "mode": setting.mode, "replicas": replicas,
    }  # fmt: skip
    module = "vmap" if setting.mode == "vmap" else peer
    command = [sys.executable, "-m", f"benchmarks.bench.peer_{module}", json.dumps(task)]
    turns = math.ceil(workload.runs / (setting.at_once * replicas))
    epochs = HOPELESS * best / turns * task["epochs"] / workload.epochs
    longest = LONGEST if setting.compile else min(LONGEST, COMPILING + epochs)
    try:
        told = [json.loads(line) for line in race(command, setting.at_once, longest)]
    except (ValueError, OSError, subprocess.TimeoutExpired):
        return None
    seconds = statistics.mean(whole(one["epochs"], one["end"], workload.epochs) for one in told)
    return seconds * turns


GEMM = """
import time, torch
torch.set_num_threads(1)
print("ready", flush=True); input()
best = 0.0
for n in (512, 1024, 2048):
    a, b = torch.randn(n, n), torch.randn(n, n)
    ends = time.perf_counter() + 2
    while time.perf_counter() < ends:
        started = time.perf_counter(); a @ b
        best = max(best, 2 * n**3 / (time.perf_counter() - started))
print(best)
"""


def gemm_limit() -> float:
    """Operations per second of dense float32 matrix products with every core at work, measured now."""
    return sum(float(line) for line in race([sys.executable, "-c", GEMM], cores()))


def race(command: list[str], at_once: int, longest: float = LONGEST) -> list[str]:
    """Start processes that say `ready`, let all go at the same moment, return what each printed last.

    The last argument of each is its number, for a peer that has to be kept on one core.
    """
    processes = [
        subprocess.Popen(
            [*command, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        for number in range(at_once)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [process.communicate(timeout=longest)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
