"""The live display of a running study."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from initmem.engines.engine import (
    EpochEnded,
    Event,
    Faulted,
    Finished,
    Listener,
    MovedAside,
    Stopping,
    WorkerLost,
)
from initmem.errors import count, duration
from initmem.plots.terminal import printable

QUIET_SECONDS = 15.0  # between two lines where there is no terminal to draw on


@dataclass(frozen=True, slots=True)
class Workload:
    """What a session is about to do, for the display of its progress."""

    runs: int
    done: int
    costs: dict[str, float]  # relative cost per run id, of runs that have no record yet
    epochs: dict[str, int]  # epochs per run id


class Display:
    """Shows runs done, crashed and diverged, and the time left. A listener of an engine."""

    def __init__(self, work: Workload, console: Console) -> None:
        self.work, self.console = work, console
        self.started = time.monotonic()
        self.done = work.done
        self.counts: Counter[str] = Counter()
        self.epochs: dict[str, int] = {}  # run id -> last finished epoch, of runs in this session
        self._base: dict[str, int] = {}
        self._last_line = self.started
        self.live = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[text]}", markup=False),
            console=console,
            transient=True,
        )
        self.task = self.live.add_task("training", total=1.0, text="starting workers")

    def start(self) -> None:
        """Begin to draw, where there is a terminal."""
        if self.console.is_terminal:
            self.live.start()

    def stop(self) -> None:
        """Take the bar away."""
        self.live.stop()

    def __call__(self, event: Event) -> None:
        """Take in what an engine reports."""
        match event:
            case EpochEnded(runs, epoch):
                for run_id in runs:
                    # A resumed run begins in the middle: what was done before is not this session's.
                    self._base.setdefault(run_id, epoch - 1)
                    self.epochs[run_id] = epoch
            case Finished(runs):
                for run_id, status in runs:
                    self.counts[status] += 1
                    self.epochs[run_id] = self.work.epochs[run_id]
                    self.done += 1
            case WorkerLost(code, lost):
                self.console.print(
                    f"a worker was lost (exit code {code}); {count(len(lost), 'run')} will be tried again"
                )
            case Faulted(cause, hit):
                self.console.print(
                    f"{cause}: {count(len(hit), 'run')} will be tried in smaller packs or marked crashed"
                )
            case MovedAside(lines):
                for line in lines:
                    self.console.print(f"moved aside: {printable(line)}", soft_wrap=True)
            case Stopping():
                self.console.print("stopping: workers write their checkpoints; Ctrl-C again stops at once")
        self._draw()

    def fraction(self) -> float:
        """Share of this session's work that is done, by cost."""
        total = sum(self.work.costs.values())
        part = sum(
            self.work.costs[run_id] * epoch / self.work.epochs[run_id]
            for run_id, epoch in self.epochs.items()
            if run_id in self.work.costs
        )
        return part / total if total else 1.0

    def seconds_left(self) -> float | None:
        """Time left at the pace of this session; None before the first epoch."""
        inherited = sum(
            self.work.costs.get(run_id, 0.0) * base / self.work.epochs[run_id]
            for run_id, base in self._base.items()
            if run_id in self.work.costs
        ) / max(sum(self.work.costs.values()), 1e-30)
        fraction = self.fraction()
        if fraction <= inherited:
            return None
        return (time.monotonic() - self.started) * (1 - fraction) / (fraction - inherited)

    def _text(self) -> str:
        left = self.seconds_left()
        parts = [f"{self.done} of {count(self.work.runs, 'run')}"]
        parts += [f"{self.counts[name]} {name}" for name in ("diverged", "crashed") if self.counts[name]]
        parts.append("time left unknown yet" if left is None else f"{duration(left)} left")
        return ", ".join(parts)

    def _draw(self) -> None:
        if self.console.is_terminal:
            self.live.update(self.task, completed=self.fraction(), text=self._text())
        elif time.monotonic() - self._last_line > QUIET_SECONDS:
            self._last_line = time.monotonic()
            self.console.print(f"{100 * self.fraction():.0f}%: {self._text()}")


@contextmanager
def watching(stream: TextIO | None) -> Iterator[Callable[[Workload], Listener]]:
    """A display on a stream for as many sessions as come; without a stream nothing is shown."""
    console = Console(file=stream, quiet=stream is None, highlight=False, markup=False, emoji=False)
    shown: list[Display] = []

    def watch(work: Workload) -> Listener:
        for old in shown:
            old.stop()
        shown.append(Display(work, console))
        shown[-1].start()
        return shown[-1]

    try:
        yield watch
    finally:
        for old in shown:
            old.stop()
