"""User code that ends in any other way than by returning: a failed run, with its cause."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from initmem.engines.training import ClaimLost, Interrupted
from initmem.errors import StoreError
from initmem.store.faults import cause_of
from initmem.store.record import RunRecord, failed
from initmem.study import Run


def guarded(run: Run, train: Callable[[], RunRecord], about: Mapping[str, Any]) -> RunRecord:
    """The record of a run, a failed one if user code raises or exits; `about` joins its provenance.

    What concerns the engine passes through: a stop, a lost claim, a bad store, a full disk, no memory.
    """
    try:
        return train()
    except (Interrupted, ClaimLost, StoreError):
        raise
    except KeyboardInterrupt:
        # A worker process does not hear Ctrl-C: there, user code raised it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            raise
        return failed(run, traceback.format_exc(), about)
    except SystemExit as error:
        said = f"SystemExit: {error.code} (the training code called sys.exit or quit)"
        return failed(run, f"{traceback.format_exc()}{said}", about)
    except BaseException as error:
        if cause_of(error) != "exception":
            raise
        return failed(run, traceback.format_exc(), about)
