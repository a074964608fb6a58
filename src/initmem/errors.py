"""The errors a user can meet, each one line with what is wrong and what is allowed; words for messages."""

from __future__ import annotations

from collections.abc import Iterable


class InitmemError(Exception):
    """A mistake that the user can mend; the command line prints it and exits with code 2."""


class ConfigError(InitmemError):
    """A recipe, a study file or an override holds something that is not allowed."""


class DataError(InitmemError):
    """A dataset is missing, unreadable or not of the expected form."""


class StoreError(InitmemError):
    """A store cannot be read or written."""


class FullDisk(StoreError):
    """There is no room left: nothing that was committed is lost, and the same command goes on later."""


class ModelError(InitmemError):
    """A network cannot be built for the given input."""


def allowed(values: Iterable[object]) -> str:
    """Format a list of permitted values for an error message."""
    return "allowed: " + ", ".join(str(value) for value in values)


def count(n: int, noun: str) -> str:
    """As in "1 run" and "2 runs"."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")
