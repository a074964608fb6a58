"""`run`: ask of any training code whether it remembers its initialization.

    def train(init, tracker):                   # your own pipeline, any framework
        model = init.apply(MyNet())             # multiplies the weights of your model by the scale
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tracker.attach(model, optimizer, batch_size=128)
        for epoch in range(30):
            ...
            tracker.end_epoch(val_loss=..., val_accuracy=..., train_accuracy=..., test_accuracy=...)

    result = initmem.run(train, scales=[0.1, 0.5, 1, 1.8, 2.5], seeds=range(5), store="runs")
    print(result.memory("test_accuracy"))       # 12.3 pp [10.9, 13.8], noise range 1.1, remembers

`train` is called once for every scale and seed, in worker processes of one thread each. It leaves in the
store what a bundled study leaves, so `initmem status|measure|report runs` work as well. Called again, `run`
trains only what is missing, provided that the code has not changed: see `initmem.pipeline.code_version`.
A run that raised or exited is in the store with its traceback.
"""

from __future__ import annotations

import inspect
import math
import pickle
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import numpy as np
import torch

from initmem.engines.engine import Engine, Settings, Trainer, engine_named, gpu_slots
from initmem.engines.local import InlineEngine
from initmem.engines.progress import watching
from initmem.errors import ConfigError
from initmem.measures.provenance import applied_lines
from initmem.pipeline.code_version import fingerprint
from initmem.pipeline.init import Function, Init, UntouchedWarning
from initmem.pipeline.opened import noting, opened_here
from initmem.pipeline.result import Result
from initmem.pipeline.tracker import Row, Tracker
from initmem.pipeline.workdir import Workdir, own_workdir, project_of, working_in
from initmem.record import TESTED, RunRecord, summarize
from initmem.seeds import Role, generator
from initmem.session import run_study
from initmem.store.paths import default_store
from initmem.store.store import Store
from initmem.study import SCALES, SEEDS, Run
from initmem.study_file import own_study

EngineName = Literal["local", "inline", "ray", "slurm"]
Train = Callable[[Init, Tracker], object]
OnEpoch = Callable[[Run, Row], None]
GLOBAL = 1 << 41  # index of the stream that seeds the global generators: no epoch has it
_unpacked = lru_cache(maxsize=1)(pickle.loads)


