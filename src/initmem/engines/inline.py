"""The inline engine: one run after the other in this very process, where a debugger can follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from initmem.engines.engine import Listener, Settings
from initmem.engines.worker import Worker
from initmem.store.store import Store
from initmem.study import Run


class InlineEngine:
    """Runs without worker processes. Ctrl-C stops at once; the run in hand begins anew next time."""

    workers = 1

    def __init__(self, settings: Settings | None = None) -> None:
        # A time limit would end this very process.
        self.settings = replace(settings or Settings(), checkpoint_every=math.inf, timeout=None)

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        try:
            Worker(store, self.settings, listen=listen).work(packs)
        except KeyboardInterrupt:
            return False
        return True
