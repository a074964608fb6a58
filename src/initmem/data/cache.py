"""The cache directory for downloaded and compiled files."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(data_dir: Path | None = None) -> Path:
    """Where datasets are kept: the argument, $INITMEM_DATA, $XDG_CACHE_HOME/initmem or ~/.cache/initmem."""
    if data_dir is not None:
        return data_dir.expanduser()
    if own := os.environ.get("INITMEM_DATA"):
        return Path(own).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # A relative XDG_CACHE_HOME is to be ignored, by the standard that defines it.
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "initmem"