def run(
    train: Train,
    scales: Iterable[float] = SCALES,
    seeds: Iterable[int] = SEEDS,
    store: str | Path | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    *,
    gpus: int | None = None,
    on_epoch: OnEpoch | None = None,
    interventions: Mapping[str, Function | None] | Sequence[str] = (),
    name: str | None = None,
    recipe: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    chaos: bool = False,
    split: Sequence[Role] = (),
    keep_old: bool = False,
    keep_going: bool = False,
    retry_crashed: bool = False,
    watch: Iterable[str | Path] = (),
    timeout: float | None = None,
    workdir: Literal["own", "shared"] = "own",
    progress: bool = True,
) -> Result:
    """Train from every scale and seed, and return the result.

    Args:
        train: called as `train(init, tracker)`. It ends its epochs with `tracker.end_epoch(...)`, may return
            a mapping of final metrics (`{"test_accuracy": 0.93}`, of the model it returns), or
            both. Before each call the global generators of Python, NumPy and torch are seeded with the run's
            init seed, and at `tracker.attach` with its order seed.
        scales: the initialization scales; 0.1, 0.5, 1, 1.8 and 2.5 unless given.
        seeds: five unless given: 0 to 4.
        store: directory of the records; `runs/NAME` unless given.
        workers: worker processes, each with one torch thread; one per core unless given.
        engine: `local` (worker processes), `inline` (one run after the other in this process, for a
            debugger), `ray` (the cluster of $RAY_ADDRESS, or one made of this machine) or `slurm`. Training
            code that cannot be sent to another process is run inline in place of local, with a message.
        gpus: give each of so many worker processes a GPU of its own: CUDA_VISIBLE_DEVICES is set before
            anything is loaded. Only with the engine `local`.
        on_epoch: called after every epoch as `on_epoch(run, row)`, in the process that trains, to log while
            it runs. `run` has `id`, `scale`, `seed` and `recipe`; `row` has `epoch` and what was recorded.
            What it raises is noted, and does not end the run.
        interventions: varied in place of the scale: texts as in study files (`["none", "scale=2@5"]`), or
            functions of your own by name (`{"none": None, "half@5": halve}`). `NAME` is called as
            `function(model)` by `init.apply`, `NAME@EPOCH` as `function(model, optimizer)` by
            `tracker.intervene(model, optimizer)`, which `train` calls at the start of every epoch.
        name: name of the pipeline, also in the store; the name of the function unless given. Together
            with the recipe, the scale and the seed it makes the id of a run.
        recipe: settings of your code, of any name: `{"optimizer": "lion", "dropout": 0.1, "betas": [0.9,
            0.99]}`. They are part of the id and the label of a run; `init.recipe["dropout"]` hands them to
            `train`.
        grid: settings that vary: `{"lr": [0.01, 0.1], "dropout": [0.0, 0.1]}` makes four recipes.
        chaos: give every run a replicate with the largest weight of every kernel perturbed, for `initmem
            measure --what chaos`.
        split: roles (`init`, `order`) whose seed is also varied alone, for `initmem measure --what seeds`;
            `train` has to call `tracker.attach` before training.
        keep_old: keep runs that were trained before the code changed. Otherwise they are refused, with a
            message that names what changed. Crashed runs of other code are always tried again.
        keep_going: do not stop when the first runs all fail with the same error.
        retry_crashed: train all crashed runs again.
        watch: files that count as a part of the code, next to those in the present folder that it opens.
        timeout: seconds within which a run has to end an epoch; one that does not is a crashed run.
        workdir: `own` gives every run a working directory that mirrors the present one, so that parallel runs
            never read each other's files, and removes it afterwards; it is kept if the run crashes. `shared`:
            all runs work in the present one.
        progress: show a bar on stderr.
    """
    try:
        with suppress(ValueError):  # some callables have no signature
            inspect.signature(train).bind(None, None)
    except TypeError as error:
        raise ConfigError(f"train: {error} (allowed: a function of (init, tracker))") from None
    function: Any = train
    while isinstance(function, partial):
        function = function.func
    own = str(getattr(function, "__name__", type(function).__name__))
    called = name or ("pipeline" if own == "<lambda>" else own)
    if interventions and scales is not SCALES:
        raise ConfigError("scales and interventions in one study (allowed: one of them)")
    given = interventions if isinstance(interventions, Mapping) else {}
    functions = {text: function for text, function in given.items() if function is not None}
    study = own_study(
        called,
        recipe or {},
        scales,
        seeds,
        grid=grid,
        chaos=chaos,
        split=split,
        interventions=list(interventions),
        own=functions,
    )
    version = fingerprint(train, *functions.values(), watch=watch)
    code = {recipe.id: version for recipe in study.recipes}
    trainer = PipelineTrainer(train, project_of(workdir), on_epoch, functions)
    settings = Settings(trainer=trainer, timeout=timeout, code=code, slots=gpu_slots(gpus))
    chosen = engine_for(engine, settings, workers)
    with watching(sys.stderr if progress else None) as bar:
        outcome = run_study(
            study,
            store or default_store(called),
            chosen,
            retry_crashed=retry_crashed,
            keep_old=keep_old,
            keep_going=keep_going,
            watch=bar,
        )
    if outcome.interrupted:
        raise KeyboardInterrupt
    result = Result(Store(outcome.store), study, fingerprint=version)
    for note in [*applied_lines(result.records), *result.notes] if progress else ():
        print(f"initmem: {note}", file=sys.stderr)
    return result


def engine_for(name: str, settings: Settings, workers: int | None) -> Engine:
    """The engine of a name, ready to train user code."""
    timeout = settings.timeout
    if timeout is not None and not 0 < timeout < 1e9:
        raise ConfigError(f"timeout = {timeout!r} (allowed: seconds above 0)")
    if name != "inline":
        try:
            sent = partial(train_sent, cloudpickle.dumps(settings.trainer))
        except Exception as error:  # whatever a user's objects raise when they are pickled
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            problem = f"this training code cannot be sent to other processes ({reason})"
            if name != "local" or settings.slots:
                raise ConfigError(f"engine = {name!r}: {problem}") from None
            limit = ", without the time limit" if timeout is not None else ""
            print(f"initmem: {problem}; its runs go one after the other in this one{limit}", file=sys.stderr)
            return InlineEngine(settings)
        settings = replace(settings, trainer=sent)
    return engine_named(name, workers=workers, settings=settings)


