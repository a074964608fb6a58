"""The errors a user can meet, each one line with what is wrong and what is allowed; phrases of messages."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Names: TypeAlias = Collection[str]


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
    names = [str(value) for value in values]
    near = difflib.get_close_matches(str(given), names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + "allowed: " + ", ".join(names)


def is_text(text: str) -> bool:
    """Whether a text can be written as UTF-8: half of a surrogate pair cannot."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


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


# -- bad fields of a recipe or a study file: a phrase each, with what is allowed ---------------------------

STUDY_FIELDS = (  # of a study file, not of a recipe
    "about", "chaos", "default_preset", "preset", "presets", "grid", "interventions", "name", "pin", "recipe",
    "scales", "seeds", "split", "title",
)  # fmt: skip
SYNONYMS = {  # what other libraries call a field
    "lr": "learning_rate", "eta": "learning_rate", "bs": "batch_size", "batch": "batch_size",
    "n_epochs": "epochs", "num_epochs": "epochs", "opt": "optimizer", "optim": "optimizer",
    "wd": "weight_decay", "l2_penalty": "l2", "network": "model", "arch": "model", "data": "dataset",
    "betas": "beta1", "eps": "epsilon", "normalization": "norm", "augmentation": "augment",
    "scheduler": "schedule", "lr_schedule": "schedule",
}  # fmt: skip


def validated(
    kind: Callable[..., T], values: Any, *, recipe_fields: Names = (), near: Names = (), context: Any = None
) -> T:
    """An instance of a pydantic model; every bad field is reported at once, in a phrase each.

    A study file gives the fields of a recipe as well, to say where a misplaced one belongs; `near` are names
    outside the model that may have been meant. A dataclass is read from the content of a JSON file, whose
    lists are tuples.
    """
    from pydantic import ValidationError

    reader = _adapter(kind)
    try:
        read: T = (
            reader.validate_json(json.dumps(values))
            if is_dataclass(kind)
            else reader.validate_python(values, context=context)
        )
        return read
    except ValidationError as error:
        phrases = [_phrase(item, kind, recipe_fields, near) for item in error.errors()]
    raise ConfigError("; ".join(phrases))


@lru_cache(maxsize=256)
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _phrase(item: Any, kind: Any, recipe_fields: Names, near: Names) -> str:
    name = ".".join(str(part) for part in item["loc"])
    value = item.get("input")
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        own = kind.__dataclass_fields__ if is_dataclass(kind) else kind.model_fields
        fields = sorted(set(own) - {"options"})
        hint = _where(name, recipe_fields) or meant(name, [*fields, *near]) or allowed(fields)
        return f"unknown field {name} = {value!r} ({hint})"
    message = item["msg"].removeprefix("Value error, ").replace("Input should be", "allowed:")
    if not name or (name == "options" and item["type"] == "value_error"):  # the message names the fields
        return str(message)
    return f"{name} = {value!r} ({message})"


def _where(name: str, recipe_fields: Names) -> str:
    """Where in a study file an unknown field belongs; empty if nowhere."""
    part, _, last = name.rpartition(".")
    field = SYNONYMS.get(last, last)
    if field in recipe_fields:
        return f"{field} belongs in " + ("recipe = {...} of the preset" if part else "[recipe] or [[grid]]")
    if last in STUDY_FIELDS and (part or not recipe_fields):
        return "it belongs at the top of the study file"
    return ""


def meant(name: str, fields: Sequence[str]) -> str:
    """Which field an unknown name may stand for; empty if none is near."""
    if (synonym := SYNONYMS.get(name)) in fields:
        return f"did you mean {synonym}?"
    near = difflib.get_close_matches(name, fields, n=1)
    return f"did you mean {near[0]}?" if near else ""
