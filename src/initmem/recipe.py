"""A recipe: everything that defines one training procedure, except initialization scale and seed.

There are two kinds. A `Recipe` describes a bundled network: every field has a value. A `PipelineRecipe` names
user code and holds what was declared about it, and nothing else: what was not declared is not known.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from initmem import catalog, register
from initmem.errors import ConfigError, allowed, is_text, validated

Norm = Literal["batch", "layer"]
Distribution = Literal["normal", "uniform", "truncated", "orthogonal"]

SPLIT_SIZES = ("train_size", "val_size", "test_size")  # None: all of the split
# What a smaller repetition of a published result may change: the size of the work, not the procedure.
SIZE_FIELDS = frozenset({*SPLIT_SIZES, "test_unused", "batch_statistics", "width", "epochs", "data_sha256"})
PER_REPLICA = ("learning_rate", "l2", "weight_decay")  # what may differ inside a pack
# How weights are drawn; `Init` takes these fields of user code as well.
INITIALIZATION = ("bias_std", "distribution", "scaled", "layer_scales")
STORED = {"stored": True}  # the context in which a recipe is read from a store: plugins may not be there

Count: TypeAlias = Annotated[int, Field(ge=1, le=10**7)]
Size: TypeAlias = Annotated[int, Field(ge=1, le=10**9)]

Scalar: TypeAlias = str | bool | int | float
Value: TypeAlias = Scalar | tuple[Any, ...]  # nested as deep as the user likes


class Recipe(BaseModel):
    """One training procedure of a bundled or registered network. The defaults are the paper's main grid.

    Attributes:
        dataset: a name of `initmem data list`, a registered one, or the path of an .npz file.
        data_sha256: digest of such a file, filled in when a study is read.
        train_size: use only the first n training examples.
        val_size: validate on only the first n examples of the split.
        test_size: test on only the first n examples of the split.
        test_unused: test also on the training examples that `train_size` leaves unused.
        model: a network of `initmem models`, or a registered one.
        options: options of the network that differ from their defaults; given like fields.
        width: channels of the first layer, or hidden units; the default depends on the model.
        mup_base: muP, with learning rates per layer, that is the usual parametrization at this width.
        norm: `batch` or `layer` normalization.
        batch_statistics: evaluate batch norm with `moving` averages, as Keras does, or with statistics
            `re-estimated` from training batches after every epoch.
        optimizer: a bundled optimizer, `torch:NAME` for torch.optim, or a registered one.
        learning_rate: initial learning rate.
        schedule: `cosine` or `constant`.
        lr_floor: final fraction of the cosine schedule.
        warmup: updates of linear warmup, for every schedule.
        momentum: of momentum and muon (there 0.95 by default).
        beta1: decay of the first moment; in Schedule-Free the weight of the average.
        beta2: decay of the second moment.
        epsilon: Adam's, added to sqrt(v) without bias correction.
        weight_decay: decoupled; 1e-4 by default for adamw and muon.
        decay_on: which variables decay: `all`, `kernels`, or `no-norm` (all but normalization layers).
        l2: adds l2 * sum(W^2) over the kernels to the loss.
        batch_size: examples per update.
        epochs: passes over the training examples.
        augment: `none` or `flip-crop`.
        patience: stop after n epochs without a smaller validation loss.
        select_by: the validation loss that selects the model: `objective` (with L2) or `cross-entropy`.
        train_eval: evaluate the training split after each epoch instead of averaging over its minibatches.
        bias_std: standard deviation of the initial biases.
        distribution: of the initial kernels: `normal`, `uniform`, `truncated` or `orthogonal`.
        scaled: what the scale multiplies: `kernels`, `biases`, `output`, or patterns of layer names.
        layer_scales: fixed factors of the initialization, as in `output=0.5, residual*=2`.
        init_mode: `redraw` draws the weights; `rescale` multiplies the network's own initialization.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    is_pipeline: ClassVar[bool] = False

    dataset: str = "cifar10"
    data_sha256: str | None = None
    train_size: Size | None = None
    val_size: Size | None = None
    test_size: Size | None = None
    test_unused: bool = False
    model: str = "resnet9"
    options: tuple[tuple[str, Scalar], ...] = ()
    width: Count = 64
    mup_base: Count | None = None
    norm: Norm = "batch"
    batch_statistics: Literal["moving", "re-estimated"] = "moving"
    optimizer: str = "sgd"
    learning_rate: float = Field(1e-3, gt=0)
    schedule: Literal["cosine", "constant"] = "cosine"
    lr_floor: float = Field(0.01, ge=0, le=1)
    warmup: int = Field(0, ge=0, le=10**9)
    momentum: float = Field(0.9, ge=0, lt=1)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-7, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    decay_on: Literal["all", "kernels", "no-norm"] = "all"
    l2: float = Field(0.0, ge=0)
    batch_size: Count = 128
    epochs: Count = 300
    augment: Literal["none", "flip-crop"] = "none"
    patience: Count | None = None
    select_by: Literal["objective", "cross-entropy"] = "objective"
    train_eval: bool = False
    bias_std: float = Field(0.2, ge=0)
    distribution: Distribution = "normal"
    scaled: str = "kernels"
    layer_scales: str = ""
    init_mode: Literal["redraw", "rescale"] = "redraw"

    @property
    def network(self) -> Recipe:
        """The recipe itself: it describes a network. A recipe of user code raises a `ConfigError`."""
        return self

    def initialization(self) -> Recipe:
        """How weights are drawn: the fields of this recipe."""
        return self

    @property
    def selecting_loss(self) -> str:
        """The column of a history whose smallest value selects the model."""
        return "val_" + self.select_by.replace("-", "_")

    @model_validator(mode="before")
    @classmethod
    def _derive_defaults(cls, values: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        given = {key: value for key, value in values.items() if value is not None}
        model = given.get("model")
        if isinstance(model, str) and model not in catalog.PACKED:  # what is no field is one of its options
            options = {key: given.pop(key) for key in [*given] if key not in cls.model_fields}
            if options:
                given["options"] = tuple(sorted((dict(given.get("options", ())) | options).items()))
        # The defaults of a registered optimizer are part of the id: a store is read without the plugin.
        defaults = catalog.defaults_of(given.get("model"), given.get("optimizer"))
        if info.context != STORED and (own := register.optimizers.find(str(given.get("optimizer", "sgd")))):
            defaults |= own.fields
        return defaults | given

    @field_validator("dataset", "model", "optimizer")
    @classmethod
    def _known_name(cls, name: str, info: ValidationInfo) -> str:
        if info.context != STORED:
            register.check_name(info.field_name, name)  # type: ignore[arg-type]
        return name

    @field_validator("options")
    @classmethod
    def _known_options(
        cls, given: tuple[tuple[str, Scalar], ...], info: ValidationInfo
    ) -> tuple[tuple[str, Scalar], ...]:
        options = register.options_of(str(info.data.get("model")))
        if options is None or info.context == STORED:
            return given
        model = info.data["model"]
        if taken := options.keys() & cls.model_fields.keys():
            raise ValueError(f"{', '.join(sorted(taken))}: a field of every recipe, not an option of {model}")
        try:
            return register.checked_options(options, dict(given), cls.model_fields)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _fields_that_apply(self) -> Recipe:
        """Refuse settings that would do nothing."""
        module = self.is_module
        for name, usual in (("norm", "batch"), ("batch_statistics", "moving")):
            if module and (value := getattr(self, name)) != usual:
                raise ValueError(f"{name} = {value!r} with model = {self.model!r} (it brings its own layers)")
        if self.init_mode == "rescale":
            if not module:
                raise ValueError(f"init_mode = 'rescale' with model = {self.model!r} (allowed: redraw)")
            for name in ("bias_std", "distribution"):
                if (value := getattr(self, name)) != DEFAULTS[name]:
                    raise ValueError(f"{name} = {value!r} with init_mode = 'rescale' (nothing is drawn anew)")
        for name, known in (("model", catalog.PACKED), ("optimizer", catalog.MUP)) if self.mup_base else ():
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"mup_base = {self.mup_base} with {name} = {value!r} ({allowed(known)})")
        return self

    @property
    def is_module(self) -> bool:
        """Whether the network is a plain module: vit, gpt, or one that a plugin registered."""
        return self.model not in catalog.PACKED

    @property
    def has_own_optimizer(self) -> bool:
        """Whether a plugin registered the optimizer."""
        return self.optimizer not in catalog.OPTIMIZERS

    @field_validator("scaled", "layer_scales")
    @classmethod
    def _readable_selectors(cls, text: str, info: ValidationInfo) -> str:
        if info.field_name == "layer_scales":
            factors_of(text)
        elif not selectors(text):
            raise ValueError(allowed(["kernels", "biases", "output", "patterns of layer names"]))
        return text

    @classmethod
    def parse(cls, values: Mapping[str, Any], context: Mapping[str, bool] | None = None) -> Recipe:
        """Build a recipe; every bad field is reported at once, with its value and what is allowed."""
        return validated(cls, dict(values), context=context)

    def changes(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults: the identity of the recipe."""
        defaults = DEFAULTS | catalog.defaults_of(self.model, self.optimizer)
        changed = {name: value for name, value in self.model_dump().items() if value != defaults[name]}
        changed |= dict(changed.pop("options", ()))
        if self.data_sha256 is not None:  # the content counts, not where the file lies
            kind, length, _ = f"{self.dataset}::".split(":", 2)
            if kind == "text":
                changed["dataset"] = f"{kind}:{length}"
            else:
                del changed["dataset"]
        return changed

    @property
    def id(self) -> str:
        """A content hash: equal recipes have equal ids on every machine."""
        return content_id(self.changes())

    def settings(self) -> dict[str, Any]:
        """All that is known about the procedure, by name."""
        fields = self.model_dump()
        del fields["options"]
        return fields | self.network_options()

    def network_options(self) -> dict[str, Any]:
        """The options of the network; defaults included, as far as the network is known here."""
        defaults = {name: default for name, (_, default) in (register.options_of(self.model) or {}).items()}
        return defaults | dict(self.options)

    def get(self, name: str) -> Any:
        """One setting; None where there is no such field."""
        if name in DEFAULTS:
            return getattr(self, name)
        return self.network_options().get(name)

    def replace(self, **changes: Any) -> Recipe:
        """The same recipe with some fields changed."""
        return self.model_copy(update=changes)

    @property
    def pack_key(self) -> Recipe:
        """Recipes with the same key may share a pack: what is left after replicas have rates of their own."""
        rule = catalog.OPTIMIZERS.get(self.optimizer)
        if rule is None or not rule.own_rates:
            return self
        return self.replace(**{name: DEFAULTS[name] for name in PER_REPLICA})


DEFAULTS = {name: field.default for name, field in Recipe.model_fields.items()}

# Settings that mean for user code what they mean for bundled networks: clocks read them.
SHARED = (
    "learning_rate", "l2", "weight_decay", "momentum", "beta1", "beta2", "batch_size", "epochs", "width",
    "train_size", "patience", *INITIALIZATION,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PipelineRecipe:
    """A training procedure of user code: its name, and what was declared about it, in order of names."""

    is_pipeline: ClassVar[bool] = True
    selecting_loss: ClassVar[str] = "val_objective"

    pipeline: str
    declared: tuple[tuple[str, Value], ...] = ()

    @property
    def network(self) -> Recipe:
        """There is none: what asks for a bundled network cannot do with user code."""
        raise ConfigError(
            f"pipeline = {self.pipeline!r}: its data and network are known to its own code alone "
            "(allowed here: bundled networks; initmem.run and `initmem run --command` train pipelines)"
        )

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> PipelineRecipe:
        """Build a recipe; every bad value is reported at once."""
        given = {str(name): value for name, value in values.items() if value is not None}
        name = given.pop("pipeline", None)
        if not isinstance(name, str) or not 0 < len(name) <= 100 or not is_text(name):
            raise ConfigError(f"pipeline = {name!r} (allowed: a name of 1 to 100 characters)")
        wrong = {key: value for key, value in given.items() if not (is_text(key) and _is_plain(value))}
        if wrong:
            fields = "; ".join(f"{key} = {value!r}" for key, value in wrong.items())
            raise ConfigError(
                f"{fields} (allowed: finite numbers, integers below 2^63, strings, booleans, lists of them)"
            )
        Recipe.parse({key: value for key, value in given.items() if key in SHARED})
        return cls(name, tuple((key, _nested(given[key], tuple)) for key in sorted(given)))

    @property
    def id(self) -> str:
        """A content hash: equal recipes have equal ids on every machine."""
        return content_id(self.changes())

    def changes(self) -> dict[str, Any]:
        """The name and everything that was declared: the identity of the recipe."""
        return {"pipeline": self.pipeline} | {name: _nested(value, list) for name, value in self.declared}

    def settings(self) -> dict[str, Any]:
        """All that is known about the procedure, by name."""
        return self.changes()

    def get(self, name: str) -> Any:
        """One setting; None where it was not declared."""
        return self.changes().get(name)

    def replace(self, **changes: Any) -> PipelineRecipe:
        """The same recipe with some settings changed; None takes one away."""
        return PipelineRecipe.parse(self.changes() | changes)

    def initialization(self) -> Recipe:
        """How weights are drawn, in the fields of a bundled network's recipe."""
        return Recipe.parse({name: value for name, value in self.changes().items() if name in INITIALIZATION})


AnyRecipe: TypeAlias = Recipe | PipelineRecipe


def parse_recipe(values: Mapping[str, Any], context: Mapping[str, bool] | None = None) -> AnyRecipe:
    """A recipe of either kind: one that names a pipeline is user code's."""
    if values.get("pipeline") is not None:
        return PipelineRecipe.parse(values)
    return Recipe.parse(values, context)


def stored_recipe(values: Mapping[str, Any]) -> AnyRecipe:
    """A recipe from a file of a store."""
    return parse_recipe(values, STORED)


def _is_plain(value: object) -> bool:
    """Whether a value is a text, a boolean, a number that JSON keeps, or a list of these."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return is_text(value) if isinstance(value, str) else isinstance(value, float) and math.isfinite(value)


def _nested(value: Any, kind: type[list[Any]] | type[tuple[Any, ...]]) -> Any:
    """A value with all its lists as lists, or as tuples."""
    return kind(_nested(item, kind) for item in value) if isinstance(value, list | tuple) else value


def selectors(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def factors_of(text: str) -> dict[str, float]:
    """Factors by selector, from text such as 'output=0.5, residual*=2'."""
    scales = {}
    for part in selectors(text):
        name, _, factor = (word.strip() for word in part.partition("="))
        try:
            scales[name] = float(factor)
        except ValueError:
            scales[name] = math.nan
        if not name or not 0 <= scales[name] < math.inf:
            raise ValueError("allowed: NAME=FACTOR, with commas between them and factors from 0")
    return scales


def content_id(content: Mapping[str, Any]) -> str:
    """Hash plain values to 16 hexadecimal digits, independent of the order of keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
