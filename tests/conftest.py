from __future__ import annotations

import compileall
import importlib
import io
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run side by side, one per core
# Nothing of the user's: neither datasets nor remembered measurements.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / "initmem-tests")

import numpy as np
import pytest
import torch

import initmem
from initmem import register
from initmem.cli import main
from initmem.recipe import Recipe
from initmem.record import COLUMNS, RunRecord, summarize
from initmem.study import Run, Study

torch.set_num_threads(1)

# Bytecode of the package, and of the tests while they are collected, is kept whatever the environment says:
# else every process that a test starts compiles the package, and every worker of pytest rewrites all tests.
# Afterwards none is written: scripts that tests write and change within a second must not be stale.
compileall.compile_dir(Path(initmem.__file__).parent, quiet=1)
sys.dont_write_bytecode = False

# The slowest files, which start first, so that all cores are busy to the end.
SLOW = (
    "test_contract", "test_pipeline", "test_ray", "test_untrained", "test_workdir", "test_examples",
    "test_scripts", "test_command", "test_engine", "test_faults", "test_keras_parity",
    "test_fault_suite", "test_docs", "test_wheel", "test_slurm", "test_notebook", "test_captions",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: number for number, name in enumerate(SLOW)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(SLOW)))


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


class Deferred:
    """A module that is imported when it is first used: every process of the tests collects them all, and some
    libraries take seconds to import."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> object:
        if attribute.startswith("_"):  # pytest asks every object of a module what it is
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


@pytest.fixture(autouse=True, scope="session")
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Crashed runs keep their working directories: until the tests end."""
    tmp_path_factory.getbasetemp()  # stays where it is
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="initmem-") as folder:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test registers is unknown to the next."""
    for registry in (register.models, register.optimizers, register.datasets):
        monkeypatch.setattr(registry, "_things", dict(registry._things))
        monkeypatch.setattr(registry, "_homes", dict(registry._homes))


@pytest.fixture
def empty_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder: every run of user code mirrors the present one, here a thousand files."""
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


@pytest.fixture
def tiny() -> Recipe:
    """A recipe that trains in a fraction of a second."""
    return Recipe(
        dataset="synthetic:100x1x8x8",
        width=2,
        batch_size=16,
        epochs=3,
        learning_rate=0.01,
        batch_statistics="re-estimated",  # after so few updates moving averages are cold
    )


@pytest.fixture
def tiny_study(tiny: Recipe) -> Study:
    return Study("tiny", "A tiny study", "full", "", (tiny,), (0.5, 1.0, 2.0), (0, 1))


def fake_record(run: Run, test_accuracy: float, epochs: int = 4) -> RunRecord:
    """A record with a given test accuracy, as a planted effect for measures."""
    ramp = np.linspace(0.1, 1.0, epochs)
    history = {name: ramp.copy() for name in COLUMNS}
    history["val_objective"] = ramp[::-1].copy()
    summary = summarize(history, norm_init=run.scale, test_accuracy=test_accuracy, test_cross_entropy=1.0)
    return RunRecord(run, "completed", summary, history, {"pack": 1})


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunRecord]:
    """What must come of the study that clusters are given."""
    from clusters import expected

    return expected(tmp_path_factory.mktemp("undisturbed") / "store")


@pytest.fixture(scope="session")
def long_epoch() -> list[RunRecord]:
    """What must come of two runs of one long epoch, inside which engines are stopped."""
    from clusters import LONG_EPOCH, LONG_RUNS
    from initmem.data.sources import load
    from initmem.train.loop import train_pack

    return train_pack(LONG_RUNS, load(LONG_EPOCH))


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """However pytest was started: a program in the background is often told to ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local engine trains in this process: a worker of its own takes seconds to begin."""
    from initmem.engines.local import LocalEngine
    from initmem.engines.worker import Worker

    def run_here(engine, store, packs, listen) -> bool:
        Worker(store, engine.settings, listen=listen).work(packs)
        return True

    monkeypatch.setattr(LocalEngine, "run", run_here)


@pytest.fixture
def programs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of `--command` are scripts that run in this process: another one takes seconds to begin."""

    def run_here(arguments, errors, poll, cwd, environment) -> int:
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
            patch.setattr(sys, "argv", list(arguments[1:]))
            patch.chdir(cwd or Path.cwd())
            for name, value in environment.items():
                patch.setenv(name, value)
            runpy.run_path(arguments[1], run_name="__main__")
        return 0

    monkeypatch.setattr("initmem.pipeline.command._run", run_here)


@pytest.fixture
def untimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without the time it takes: no training step is timed."""
    monkeypatch.setattr("initmem.engines.plan.pack_seconds", lambda *_: 0.0)


@pytest.fixture
def command(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: exit code, what it printed, what it complained of."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["initmem", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return (int(stop.value.code or 0), *capsys.readouterr())

    return run


def pytest_terminal_summary(terminalreporter) -> None:
    """Print how closely parity tests agreed with Keras, and what was counted of faults and bad input."""
    said: dict[str, list[tuple[str, object]]] = {"parity": [], "faults": [], "fuzz": []}
    for report in terminalreporter.stats.get("passed", []):
        for key, value in report.user_properties:
            if key in said:
                said[key].append((report.nodeid.partition("::")[2], value))
    if said["parity"]:
        terminalreporter.section("largest relative differences to Keras")
        for name, value in sorted(said["parity"]):
            terminalreporter.write_line(f"{value}  {name}")
    for key, title in (("faults", "faults"), ("fuzz", "bad input")):
        tables = [value for _, value in said[key]]
        if tables:
            terminalreporter.section(title)
            for line in table({name: row for found in tables for name, row in found.items()}):
                terminalreporter.write_line(line)


def table(rows: dict[str, dict[str, object]]) -> list[str]:
    """Lines of counts, and one of their sums."""
    columns = list(next(iter(rows.values())))
    total = {name: sum(row[name] for row in rows.values()) for name in columns}
    lines = [f"{'':20}" + "".join(f"{name:>10}" for name in columns)]
    for name, row in (rows | {"all": total}).items():
        lines.append(f"{name:20}" + "".join(f"{row[column]:>10}" for column in columns))
    return lines
