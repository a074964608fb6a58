"""Which device a worker gets, and how many workers there are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from initmem.engines.engine import Settings, devices, engine_named
from initmem.engines.local import LocalEngine
from initmem.engines.provenance import hardware
from initmem.errors import ConfigError
from initmem.store.store import Store
from initmem.study import Study


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_shared_out_evenly() -> None:
    assert devices("cuda") == ["cuda:0", "cuda:1"]
    assert devices("cuda:1") == ["cuda:1"]


def test_a_gpu_that_only_a_program_sees_has_no_name_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert [hardware(name) for name in ("cuda", "cuda:0", "cuda:1")] == ["GPU 0", "GPU 0", "not known"]


@pytest.mark.usefixtures("two_gpus")
def test_every_worker_is_told_its_device(tmp_path: Path, tiny_study: Study) -> None:
    """A process that only notes what it was given stands in for the one that starts the workers."""
    assert LocalEngine(settings=Settings(device="cuda")).workers == 2
    engine = LocalEngine(workers=4, settings=Settings(device="cuda"))
    given: list[str] = []

    class Noted(SimpleNamespace):
        def start(self) -> None:
            (places,) = (one for one in self.args if isinstance(one, list))
            given.extend(place.device for place in places)

    ends = (SimpleNamespace(), SimpleNamespace(close=lambda: None))
    engine._context = SimpleNamespace(Pipe=lambda duplex: ends, Process=Noted)  # type: ignore[assignment]
    engine._start(Store.create(tmp_path), [[run] for run in tiny_study.all_runs()])
    assert given == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("tpu", r"device = 'tpu' \(allowed: cpu, cuda, cuda:N\)"),
        ("cuda:", "device = 'cuda:'"),
        ("cuda:7", "no such GPU"),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_what_is_not_there_is_one_line(device: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalEngine(settings=Settings(device=device))


def test_a_cluster_may_have_what_is_not_here() -> None:
    """Slurm jobs use GPUs that the machine they are submitted from does not have."""
    settings, options = Settings(device="cuda"), {"gpus_per_node": 4}
    assert engine_named("slurm", workers=2, settings=settings, options=options).workers == 2 * 4
    with pytest.raises(ConfigError, match="device = 'tpu'"):
        engine_named("slurm", settings=Settings(device="tpu"))
