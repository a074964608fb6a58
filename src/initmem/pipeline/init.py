"""`Init`: the initialization of one run, for any model.

    init = initmem.Init(scale=0.5, seed=0)     # inside `initmem.run` you are given one
    model = init.apply(MyNet())                # multiplies its kernels in place, returns the model
    print(init.describe(model))                # what is scaled, and what is left alone

The model keeps its own initialization: the scale multiplies its kernels, and scale 1 is the model as it came.
With `draw="fan-in"`, kernels ~ N(0, scale^2 / fan_in) and biases ~ N(0, bias_std^2) are drawn instead. For
one seed the random numbers are then the same at every scale and on every device; only their size changes.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from initmem.errors import ConfigError, ModelError, allowed, first_of
from initmem.intervention import NONE, Intervention
from initmem.measures.provenance import MOST_MODELS, MOST_ROWS, Applied, Treated
from initmem.pipeline.observers import torch_optimizers
from initmem.plots import tables
from initmem.recipe import INITIALIZATION, PipelineRecipe
from initmem.seeds import Role, generator
from initmem.study import Run
from initmem.table import Table, table_of
from initmem.train import init as rules
from initmem.train.variables import Kernels, Variable, torch_variables

Array = NDArray[np.float64]
Draw = Literal["own", "fan-in"]
DRAWN_ONLY = ("bias_std", "distribution")  # these need weights that are drawn
TOLD = "INITMEM_TOLD"  # the folder in which a program of `initmem run --command` leaves these two files:
INIT_FILE = "init.jsonl"  # what it did to its models, a line for each
TRACKER_FILE = "tracker.json"  # what its tracker saw
ALL_ZERO = "all zero: no scale"
Model = TypeVar("Model")
Function = Callable[..., Any]  # an intervention of the user: (model), or (model, optimizer) in training


class UntouchedWarning(UserWarning):
    """`Init.apply` left parameters as they are that it has no rule for."""


@dataclass(frozen=True, slots=True)
class InitTable:
    """What `Init.apply` does to every parameter of a model. Print it."""

    variables: tuple[Variable, ...]
    sizes: Mapping[str, float]  # by name: the factor of the model's own values, or the deviation drawn
    own: Mapping[str, float | None]  # standard deviations of the model as it came
    scaled: frozenset[str]  # names of what the scale multiplies
    draw: Draw
    scale: float
    explicit: bool  # whether the user named the kernels

    def rows(self) -> list[dict[str, Any]]:
        """One row of plain values per parameter; `std` is the standard deviation that is used."""
        return [
            {"parameter": v.name, "shape": tuple(v.shape), "role": v.role}
            | ({"factor": self.sizes.get(v.name)} if self.draw == "own" else {"fan_in": v.fan_in})
            | {"std": self._std(v), "model_std": self.own[v.name], "note": v.note}
            for v in self.variables
        ]

    def names(self, role: str) -> list[str]:
        """The parameters that have a role: kernel, bias, norm, frozen, other or stuck."""
        return [v.name for v in self.variables if v.role == role]

    def applied(self) -> Applied:
        """What was done to each parameter, as a record holds it."""
        outcomes = {v.name: self._outcome(v) for v in self.variables}
        rows = []
        for v in self.variables[:MOST_ROWS]:
            own, used = _rounded(self.own[v.name]), _rounded(self._std(v))
            rows.append(Treated(v.name, tuple(v.shape), v.role, outcomes[v.name], own, used))
        return Applied(scale=self.scale, draw=self.draw, counts=Counter(outcomes.values()), rows=rows)

    def _outcome(self, variable: Variable) -> str:
        if variable.note == ALL_ZERO:
            return "all zero"
        if variable.name in self.scaled:
            return "scaled"
        if variable.role == "other" and not self.explicit:
            return "not recognized"
        is_drawn = self.draw == "fan-in" and variable.name in self.sizes
        return "drawn at a fixed size" if is_drawn else "left alone"

    def _std(self, variable: Variable) -> float | None:
        size, own = self.sizes.get(variable.name), self.own[variable.name]
        if size is None or own is None:
            return own
        return size * own if self.draw == "own" else size

    def table(self) -> Table:
        """The rows as a table."""
        rows = [row | {"shape": " x ".join(map(str, row["shape"]))} for row in self.rows()]
        return table_of("Initialization", rows, {})

    def _repr_html_(self) -> str:
        return tables.html(self.table())

    def __str__(self) -> str:
        return tables.text(self.table()).rstrip()


def _optimizer_tensors(optimizer: Any) -> list[Tensor]:
    """The state of torch optimizers, with their counts of updates."""
    states = [state for one in torch_optimizers(optimizer) for state in one.state.values()]
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


class Declared(dict[str, Any]):
    """Settings of a pipeline by name; one that was not declared is an error."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(f"init.recipe[{name!r}]: not declared ({allowed(self) if self else 'nothing is'})")


