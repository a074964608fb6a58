"""How often something may be done that takes time from others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """Keeps what something takes within a share of the time, and two times at least so far apart."""

    def __init__(self, share: float, least: float = 0.0) -> None:
        self._share, self._least = share, least
        self._next = -math.inf

    def due(self) -> bool:
        """Whether it may be done again."""
        return self.rest() <= 0

    def rest(self) -> float:
        """Seconds until it may be done again."""
        return self._next - time.monotonic()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Do it, and count how long it takes; what is done before it is due adds up."""
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            pause = (ended - began) * (1 / self._share - 1)
            self._next = max(self._next + pause, ended + max(self._least, pause))