@dataclass(frozen=True, slots=True)
class PipelineTrainer:
    """Trains runs by a function of user code."""

    train: Train
    project: Path | None = None  # what working directories mirror; None: runs share the present one
    on_epoch: OnEpoch | None = None  # the user's
    functions: Mapping[str, Function] = field(default_factory=dict)  # interventions of the user

    def __call__(self, runs: list[Run], on_epoch: OnEpoch) -> list[RunRecord]:
        """Train runs, one after the other."""
        return [self._one(run, on_epoch) for run in runs]

    def _one(self, run: Run, on_epoch: OnEpoch) -> RunRecord:
        started, began = time.perf_counter(), time.time()
        init = Init.of(run, self.functions)
        order = int(generator(run.seed_of("order"), "order", GLOBAL).integers(1 << 62))
        about: dict[str, Any] = {}

        def end_epoch(row: Row) -> None:
            self._log(run, row, about)
            on_epoch(run, row)

        tracker = Tracker(init, on_epoch=end_epoch, on_start=partial(seed_all, order))
        with own_workdir(self.project, run.id) as workdir:
            with working_in(workdir), noting(on=True), kept_generators(), warnings.catch_warnings():
                seed_all(run.seed_of("init"))
                warnings.simplefilter("ignore", UntouchedWarning)  # the notes of the result have it once
                returned = self.train(init, tracker)
            tracker.detach()
            init.check_intervened(tracker.epochs)
            if run.pins and not tracker.started:
                raise ConfigError("split: training never began (allowed: tracker.attach before training)")
            if isinstance(returned, Mapping):
                tracker.finish(**returned)
            seen: dict[str, Any] = {"init": init.applied(), "scale_used": init.used}
            seen |= {"applied": bool(init.tables)} | about | opened_here(workdir, began)
            return own_record(run, tracker, started, workdir, **seen)

    def _log(self, run: Run, row: Row, about: dict[str, Any]) -> None:
        """Call the user's function where the study was started; it has no effect on training."""
        if self.on_epoch is None:
            return
        folder = self.project if self.project and self.project.is_dir() else Path.cwd()
        with kept_generators(), noting(on=False), chdir(folder):
            try:
                self.on_epoch(run, dict(row))
            except Exception as error:  # it is user code
                if "on_epoch_error" not in about:
                    about["on_epoch_error"] = f"{type(error).__name__}: {error}"
                    message = f"on_epoch: {about['on_epoch_error']} (training continues)"
                    print(f"initmem: {message}", file=sys.stderr)


def train_sent(packed: bytes, runs: list[Run], on_epoch: OnEpoch) -> list[RunRecord]:
    """Train runs by a pickled trainer: in another process, with functions of a notebook or a script.

    It is unpacked where a failure to do so is a crashed run, with its traceback, not a dead worker.
    """
    trainer: Trainer = _unpacked(packed)
    return trainer(runs, on_epoch)


def own_record(
    run: Run, tracker: Tracker, started: float, workdir: Workdir | None, **about: Any
) -> RunRecord:
    """The record of a run of user code, from what its tracker saw; `about` joins its provenance."""
    history, finals = tracker.history, tracker.finals
    if not (history or finals or tracker.diverged):
        raise ConfigError("no epoch was ended and no metric returned (allowed: tracker.end_epoch, a mapping)")
    start = tracker.norm_init if math.isfinite(tracker.norm_init or 0.0) else None
    summary = summarize(history, norm_init=start)
    best = summary.tau_best or 0
    at_best = {name: float(history[name][best - 1]) for name in TESTED if name in history}
    selected = {name: value for name, value in at_best.items() if math.isfinite(value)} | finals
    tested: dict[str, Any] = {name: selected.get(name) for name in TESTED}
    return RunRecord(
        run,
        "diverged" if tracker.diverged else "completed",
        replace(summary, **tested),
        history,
        {"device": "cpu", "seconds": round(time.perf_counter() - started, 3)}
        | tracker.about()
        | about
        | (workdir.changes() if workdir else {}),
        finals={name: value for name, value in finals.items() if name not in TESTED},
        arrays=tracker.arrays,
    )


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch."""
    random.seed(seed)
    np.random.seed(np.random.SeedSequence(seed).generate_state(8))  # noqa: NPY002
    torch.manual_seed(seed)  # of every device


@contextmanager
def kept_generators() -> Iterator[None]:
    """Restore the global generators of Python, NumPy and torch afterwards."""
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
