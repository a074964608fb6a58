"""initmem run."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from initmem.cli import base
from initmem.cli.base import app, print_json, say, show
from initmem.errors import ConfigError, allowed, count, duration

if TYPE_CHECKING:
    from initmem.engines.engine import Settings, Trainer
    from initmem.session import Outcome
    from initmem.store.store import Store
    from initmem.study import Run, Study


@app.command()
def run(
    study: base.StudyName = None,
    preset: base.Preset = None,
    overrides: base.Overrides = None,
    scales: base.Scales = None,
    seeds: base.Seeds = None,
    plugins: base.Plugins = None,
    store: base.StoreOption = None,
    command: base.Command = None,
    name: base.Name = None,
    watch_files: base.Watch = None,
    workdir: base.Workdir = "own",
    until: base.Until = None,
    max_seeds: base.MaxSeeds = 30,
    workers: base.Workers = None,
    gpus: base.Gpus = None,
    engine: base.EngineName = "local",
    engine_options: base.EngineOptions = None,
    device: base.Device = "cpu",
    pack: base.PackSize = None,
    checkpoint_every: base.CheckpointEvery = 60.0,
    timeout: base.Timeout = None,
    retry_crashed: base.RetryCrashed = False,
    keep_old: base.KeepOld = False,
    keep_going: base.KeepGoing = False,
    verbose: base.Verbose = False,
    as_json: base.AsJson = False,
) -> None:
    """Train every run of a study that is not in the store yet.

    Ctrl-C stops; the same command resumes.
    """
    from initmem.engines.engine import Settings, engine_named, gpu_slots
    from initmem.engines.progress import watching
    from initmem.session import run_study
    from initmem.store.paths import default_store
    from initmem.study_file import bundled, load_study

    settings = [*(overrides or ()), *filter(None, (scales, seeds))]
    slots: tuple[dict[str, str], ...] = ()
    trainer: Trainer | None = None
    code: Mapping[str, Mapping[str, str]]  # versions of the user's code, to find out when it changes
    if command is not None:
        from initmem.pipeline.command import parse, placeholders, study_of

        asked, code, trainer = study_of(command, name, study, preset, settings, watch_files or (), workdir)
        by_program = "gpu" in placeholders(parse(command))
        if by_program and gpus is None:
            raise ConfigError("command: {gpu} (needed: --gpus N)")
        slots = gpu_slots(gpus, chosen_by_program=by_program)
    elif gpus is not None:
        raise ConfigError(f"--gpus {gpus} (allowed: with --command; for bundled networks: --device cuda)")
    elif study is not None:
        asked = load_study(study, preset, settings, plugins=plugins or ())
        code = plugin_code(asked)
    else:
        raise ConfigError(f"nothing to run ({allowed(bundled())}, the path of a .toml file, or --command)")
    chosen = engine_named(
        engine,
        workers=workers,
        options=dict(engine_options or ()),
        settings=Settings(
            device=device,
            checkpoint_every=checkpoint_every,
            timeout=timeout,
            trainer=trainer,
            plugins=tuple(plugins or ()),
            code=code,
            about={"command": command, "torch": "not known"} if command else {},
            slots=slots,
        ),
    )
    folder = store or default_store(f"{asked.name}-{asked.preset}")
    native = engine == "local" and device == "cpu"
    with watching(sys.stderr) as watch:
        outcome = run_study(
            asked,
            folder,
            chosen,
            pack=pack,
            until=until,
            max_seeds=max_seeds,
            retry_crashed=retry_crashed,
            keep_old=keep_old,
            keep_going=keep_going,
            on_start=lambda: introduce(asked, folder, native=native, verbose=verbose),
            watch=watch,
        )
    print_outcome(asked, folder, outcome, chosen.settings, until, verbose=verbose, as_json=as_json)
    if outcome.interrupted or not outcome.complete:
        sys.exit(base.INTERRUPTED if outcome.interrupted else 1)  # print_outcome has said so


def plugin_code(study: Study) -> Mapping[str, Mapping[str, str]]:
    """The versions of what plugins registered and the study uses, by its name or by recipe."""
    from initmem import register
    from initmem.intervention import Intervention

    networks = [recipe.network for recipe in study.recipes]
    registered = [each for each in networks if register.has_any(each.model, each.optimizer, each.dataset)]
    words = [Intervention.parse(text).word for text in study.interventions]
    own = [one.apply for word in words if (one := register.interventions.find(word))]
    if not registered and not own:
        return {}
    from initmem.pipeline.code_version import fingerprint, plugin_fingerprints  # it loads torch

    by_recipe = {recipe.id: fingerprint(*own) for recipe in study.recipes} if own else {}
    return plugin_fingerprints(registered) | by_recipe


def introduce(study: Study, store: Path, *, native: bool = False, verbose: bool = False) -> None:
    """Print on stderr what is about to happen."""
    from initmem.data.sources import sizes
    from initmem.train.requirements import notes_of

    about = f" ({study.about})" if study.about else ""
    say(f"{study.name}, preset {study.preset}{about}", err=True)
    grid = {
        "recipe": len(study.recipes),
        "intervention" if study.interventions else "scale": len(study.levels),
        "seed": len(study.seeds),
    }
    product = " x ".join(count(n, noun) for noun, n in grid.items())
    runs = len(study.all_runs())
    if further := runs - math.prod(grid.values()):
        kinds = {
            "more seeds": study.more_seeds,
            "perturbed replicates": study.perturbation != 1.0,
            "seeds by role": study.split,
        }
        product += f" + {further} further runs ({', '.join(kind for kind, used in kinds.items() if used)})"
    say(f"{product} = {count(runs, 'run')}, store {store}", err=True)
    networks = [recipe.network for recipe in study.recipes if not recipe.is_pipeline]
    if native and networks:
        from initmem.train.compiled import library

        layers = library()  # compiled here, once, if need be: not by every worker
        if layers.code is None or verbose:
            say(f"layers: {layers}", err=True)
    notes = (f"{recipe.model}: {note}" for recipe in networks for note in notes_of(recipe, sizes(recipe)))
    for note in dict.fromkeys(notes):
        say(note, err=True)


def print_outcome(
    study: Study,
    store: Path,
    outcome: Outcome,
    settings: Settings,
    until: float | None,
    *,
    verbose: bool,
    as_json: bool,
) -> None:
    """Print the memory of each recipe of the study, and how the study stands."""
    from initmem.engines.provenance import run_notes, stale_note
    from initmem.measures.design import default_metric, metric_reason
    from initmem.measures.memory import Memories, memory_table
    from initmem.measures.provenance import applied_lines
    from initmem.measures.verdict import verdict_table
    from initmem.store.faults import crash_causes, crash_lines
    from initmem.store.results import Collection
    from initmem.store.store import Store

    opened = Store(outcome.store)
    records = [record for record in opened.records() if record.run.recipe in study.recipes]
    stale = stale_note(records, settings.fingerprint) if settings.code else ""
    for note in filter(None, [*run_notes(records), stale]):
        say(f"initmem: {note}", err=True)
    memories, metric = Memories(), "test_accuracy"
    if any(record.status != "crashed" for record in records):
        metric = default_metric(records)
        memories = memory_table(Collection(records, opened.studies()), metric, recipes=study.recipes)
    if as_json:
        from initmem.measures.measure import memory_rows

        causes = [cause._asdict() for cause in crash_causes(records)]
        about = {"study": study.name, "preset": study.preset} | asdict(outcome)
        print_json("run", memory_rows(memories, records), **about, crashes=causes)
        return
    end = f"{count(outcome.trained, 'run')} trained in {duration(outcome.seconds)}; {outcome.summary()}"
    if outcome.interrupted:
        kept = sum(epochs_kept(run, opened) for run in study.all_runs())
        say(end)
        say(f"interrupted; the same command resumes ({count(kept, 'epoch')} of unfinished runs are kept)")
        return
    for line in [*crash_lines(records), *(applied_lines(records) if settings.trainer else ())]:
        say(line)
    if memories:
        show(verdict_table(memories, until=until, explain=verbose), legend=verbose)
    if memories and (verbose or metric != "test_accuracy"):
        say(metric_reason(metric, records))
    say(f"{end}; next: initmem report {store}")


def epochs_kept(run: Run, store: Store) -> int:
    """How many epochs of an unfinished run its newest checkpoint holds."""
    from initmem.clocks import updates_per_epoch
    from initmem.data.sources import sizes

    update = store.checkpoints.newest(run.id)
    return update // updates_per_epoch(run.recipe.network, sizes(run.recipe.network).n_train) if update else 0
