"""User code that ends in any other way than by returning: a crashed run, with its cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from initmem.engines.training import is_for_engine, traceback_of
from initmem.errors import StoreError
from initmem.record import RunRecord, crashed
from initmem.store.faults import cause_of
from initmem.study import Run


def guarded(run: Run, train: Callable[[], RunRecord], about: Mapping[str, Any]) -> RunRecord:
    """The record of a run, a crashed one if user code raises or exits; `about` joins its provenance.

    What concerns the engine passes through: a stop, a lost claim, a bad store, a full disk, no memory.
    """
    try:
        return train()
    except StoreError:
        raise
    except BaseException as error:
        if is_for_engine(error) or cause_of(error) != "exception":
            raise
        return crashed(run, traceback_of(error), about)
