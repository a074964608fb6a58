"""Limits on how often work may be repeated that takes time away from training."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


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
