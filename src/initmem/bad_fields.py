"""What is wrong with the fields of a recipe or a study file: one phrase per field, with what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from initmem.errors import allowed

STUDY_FIELDS = (  # of a study file, not of a recipe
    "about", "chaos", "default_preset", "preset", "presets", "grid", "name", "pin", "recipe", "scales",
    "seeds", "split", "title",
)  # fmt: skip
SYNONYMS = {  # what other libraries call a field
    "lr": "learning_rate",
    "eta": "learning_rate",
    "bs": "batch_size",
    "batch": "batch_size",
    "n_epochs": "epochs",
    "num_epochs": "epochs",
    "opt": "optimizer",
    "optim": "optimizer",
    "wd": "weight_decay",
    "l2_penalty": "l2",
    "network": "model",
    "arch": "model",
    "data": "dataset",
    "betas": "beta1",
    "eps": "epsilon",
    "normalization": "norm",
    "augmentation": "augment",
    "scheduler": "schedule",
    "lr_schedule": "schedule",
}


def problems(
    error: ValidationError, model: type[BaseModel], recipe_fields: Collection[str] = ()
) -> list[str]:
    """Turn pydantic's errors into one phrase per bad field of a model.

    A study file gives the fields of a recipe as well, to say where a misplaced one belongs.
    """
    return [_phrase(item, model, recipe_fields) for item in error.errors()]


def _phrase(item: Any, model: type[BaseModel], recipe_fields: Collection[str]) -> str:
    name = ".".join(str(part) for part in item["loc"])
    value = item.get("input")
    if item["type"] == "extra_forbidden":
        fields = sorted(set(model.model_fields) - {"options"})
        hint = _where(name, recipe_fields) or _meant(name, fields) or allowed(fields)
        return f"unknown field {name} = {value!r} ({hint})"
    message = item["msg"].removeprefix("Value error, ").replace("Input should be", "allowed:")
    if not name or (name == "options" and item["type"] == "value_error"):  # the message names the fields
        return str(message)
    return f"{name} = {value!r} ({message})"


def _where(name: str, recipe_fields: Collection[str]) -> str:
    """Where in a study file an unknown field belongs; empty if nowhere."""
    part, _, last = name.rpartition(".")
    field = SYNONYMS.get(last, last)
    if field in recipe_fields:
        return f"{field} belongs in " + ("recipe = {...} of the preset" if part else "[recipe] or [[grid]]")
    if last in STUDY_FIELDS and (part or not recipe_fields):
        return "it belongs at the top of the study file"
    return ""


def _meant(name: str, fields: Sequence[str]) -> str:
    if (synonym := SYNONYMS.get(name)) in fields:
        return f"did you mean {synonym}?"
    near = difflib.get_close_matches(name, fields, n=1)
    return f"did you mean {near[0]}?" if near else ""
