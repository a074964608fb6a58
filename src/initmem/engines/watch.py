"""What can be seen in a store of runs that processes elsewhere train."""

from __future__ import annotations

import time
from collections.abc import Iterable

from initmem.engines.engine import EpochEnded, Finished, Listener
from initmem.files import explained
from initmem.store.store import Store
from initmem.study import Run

BREATH = 10  # looking takes at most one part in so many of the time
LEAST_PAUSE = 0.5  # seconds


class Watch:
    """Tells a listener what happens to runs, from their files alone."""

    def __init__(self, store: Store, runs: Iterable[Run], listen: Listener) -> None:
        self.store, self.listen = store, listen
        self.left = {run.id: run for run in runs if not store.has(run)}
        self._epochs: dict[str, int] = {}
        self._next = 0.0

    def look(self, *, at_once: bool = False) -> None:
        """Report finished runs and new epochs, not more often than the store can bear unless told so."""
        started = time.monotonic()
        if started < self._next and not at_once:
            return
        for run in list(self.left.values()):
            if self.store.has(run):
                del self.left[run.id]
                self.listen(Finished(((run.id, self.store.read(run.id).status),)))
            elif (epoch := self.store.live.epochs(run.id)) != self._epochs.get(run.id, 0):
                self._epochs[run.id] = epoch
                self.listen(EpochEnded((run.id,), epoch))
        ended = time.monotonic()
        self._next = ended + max(LEAST_PAUSE, BREATH * (ended - started))


class StopSign:
    """A file that asks the workers of one session, on whatever machine, to stop."""

    def __init__(self, store: Store) -> None:
        self.place, self.path = store.path, store.paths.stop_sign(store.session)

    def __enter__(self) -> StopSign:
        return self

    def __exit__(self, *_: object) -> None:
        """Take it down: nothing is left behind."""
        self.path.unlink(missing_ok=True)

    def is_up(self) -> bool:
        """Whether the workers shall stop."""
        return self.path.exists()

    def put_up(self) -> None:
        """Ask them to."""
        with explained(self.place):
            self.path.touch()
