"""The names that other libraries give to metrics, in those of initmem."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PREFIXES = ("train_", "val_", "test_")
SAME = {"acc": "accuracy", "categorical_accuracy": "accuracy", "sparse_categorical_accuracy": "accuracy"}


def metric_names(metrics: Mapping[str, Any], *, bare: str = "", skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """`val/acc` becomes `val_accuracy`, `eval_loss` becomes `val_loss`; `bare` stands before the others.

    Learning rates are left out, since the tracker knows better; so is what ends in one of `skip`.
    """
    found = {}
    for name, value in metrics.items():
        plain = re.sub(r"\W+", "_", name).strip("_")
        if plain.startswith("eval_"):
            plain = "val_" + plain.removeprefix("eval_")
        if plain.endswith(skip) or plain in ("learning_rate", "lr", "epoch") or plain.startswith("lr_"):
            continue
        prefix = next((part for part in PREFIXES if plain.startswith(part)), "")
        kind = plain.removeprefix(prefix)
        found[(prefix or bare) + SAME.get(kind, kind)] = value
    return found
