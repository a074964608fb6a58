"""What every engine promises: the same study gives the same records, wherever it is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusters import (
    LONG_EPOCH,
    LONG_RUNS,
    RayCluster,
    assert_same,
    packs,
    put_through_contract,
)
from faultlab import residue
from initmem.data.sources import load
from initmem.engines.engine import Settings, engine_named
from initmem.errors import ConfigError
from initmem.record import RunRecord
from initmem.store.store import Store
from initmem.train.loop import train_pack


@pytest.fixture(scope="module")
def long_epoch() -> list[RunRecord]:
    return train_pack(LONG_RUNS, load(LONG_EPOCH))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("local", {}, id="local"),
        pytest.param("slurm", {"cluster": "local"}, id="slurm"),
        pytest.param("ray", {}, id="ray"),
    ],
)
def test_an_engine_keeps_its_contract(
    name: str,
    options: dict[str, object],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    undisturbed: dict[str, RunRecord],
    long_epoch: list[RunRecord],
) -> None:
    if name == "ray":
        cluster: RayCluster = request.getfixturevalue("ray_cluster")
        cluster.order("nodes", "one", "two")
        options = options | {"address": cluster.address}
    found = put_through_contract(name, tmp_path, options)
    expected = undisturbed | {record.id: record for record in long_epoch}

    assert found["stopped"] is False  # asked to stop: it says so, and keeps what is done
    assert 0 < found["early"] < len(expected)
    assert found["claims"] == []
    first, second = found["saved"]  # it stopped inside the only epoch of a pack
    assert 0 < first == second < len(load(LONG_EPOCH).train) // LONG_EPOCH.batch_size
    assert found["finished"] is True  # asked again: it goes on, the long epoch from that very batch
    assert set(found["heard"]) <= expected.keys()
    assert len(found["heard"]) == len(set(found["heard"]))  # nothing is reported twice
    assert_same(tmp_path / "whole", expected)
    assert list(residue(tmp_path / "whole")) == []
    assert (found["again"], found["trained again"]) == (True, [])  # done is done

    for record in Store(tmp_path / "whole").records():
        assert record.provenance["pack"] == 2
        assert record.provenance["faults"] == {}
        assert {"hardware", "device", "torch", "python", "initmem"} <= record.provenance.keys()

    statuses = {record.id: record.status for record in Store(tmp_path / "bad").records()}
    fine, odd = packs()[0]
    assert statuses == {fine.id: "completed", odd.id: "crashed"}  # an exception is a record
    assert found["mistake"] == "the store is gone"  # a mistake stops everything else


def test_an_option_of_another_engine_is_a_mistake(command) -> None:
    with pytest.raises(ConfigError, match=r"engine = 'cloud' \(allowed: local, inline, ray, slurm\)"):
        engine_named("cloud")
    with pytest.raises(ConfigError, match=r"engine option address = 'auto' with engine = 'local'"):
        engine_named("local", options={"address": "auto"})
    with pytest.raises(ConfigError, match=r"address = '127.0.0.1:1' \(no Ray cluster answers there: "):
        engine_named("ray", options={"address": "127.0.0.1:1"})
    with pytest.raises(ConfigError, match=r"partition = 'long' with engine = 'ray' \(allowed: address\)"):
        engine_named("ray", options={"partition": "long"})
    with pytest.raises(ConfigError, match=r"cpus_per_task or gpus_per_node = 'many'"):
        engine_named("slurm", options={"cpus_per_task": "many"})
    with pytest.raises(ConfigError, match=r"timeout = 5 with engine = 'inline'"):
        engine_named("inline", settings=Settings(timeout=5.0))
    code, _, complaint = command("run", "quickstart", "--engine", "slurm", "--engine-option", "partition")
    assert code == 2 and "engine option 'partition' (allowed: KEY=VALUE" in complaint
