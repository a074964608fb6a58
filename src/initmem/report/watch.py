"""The sections of the board, brought up to date whenever a page asks which of them have changed.

A board must not slow down the training it shows: the longer an update takes, the less often it happens, and
while no page is open there are none.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from initmem.engines.engine import Budget
from initmem.engines.progress import Spent, seconds_left
from initmem.errors import duration
from initmem.intervention import level_order
from initmem.measures.design import preferred
from initmem.metric import metric_of
from initmem.plots.html import course, numbers
from initmem.recipe import AnyRecipe
from initmem.report.content import Content
from initmem.report.page import SECTIONS, Section, fragment, section
from initmem.report.tables import describe, run_rows
from initmem.store.claims import EXPIRY, LiveRun
from initmem.store.faults import crashed_alike
from initmem.store.results import Results, surveyed
from initmem.study import Run

TICK = 1.0  # seconds between two polls of the runs in training, at least
READ_EVERY = 2.0  # seconds between two readings of all records, at least
POLL_SHARE, READ_SHARE = 0.03, 0.07  # of one core, at most: together a tenth
READING = Markup('<p class="lead">Reading the store …</p>')
TITLES = {"live": "Now"} | {name: title for name, (title, _) in SECTIONS.items()}


class Watcher:
    """The state of a board. One thread at a time reads the store and publishes what is new."""

    def __init__(self, store: Results) -> None:
        self.store = store
        self.content: Content | None = None
        self._sections = {name: Section(title, READING) for name, title in TITLES.items()}
        self._polling, self._reading = Budget(POLL_SHARE, TICK), Budget(READ_SHARE, READ_EVERY)
        self._claimed: list[str] = []
        self._problem = ""
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def refresh(self, patience: float) -> None:
        """Start an update, unless one is running or it is too soon, and wait for it for so many seconds."""
        with self._starting:
            running = self._thread is not None and self._thread.is_alive()
            if not running and self._polling.rest() <= 0:
                self._thread = threading.Thread(target=self._update, name="update", daemon=True)
                self._thread.start()
        if self._thread is not None:
            self._thread.join(patience)

    def sections(self) -> dict[str, Section]:
        """The sections as they are now."""
        return dict(self._sections)

    def runs(self, recipe_id: str) -> dict[str, Any] | None:
        """The rows of the table of runs; None if there is no such recipe."""
        content = self.content
        recipe = next((key for key in content.groups if key.id == recipe_id), None) if content else None
        return run_rows(content, recipe) if content and recipe else None

    def run(self, run_id: str) -> dict[str, Any] | None:
        """One run with its curves, finished or in training; None if there is no such run."""
        content = self.content
        record = next((r for r in content.survey.records if r.id == run_id), None) if content else None
        if record is not None:
            run: Run | None = record.run
            status, error, columns = str(record.status), record.error, dict[str, Any](record.history)
        else:
            live_run = self.store.live_run(run_id)
            if not live_run.rows and live_run.claim is None:
                return None
            run = content.requested.get(run_id) if content else None
            status, error = "training", None
            names = [name for name in (live_run.rows[0] if live_run.rows else ()) if name != "epoch"]
            columns = {name: [row.get(name) for row in live_run.rows] for name in names}
        return {
            "id": run_id,
            "about": "" if content is None or run is None else describe(content, run),
            "status": status,
            "error": error,
            "history": {name: numbers(values) for name, values in columns.items()},
        }

    # -- the thread -------------------------------------------------------------------------------------

    def _update(self) -> None:
        """Read what is new in the store and publish it, as far as the budgets allow."""
        try:
            with self._polling.spending():
                self._claimed = list(self.store.in_flight())
            if self._reading.rest() <= 0:
                first = self.content is None
                with self._reading.spending():
                    self._read()
                if first:  # everything was new: the next time will take less
                    self._reading = Budget(READ_SHARE, READ_EVERY)
                self._problem = ""
            with self._polling.spending():
                self._show_live()
        except Exception as error:  # whatever it is, the page should show it, and it may pass
            problem = f"The store cannot be read: {str(error) or type(error).__name__}"
            if problem != self._problem:  # on the terminal once, on the page until the store can be read
                print(f"initmem: {problem}", file=sys.stderr)
            self._problem = problem
            self._sections["live"] = Section("Now", fragment("live", {"problem": problem, "content": None}))

    def _read(self) -> None:
        """Read all records; where there are new ones, render and publish section by section."""
        content = Content(surveyed(self.store), self.content)
        if self.content is not None and content.state == self.content.state:
            return
        self.content = content
        for name in SECTIONS:
            self._show_live()  # some sections take their time
            self._sections[name] = section(name, content)

    def _show_live(self) -> None:
        """Publish the live section."""
        if self.content is not None:
            values = live(self.content, {run_id: self.store.live_run(run_id) for run_id in self._claimed})
            self._sections["live"] = Section("Now", fragment("live", {"problem": self._problem, **values}))


# -- what only the board shows: progress, pace, time left, and the runs in training -------------------------


SHOWN = 24  # runs in training shown one by one
RECENT = 5  # epochs of each run that the current pace is computed from

LiveRuns = Mapping[str, LiveRun]  # by run id


def live(content: Content, live_runs: LiveRuns) -> dict[str, Any]:
    """The values for the template of the live section."""
    requested = content.requested
    done = {record.id for record in content.survey.records} & set(requested)
    training = {
        run_id: one for run_id, one in live_runs.items() if run_id in requested and run_id not in done
    }
    alive = {run_id: one for run_id, one in training.items() if one.heartbeat_age < EXPIRY}
    epochs = {run_id: content.epochs(run.recipe) for run_id, run in requested.items()}
    to_come = {run_id: length for run_id, length in epochs.items() if run_id not in done}
    for run_id, one in training.items():
        if (length := to_come[run_id]) is not None:
            to_come[run_id] = max(0, length - len(one.rows))
    packs: defaultdict[tuple[str, int], list[str]] = defaultdict(list)  # what each worker has begun
    for run_id, one in alive.items():
        if one.claim is not None:
            packs[one.claim.host, one.claim.pid].append(run_id)
    recent = [row["seconds"] for one in alive.values() for row in one.rows[-RECENT:] if "seconds" in row]
    recipes = {run_id: run.recipe for run_id, run in requested.items()}
    left = seconds_left(to_come, recipes, _spent(content, training), packs.values())

    def rank(run_id: str) -> tuple[Any, ...]:
        run = requested[run_id]
        return run_id not in alive, content.names[run.recipe], level_order(run.level), run.seed

    of_length = sum(length or 1 for length in epochs.values())  # of user code, it may be unknown
    share = 1 - sum(1 if n is None else n for n in to_come.values()) / of_length if epochs else 0.0
    order = sorted(training, key=rank)
    counts = {  # runs by recipe: all, done, in training
        name: Counter(requested[run_id].recipe for run_id in ids)
        for name, ids in (("runs", requested), ("done", done), ("training", alive))
    }
    return {
        "content": content,
        "total": len(requested),
        "finished": len(done),
        "share": share,
        "training": len(alive),
        "lost": len(training) - len(alive),
        "workers": len(packs),
        "epochs_per_minute": 60 * len(packs) * len(recent) / sum(recent) if sum(recent) else None,
        "seconds_left": left,
        "left": "" if left is None else duration(left),
        "live_runs": [in_training(content, requested[run_id], training[run_id]) for run_id in order[:SHOWN]],
        "more": len(order) - SHOWN,
        "counts": counts,
        "crashed": crashed_alike(content.survey.records),
    }


def _spent(content: Content, training: LiveRuns) -> Mapping[AnyRecipe, Spent]:
    """What epochs took, from records and from the rows of the runs in training.

    The seconds of a run are its share of the pack's seconds, so they add up to the time of one worker.
    """
    spent: defaultdict[AnyRecipe, Spent] = defaultdict(Spent)
    for record in content.survey.records:
        origin, recipe = record.provenance, record.run.recipe
        if record.status != "crashed" and "seconds" in origin:
            seconds = origin["seconds"] / (origin.get("pack") or 1)
            spent[recipe] = spent[recipe].plus(seconds, record.summary.epochs)
    for run_id, one in training.items():
        recipe = content.requested[run_id].recipe
        spent[recipe] = spent[recipe].plus(sum(row.get("seconds", 0.0) for row in one.rows), len(one.rows))
    return spent


# -- runs in training -------------------------------------------------------------------------------------


def in_training(content: Content, run: Run, live_run: LiveRun) -> dict[str, Any]:
    """One run: how far it is, its curve so far, and its worker."""
    name = next(iter(preferred(name for row in live_run.rows for name in row)), "")
    metric, column = metric_of(name), [float(row.get(name, math.nan)) for row in live_run.rows]
    values = [value for value in column if math.isfinite(value)]
    epochs = content.epochs(run.recipe)
    bounds = (0.0, 1.0) if metric.is_percentage else (min(values, default=0.0), max(values, default=1.0))
    return {
        "run": run,
        "epoch": len(live_run.rows),
        "epochs": epochs,
        "picture": course(values, max(epochs or 0, len(values)), *bounds) if values else "",
        "latest": metric.factor * values[-1] if values else None,
        "form": ".1f" if metric.is_percentage else ".4g",
        "metric": metric.title,
        "worker": _worker(live_run),
        "silent": live_run.heartbeat_age >= EXPIRY,
    }


def _worker(live_run: LiveRun) -> str:
    """The worker of a run, its attempt, and whether its heartbeat has stopped."""
    parts = [f"{live_run.claim.host.partition(' ')[0]} {live_run.claim.pid}"] if live_run.claim else []
    parts += [f"attempt {live_run.attempt}"] if live_run.attempt > 1 else []
    if live_run.heartbeat_age == math.inf:
        parts.append("process has ended")
    elif live_run.heartbeat_age >= EXPIRY:
        parts.append(f"no heartbeat for {duration(live_run.heartbeat_age)}")
    return ", ".join(parts)
