"""Watch a store: read it again when it may have changed, and tell the clients which sections changed.

A board must not slow down the training it shows: the longer a look takes, the less often it looks, and
while nobody watches it does not look at all.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from markupsafe import Markup

from initmem.plots.html import numbers
from initmem.report import page
from initmem.report.audit import place, run_rows
from initmem.report.board.live import live, requested_runs
from initmem.report.content import Content
from initmem.report.recipe_stats import Kept, fingerprint
from initmem.store.results import Results, Survey
from initmem.study import Run

TICK = 1.0  # seconds between two looks at the runs in training, at least
READ_EVERY = 5.0  # seconds between two readings of all records; sooner when a run was claimed or released
LOOK_SHARE, READ_SHARE, RENDER_SHARE = 0.05, 0.1, 0.1  # of one core, at most
WAITING = page.Part("", Markup('<p class="lead">Reading the store …</p>'))


class Watcher:
    """The state of a board. One thread looks at the store; any number may read it and wait for changes."""

    def __init__(self, store: Results) -> None:
        self.store = store
        self.content: Content | None = None
        self._parts = {name: WAITING._replace(title=title) for name, title in titles().items()}
        self._requested: dict[str, Run] = {}
        self._kept = Kept()
        self._read_state: int | None = None  # hash of what was read last
        self._rendered: int | None = None  # hash of what the sections show
        self._claimed: frozenset[str] = frozenset()
        self._problem = self._printed = ""
        self._version = 0
        self._change = threading.Condition()
        self._watched, self._stop = threading.Event(), threading.Event()
        self._clients = 0
        self._fresh = False  # whether a look was taken since the watcher last slept
        self._thread = threading.Thread(target=self._loop, name="watcher", daemon=True)

    # -- for the server -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching; the first look follows at once."""
        self._watched.set()
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wake everyone who waits."""
        self._stop.set()
        self._watched.set()
        with self._change:
            self._change.notify_all()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the watcher awake while a client watches."""
        with self._change:
            self._clients += 1
            self._watched.set()
        try:
            yield
        finally:
            with self._change:
                self._clients -= 1

    def parts(self) -> dict[str, page.Part]:
        """The sections as they are now."""
        with self._change:
            return dict(self._parts)

    def tags(self, after: int, timeout: float) -> tuple[int, dict[str, str]] | None:
        """Wait for a version newer than `after`: its number and all tags of sections; None at the timeout."""
        with self._change:
            self._change.wait_for(lambda: self._version > after or self._stop.is_set(), timeout)
            if self._stop.is_set() or self._version <= after:
                return None
            return self._version, {name: part.tag for name, part in self._parts.items()}

    @property
    def stopped(self) -> bool:
        """Whether the board is closing."""
        return self._stop.is_set()

    def first_look(self, patience: float) -> None:
        """Wait a moment for the first verdicts and, after a sleep, for a new look."""

        def ready() -> bool:
            return self._fresh and self._parts["verdicts"].html != WAITING.html

        with self._change:
            self._change.wait_for(lambda: ready() or self.stopped, patience)

    def runs(self, recipe_id: str) -> dict[str, Any] | None:
        """The rows of the table of runs."""
        content = self.content
        for recipe, records in content.groups.items() if content else ():
            if recipe.id == recipe_id:
                return run_rows(content, records)  # type: ignore[arg-type]
        return None

    def run(self, run_id: str) -> dict[str, Any] | None:
        """One run with its curves, finished or in training; None if there is no such run."""
        content = self.content
        record = next((r for r in content.survey.records if r.id == run_id), None) if content else None
        if record is not None:
            columns = {name: column.tolist() for name, column in record.history.items()}
            return self._shown(record.run, run_id, record.status, columns, record.error)
        flight = self.store.live_run(run_id)
        if not flight.rows and flight.claim is None:
            return None
        names = flight.rows[0] if flight.rows else ()
        rows = {name: [row.get(name) for row in flight.rows] for name in names if name != "epoch"}
        return self._shown(self._requested.get(run_id), run_id, "training", rows, None)

    def _shown(
        self, run: Run | None, run_id: str, status: str, columns: Mapping[str, Any], error: str | None
    ) -> dict[str, Any]:
        where = place(self.content, run) if self.content and run else ""
        history = {name: numbers(values) for name, values in columns.items()}
        return {"id": run_id, "place": where, "status": status, "error": error, "history": history}

    # -- the thread -------------------------------------------------------------------------------------

    def _loop(self) -> None:
        looking, reading, rendering = Budget(LOOK_SHARE, TICK), Budget(READ_SHARE, TICK), Budget(RENDER_SHARE)
        claims, last_read = frozenset[str](), -math.inf
        while not self._stop.is_set():
            self._watched.wait()
            try:
                with looking.spending():
                    self._claimed = frozenset(self.store.in_flight())
                if reading.due() and (self._claimed != claims or time.monotonic() - last_read > READ_EVERY):
                    with reading.spending():
                        self._read()
                    claims, last_read, self._problem = self._claimed, time.monotonic(), ""
                if self._rendered != self._read_state and rendering.due():
                    first = self._rendered is None
                    with rendering.spending():
                        self._render()
                    if first:  # everything was new: this says nothing about the next time
                        rendering = Budget(RENDER_SHARE)
                with looking.spending():
                    self._look()
            except Exception as error:  # whatever it is, the page should show it, and it may pass
                self._show_problem(error)
            self._stop.wait(max(0.0, looking.rest()))
            with self._change:
                if not self._clients and not self._stop.is_set():
                    self._watched.clear()
                    self._fresh = False

    def _read(self) -> None:
        """Read what is new in the store."""
        survey = Survey.of(self.store)
        studies = tuple(json.dumps(study.to_json()) for study in survey.studies)
        state = hash((fingerprint(survey.records), tuple(survey.damaged), studies, survey.training))
        if state != self._read_state:
            self._read_state = state
            self.content = Content(survey, self._kept)
            self._requested = requested_runs(self.content)

    def _render(self) -> None:
        """Render and publish section by section."""
        content, state = self.content, self._read_state
        if content is None:
            return
        for name, (title, data) in page.PARTS.items():
            if self._stop.is_set():
                return
            self._look()  # some sections take their time
            values = data(content)
            inside = Markup("") if values is None else page.fragment(name, values)
            self._publish(name, page.Part(title, inside))
        self._rendered = state

    def _look(self) -> None:
        """Publish the live section."""
        if self.content is None and not self._problem:
            return
        values: dict[str, Any] = {"problem": self._problem, "total": None}
        if self.content is not None:
            flights = {run_id: self.store.live_run(run_id) for run_id in sorted(self._claimed)}
            values |= live(self.content, self._requested, flights)
        self._publish("live", page.Part("Now", page.fragment("live", values)))
        with self._change:
            self._fresh = True
            self._change.notify_all()

    def _show_problem(self, error: Exception) -> None:
        """Show what is wrong: on the terminal once, on the page until the store can be read again."""
        self._problem = f"The store cannot be read: {error or type(error).__name__}"
        if self._problem != self._printed:
            self._printed = self._problem
            print(f"initmem: {self._problem}", file=sys.stderr)
        try:
            self._look()
        except Exception:  # then only the problem is shown
            only = page.fragment("live", {"problem": self._problem, "total": None})
            self._publish("live", page.Part("Now", only))

    def _publish(self, name: str, part: page.Part) -> None:
        with self._change:
            if self._parts[name].tag != part.tag:
                self._parts[name] = part
                self._version += 1
                self._change.notify_all()


class Budget:
    """Keeps repeated work within a share of the time, with at least `least` seconds between repetitions."""

    def __init__(self, share: float, least: float = 0.0) -> None:
        self._share, self._least = share, least
        self._next = -math.inf

    def due(self) -> bool:
        """Whether the work may be repeated now."""
        return self.rest() <= 0

    def rest(self) -> float:
        """Seconds until the work may be repeated."""
        return self._next - time.monotonic()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Time the work inside; work done before it is due adds to the wait."""
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            pause = (ended - began) * (1 / self._share - 1)
            self._next = max(self._next + pause, ended + max(self._least, pause))


def titles() -> dict[str, str]:
    """The sections of the board in order: the live one, then those of the report."""
    return {"live": "Now"} | {name: title for name, (title, _) in page.PARTS.items()}


def to_json(value: Mapping[str, Any]) -> bytes:
    """For the page's script."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
