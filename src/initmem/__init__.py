"""initmem measures how much of a network's random initialization survives training.

The names below are the public interface; importing the package loads none of the heavy libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "1.0.0"

# Bound here, or the module of the same name would take its place as soon as anything imports it.
from initmem.clocks import clocks as clocks

if TYPE_CHECKING:
    from initmem import plot as plot
    from initmem import register as register
    from initmem.errors import InitmemError as InitmemError
    from initmem.measures.measure import measure as measure
    from initmem.measures.memory import Memory as Memory
    from initmem.measures.memory import memory as memory
    from initmem.measures.memory import memory_table as memory_table
    from initmem.pipeline.init import Init as Init
    from initmem.pipeline.result import Result as Result
    from initmem.pipeline.run import run as run
    from initmem.pipeline.tracker import Tracker as Tracker
    from initmem.recipe import Recipe as Recipe
    from initmem.record import RunRecord as RunRecord
    from initmem.store.results import open_results as open_results
    from initmem.store.store import Store as Store
    from initmem.study import Run as Run
    from initmem.study import Study as Study
    from initmem.study_file import load_study as load_study

_HOMES = {
    "Init": "initmem.pipeline.init",
    "InitmemError": "initmem.errors",
    "Memory": "initmem.measures.memory",
    "Recipe": "initmem.recipe",
    "Result": "initmem.pipeline.result",
    "Run": "initmem.study",
    "RunRecord": "initmem.record",
    "Store": "initmem.store.store",
    "Study": "initmem.study",
    "Tracker": "initmem.pipeline.tracker",
    "load_study": "initmem.study_file",
    "measure": "initmem.measures.measure",
    "memory": "initmem.measures.memory",
    "memory_table": "initmem.measures.memory",
    "open_results": "initmem.store.results",
    "run": "initmem.pipeline.run",
}
__all__ = [*_HOMES, "__version__", "clocks", "plot", "register"]


def __getattr__(name: str) -> Any:
    if name in ("plot", "register"):  # modules; the first brings matplotlib
        return import_module(f"initmem.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'initmem' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
