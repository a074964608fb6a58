"""The errors a user can meet, each one line with what is wrong and what is allowed; phrases of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class InitmemError(Exception):
    """A problem that the user can fix; the command line prints it and exits with code 2."""


class ConfigError(InitmemError):
    """A recipe, a study file, an override or an argument has a value that is not allowed."""


class DataError(InitmemError):
    """A dataset is missing, unreadable or malformed."""


class StoreError(InitmemError):
    """A store cannot be read or written."""


class Damaged(StoreError):
    """A file of a store fails its checksum. Nothing else counts as damaged, and is ever moved aside."""


class FullDisk(StoreError):
    """There is no room left: nothing that was committed is lost, and the same command resumes later."""


class ModelError(InitmemError):
    """A network cannot be built for the given input."""


def allowed(values: Iterable[object], given: object = "") -> str:
    """Format a list of permitted values for an error message; the one that `given` resembles comes first."""
    import difflib

    names = [str(value) for value in values]
    near = difflib.get_close_matches(str(given), names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + "allowed: " + ", ".join(names)


def count(n: int, noun: str) -> str:
    """As in "1 run" and "2 runs"."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def first_of(names: Sequence[str], most: int, separator: str = "; ") -> str:
    """The first of some names, and how many more there are."""
    rest = [f"and {len(names) - most} more"] if len(names) > most else []
    return separator.join([*names[:most], *rest])


def duration(seconds: float) -> str:
    """Seconds in words: under 1 s, 45 s, 12 min, 3.5 h, 2.1 days, 40 days, 3.2 years."""
    for size, unit in ((365.25 * 86400, "years"), (86400.0, "days"), (3600.0, "h")):
        if seconds >= 2 * size or (seconds >= size and unit != "years"):
            return f"{seconds / size:,.{1 if seconds < 10 * size else 0}f} {unit}"
    if seconds < 1:
        return "under 1 s"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
