"""Metrics: the unit, the bounds and the title of each, and which direction is better.

Accuracies are recorded as fractions and shown in percent; differences between them are in percentage points.
User code may record metrics under names of its own. Those whose name has the word `accuracy` are accuracies.
The last word of a name tells which direction is better: `mean_reward` and `elo_score` are better when higher,
`fit_error` and `own_loss` when lower. Where it tells nothing, the direction is not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from initmem.clocks import CLOCKS

# The beginnings of names that the tracker gives to what it derives from training.
DERIVED = ("clock_", "group", "seconds", "learning_rate", "norm", "epoch", "updates")


class Metric(NamedTuple):
    """A metric as it is shown."""

    name: str
    unit: str = ""  # of differences: "pp", or "" where the metric has none
    bounds: tuple[float, float] = (-math.inf, math.inf)
    better: Literal["higher", "lower"] | None = None  # None: not known
    title: str = ""  # of an axis

    @property
    def factor(self) -> float:
        """From a recorded value to the one that is shown."""
        return 100.0 if self.unit == "pp" else 1.0

    @property
    def widest(self) -> float:
        """No range of the metric exceeds this."""
        return self.bounds[1] - self.bounds[0]

    @property
    def is_percentage(self) -> bool:
        """Whether values are in percent, as those of accuracies are."""
        return self.bounds == (0.0, 100.0)

    @property
    def form(self) -> str:
        """How differences are written: points to a tenth, anything else to three digits."""
        return ".1f" if self.unit == "pp" else ".3g"

    @property
    def held_out(self) -> bool:
        """Whether it is one of new data, so that it matters how well the training data were fitted."""
        own = self.name not in METRICS and not self.name.startswith((*DERIVED, "train_"))
        return own or self.name.startswith(("test_", "val_"))


def _by_name(name: str) -> Metric:
    """An accuracy, or a metric that has no unit."""
    title = name.replace("_", " ")
    if any(word.endswith("accuracy") for word in re.split(r"[\W_]+", name)):
        return Metric(name, "pp", (0.0, 100.0), "higher", f"{title} (%)")
    return Metric(name, better=_direction(name), title=title)


HIGHER = {
    *("reward", "rewards", "return", "returns", "score", "f1", "auc", "auroc", "precision", "recall", "r2"),
    *("bleu", "rouge", "iou", "dice", "psnr", "ssim"),
}
LOWER = {
    *("loss", "error", "objective", "mse", "rmse", "mae", "nll", "perplexity", "cost", "regret"),
    *("brier", "fid", "wer", "cer"),
}
PASSED_OVER = {"mean", "average", "avg", "median", "best", "last", "final"}
UNCLEAR = (
    "whether a higher or a lower {} is better is not known (a name that ends in score, reward, loss or error "
    "tells)"
)


def _direction(name: str) -> Literal["higher", "lower"] | None:
    """Which values of a metric are better, by the last word of its name; None: not known.

    A word of the other direction anywhere (`brier_score`), or a sign (`neg_error`), leaves it open.
    """
    plain = name.lower().replace("cross_entropy", "loss")
    words = [word for word in re.split(r"[\W_]+", plain) if not (word.isdigit() or word in PASSED_OVER)]
    higher, lower = HIGHER & set(words), LOWER & set(words)
    decides = bool(words) and words[-1] in higher | lower and not {"neg", "negative"} & set(words)
    if not decides or (higher and lower):
        return None
    return "higher" if higher else "lower"


# The names with a meaning: what bundled networks record, and the losses of user code, which defines them.
_NAMES = (
    *("test_accuracy", "val_accuracy", "train_accuracy"),
    *("val_accuracy_best", "val_accuracy_interp", "val_accuracy_last", "train_accuracy_last"),
    *("epochs", "updates", "tau_best", "tau_interp", "learning_rate", "seconds"),
    *("test_loss", "test_cross_entropy", "test_objective"),
    *("val_loss", "val_cross_entropy", "val_objective"),
    *("train_loss", "train_cross_entropy", "train_objective"),
    *("norm", "norm_init", "norm_last"),
    *(f"clock_{name}" for name in CLOCKS),
)
METRICS = {
    metric.name: metric
    for metric in (
        *map(_by_name, _NAMES),
        Metric("repair_gap", "pp", (-100.0, 100.0), "higher", "repair gap (pp)"),
        Metric("norm_best", title="Frobenius norm of the kernels"),
        Metric("alignment", bounds=(-1.0, 1.0), better="higher", title="alignment with the initialization"),
    )
}


def metric_of(name: str) -> Metric:
    """A metric by its name; one that user code defines is an accuracy or has no unit."""
    return METRICS.get(name) or _by_name(name)


def metric_title(name: str) -> str:
    """The title of an axis for a metric."""
    return metric_of(name).title


# -- names that people and libraries give to metrics ------------------------------------------------------

PARTS = {
    "train": "train", "training": "train",
    "val": "val", "valid": "val", "validation": "val", "eval": "val", "evaluation": "val", "dev": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
# What is left of a name without its part and what separates its words, and what it means. Accuracy without a
# word about k is that of the first guess.
ACCURACIES = {
    "acc": "accuracy", "accuracy": "accuracy", "acc1": "accuracy", "top1": "accuracy", "top1acc": "accuracy",
    "top1accuracy": "accuracy", "acctop1": "accuracy", "accuracytop1": "accuracy",
    "categoricalaccuracy": "accuracy", "sparsecategoricalaccuracy": "accuracy", "binaryaccuracy": "accuracy",
    "acc5": "top5_accuracy", "top5": "top5_accuracy", "top5acc": "top5_accuracy",
}  # fmt: skip


def metric_name(name: str) -> str:
    """`test_acc`, `test/top1` and `Test Accuracy` become `test_accuracy`, `eval_loss` becomes `val_loss`.

    Any other name stays as it is.
    """
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    part = PARTS.get(words[0]) if words else None
    kind = "".join(words[1:] if part else words)
    usual = "loss" if part and kind == "loss" else ACCURACIES.get(kind)
    if usual is None:
        return name
    return f"{part}_{usual}" if part else usual


def metric_names(metrics: Mapping[str, Any], *, bare: str = "", skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """The logs of a library under the names of initmem; `bare` is put before names that say no part.

    Learning rates are left out, since the tracker knows better; so is what ends in one of `skip`.
    """
    named = {}
    for name, value in metrics.items():
        plain = re.sub(r"\W+", "_", name).strip("_")
        if plain.endswith(skip) or plain in ("learning_rate", "lr", "epoch") or plain.startswith("lr_"):
            continue
        usual = metric_name(plain)
        part, _, rest = usual.partition("_")
        named[f"{PARTS[part]}_{rest}" if part in PARTS else bare + usual] = value
    return named
