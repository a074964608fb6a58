"""The paper's tables 1 to 7, from whatever a store holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from initmem.errors import ConfigError, StoreError, allowed
from initmem.measures.design import bundled
from initmem.paper.tables import best, grid, moments, spreads
from initmem.record import RunRecord
from initmem.study import Study
from initmem.table import Table

__all__ = ["ABOUT", "ENDINGS", "NAMES", "make"]

ENDINGS = (".txt", ".md", ".tex", ".csv")


class _PaperTable(NamedTuple):
    about: str
    make: Callable[..., Table]


_TABLES = {
    "1": _PaperTable("optimizer settings", grid.settings),
    "2": _PaperTable("validation accuracy at three moments, small initialization", moments.small_scale),
    "3": _PaperTable("validation accuracy at three moments, large initialization", moments.large_scale),
    "4": _PaperTable("learning rate x penalty", spreads.rates),
    "5": _PaperTable("depth", spreads.depth),
    "6": _PaperTable("normalization and augmentation", spreads.norms),
    "7": _PaperTable("the standard recipe and Adam", best.best),
}
NAMES = tuple(_TABLES)
ABOUT = {name: table.about for name, table in _TABLES.items()}


def make(name: str, records: Sequence[RunRecord], studies: Sequence[Study], reference: bool = False) -> Table:
    """Make a table; `reference` adds published values beside what was measured."""
    if name not in _TABLES:
        raise ConfigError(f"table = {name!r} ({allowed(NAMES)})")
    if not records:
        raise StoreError("no finished run yet (initmem run makes them)")
    known = bundled(records)
    if not known:
        raise StoreError(f"table {name}: the store holds runs of user code only (initmem measure shows them)")
    return _TABLES[name].make(known, studies, reference=reference)