class Init:
    """The initialization of one run: `init.apply(model)` multiplies the model's weights by the scale.

    Args:
        scale: multiplies the initial weights.
        seed: of the random numbers.
        recipe: fields that change what is scaled or drawn, as in `Init(0.5, 0, scaled="head*")`. `scaled`
            chooses what the scale multiplies (`kernels`, `biases`, `output` or patterns of names);
            `layer_scales` (`"output=0.1"`) are factors that stay fixed. `distribution` and
            `bias_std` need `apply(model, draw="fan-in")`.
    """

    def __init__(self, scale: float = 1.0, seed: int = 0, **recipe: Any) -> None:
        for name in recipe:
            if name not in INITIALIZATION:  # anywhere else a free setting, but here it would do nothing
                raise ConfigError(f"Init({name}=...) ({allowed(('scale', 'seed', *INITIALIZATION))})")
        self._begin(Run(PipelineRecipe.parse({"pipeline": "init", **recipe}), float(scale), seed))

    @classmethod
    def of(cls, run: Run, functions: Mapping[str, Function] | None = None) -> Init:
        """The initialization of a run of a study; `functions` are interventions of the user by name."""
        init = cls.__new__(cls)
        init._begin(run, functions)
        return init

    def _begin(self, run: Run, functions: Mapping[str, Function] | None = None) -> None:
        self.run, self._functions = run, functions or {}
        self._intervened = run.intervention in ("", NONE)
        self._drawing = run.recipe.initialization()
        self.tables: list[InitTable] = []  # of the models it was applied to
        self._rng = generator(run.seed_of("init"), "init")
        self.used = False  # whether anybody asked for the scale

    @property
    def scale(self) -> float:
        """The initialization scale of the run."""
        self.used = True
        return self.run.scale

    @property
    def seed(self) -> int:
        """The seed of the initialization. Where roles are split, the data order may have another one."""
        return self.run.seed_of("init")

    @property
    def id(self) -> str:
        """The id of the run: the same for the same question on every machine."""
        return self.run.id

    @property
    def recipe(self) -> Declared:
        """What was declared about the pipeline, by name: `init.recipe["learning_rate"]`."""
        return Declared(self.run.recipe.settings())

    def __repr__(self) -> str:
        return f"Init(scale={self.run.scale:g}, seed={self.seed})"

    def generator(self, role: Role = "order", index: int = 0) -> np.random.Generator:
        """A NumPy generator of this run.

        Args:
            role: `order` (of the data) or `augment`.
            index: one generator for each, such as the epoch.
        """
        return generator(self.run.seed_of(role), role, index)

    def kernel(self, *shape: int, fan_in: float) -> Array:
        """A kernel as a NumPy array, for code without a framework: each call draws the next one.

        Args:
            shape: of the array.
            fan_in: inputs of a unit; the standard deviation is scale / sqrt(fan_in).
        """
        if self._drawing.scaled != "kernels" or self._drawing.layer_scales:
            raise ConfigError("plain arrays have no names to choose from (allowed: scaled = 'kernels')")
        drawn = self._kernel(shape)
        return drawn * self._perturbation(drawn) * (self.scale / math.sqrt(fan_in))

    def bias(self, *shape: int) -> Array:
        """A bias of this `shape` as a NumPy array: deviation `recipe.bias_std`, whatever the scale."""
        return self._rng.standard_normal(shape) * self._drawing.bias_std

    def describe(
        self, model: Any, *, draw: Draw = "own", kernels: Kernels = None, bias_std: float | None = None
    ) -> InitTable:
        """What `apply(model, draw=..., kernels=..., bias_std=...)` would do to every parameter.

        The model is not changed.
        """
        if draw not in get_args(Draw):
            raise ConfigError(f"draw = {draw!r} ({allowed(get_args(Draw))})")
        given = self.run.recipe.changes() | ({} if bias_std is None else {"bias_std": bias_std})
        for name in DRAWN_ONLY if draw == "own" else ():
            if name in given:
                raise ConfigError(
                    f"{name} = {given[name]!r}: the model keeps its own initialization "
                    "(allowed with init.apply(model, draw='fan-in'))"
                )
        recipe = self._drawing if bias_std is None else self._drawing.replace(bias_std=bias_std)
        parameters = parameters_of(model, kernels)
        if not any(v.role in ("kernel", "stuck") for v in parameters):
            names = ", ".join(v.name for v in parameters) or "it has none"
            raise ModelError(
                f"{type(model).__name__}: no kernel among its parameters ({names}; `kernels` says which)"
            )
        sizes: dict[str, float] = {}
        scaled: set[str] = set()
        if any(v.role == "kernel" for v in parameters):
            rule = rules.factors if draw == "own" else rules.deviations
            sizes = rule(recipe, self.run.scale, parameters)
            scaled = rules.chosen_names(recipe.scaled, "scaled", parameters)
        if draw == "own":  # no factor can change zeros
            zero = {v.name for v in parameters if v.name in scaled and not bool(v.place.value().any())}
            parameters = [replace(v, note=ALL_ZERO) if v.name in zero else v for v in parameters]
        own = {v.name: _own_deviation(v) for v in parameters}
        return InitTable(
            tuple(parameters), sizes, own, frozenset(scaled), draw, self.run.scale, kernels is not None
        )

    def apply(
        self, model: Model, *, draw: Draw = "own", kernels: Kernels = None, bias_std: float | None = None
    ) -> Model:
        """Initialize a model for this scale and seed, and return it: in place, but for a pytree of JAX.

        Args:
            model: of torch or Keras, or a pytree of JAX.
            draw: `own` keeps the model's own initialization and multiplies its kernels by the scale;
                `fan-in` draws kernels ~ N(0, scale^2 / fan_in) and biases ~ N(0, bias_std^2).
            kernels: which parameters are kernels, where no rule covers them: module types,
                patterns of parameter names, or a function (name, parameter, module) -> fan-in, True or False.
                `draw="fan-in"` needs the fan-in of kernels in layers that are not known: `{"W_*": 784}`.
            bias_std: deviation of drawn biases; the recipe's (0.2) unless given.

        Norm layers and frozen parameters keep their values. So do parameters without a rule, which a warning
        names. A kernel that cannot be set is an error.
        """
        table = self.describe(model, draw=draw, kernels=kernels, bias_std=bias_std)
        stuck = [f"{v.name}: {v.note}" for v in table.variables if v.role == "stuck"]
        if stuck:
            raise ModelError("cannot initialize " + "; ".join(stuck))
        scaled = [v for v in table.variables if v.name in table.scaled]
        if all(v.note == ALL_ZERO for v in scaled):
            names = first_of([v.name for v in scaled], 3, ", ")
            raise ModelError(f"the scale multiplies nothing but zeros: {names} (allowed: draw='fan-in')")
        self.used = True
        if draw == "own":
            rules.rescale(table.variables, table.sizes)
        else:
            drawn = rules.draws(self._rng, table.variables, table.sizes, self._drawing.distribution)
            for variable, values in drawn:
                variable.place.set(values)
        # A function of the user takes a pytree as it will be: when it is rebuilt.
        at_the_end = is_pytree(model) and self.run.intervention in self._functions
        if self.run.intervention and not at_the_end:
            model = self.intervene(model, 0, variables=table.variables)
        for v in table.variables:
            if v.role == "kernel" and self.run.perturbation != 1.0:
                v.place.rescale(self._perturbation(v.place.value().detach().double().cpu().numpy()))
        self.tables.append(table)
        if (path := told_path(INIT_FILE)) is not None:
            with path.open("a") as stream:
                stream.write(table.applied().model_dump_json() + "\n")
        others = [f"{v.name} {tuple(v.shape)}" for v in table.variables if v.role == "other"]
        if others and kernels is None:  # who chose the kernels knows what is left
            text = f"Init.apply left as they are: {', '.join(others)} (`kernels` says what to scale)"
            warnings.warn(text, UntouchedWarning, stacklevel=2)
        model = _rebuilt(model, table.variables)
        return self.intervene(model, 0) if at_the_end else model

    def intervene(
        self, model: Model, epoch: int, optimizer: Any = None, *, variables: Sequence[Variable] | None = None
    ) -> Model:
        """Make the intervention of the run, once, if it is due after this epoch, and return the model."""
        if self._intervened or Intervention.parse(self.run.intervention).epoch != epoch:
            return model
        self._intervened = True
        function = self._functions.get(self.run.intervention)
        if function is not None:
            made = function(model) if epoch == 0 else function(model, optimizer)
            return model if made is None else cast("Model", made)
        chosen = list(variables or ())
        if variables is None:  # with the kernels that `apply` was told about
            before = {v.name: v for table in self.tables for v in table.variables}
            pairs = [(v, before.get(v.name, v)) for v in parameters_of(model)]
            chosen = [replace(v, role=told.role, fan_in=told.fan_in) for v, told in pairs]
        tensors = model.state_dict() if isinstance(model, nn.Module) else {}
        moments = None if optimizer is None else _optimizer_tensors(optimizer)
        rules.intervene(self.run, epoch, chosen, tensors, moments)
        return _rebuilt(model, chosen) if variables is None else model

    def check_intervened(self, epochs: int) -> None:
        """Raise if the intervention of the run was due and never made: it would look like none."""
        due = Intervention.parse(self.run.intervention).epoch
        if not self._intervened and due <= epochs:
            later = "tracker.intervene(model, optimizer) at the start of every epoch"
            call = later if due else "init.apply(model)"
            raise ConfigError(f"intervention {self.run.intervention!r} was never made (needed: {call})")

    def _kernel(self, shape: Sequence[int]) -> Array:
        """The random numbers of one kernel: the same at every scale."""
        return rules.draw(self._rng, shape, self._drawing.distribution)

    def _perturbation(self, kernel: Array) -> Array:
        """Factors that perturb the largest weight of a kernel, which no dead input can hide."""
        factors = np.ones(kernel.shape)
        factors.flat[np.abs(kernel).argmax()] = self.run.perturbation
        return factors

    def applied(self) -> list[dict[str, Any]]:
        """What was done to each kind of model, for the provenance of a record."""
        models = [table.applied().model_dump(mode="json") for table in self.tables[:MOST_MODELS]]
        return [model for i, model in enumerate(models) if model not in models[:i]]


