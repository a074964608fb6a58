"""The names that people and libraries give to metrics, in those of initmem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PARTS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "eval": "val", "evaluation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
# The last words of a name, and what they mean. Accuracy without a word about k is that of the first guess.
ACCURACIES = {
    ("acc",): "accuracy", ("accuracy",): "accuracy", ("acc1",): "accuracy", ("acc", "1"): "accuracy",
    ("top1",): "accuracy", ("top", "1"): "accuracy", ("top1", "acc"): "accuracy",
    ("top1", "accuracy"): "accuracy", ("top", "1", "accuracy"): "accuracy", ("top", "1", "acc"): "accuracy",
    ("acc", "top1"): "accuracy", ("accuracy", "top1"): "accuracy",
    ("categorical", "accuracy"): "accuracy", ("sparse", "categorical", "accuracy"): "accuracy",
    ("binary", "accuracy"): "accuracy",
    ("acc5",): "top5_accuracy", ("top5",): "top5_accuracy", ("top5", "acc"): "top5_accuracy",
}  # fmt: skip


def metric_name(name: str) -> str:
    """`test_acc`, `test/top1` and `Test Accuracy` become `test_accuracy`, `eval_loss` becomes `val_loss`.

    Any other name stays as it is.
    """
    words = tuple(word for word in re.split(r"[\W_]+", name.lower()) if word)
    part = PARTS.get(words[0]) if words else None
    kind = words[1:] if part else words
    known = ACCURACIES.get(kind) or ("loss" if kind == ("loss",) and part else None)
    if known is None:
        return name
    return f"{part}_{known}" if part else known


def metric_names(metrics: Mapping[str, Any], *, bare: str = "", skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """The logs of a library under the names of initmem; `bare` is put before names that say no part.

    Learning rates are left out, since the tracker knows better; so is what ends in one of `skip`.
    """
    named = {}
    for name, value in metrics.items():
        plain = re.sub(r"\W+", "_", name).strip("_")
        if plain.endswith(skip) or plain in ("learning_rate", "lr", "epoch") or plain.startswith("lr_"):
            continue
        known = metric_name(plain)
        part, _, rest = known.partition("_")
        named[f"{PARTS[part]}_{rest}" if part in PARTS else bare + known] = value
    return named
