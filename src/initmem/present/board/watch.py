"""Watch a store: read it again when it may have changed, and tell those who look which parts did.

A board must not take the time of the training it shows: it looks the less often the longer a look takes,
and not at all while nobody watches.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from markupsafe import Markup

from initmem.present.board.live import asked_runs, live
from initmem.present.page import html
from initmem.present.page.audit import place, run_rows
from initmem.present.page.charts import numbers
from initmem.present.page.content import Content
from initmem.present.page.facts import Kept, fingerprint
from initmem.present.survey import Survey
from initmem.results import Results
from initmem.study import Run

TICK = 1.0  # seconds between two looks at the runs in flight, at least
LOOK_SHARE, SURVEY_SHARE = 0.05, 0.1  # of one core, at most
SURVEY_EVERY = 5.0  # seconds; sooner when a run was claimed or let go
WAITING = html.Part("", Markup('<p class="lead">Reading the store …</p>'))


class Watcher:
    """The state of a board. One thread looks at the store; any number may ask and wait for changes."""

    def __init__(self, store: Results) -> None:
        self.store = store
        self.content: Content | None = None
        self._parts = {name: WAITING._replace(title=title) for name, title in titles().items()}
        self._asked: dict[str, Run] = {}
        self._kept = Kept()
        self._seen: int | None = None
        self._version = 0
        self._change = threading.Condition()
        self._watched, self._stop = threading.Event(), threading.Event()
        self._eyes = 0
        self._thread = threading.Thread(target=self._loop, name="watcher", daemon=True)

    # -- for those who look -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to watch; the first look is taken at once."""
        self._watched.set()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and everyone who waits."""
        self._stop.set()
        self._watched.set()
        with self._change:
            self._change.notify_all()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Say that somebody looks."""
        with self._change:
            self._eyes += 1
            self._watched.set()
        try:
            yield
        finally:
            with self._change:
                self._eyes -= 1

    def parts(self) -> dict[str, html.Part]:
        """The sections as they are now."""
        with self._change:
            return dict(self._parts)

    def tags(self, after: int, timeout: float) -> tuple[int, dict[str, str]] | None:
        """The version and the tag of every section, once newer than `after`; None when nothing changed."""
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
        """Wait a moment for the first verdicts, so that a small store is there from the start."""
        with self._change:
            self._change.wait_for(lambda: self.content is not None or self._stop.is_set(), patience)

    def runs(self, recipe_id: str) -> dict[str, Any] | None:
        """The rows of the table of runs."""
        content = self.content
        for recipe, records in content.groups.items() if content else ():
            if recipe.id == recipe_id:
                return run_rows(content, records)  # type: ignore[arg-type]
        return None

    def run(self, run_id: str) -> dict[str, Any] | None:
        """One run with its curves, finished or in flight; None where there is no such run."""
        content = self.content
        record = next((r for r in content.survey.records if r.id == run_id), None) if content else None
        if record is not None:
            columns = {name: column.tolist() for name, column in record.history.items()}
            return self._shown(record.run, run_id, record.status, columns, record.error)
        flight = self.store.flight(run_id)
        if not flight.rows and flight.claim is None:
            return None
        names = flight.rows[0] if flight.rows else ()
        rows = {name: [row.get(name) for row in flight.rows] for name in names if name != "epoch"}
        return self._shown(self._asked.get(run_id), run_id, "training", rows, None)

    def _shown(
        self, run: Run | None, run_id: str, status: str, columns: Mapping[str, Any], error: str | None
    ) -> dict[str, Any]:
        where = place(self.content, run) if self.content and run else ""
        history = {name: numbers(values) for name, values in columns.items()}
        return {"id": run_id, "place": where, "status": status, "error": error, "history": history}

    # -- the thread -------------------------------------------------------------------------------------

    def _loop(self) -> None:
        surveyed, cost, claims = -1e9, 0.0, frozenset[str]()
        while not self._stop.is_set():
            self._watched.wait()
            began = time.monotonic()
            now = frozenset[str]()
            try:
                now = frozenset(self.store.in_flight())
                since = began - surveyed
                due = since > SURVEY_EVERY or now != claims
                if due and since > cost / SURVEY_SHARE:
                    self._survey(now)
                    surveyed, claims = time.monotonic(), now
                    cost = surveyed - began
                self._look(now)
            except Exception as error:  # whatever it is, those who watch should see it, and it may pass
                self._trouble(error)
            spent = time.monotonic() - began - (cost if surveyed > began else 0.0)
            self._stop.wait(max(TICK, spent / LOOK_SHARE))
            with self._change:
                if not self._eyes and not self._stop.is_set():
                    self._watched.clear()

    def _survey(self, in_flight: frozenset[str]) -> None:
        """Read everything and publish section by section, the quick ones first."""
        survey = Survey.of(self.store)
        asked = tuple(json.dumps(study.to_json()) for study in survey.studies)
        seen = hash((fingerprint(survey.records), tuple(survey.damaged), asked, survey.in_flight))
        if seen == self._seen:
            return
        content = Content(survey, self._kept)
        self._asked = asked_runs(content)
        for name, (title, data) in html.PARTS.items():
            if self._stop.is_set():
                return
            values = data(content)
            inside = Markup("") if values is None else html.fragment(name, values)
            self.content = content
            self._publish(name, html.Part(title, inside))
            self._look(in_flight)  # some sections take their time
        self._seen = seen

    def _look(self, in_flight: frozenset[str]) -> None:
        if self.content is not None:
            flights = {run_id: self.store.flight(run_id) for run_id in sorted(in_flight)}
            values = live(self.content, self._asked, flights)
            self._publish("live", html.Part("Now", html.fragment("live", values)))

    def _trouble(self, error: Exception) -> None:
        line = f"The store cannot be read: {error or type(error).__name__}"
        if self._publish("live", html.Part("Now", html.fragment("trouble", {"line": line}))):
            print(f"initmem: {line}", file=sys.stderr)

    def _publish(self, name: str, part: html.Part) -> bool:
        """Show a section; False if it was there already."""
        with self._change:
            if self._parts[name].tag == part.tag:
                return False
            self._parts[name] = part
            self._version += 1
            self._change.notify_all()
            return True


def titles() -> dict[str, str]:
    """Sections of the board in order: what is going on now, then those of the report."""
    return {"live": "Now"} | {name: title for name, (title, _) in html.PARTS.items()}


def to_json(value: Mapping[str, Any]) -> bytes:
    """For the page's script."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
