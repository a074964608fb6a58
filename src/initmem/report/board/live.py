"""What only the live page shows: runs in training, pace, time left."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from initmem.data.sources import sizes
from initmem.engines.execute import cost
from initmem.engines.progress import duration
from initmem.errors import InitmemError, count
from initmem.measures.design import preferred
from initmem.metric import metric_of, metric_title
from initmem.plots.html import course, tick
from initmem.recipe import AnyRecipe, network_of
from initmem.report.audit import failures
from initmem.report.content import Content, runs_of
from initmem.store.claims import EXPIRY, Flight
from initmem.study import Run
from initmem.table import Cell, Column, Table, cell

SHOWN = 24  # runs in training shown one by one
RECENT = 5  # epochs of each run that the current pace is computed from


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the runs proceed. None: not known yet."""

    workers: int
    epochs_per_minute: float | None
    runs_per_hour: float | None
    seconds_left: float | None


def requested_runs(content: Content) -> dict[str, Run]:
    """Every run that the studies ask for, by id."""
    return {run.id: run for study in content.survey.studies for run in study.all_runs()}


def live(content: Content, requested: Mapping[str, Run], flights: Mapping[str, Flight]) -> dict[str, Any]:
    """The values for the template of the live section."""
    done = {record.id for record in content.survey.records}
    training = {
        run_id: flight for run_id, flight in flights.items() if run_id in requested and run_id not in done
    }
    alive = {run_id: flight for run_id, flight in training.items() if flight.silence < EXPIRY}
    total, finished = len(requested), sum(run_id in done for run_id in requested)
    speed = pace(content, requested, training)
    order = sorted(training, key=lambda run_id: (run_id not in alive, *_place(content, requested[run_id])))
    shown = {requested[run_id]: training[run_id] for run_id in order[:SHOWN]}
    return {
        "total": total,
        "finished": finished,
        "share": _share_done(content, requested, done, training),
        "training": len(alive),
        "pace": speed,
        "left": "" if speed.seconds_left is None else duration(speed.seconds_left),
        "summary": summary(total, finished, len(alive), len(training) - len(alive)),
        "flights": flight_table(content, shown) if shown else None,
        "more": len(order) - len(shown),
        "recipes": _recipes(content, requested, done, alive),
        "failures": failures(content),
    }


def summary(total: int, finished: int, training: int, lost: int) -> str:
    """The state in one sentence."""
    if not total:
        return "No study has been run in this store yet."
    if finished == total:
        return f"All {total:,} runs are done."
    if not training:
        ended = " The workers that claimed runs have ended or no longer respond." if lost else ""
        left = "1 run is" if total - finished == 1 else f"{total - finished:,} runs are"
        return f"{left} left, and no worker is running.{ended}"
    ended = f", {lost:,} of them claimed by a worker that has ended" if lost else ""
    return f"{count(training, 'run')} in training, {total - finished - training:,} waiting{ended}."


def pace(content: Content, requested: Mapping[str, Run], training: Mapping[str, Flight]) -> Pace:
    """The current pace, from the last epochs of the runs in training; the time left, from all epochs so far.

    The seconds of a run are its share of the pack's, so that they add up to the time of one worker.
    """
    alive = {run_id: flight for run_id, flight in training.items() if flight.silence < EXPIRY}
    workers = {(f.claim.host, f.claim.pid) for f in alive.values() if f.claim is not None}
    recent = [row["seconds"] for f in alive.values() for row in f.rows[-RECENT:] if "seconds" in row]
    per_epoch = sum(recent) / len(recent) if recent else None
    rate = 60 * len(workers) / per_epoch if per_epoch and workers else None
    lengths = [length for run_id in alive if (length := content.epochs(requested[run_id].recipe))]
    hourly = rate * 60 * len(lengths) / sum(lengths) if rate and lengths else None
    left = _work_left(content, requested, training)
    seconds = None
    if left and workers:  # all workers share the work, but each finishes its own pack alone
        own: defaultdict[tuple[str, int], float] = defaultdict(float)
        for run_id, flight in alive.items():
            if flight.claim is not None and run_id in left:
                own[flight.claim.host, flight.claim.pid] += left[run_id]
        seconds = max(sum(left.values()) / len(workers), *own.values())
    return Pace(len(workers), rate, hourly, seconds)


def _work_left(
    content: Content, requested: Mapping[str, Run], training: Mapping[str, Flight]
) -> dict[str, float]:
    """Seconds of one worker for each run that is not done; empty while no epoch has been timed.

    The time of a recipe that has not started is estimated from the others by relative cost.
    """
    spent: dict[AnyRecipe, list[float]] = {}  # [seconds, epochs]
    for recipe, records in content.groups.items():
        for record in records:
            origin = record.provenance
            if record.status != "failed" and "seconds" in origin and record.summary.epochs:
                share = float(origin["seconds"]) / float(origin.get("pack") or 1)
                _add(spent, recipe, share, record.summary.epochs)
    for run_id, flight in training.items():
        seconds = sum(row.get("seconds", 0.0) for row in flight.rows)
        _add(spent, requested[run_id].recipe, seconds, len(flight.rows))
    known = {recipe: seconds / epochs for recipe, (seconds, epochs) in spent.items() if epochs}
    if not known:
        return {}
    costs = {recipe: relative_cost(recipe) for recipe in content.names}
    unit = sum(known.values()) / sum(costs[recipe] for recipe in known)
    done = {record.id for record in content.survey.records}
    left = {}
    for run_id, run in requested.items():
        if run_id not in done:
            epochs_done = len(training[run_id].rows) if run_id in training else 0
            per_epoch = known.get(run.recipe, unit * costs[run.recipe])
            left[run_id] = per_epoch * max(0, (content.epochs(run.recipe) or 0) - epochs_done)
    return left


