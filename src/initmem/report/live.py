"""What only the board shows: progress, pace, time left, and the runs in training."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from initmem.engines.packs import cost
from initmem.errors import InitmemError, duration
from initmem.measures.design import preferred
from initmem.metric import metric_title
from initmem.plots.html import course
from initmem.recipe import AnyRecipe
from initmem.report.content import Array, Content
from initmem.report.tables import failures
from initmem.store.claims import EXPIRY, LiveRun
from initmem.study import Run

SHOWN = 24  # runs in training shown one by one
RECENT = 5  # epochs of each run that the current pace is computed from

Flights = Mapping[str, LiveRun]  # by run id


def live(content: Content, flights: Flights) -> dict[str, Any]:
    """The values for the template of the live section."""
    requested = content.requested
    done = {record.id for record in content.survey.records} & set(requested)
    training = {
        run_id: flight for run_id, flight in flights.items() if run_id in requested and run_id not in done
    }
    alive = {run_id: flight for run_id, flight in training.items() if flight.heartbeat_age < EXPIRY}
    lengths = {run_id: content.epochs(run.recipe) or 1 for run_id, run in requested.items()}
    epochs_done = sum(lengths[run_id] for run_id in done)
    epochs_done += sum(min(len(f.rows), lengths[run_id] - 1) for run_id, f in training.items())
    speed = pace(content, training, alive)
    order = sorted(training, key=lambda run_id: (run_id not in alive, *_key(content, requested[run_id])))
    counts = {  # runs by recipe: all, done, in training
        name: Counter(requested[run_id].recipe for run_id in ids)
        for name, ids in (("runs", requested), ("done", done), ("training", alive))
    }
    return {
        "content": content,
        "total": len(requested),
        "finished": len(done),
        "share": epochs_done / sum(lengths.values()) if lengths else 0.0,
        "training": len(alive),
        "lost": len(training) - len(alive),
        "pace": speed,
        "left": "" if speed.seconds_left is None else duration(speed.seconds_left),
        "flights": [in_training(content, requested[run_id], training[run_id]) for run_id in order[:SHOWN]],
        "more": len(order) - SHOWN,
        "counts": counts,
        "failures": failures(content),
    }


def _key(content: Content, run: Run) -> tuple[str, float, int]:
    return content.names[run.recipe], run.scale, run.seed


# -- pace -------------------------------------------------------------------------------------------------


class Pace(NamedTuple):
    """How fast the runs proceed. None: unknown."""

    workers: int
    epochs_per_minute: float | None
    runs_per_hour: float | None
    seconds_left: float | None


def pace(content: Content, training: Flights, alive: Flights) -> Pace:
    """The current pace, from the last epochs of the runs in training; the time left, from all epochs so far.

    The seconds of a run are its share of the pack's seconds, so they add up to the time of one worker.
    """
    workers = {(f.claim.host, f.claim.pid) for f in alive.values() if f.claim is not None}
    recent = [row["seconds"] for f in alive.values() for row in f.rows[-RECENT:] if "seconds" in row]
    per_minute = 60 * len(workers) * len(recent) / sum(recent) if workers and sum(recent) else None
    lengths = [content.epochs(content.requested[run_id].recipe) or 0 for run_id in alive]
    per_hour = per_minute * 60 * len(lengths) / sum(lengths) if per_minute and all(lengths) else None
    left = _seconds_left(content, training)
    seconds = None
    if left and workers:  # all workers share the work, but each finishes its own pack alone
        own = dict.fromkeys(workers, 0.0)
        for run_id, flight in alive.items():
            if flight.claim is not None:
                own[flight.claim.host, flight.claim.pid] += left[run_id]
        seconds = max(sum(left.values()) / len(workers), *own.values())
    return Pace(len(workers), per_minute, per_hour, seconds)


def _seconds_left(content: Content, training: Flights) -> dict[str, float]:
    """Seconds of one worker for each run that is not done; empty where time or length are unknown yet."""
    per_epoch = _seconds_per_epoch(content, training)
    if not per_epoch:
        return {}
    done = {record.id for record in content.survey.records}
    left = {}
    for run_id, run in content.requested.items():
        if run_id not in done:
            epochs = content.epochs(run.recipe)
            if epochs is None:  # user code, none of whose runs has finished
                return {}
            epochs_done = len(training[run_id].rows) if run_id in training else 0
            left[run_id] = per_epoch[run.recipe] * max(0, epochs - epochs_done)
    return left


def _seconds_per_epoch(content: Content, training: Flights) -> dict[AnyRecipe, float]:
    """Seconds of one worker per epoch. A recipe that has not started is estimated by its relative cost."""
    totals: defaultdict[AnyRecipe, Array] = defaultdict(lambda: np.zeros(2))  # seconds, epochs
    for record in content.survey.records:
        origin = record.provenance
        if record.status != "crashed" and "seconds" in origin:
            totals[record.run.recipe] += origin["seconds"] / (origin.get("pack") or 1), record.summary.epochs
    for run_id, flight in training.items():
        seconds = sum(row.get("seconds", 0.0) for row in flight.rows)
        totals[content.requested[run_id].recipe] += seconds, len(flight.rows)
    measured = {recipe: float(seconds / epochs) for recipe, (seconds, epochs) in totals.items() if epochs}
    if not measured:
        return {}
    costs = {recipe: _relative_cost(recipe) for recipe in content.names}
    unit = sum(measured.values()) / sum(costs[recipe] for recipe in measured)
    return {recipe: measured.get(recipe, unit * cost) for recipe, cost in costs.items()}


def _relative_cost(recipe: AnyRecipe) -> float:
    """The relative cost of one epoch; 1 where it is unknown (user code, or data that is not here)."""
    try:
        network = recipe.network
        return cost(network) / network.epochs
    except InitmemError:
        return 1.0


# -- runs in training -------------------------------------------------------------------------------------


def in_training(content: Content, run: Run, flight: LiveRun) -> dict[str, Any]:
    """One run: how far it is, its curve so far, and its worker."""
    metric = next(iter(preferred(name for row in flight.rows for name in row)), "")
    column = [float(row.get(metric, math.nan)) for row in flight.rows]
    values = [value for value in column if math.isfinite(value)]
    epochs = content.epochs(run.recipe)
    accuracy = "accuracy" in metric
    bounds = (0.0, 1.0) if accuracy else (min(values, default=0.0), max(values, default=1.0))
    return {
        "run": run,
        "epoch": len(flight.rows),
        "epochs": epochs,
        "picture": course(values, max(epochs or 0, len(values)), *bounds) if values else "",
        "latest": values[-1] * (100 if accuracy else 1) if values else None,
        "form": ".1f" if accuracy else ".4g",
        "metric": metric_title(metric),
        "worker": _worker(flight),
        "silent": flight.heartbeat_age >= EXPIRY,
    }


def _worker(flight: LiveRun) -> str:
    """The worker of a run, its attempt, and whether its heartbeat has stopped."""
    parts = [f"{flight.claim.host.partition(' ')[0]} {flight.claim.pid}"] if flight.claim else []
    parts += [f"attempt {flight.attempt}"] if flight.attempt > 1 else []
    if flight.heartbeat_age == math.inf:
        parts.append("process has ended")
    elif flight.heartbeat_age >= EXPIRY:
        parts.append(f"no heartbeat for {duration(flight.heartbeat_age)}")
    return ", ".join(parts)
