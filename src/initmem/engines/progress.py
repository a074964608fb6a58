"""The time left of a study, and its display in a terminal."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from statistics import mean
from typing import NamedTuple, TextIO, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from initmem.engines.engine import Claimed, EpochEnded, Event, Faulted, Finished, Listener, Note, WorkerLost
from initmem.engines.packs import cost, makespan
from initmem.errors import InitmemError, count, duration
from initmem.plots.tables import printable
from initmem.recipe import AnyRecipe
from initmem.study import Run

DRAW_SECONDS = 0.2  # between two updates of the bar
QUIET_SECONDS = 15.0  # between two lines where there is no terminal to draw on


# Called with all runs of a study, and with those that have no record yet.
Watch: TypeAlias = Callable[[Sequence[Run], Sequence[Run]], Listener]


# -- the time left: one estimate for the terminal and for the board -----------------------------------------


class Spent(NamedTuple):
    """What some epochs of a recipe took: seconds of one worker, shared equally by the runs of a pack."""

    seconds: float = 0.0
    epochs: int = 0

    def plus(self, seconds: float, epochs: int) -> Spent:
        """With some more epochs."""
        return Spent(self.seconds + seconds, self.epochs + epochs)


def seconds_left(
    left: Mapping[str, int | None],
    recipes: Mapping[str, AnyRecipe],
    spent: Mapping[AnyRecipe, Spent],
    packs: Iterable[Collection[str]],
    workers: int = 0,
) -> float | None:
    """The time until all runs are done; None while no worker runs, or lengths or times are unknown.

    Args:
        left: epochs to come by run id, of runs without a record; None: unknown.
        recipes: by run id.
        spent: what is known of the pace. A recipe that has not begun is estimated by one of similar cost.
        packs: run ids that each worker has claimed.
        workers: how many there are, where some may be between two packs.
    """
    measured = {recipe: one.seconds / one.epochs for recipe, one in spent.items() if one.epochs}
    claimed = [pack for pack in ([one for one in pack if one in left] for pack in packs) if pack]
    if not measured or not max(workers, len(claimed)) or None in left.values():
        return None

    def pace(recipe: AnyRecipe) -> float:
        if recipe in measured:
            return measured[recipe]
        size = relative_cost(recipe)
        near = min(map(relative_cost, measured), key=lambda cost: abs(math.log(cost / size)))
        return size / near * mean(measured[one] for one in measured if relative_cost(one) == near)

    paces = {recipe: pace(recipe) for recipe in {recipes[run_id] for run_id in left}}
    seconds = {one: epochs * paces[recipes[one]] for one, epochs in left.items() if epochs is not None}
    # Every worker finishes its pack; whoever is free first takes the next one, which is as large.
    free_at = [sum(seconds.pop(run_id) for run_id in pack) for pack in claimed]
    free_at += [0.0] * (workers - len(claimed))
    waiting, size = sorted(seconds.values(), reverse=True), max(map(len, claimed), default=1)
    return makespan((sum(waiting[i : i + size]) for i in range(0, len(waiting), size)), free_at)


@lru_cache(maxsize=1024)
def relative_cost(recipe: AnyRecipe) -> float:
    """The relative cost of one epoch; 1 where it is unknown (user code, or data that is not here)."""
    try:
        return cost(recipe) / (recipe.get("epochs") or 1)
    except InitmemError:
        return 1.0


# -- the display in a terminal ------------------------------------------------------------------------------


class Display:
    """Shows runs done, crashed and diverged, and the time left. A listener of an engine."""

    def __init__(
        self,
        runs: Sequence[Run],
        left: Sequence[Run],
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self._clock = console, clock
        self._last_line = clock()
        self.runs, self.done = len(runs), len(runs) - len(left)
        self._recipes = {run.id: run.recipe for run in left}
        self._lengths = {run.recipe: run.recipe.get("epochs") for run in left}  # None: of user code, unknown
        self._left = set(self._recipes)
        self._epochs: dict[str, int] = {}  # done, by run
        # The packs that runs in training belong to, and when the runs began their epoch.
        self._training: dict[str, tuple[tuple[str, ...], float]] = {}
        self._workers = 0  # seen at the same time
        self._spent: defaultdict[AnyRecipe, Spent] = defaultdict(Spent)
        self.counts: Counter[str] = Counter()
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
            case Claimed(runs):
                self._training |= dict.fromkeys(runs, (runs, self._clock()))
            case EpochEnded(runs, epoch):
                for run_id in runs:
                    self._epoch_ended(run_id, epoch, runs)
            case Finished(runs):
                for run_id, status in runs:
                    recipe = self._recipes[run_id]
                    self._lengths[recipe] = self._lengths[recipe] or self._epochs.get(run_id)
                    self.counts[status] += 1
                    self.done += 1
                    self._left.discard(run_id)
                self._release(run_id for run_id, _ in runs)
            case WorkerLost(code, lost):
                runs_lost = count(len(lost), "run")
                self.console.print(f"a worker was lost (exit code {code}); {runs_lost} will be tried again")
                self._release(lost)
            case Faulted(cause, hit):
                self.console.print(f"{cause}: {count(len(hit), 'run')} will be tried again in smaller packs")
                self._release(hit)
            case Note(text):
                self.console.print(printable(text), soft_wrap=True)
        self._draw()

    def _epoch_ended(self, run_id: str, epoch: int, pack: tuple[str, ...]) -> None:
        now, recipe = self._clock(), self._recipes[run_id]
        if run_id in self._training:  # an engine far away may report several epochs at once
            since, epochs = self._training[run_id][1], max(1, epoch - self._epochs.get(run_id, epoch - 1))
            self._spent[recipe] = self._spent[recipe].plus((now - since) / len(pack), epochs)
        self._training[run_id], self._epochs[run_id] = (pack, now), epoch

    def _release(self, runs: Iterable[str]) -> None:
        """Runs that no worker has any more; the worker stays, and takes others."""
        self._workers = max(self._workers, len(self._packs()))
        for run_id in runs:
            self._training.pop(run_id, None)

    def _packs(self) -> set[tuple[str, ...]]:
        return {pack for pack, _ in self._training.values()}

    def seconds_left(self) -> float | None:
        """The time until all runs are done, as far as it can be estimated."""
        left = {}
        for run_id in self._left:
            length = self._lengths[self._recipes[run_id]]
            left[run_id] = None if length is None else max(0, length - self._epochs.get(run_id, 0))
        return seconds_left(left, self._recipes, self._spent, self._packs(), self._workers)

    def _draw(self) -> None:
        """Update the bar, or print a line where there is no terminal; not more often than one can read."""
        now = self._clock()
        if now - self._last_line <= (DRAW_SECONDS if self.console.is_terminal else QUIET_SECONDS):
            return
        self._last_line = now
        begun = {run_id: self._lengths[self._recipes[run_id]] for run_id in self._left & set(self._epochs)}
        runs = len(self._recipes) - len(self._left)  # and of those in training, the share of their epochs
        done = (runs + sum(self._epochs[one] / n for one, n in begun.items() if n)) / max(
            len(self._recipes), 1
        )
        seconds = self.seconds_left()
        left = "time left unknown yet" if seconds is None else f"{duration(seconds)} left"
        states = [f"{self.counts[name]} {name}" for name in ("diverged", "crashed") if self.counts[name]]
        text = ", ".join([f"{self.done} of {count(self.runs, 'run')}", *states, left])
        if self.console.is_terminal:
            self.live.update(self.task, completed=done, text=text)
        else:
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
