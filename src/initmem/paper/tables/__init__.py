"""Tables 1 to 7, from whatever a store holds: neutral tables, written as text, Markdown, LaTeX or CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from initmem.errors import ConfigError, StoreError, allowed
from initmem.measures.design import bundled
from initmem.paper.tables import best, grid, spreads
from initmem.paper.tables.table import PaperTable
from initmem.store.record import RunRecord
from initmem.study import Study

__all__ = ["ABOUT", "ENDINGS", "NAMES", "PaperTable", "make"]

ENDINGS = (".txt", ".md", ".tex", ".csv")


class _Table(NamedTuple):
    about: str
    make: Callable[..., PaperTable]


_TABLES = {
    "1": _Table("optimizer settings", grid.settings),
    "2": _Table("validation accuracy at three moments, small initialization", grid.small_scale),
    "3": _Table("validation accuracy at three moments, large initialization", grid.large_scale),
    "4": _Table("learning rate x penalty", spreads.rates),
    "5": _Table("depth", spreads.depth),
    "6": _Table("normalization and augmentation", spreads.norms),
    "7": _Table("the standard recipe and Adam", best.best),
}
NAMES = tuple(_TABLES)
ABOUT = {name: table.about for name, table in _TABLES.items()}


def make(
    name: str, records: Sequence[RunRecord], studies: Sequence[Study], reference: bool = False
) -> PaperTable:
    """Make a table; `reference` adds published values beside what was measured."""
    if name not in _TABLES:
        raise ConfigError(f"table = {name!r} ({allowed(NAMES)})")
    if not records:
        raise StoreError("no finished run yet (initmem run makes them)")
    known = bundled(records)
    if not known:
        raise StoreError(
            f"table {name}: only runs of training code of your own here (initmem measure has them)"
        )
    return _TABLES[name].make(known, studies, reference=reference)
