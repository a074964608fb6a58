"""Clusters for tests: a study, what must come of it, and a Ray cluster of several nodes on this machine.

As a script it is one of two things: a driver that puts an engine through its contract, or the keeper of a Ray
cluster, which takes orders from its input. Both are processes of their own, as they are in life.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trainers
from initmem.engines.engine import Event, Finished, Settings, Tick, engine_named
from initmem.errors import InitmemError
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.store.store import Store
from initmem.study import Run, Study

TESTS = Path(__file__).parent
# Long enough for something to happen while a pack is trained: an engine may look once in a second.
STUDY_FILE = """
name = "everywhere"
scales = [0.5, 1.0, 2.0]
seeds = [0, 1, 2, 3]
[recipe]
dataset = "synthetic:400x1x4x4"
model = "mlp"
width = 4
batch_size = 16
epochs = 40
learning_rate = 0.05
"""
_SAID = tomllib.loads(STUDY_FILE)
STUDY = Study(
    _SAID["name"],
    "",
    "full",
    "",
    (Recipe.parse(_SAID["recipe"]),),
    tuple(_SAID["scales"]),
    tuple(_SAID["seeds"]),
)


# One epoch of some seconds: whoever stops it stops inside.
LONG_EPOCH = STUDY.recipes[0].replace(dataset="synthetic:40000x1x4x4", batch_size=4, epochs=1)
LONG_RUNS = [Run(LONG_EPOCH, scale, 0) for scale in (0.5, 2.0)]


def packs() -> list[list[Run]]:
    runs = STUDY.all_runs()
    return [runs[i : i + 2] for i in range(0, len(runs), 2)]


def expected(place: Path) -> dict[str, RunRecord]:
    """The records of the study, trained in this process, undisturbed."""
    from initmem.engines.worker import Worker  # it loads torch, which drivers do without

    store = Store.create(place)
    Worker(store, Settings()).work(packs())
    return {record.id: record for record in store.records()}


def assert_same(place: Path, wanted: dict[str, RunRecord]) -> None:
    found = {record.id: record for record in Store(place).records()}
    assert found.keys() == wanted.keys()
    assert [run_id for run_id in found if not found[run_id].same_result(wanted[run_id])] == []


def environment() -> dict[str, str]:
    """The environment of processes that must find the package and these tests."""
    paths = [str(TESTS), *(str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(":") if p)]
    return os.environ | {"PYTHONPATH": ":".join(paths), "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": ""}


def wait_for(condition: Callable[[], object], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


class RayCluster:
    """A Ray cluster in the care of a process of its own. The head has no core: work is for the nodes."""

    def __init__(self) -> None:
        command = [sys.executable, __file__, "keep"]
        self.keeper = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        self.address = self.order("head")

    def order(self, *words: object) -> str:
        assert self.keeper.stdin and self.keeper.stdout
        print(*words, file=self.keeper.stdin, flush=True)
        for line in self.keeper.stdout:  # Ray may talk as well
            if line.startswith("done "):
                return line.removeprefix("done ").strip()
        raise AssertionError("the keeper of the cluster is gone")

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.order("end")
        self.keeper.communicate(timeout=600)


def keep() -> None:
    """Keep a cluster: head; nodes NAME...: these and no others; kill NAME; and hide PATH: nodes that are
    added later see an empty folder there."""
    from ray.cluster_utils import Cluster

    quick = {
        "prestart_worker_first_driver": False,
        "worker_niceness": 0,  # by default 15: next to other tests, workers would hardly run
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 10_000,  # of a busy machine
        "health_check_failure_threshold": 3,
    }
    cluster, nodes = Cluster(), {}
    for line in sys.stdin:
        order, _, word = line.strip().partition(" ")
        said = ""
        if order == "head":
            cluster.add_node(num_cpus=0, include_dashboard=False, _system_config=quick)
            said = cluster.address
        elif order == "nodes":
            wanted = word.split()
            for name in wanted:
                if name not in nodes:
                    nodes[name] = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
            for name in nodes.keys() - wanted:
                cluster.remove_node(nodes.pop(name), allow_graceful=False)
        elif order == "kill":
            cluster.remove_node(nodes.pop(word), allow_graceful=False)
        elif order == "hide":
            ctypes.CDLL(None).unshare(0x00020000)  # CLONE_NEWNS: what is mounted now is for us alone
            mounts = (["--make-rprivate", "/"], ["-t", "tmpfs", "none", word])
            hidden = all(subprocess.run(["mount", *m], capture_output=True).returncode == 0 for m in mounts)
            said = "hidden" if hidden else "not permitted"
        elif order == "end":
            cluster.shutdown()
        print("done", said, flush=True)


# -- the contract -------------------------------------------------------------------------------------------


def contract(name: str, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Put an engine through all that engines promise; what was seen.

    Every start of an engine takes seconds: one is stopped, one continues, one meets a mistake.
    """

    def engine(workers: int = 2, **settings: Any) -> Any:
        return engine_named(name, workers=workers, settings=Settings(**settings), options=options)

    found: dict[str, Any] = {}
    store = Store.create(folder / "whole")
    heard: list[Event] = []
    first, *rest = packs()
    cut = [first, LONG_RUNS, *rest]

    def stop_inside_the_long_epoch(event: Event) -> None:
        heard.append(event)
        finished = any(isinstance(one, Finished) for one in heard)
        if finished and isinstance(event, Tick) and store.checkpoints.newest(LONG_RUNS[0].id):
            raise KeyboardInterrupt

    found["stopped"] = engine(checkpoint_every=0.2).run(store, cut, stop_inside_the_long_epoch)
    found["saved"] = [store.checkpoints.newest(run.id) for run in LONG_RUNS]
    found["claims"] = store.in_flight()
    found["early"] = len(store.records())
    found["finished"] = engine(checkpoint_every=0.2).run(Store(store.path), cut, heard.append)
    found["heard"] = sorted(
        run_id for event in heard if isinstance(event, Finished) for run_id, _ in event.runs
    )
    heard.clear()
    found["again"] = engine().run(Store(store.path), cut, heard.append)
    found["trained again"] = [event for event in heard if isinstance(event, Finished)]
    bad = Store.create(folder / "bad")
    try:
        engine(1, trainer=trainers.bad).run(bad, packs()[:2], heard.append)
    except InitmemError as error:
        found["mistake"] = str(error)
    found["claims"] += bad.in_flight()
    return found


