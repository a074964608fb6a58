"""Watch a store: read it again when it may have changed, and announce which sections of the board changed.

A board must not slow down the training it shows: the longer an update takes, the less often it happens, and
while no page is open there are none.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from markupsafe import Markup

from initmem.plots.html import numbers
from initmem.report.content import Content
from initmem.report.live import live
from initmem.report.page import SECTIONS, Section, fragment, section
from initmem.report.tables import describe, run_rows
from initmem.store.results import Results, Survey
from initmem.study import Run

TICK = 1.0  # seconds between two polls of the runs in training, at least
READ_EVERY = 5.0  # seconds between two readings of all records; sooner when a run was claimed or released
POLL_SHARE, READ_SHARE, RENDER_SHARE = 0.05, 0.1, 0.1  # of one core, at most
READING = Markup('<p class="lead">Reading the store …</p>')
TITLES = {"live": "Now"} | {name: title for name, (title, _) in SECTIONS.items()}


class Watcher:
    """The state of a board. One thread reads the store; others read the state and wait for changes."""

    def __init__(self, store: Results) -> None:
        self.store = store
        self.content: Content | None = None
        self.stopped = False
        self._sections = {name: Section(title, READING) for name, title in TITLES.items()}
        self._rendered: Content | None = None
        self._claimed: frozenset[str] = frozenset()
        self._problem = self._printed = ""
        self._version = self._clients = 0
        self.fresh = False  # whether the live section is newer than the last sleep
        self._change = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="watcher", daemon=True)

    # -- for the server -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start watching; the first update follows at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wake everyone who waits."""
        with self._change:
            self.stopped = True
            self._change.notify_all()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the watcher awake while a client watches."""
        with self._change:
            self._clients += 1
            self._change.notify_all()
        try:
            yield
        finally:
            with self._change:
                self._clients -= 1

    def sections(self) -> dict[str, Section]:
        """The sections as they are now."""
        with self._change:
            return dict(self._sections)

    def tags(self, after: int, timeout: float) -> tuple[int, dict[str, str]] | None:
        """Wait for a version newer than `after`: its number and all tags of sections; None at the timeout."""
        with self._change:
            self._change.wait_for(lambda: self._version > after or self.stopped, timeout)
            if self.stopped or self._version <= after:
                return None
            return self._version, {name: one.tag for name, one in self._sections.items()}

    def wait_until_fresh(self, timeout: float) -> None:
        """Wait for the first verdicts and, after a sleep, for an update."""

        def ready() -> bool:
            return self.stopped or (self.fresh and self._sections["verdicts"].html != READING)

        with self._change:
            self._change.wait_for(ready, timeout)

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
            return self._history(record.run, run_id, record.status, record.history, record.error)
        flight = self.store.live_run(run_id)
        if not flight.rows and flight.claim is None:
            return None
        names = [name for name in (flight.rows[0] if flight.rows else ()) if name != "epoch"]
        columns = {name: [row.get(name) for row in flight.rows] for name in names}
        run = content.requested.get(run_id) if content else None
        return self._history(run, run_id, "training", columns, None)

    def _history(
        self, run: Run | None, run_id: str, status: str, columns: Mapping[str, Any], error: str | None
    ) -> dict[str, Any]:
        return {
            "id": run_id,
            "about": describe(self.content, run) if self.content and run else "",
            "status": status,
            "error": error,
            "history": {name: numbers(values) for name, values in columns.items()},
        }

    # -- the thread -------------------------------------------------------------------------------------

    def _loop(self) -> None:
        polling, reading = Budget(POLL_SHARE, TICK), Budget(READ_SHARE, TICK)
        rendering = Budget(RENDER_SHARE)
        claims, last_read = frozenset[str](), -math.inf
        while not self.stopped:
            try:
                with polling.spending():
                    self._claimed = frozenset(self.store.in_flight())
                due = self._claimed != claims or time.monotonic() - last_read > READ_EVERY
                if due and reading.rest() <= 0:
                    with reading.spending():
                        self._read()
                    claims, last_read, self._problem = self._claimed, time.monotonic(), ""
                if self._rendered is not self.content and rendering.rest() <= 0:
                    first = self._rendered is None
                    with rendering.spending():
                        self._render()
                    if first:  # everything was new: the next time will take less
                        rendering = Budget(RENDER_SHARE)
                with polling.spending():
                    self._show_live()
            except Exception as error:  # whatever it is, the page should show it, and it may pass
                self._show_problem(error)
            with self._change:
                self._change.wait_for(lambda: self.stopped, max(0.0, polling.rest()))
                if not self._clients:
                    self.fresh = False
                    self._change.wait_for(lambda: self.stopped or self._clients)

    def _read(self) -> None:
        """Read what is new in the store."""
        content = Content(Survey.of(self.store), self.content)
        if self.content is None or content.state != self.content.state:
            self.content = content

    def _render(self) -> None:
        """Render and publish section by section."""
        content = self.content
        if content is None:
            return
        for name in SECTIONS:
            if self.stopped:
                return
            self._show_live()  # some sections take their time
            self._publish(name, section(name, content))
        self._rendered = content

    def _show_live(self) -> None:
        """Publish the live section."""
        if self.content is None and not self._problem:
            return
        values: dict[str, Any] = {"problem": self._problem, "content": None}
        if self.content is not None:
            values |= live(self.content, {run_id: self.store.live_run(run_id) for run_id in self._claimed})
        self._publish("live", Section("Now", fragment("live", values)))
        with self._change:
            self.fresh = True
            self._change.notify_all()

    def _show_problem(self, error: Exception) -> None:
        """Show what is wrong: on the terminal once, on the page until the store can be read again."""
        self._problem = f"The store cannot be read: {str(error) or type(error).__name__}"
        if self._problem != self._printed:
            self._printed = self._problem
            print(f"initmem: {self._problem}", file=sys.stderr)
        try:
            self._show_live()
        except Exception:  # then only the problem is shown
            only = fragment("live", {"problem": self._problem, "content": None})
            self._publish("live", Section("Now", only))

    def _publish(self, name: str, one: Section) -> None:
        with self._change:
            if self._sections[name].tag != one.tag:
                self._sections[name] = one
                self._version += 1
                self._change.notify_all()


class Budget:
    """Keeps repeated work within a share of the time, with at least `least` seconds between repetitions."""

    def __init__(self, share: float, least: float = 0.0) -> None:
        self._share, self._least = share, least
        self._next = -math.inf

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
