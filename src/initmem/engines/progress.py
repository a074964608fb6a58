"""The live display of a running study."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TextIO, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from initmem.engines.engine import EpochEnded, Event, Faulted, Finished, Listener, Note, WorkerLost
from initmem.engines.packs import cost
from initmem.errors import count, duration
from initmem.plots.tables import printable
from initmem.study import Run

QUIET_SECONDS = 15.0  # between two lines where there is no terminal to draw on


# Called with all runs of a study, and with those that have no record yet.
Watch: TypeAlias = Callable[[Sequence[Run], Sequence[Run]], Listener]


class Display:
    """Shows runs done, crashed and diverged, and the time left. A listener of an engine."""

    def __init__(self, runs: Sequence[Run], left: Sequence[Run], console: Console) -> None:
        self.console = console
        self.started = self._last_line = time.monotonic()
        self.runs, self.done = len(runs), len(runs) - len(left)
        cost_of = {recipe: cost(recipe) for recipe in {run.recipe for run in left}}
        self._costs = {run.id: cost_of[run.recipe] for run in left}  # relative ones
        self._cost = max(sum(self._costs.values()), 1e-30)
        self._epochs = {run.id: run.recipe.get("epochs") or 1 for run in left}
        self.counts: Counter[str] = Counter()
        self._shares: dict[str, float] = {}  # run id -> share of its epochs that is done
        self._earlier: dict[str, float] = {}  # the same of resumed runs, before this session
        self.live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            transient=True,
        )
        self.task = self.live.add_task("training", total=1.0, text="starting workers")

    def __call__(self, event: Event) -> None:
        """Take in what an engine reports."""
        match event:
            case EpochEnded(runs, epoch):
                for run_id in runs:
                    epochs = self._epochs[run_id]
                    self._earlier.setdefault(run_id, (epoch - 1) / epochs)
                    self._shares[run_id] = epoch / epochs
            case Finished(runs):
                for run_id, status in runs:
                    self.counts[status] += 1
                    self._shares[run_id] = 1.0
                    self.done += 1
            case WorkerLost(code, lost):
                runs_lost = count(len(lost), "run")
                self.console.print(f"a worker was lost (exit code {code}); {runs_lost} will be tried again")
            case Faulted(cause, hit):
                self.console.print(f"{cause}: {count(len(hit), 'run')} will be tried again in smaller packs")
            case Note(text):
                self.console.print(printable(text), soft_wrap=True)
        self._draw()

    def _draw(self) -> None:
        """Update the bar; without a terminal, print a line now and then."""
        now = time.monotonic()
        if not self.console.is_terminal and now - self._last_line <= QUIET_SECONDS:
            return
        done, earlier = (  # shares of this session's work, by cost
            sum(self._costs.get(run_id, 0.0) * share for run_id, share in shares.items()) / self._cost
            for shares in (self._shares, self._earlier)
        )
        left = "time left unknown yet"
        if done > earlier:  # at the pace of this session
            left = f"{duration((now - self.started) * (1 - done) / (done - earlier))} left"
        states = [f"{self.counts[name]} {name}" for name in ("diverged", "crashed") if self.counts[name]]
        text = ", ".join([f"{self.done} of {count(self.runs, 'run')}", *states, left])
        if self.console.is_terminal:
            self.live.update(self.task, completed=done, text=text)
        else:
            self._last_line = now
            self.console.print(f"{100 * done:.0f}%: {text}")


@contextmanager
def watching(stream: TextIO | None) -> Iterator[Watch]:
    """A display on a stream, a new one whenever seeds were added; without a stream nothing is shown."""
    console = Console(file=stream, quiet=stream is None, highlight=False, markup=False, emoji=False)
    with ExitStack() as displays:

        def watch(runs: Sequence[Run], left: Sequence[Run]) -> Listener:
            displays.close()
            display = Display(runs, left, console)
            if console.is_terminal:
                display.live.start()
            displays.callback(display.live.stop)
            return display

        yield watch
