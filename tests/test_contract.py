"""What every engine promises: the same study gives the same records, wherever it is executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusters import check_contract
from initmem.engines.engine import Settings, engine_named
from initmem.errors import ConfigError
from initmem.record import RunRecord


@pytest.mark.parametrize(("name", "options"), [("local", {}), ("slurm", {"cluster": "local"})])
def test_an_engine_keeps_its_contract(
    name: str,
    options: dict[str, object],
    tmp_path: Path,
    undisturbed: dict[str, RunRecord],
    long_epoch: list[RunRecord],
) -> None:
    """Ray does in test_ray.py."""
    check_contract(name, tmp_path, options, undisturbed, long_epoch)


def test_an_option_of_another_engine_is_a_mistake(command) -> None:
    with pytest.raises(ConfigError, match=r"engine = 'cloud' \(allowed: local, inline, ray, slurm\)"):
        engine_named("cloud")
    with pytest.raises(ConfigError, match=r"engine option address = 'auto' with engine = 'local'"):
        engine_named("local", options={"address": "auto"})
    with pytest.raises(ConfigError, match=r"address = '127.0.0.1:1' \(no Ray cluster answers there: "):
        assert engine_named("ray", options={"address": "127.0.0.1:1"}).workers
    with pytest.raises(ConfigError, match=r"partition = 'long' with engine = 'ray' \(allowed: address\)"):
        engine_named("ray", options={"partition": "long"})
    with pytest.raises(ConfigError, match=r"cpus_per_task or gpus_per_node = 'many'"):
        engine_named("slurm", options={"cpus_per_task": "many"})
    with pytest.raises(ConfigError, match=r"timeout = 5 with engine = 'inline'"):
        engine_named("inline", settings=Settings(timeout=5.0))
    code, _, complaint = command("run", "quickstart", "--engine", "slurm", "--engine-option", "partition")
    assert code == 2 and "engine option 'partition' (allowed: KEY=VALUE" in complaint
