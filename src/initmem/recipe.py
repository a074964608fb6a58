"""A recipe: everything that defines one training procedure, except initialization scale and seed."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from initmem.errors import ConfigError, allowed

ImageModel = Literal["resnet9", "resnet9-avgpool", "resnet56", "resnet110", "mlp"]
Model = Literal[ImageModel, "linear"]
Norm = Literal["batch", "layer"]
Distribution = Literal["normal", "uniform", "truncated", "orthogonal"]
OptimizerName = Literal["sgd", "momentum", "adam", "adamw", "muon", "muon-conv"]

MODELS: tuple[ImageModel, ...] = get_args(ImageModel)
NAMED_DATASETS = ("digits", "cifar10", "synthetic")  # of images

DEFAULT_WIDTH: dict[str, int] = {
    "resnet9": 64,
    "resnet9-avgpool": 64,
    "resnet56": 16,
    "resnet110": 16,
    "mlp": 256,
    "linear": 4,
}
DEFAULT_DECAY = {"adamw": 1e-4, "muon": 1e-4, "muon-conv": 1e-4}
DEFAULT_MOMENTUM = {"muon": 0.95, "muon-conv": 0.95}

# How a field reads in a short label; fields not listed read as "name=value", these bare ones as the value.
SHORT = {"learning_rate": "lr", "batch_size": "b", "weight_decay": "wd", "width": "w"}
BARE = ("pipeline", "dataset", "model", "norm", "optimizer", "schedule", "augment", "distribution")

# What a linear network can be trained with, and the fields that have nothing to act on there.
LINEAR_OPTIMIZERS = ("sgd", "momentum", "adam")
PROBES = ("distribution", "probe", "layer_scales", "width_scaling")
NOT_LINEAR = ("train_size", "norm", "weight_decay", "augment", "patience", "bias_std", *PROBES)


class Recipe(BaseModel):
    """One training procedure. The defaults are those of the paper's main grid."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    pipeline: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="name of training code of your own; the other fields say what is known about it",
    )
    dataset: str = Field(
        "cifar10", description="digits, cifar10, synthetic[:NxCxHxW], a .npz file, or linear"
    )
    data_sha256: str | None = Field(
        None, description="digest of a .npz dataset, filled in when a study is read"
    )
    train_size: int | None = Field(None, ge=1, description="use only the first n training examples")
    model: Model = Field("resnet9", description="network architecture")
    width: int = Field(64, ge=1, description="channels of the first layer, or hidden units; default by model")
    norm: Norm = Field("batch", description="normalization layer")
    optimizer: OptimizerName = Field("sgd", description="update rule")
    learning_rate: float = Field(1e-3, gt=0, description="initial learning rate")
    schedule: Literal["cosine", "constant"] = Field("cosine", description="learning-rate schedule")
    floor: float = Field(0.01, ge=0, le=1, description="final fraction of the cosine schedule")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum; default 0.95 for muon")
    beta1: float = Field(0.9, ge=0, lt=1, description="first-moment decay of the Adam family")
    beta2: float = Field(0.999, ge=0, lt=1, description="second-moment decay of the Adam family")
    epsilon: float = Field(1e-7, gt=0, description="Adam's epsilon, beside the uncorrected sqrt(v)")
    weight_decay: float = Field(0.0, ge=0, description="decoupled decay; 1e-4 for adamw and muon")
    l2: float = Field(0.0, ge=0, description="kernel penalty l2 * sum(W^2)")
    batch_size: int = Field(128, ge=1, description="examples per update")
    epochs: int = Field(300, ge=1, description="passes over the training split")
    augment: Literal["none", "flip-crop"] = Field("none", description="training-time augmentation")
    patience: int | None = Field(None, ge=1, description="early stop on validation loss after n epochs")
    bias_std: float = Field(0.2, ge=0, description="standard deviation of the initial biases")
    distribution: Distribution = Field("normal", description="of the initial kernels")
    probe: str = Field(
        "kernels", description="what the scale multiplies: kernels, biases, output, patterns of layer names"
    )
    layer_scales: str = Field(
        "", description="fixed factors of the initialization, as in 'output=0.5, residual*=2'"
    )
    width_scaling: Literal["fan-in", "mup"] = Field(
        "fan-in", description="mup: the kernel of the last layer is drawn smaller by the root of its fan-in"
    )

    @model_validator(mode="before")
    @classmethod
    def _derive_defaults(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = {key: value for key, value in values.items() if value is not None}
        for key, value in derived_defaults(given.get("model"), given.get("optimizer")).items():
            given.setdefault(key, value)
        return given

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, name: str) -> str:
        if name.endswith(".npz") or name == "linear" or name.split(":")[0] in NAMED_DATASETS:
            return name
        raise ValueError(allowed([*NAMED_DATASETS, "synthetic:NxCxHxW", "a path ending in .npz", "linear"]))

    @field_validator("probe")
    @classmethod
    def _some_probe(cls, text: str) -> str:
        if not selectors(text):
            raise ValueError(allowed(["kernels", "biases", "output", "patterns of layer names"]))
        return text

    @field_validator("layer_scales")
    @classmethod
    def _readable_scales(cls, text: str) -> str:
        _fixed_scales(text)
        return text

    @property
    def fixed_scales(self) -> dict[str, float]:
        """`layer_scales` as factors by selector."""
        return _fixed_scales(self.layer_scales)

    @model_validator(mode="after")
    def _linear_with_linear(self) -> Recipe:
        """A linear network is trained on the linear task, by what has a meaning for it."""
        if (self.model == "linear") != (self.dataset == "linear"):
            raise ValueError(
                f"model = {self.model!r} with dataset = {self.dataset!r} (allowed: linear with linear)"
            )
        if self.model == "linear" and (wrong := _not_linear(self)):
            raise ValueError("; ".join(wrong))
        return self

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Recipe:
        """Build a recipe; every bad field is reported at once, with its value and what is allowed."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError("; ".join(problems(error))) from None

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults: the identity of the recipe."""
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        defaults |= derived_defaults(self.model, self.optimizer)
        changed = {name: value for name, value in self.model_dump().items() if value != defaults[name]}
        if self.data_sha256 is not None:
            del changed["dataset"]  # the content counts, not where the file lies
        return changed

    @property
    def id(self) -> str:
        """A content hash: equal recipes have equal ids on every machine."""
        return content_id(self.changes())

    def known(self) -> dict[str, Any]:
        """All fields; those of training code of a user's own are None unless they were said."""
        said = self.model_dump() if self.pipeline is None else self.changes()
        return {name: said.get(name) for name in type(self).model_fields}

    def label(self, fields: Iterable[str]) -> str:
        """Return a short human name made of the given fields."""
        return " ".join(_short(name, getattr(self, name)) for name in fields)


