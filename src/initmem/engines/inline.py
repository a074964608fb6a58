"""The inline engine: one run after the other in this very process, where a debugger can follow."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.engines.local import Listener
from initmem.engines.worker import Trainer, Worker
from initmem.store import Store
from initmem.study import Run


class InlineEngine:
    """Runs without worker processes. Ctrl-C stops at once; the run in hand begins anew next time."""

    workers = 1

    def __init__(self, *, device: str = "cpu", trainer: Trainer | None = None) -> None:
        self.device, self.trainer = device, trainer

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        worker = Worker(
            store,
            device=self.device,
            should_stop=lambda: False,
            report=listen,
            checkpoint_every=float("inf"),
            trainer=self.trainer,
        )
        try:
            worker.work(packs)
        except KeyboardInterrupt:
            store.release([run for pack in packs for run in pack])
            return False
        return True
