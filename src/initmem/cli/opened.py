"""What commands on stores share: opening them, where files go, and what is missing in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from initmem.errors import ConfigError

if TYPE_CHECKING:
    from initmem.store.record import RunRecord
    from initmem.study import Study

MISSING_SHOWN = 3


def opened(*stores: Path) -> tuple[list[RunRecord], list[Study]]:
    """Records and studies of all of them; a run that several hold counts once."""
    from initmem.store.results import open_results

    results = [open_results(store) for store in stores]
    records = {record.id: record for one in results for record in one.records()}
    return list(records.values()), [study for one in results for study in one.studies()]


def output_path(output: Path | None, default: str, *, several: bool) -> Path:
    """The file to write: in the given directory for `all`, else the given file."""
    if not several:
        return output or Path(default)
    folder = output or Path()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror})") from None
    return folder / default


def missing_in_words(names: Sequence[str]) -> str:
    """The first of what is missing: half a grid would fill the screen."""
    from initmem.plots.captions import first_of

    hint = ", see --json" if len(names) > MISSING_SHOWN else ""
    return f" (missing: {first_of(names, MISSING_SHOWN)}{hint})" if names else ""