def put_through_contract(name: str, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Do it in a process of its own."""
    command = [sys.executable, __file__, "contract", name, str(folder), json.dumps(options)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=environment())
    assert said.returncode == 0, said.stderr
    return dict(json.loads(said.stdout.splitlines()[-1]))


def check_contract(
    name: str,
    folder: Path,
    options: dict[str, Any],
    undisturbed: dict[str, RunRecord],
    long_epoch: list[RunRecord],
) -> None:
    """Assert what every engine promises: the same study gives the same records, wherever it is executed."""
    from faultlab import residue  # both load torch, which drivers do without
    from initmem.data.sources import load

    found = put_through_contract(name, folder, options)
    wanted = undisturbed | {record.id: record for record in long_epoch}

    assert found["stopped"] is False  # asked to stop: it says so, and keeps what is done
    assert 0 < found["early"] < len(wanted)
    assert found["claims"] == []
    first, second = found["saved"]  # it stopped inside the only epoch of a pack
    assert 0 < first == second < len(load(LONG_EPOCH).train) // LONG_EPOCH.batch_size
    assert found["finished"] is True  # asked again: it goes on, the long epoch from that very batch
    assert set(found["heard"]) <= wanted.keys()
    assert len(found["heard"]) == len(set(found["heard"]))  # nothing is reported twice
    assert_same(folder / "whole", wanted)
    assert list(residue(folder / "whole")) == []
    assert (found["again"], found["trained again"]) == (True, [])  # done is done

    for record in Store(folder / "whole").records():
        assert record.provenance["pack"] == 2
        assert record.provenance["faults"] == {}
        assert {"hardware", "device", "torch", "python", "initmem"} <= record.provenance.keys()

    statuses = {record.id: record.status for record in Store(folder / "bad").records()}
    fine, odd = packs()[0]
    assert statuses == {fine.id: "completed", odd.id: "crashed"}  # an exception is a record
    assert found["mistake"] == "the store is gone"  # a mistake stops everything else


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        keep()
    else:
        print(json.dumps(contract(sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))))