def told_path(name: str) -> Path | None:
    """Where a program leaves a file for `initmem run --command`; None: nobody asked."""
    return Path(folder, name) if (folder := os.environ.get(TOLD)) else None


def _rebuilt(model: Model, variables: Sequence[Variable]) -> Model:
    """The model with the present values of its parameters: a pytree is put together again."""
    if not is_pytree(model):
        return model
    from initmem.pipeline.jax import rebuilt

    return cast("Model", rebuilt(variables))


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _own_deviation(variable: Variable) -> float | None:
    """The standard deviation of a parameter as it is; None where it has no values."""
    values = variable.place.value().detach()
    if variable.role == "stuck" or not values.numel() or not values.is_floating_point():
        return None
    return float(values.float().std(correction=0))


# -- the parameters of a model of any framework -----------------------------------------------------------


def parameters_of(model: Any, kernels: Kernels = None) -> list[Variable]:
    """Every parameter of a model once, in the order in which initialization draws them.

    `kernels` says which parameters count as kernels: module types and patterns of parameter names in any
    mixture (`[nn.Linear, "blocks.*.mixing"]`), or a function. Without it: the kernels of the layers that
    the framework has, as far as they are trained.
    """
    if is_keras(model):
        from initmem.pipeline.keras import keras_variables

        return keras_variables(model, kernels)
    if is_pytree(model):
        from initmem.pipeline.jax import jax_variables

        return jax_variables(model, kernels)
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise ModelError(f"a {kind} is no model of torch, Keras or JAX (Init.kernel draws plain arrays)")
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ModelError(f"{name} is on the meta device (allowed: model.to_empty(device=...) first)")
    return torch_variables(model, kernels)


def is_keras(model: Any) -> bool:
    """Whether a model is one of Keras; with its torch backend it is a torch module as well."""
    kinds = type(model).__mro__
    return any(kind.__module__.startswith("keras.") and kind.__name__ == "Layer" for kind in kinds)


def is_pytree(model: Any) -> bool:
    """Whether something is a pytree with parameters in it; without JAX nothing is."""
    if "jax" not in sys.modules or isinstance(model, nn.Module):
        return False
    from initmem.pipeline.jax import has_parameters

    return has_parameters(model)
