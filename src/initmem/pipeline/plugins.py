"""What the plugins of a study are made of, so that a store never mixes results of old and new code."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from initmem import register
from initmem.data.sources import load
from initmem.pipeline.code_version import Fingerprint, fingerprint
from initmem.recipe import SPLIT_SIZES, Recipe


def fingerprints(recipes: Sequence[Recipe]) -> dict[str, Fingerprint]:
    """The fingerprints of the registered networks and datasets that recipes name, by that name."""
    found: dict[str, Fingerprint] = {}
    for recipe in recipes:
        model, function = register.find_model(recipe.model), register.find_dataset(recipe.dataset)
        optimizer = register.find_optimizer(recipe.optimizer)
        if model is not None and recipe.model not in found:
            found[recipe.model] = fingerprint(model.build)
        if optimizer is not None and recipe.optimizer not in found:
            found[recipe.optimizer] = fingerprint(optimizer.build)
        if function is not None and recipe.dataset not in found:
            content = {f"data {recipe.dataset}": f"#{_digest(recipe)}"}
            found[recipe.dataset] = fingerprint(function) | content
    return found


def _digest(recipe: Recipe) -> str:
    """Of the arrays that a registered dataset returns: it may read a file or draw random numbers."""
    data = load(recipe.replace(**dict.fromkeys(SPLIT_SIZES)))
    digest = hashlib.sha256()
    for part in (data.train, data.val, data.test):
        digest.update(np.ascontiguousarray(part.x).data)
        digest.update(np.ascontiguousarray(part.y).data)
    return digest.hexdigest()[:16]
