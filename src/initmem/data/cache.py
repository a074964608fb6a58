"""The cache directory for downloaded and compiled files."""

from __future__ import annotations

import os
from pathlib import Path

from initmem.errors import DataError


def cache_dir(data_dir: Path | None = None) -> Path:
    """Where datasets are kept: the argument, $INITMEM_DATA, $XDG_CACHE_HOME/initmem or ~/.cache/initmem."""
    own = data_dir or os.environ.get("INITMEM_DATA")
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if own:
            return Path(own).expanduser()
        # A relative XDG_CACHE_HOME is to be ignored, by the standard that defines it.
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "initmem"
    except RuntimeError:
        raise DataError("no home directory to keep files in (set INITMEM_DATA to a folder)") from None