def _add(spent: dict[AnyRecipe, list[float]], recipe: AnyRecipe, seconds: float, epochs: int) -> None:
    so_far = spent.setdefault(recipe, [0.0, 0.0])
    so_far[0] += seconds
    so_far[1] += epochs


def relative_cost(recipe: AnyRecipe) -> float:
    """The relative cost of one epoch; 1 where it is unknown (user code, or data that is not here)."""
    try:
        network = network_of(recipe)
        return cost(network, sizes(network)) / network.epochs
    except InitmemError:
        return 1.0


def _share_done(
    content: Content, requested: Mapping[str, Run], done: set[str], training: Mapping[str, Flight]
) -> float:
    """The share of all epochs that is done; a run of unknown length counts as one epoch."""
    lengths = {run_id: content.epochs(run.recipe) or 1 for run_id, run in requested.items()}
    epochs_done = sum(length for run_id, length in lengths.items() if run_id in done)
    epochs_done += sum(min(len(f.rows), lengths[run_id] - 1) for run_id, f in training.items())
    return epochs_done / sum(lengths.values()) if lengths else 0.0


def _place(content: Content, run: Run) -> tuple[str, float, int]:
    return content.names.get(run.recipe, "unknown"), run.scale, run.seed


def flight_table(content: Content, flights: Mapping[Run, Flight]) -> Table:
    """The runs in training: how far each is, its curve so far, and its worker."""
    columns = [
        Column("compare", "picture", "tick runs to see their curves together"),
        Column("run", "text"),
        Column("recipe", "text"),
        Column("σ"),
        Column("seed"),
        Column("epoch"),
        Column("so far", "picture", "the metric against epoch"),
        Column("latest", about="the metric at the last epoch"),
        Column("metric", "text"),
        Column("worker", "text"),
    ]
    rows = [_row(content, run, flight) for run, flight in flights.items()]
    return Table("Runs in training", columns, rows, id="flights", style="flights")


def _row(content: Content, run: Run, flight: Flight) -> list[Cell]:
    recipe, scale, seed = _place(content, run)
    epoch, epochs = len(flight.rows), content.epochs(run.recipe)
    metric = next(iter(preferred(name for row in flight.rows for name in row)), "")
    known = [float(row.get(metric, math.nan)) for row in flight.rows]
    values = [value for value in known if math.isfinite(value)]
    accuracy = metric_of(metric).is_percentage
    bounds = (0.0, 1.0) if accuracy else (min(values, default=0.0), max(values, default=1.0))
    latest = values[-1] * (100 if accuracy else 1) if values else None
    return [
        Cell(picture=tick(run.id)),
        cell(run.id, href=f"#run:{run.id}", style="id"),
        cell(recipe, style="name"),
        cell(scale, "g", style="sigma"),
        cell(seed, "d", style="seed"),
        Cell(epoch, f"{epoch}/{epochs}" if epochs else str(epoch), style="epoch"),
        Cell(picture=course(values, max(epochs or 0, len(values)), *bounds) if values else ""),
        cell(latest, ".1f" if accuracy else ".4g", style="val"),
        cell(metric_title(metric)),
        cell(_worker(flight), style="remark silent" if flight.silence >= EXPIRY else "remark"),
    ]


def _worker(flight: Flight) -> str:
    """Who trains a run, in which attempt, and whether there is a sign of life."""
    claim, silent = flight.claim, flight.silence >= EXPIRY
    said = [f"{claim.host.partition(' ')[0]} {claim.pid}"] if claim else []
    said += [f"attempt {flight.attempt}"] if flight.attempt > 1 else []
    if silent:
        known = math.isfinite(flight.silence)
        said.append(f"no heartbeat for {duration(flight.silence)}" if known else "process has ended")
    return ", ".join(said)


def _recipes(
    content: Content, requested: Mapping[str, Run], done: set[str], training: Mapping[str, Flight]
) -> Sequence[dict[str, Any]]:
    """Progress per recipe."""
    runs: dict[AnyRecipe, list[str]] = {}
    for run_id, run in requested.items():
        runs.setdefault(run.recipe, []).append(run_id)
    return [
        {
            "name": content.names[recipe],
            "href": runs_of(recipe.id),
            "runs": len(ids),
            "done": sum(run_id in done for run_id in ids),
            "training": sum(run_id in training for run_id in ids),
        }
        for recipe, ids in runs.items()
    ]
