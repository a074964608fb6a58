"""Stop a study whose first runs all fail alike: the rest would, too."""

from __future__ import annotations

from initmem.engines.events import Event, Finished, Listener
from initmem.errors import InitmemError
from initmem.store.causes import cause_line, same_cause
from initmem.store.store import Store

FIRST = 3  # runs that have to fail alike, with none that does not


class StoppedEarly(InitmemError):
    """The first runs of a study failed alike; what was trained is kept."""


class EarlyStop:
    """A listener between an engine and whoever watches. An error in it stops the engine."""

    def __init__(self, listen: Listener, store: Store, runs: int) -> None:
        self._listen, self._store, self._runs = listen, store, runs
        self._causes: list[str] = []
        self._armed = runs > FIRST

    def __call__(self, event: Event) -> None:
        """Pass an event on, and look at the runs that have a record now."""
        self._listen(event)
        if not isinstance(event, Finished) or not self._armed:
            return
        for run_id, status in event.runs:
            self._armed = self._armed and status == "failed"
            if self._armed:
                self._causes.append(cause_line(self._store.read(run_id)))
        self._armed = self._armed and len({same_cause(cause) for cause in self._causes}) <= 1
        if self._armed and len(self._causes) >= FIRST:
            raise StoppedEarly(
                f"stopped: the first {len(self._causes)} of {self._runs} runs all failed with "
                f"{self._causes[0]} (their tracebacks are in {self._store.path}; when the cause is fixed, "
                "the same call tries them again; keep_going=True or --keep-going trains the rest anyway)"
            )
