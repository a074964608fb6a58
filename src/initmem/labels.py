"""Short names: recipes by the optimizer and whatever else tells them apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from initmem import catalog
from initmem.errors import count
from initmem.recipe import DEFAULTS, AnyRecipe, PipelineRecipe

# How a field reads in a label: these with a short name, the bare ones as their value, others as "name=value".
SHORT = {
    "learning_rate": "lr=", "weight_decay": "wd=", "batch_statistics": "statistics=", "batch_size": "b",
    "width": "w",
}  # fmt: skip
BARE = ("pipeline", "dataset", "model", "norm", "optimizer", "schedule", "augment", "distribution")

# Shown even where dataset and network determine them; sizes and options of a network are not.
PROCEDURE = (
    "dataset", "model", "width", "norm", "optimizer", "learning_rate", "schedule", "weight_decay", "l2",
    "augment", "scaled", "layer_scales", "mup_base", "init_mode",
)  # fmt: skip


# What goes without saying in a label where it has its default.
SILENT = (
    "l2", "patience", "train_size", "val_size", "test_size", "warmup", "augment", "decay_on", "test_unused",
    "mup_base", "beta1", "beta2", "epsilon",
)  # fmt: skip


def label(recipe: AnyRecipe, fields: Iterable[str]) -> str:
    """A short name made of the given fields, as far as they are set."""
    settings = recipe.settings()
    return " ".join(_short(name, settings[name]) for name in fields if name in settings)


def informative(recipe: AnyRecipe, fields: Sequence[str]) -> list[str]:
    """Of some fields those worth a place in a label: no zero penalty, no default that follows from others.

    Of user code all that was declared, after its name: its label does not change when other recipes join.
    """
    if isinstance(recipe, PipelineRecipe):
        declared = [name for name, _ in recipe.declared]
        return ["pipeline", *sorted(declared, key=lambda name: name not in BARE)]
    usual = {name: DEFAULTS[name] for name in SILENT}
    usual |= catalog.defaults_of(recipe.model, recipe.optimizer)
    del usual["width"]
    settings = recipe.settings()
    return [
        name for name in fields if name in settings and (name not in usual or settings[name] != usual[name])
    ]


def labels(recipes: Sequence[AnyRecipe]) -> list[str]:
    """Name recipes by the optimizer and whatever else tells them apart."""
    settings = [recipe.settings() for recipe in recipes]
    fields = dict.fromkeys(name for each in settings for name in each if name != "data_sha256")
    varying = [name for name in fields if name == "optimizer" or _varies(name, settings)]
    ordered = sorted(varying, key=lambda name: name != "optimizer")  # stable: optimizer first
    short = [name for name in ordered if name in PROCEDURE or not _follows(name, settings)]
    for shown in (short, ordered):
        names = [label(recipe, informative(recipe, shown)) for recipe in recipes]
        if len(set(names)) == len(names):
            return names
    return [f"{name} {recipe.id[:6]}" for name, recipe in zip(names, recipes, strict=True)]


LONG = 32  # letters of a name that a column of a page has room for


def short_labels(recipes: Sequence[AnyRecipe]) -> list[str]:
    """Names that a table has room for: where one of `labels` is long, the optimizer, the dataset, and what
    differs between recipes with the same of both, as far as this tells all of them apart."""
    full = labels(recipes)
    if any(recipe.is_pipeline for recipe in recipes) or max(map(len, full), default=0) <= LONG:
        return full
    groups: dict[tuple[str, str], list[AnyRecipe]] = {}
    for recipe in recipes:
        groups.setdefault((str(recipe.get("optimizer")), str(recipe.get("dataset"))), []).append(recipe)
    one_dataset = len({dataset for _, dataset in groups}) == 1
    names: dict[AnyRecipe, str] = {}
    for (_, dataset), members in groups.items():
        for recipe, own in zip(members, labels(members), strict=True):
            optimizer, *rest = own.split(" ")
            names[recipe] = " ".join([optimizer, *[dataset.partition(":")[0]] * (not one_dataset), *rest])
    short = [names[recipe] for recipe in recipes]
    return short if len(set(short)) == len(short) else full


def _varies(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a setting tells recipes apart; an option does so only among recipes of its network."""
    models = {each.get("model") for each in settings if name in each}
    return len({str(each.get(name)) for each in settings if each.get("model") in models}) > 1


def _follows(name: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether dataset and network determine a setting, so that it tells nothing more apart."""

    def distinct(*names: str) -> int:
        return len({tuple(str(each.get(one)) for one in names) for each in settings})

    return distinct("dataset", "model", name) == distinct("dataset", "model")


def _short(name: str, value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if name in BARE else SHORT.get(name, f"{name}=") + text


# -- in words, for captions and titles --------------------------------------------------------------------

# What the caption of a bundled recipe begins with, and what goes without saying there.
TOLD_FIRST = ("dataset", "train_size", "model", "width", "norm", "learning_rate", "schedule", "epochs")
USUAL = {"train_size": None, "norm": "batch", "schedule": "cosine"}


def phrase(recipe: AnyRecipe, name: str) -> str:
    """One field of a recipe in words."""
    value = recipe.get(name)
    text = f"{value:g}" if isinstance(value, float) else str(value)
    match name:
        case "epochs" if isinstance(value, int):
            return count(value, "epoch")
        case "train_size":
            return f"{value:,} training examples" if value else "all training examples"
        case "dataset":
            return text.partition(":")[0]
        case "batch_statistics" | "norm":
            return f"{text} {name.replace('_', ' ')}"
        case "augment":
            return "no augmentation" if value == "none" else text
        case "l2":
            return f"L2 {text}"
        case "test_unused":
            return f"tested on {'unused training examples as well' if value else 'the test split alone'}"
        case _:
            return text if name in BARE else f"{name.replace('_', ' ')} {text}"


def common(recipes: Sequence[AnyRecipe], shown: Iterable[str] = ()) -> str:
    """What all these recipes share, less the fields that are shown elsewhere."""
    changed = {name for recipe in recipes for name in recipe.changes()}
    fields = dict.fromkeys(name for recipe in recipes for name in recipe.settings())
    names = dict.fromkeys([*TOLD_FIRST, *(name for name in fields if name in changed)])
    silent = {"data_sha256", "optimizer", *shown}
    return ", ".join(
        phrase(recipes[0], name)
        for name in names
        if name not in silent
        and len({str(recipe.get(name)) for recipe in recipes}) == 1
        and recipes[0].get(name) not in (None, USUAL.get(name))
    )