def selectors(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _fixed_scales(text: str) -> dict[str, float]:
    found = {}
    for part in selectors(text):
        name, sign, factor = part.partition("=")
        try:
            found[name.strip()] = float(factor)
        except ValueError:
            sign = ""
        if not sign or not name.strip() or not 0 <= found[name.strip()] < math.inf:
            raise ValueError("allowed: NAME=FACTOR, with commas between them and factors from 0")
    return found


def derived_defaults(model: object, optimizer: object) -> dict[str, Any]:
    """Defaults that depend on the model or the optimizer."""
    return {
        "width": DEFAULT_WIDTH.get(str(model), 64),
        "weight_decay": DEFAULT_DECAY.get(str(optimizer), 0.0),
        "momentum": DEFAULT_MOMENTUM.get(str(optimizer), 0.9),
    }


def _not_linear(recipe: Recipe) -> list[str]:
    """What a recipe of a linear network asks for in vain, one phrase per field."""
    found = []
    if recipe.optimizer not in LINEAR_OPTIMIZERS:
        found.append(f"optimizer = {recipe.optimizer!r} ({allowed(LINEAR_OPTIMIZERS)}, with model linear)")
    for name in NOT_LINEAR:
        value, default = getattr(recipe, name), Recipe.model_fields[name].default
        if value != default and not (name == "weight_decay" and recipe.optimizer in DEFAULT_DECAY):
            found.append(f"{name} = {value!r} ({allowed([default])}, with model linear)")
    return found


def content_id(content: Mapping[str, Any]) -> str:
    """Hash plain values to 16 hexadecimal digits, independent of the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def labels(recipes: Sequence[Recipe]) -> list[str]:
    """Name recipes by the optimizer and whatever else tells them apart."""
    dumps = [recipe.model_dump(exclude={"data_sha256"}) for recipe in recipes]
    varying = [
        name
        for name in (dumps[0] if dumps else {})
        if name == "optimizer" or len({str(dump[name]) for dump in dumps}) > 1
    ]
    ordered = sorted(varying, key=lambda name: name != "optimizer")  # stable: optimizer first
    named = [recipe.label(_informative(recipe, ordered)) for recipe in recipes]
    if len(set(named)) == len(named):
        return named
    return [f"{name} {recipe.id[:6]}" for name, recipe in zip(named, recipes, strict=True)]


def _informative(recipe: Recipe, fields: Sequence[str]) -> list[str]:
    """Drop fields that say nothing about this recipe: a zero penalty, a default that follows."""
    if recipe.pipeline is not None:  # of a user's own code only what was said about it is known
        said = recipe.changes()
        return ["pipeline", *(name for name in fields if name in said and name != "pipeline")]
    derived = derived_defaults(recipe.model, recipe.optimizer)
    silent = {name for name, value in derived.items() if getattr(recipe, name) == value}
    silent = silent - {"width"} | {"pipeline"}
    silent |= {name for name in ("l2", "patience", "train_size") if not getattr(recipe, name)}
    if recipe.augment == "none":
        silent.add("augment")
    return [name for name in fields if name not in silent]


def _short(name: str, value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if name in BARE:
        return text
    if name in ("batch_size", "width"):
        return SHORT[name] + text
    return f"{SHORT.get(name, name)}={text}"


def problems(error: ValidationError) -> list[str]:
    """Turn pydantic's findings into one phrase per bad field."""
    return [_phrase(item) for item in error.errors()]


def _phrase(item: Any) -> str:
    name = ".".join(str(part) for part in item["loc"])
    value = item.get("input")
    if item["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Recipe.model_fields, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"unknown field {name} = {value!r} ({hint}{allowed(sorted(Recipe.model_fields))})"
    message = item["msg"].removeprefix("Value error, ").replace("Input should be", "allowed:")
    if not name:  # of the recipe as a whole: the message names the fields itself
        return str(message)
    return f"{name} = {value!r} ({message})"
