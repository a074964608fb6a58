"""Networks, optimizers and datasets of your own, under names that study files may use.

    import initmem

    @initmem.register.model("mixer")
    def mixer(input, outputs, width, *, patch: int = 4) -> torch.nn.Module:
        ...

    @initmem.register.optimizer("sign-sgd")
    class SignSGD(torch.optim.Optimizer):      # or a function (params, lr, ...) that returns an optimizer
        ...

    @initmem.register.dataset("spirals")
    def spirals():
        return {"x": ..., "y": ...}        # or x_train, y_train, x_test and y_test, as in an .npz file

Only two kinds of code are imported: packages that are installed with an entry point in the group
`initmem.plugins`, and modules that are named by `--plugin MODULE` or `plugins=[...]`. A study file names what
was registered, but never imports anything.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import sys
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import ConfigDict, create_model

from initmem import catalog
from initmem.catalog import InterventionRow, Options
from initmem.errors import ConfigError, InitmemError, ModelError, allowed, validated

GROUP = "initmem.plugins"
ARGUMENTS = ("input", "outputs", "width")  # of every builder, before its options
DATASET_FORMS = (
    "synthetic:NxCxHxW", "modular-addition:MODULUS:FRACTION", "text:LENGTH:FILE", "a path ending in .npz"
)  # fmt: skip
KINDS: tuple[type, ...] = (bool, int, float, str)

Builder = TypeVar("Builder", bound=Callable[..., Any])
Thing = TypeVar("Thing")


class Tokens(NamedTuple):
    """The input of a network that reads tokens: whole numbers below `vocabulary`, `length` of them."""

    vocabulary: int
    length: int


@dataclass(frozen=True, slots=True)
class Model:
    """A registered network: `build(input, outputs, width, **options)` returns a `torch.nn.Module`."""

    build: Callable[..., Any]
    options: Options
    kernels: Any = None  # which parameters are kernels, as for `Init.apply`; None: the usual ones


@dataclass(frozen=True, slots=True)
class RegisteredOptimizer:
    """A registered optimizer: `build(params, lr=..., **arguments)` returns a `torch.optim.Optimizer`."""

    build: Callable[..., Any]
    fields: Mapping[str, float]  # of a recipe, with the defaults of the signature


@dataclass(frozen=True, slots=True)
class RegisteredIntervention(InterventionRow):
    """A registered intervention: `apply(state)` changes the variables of one network in place."""

    apply: Callable[[Any], None] = lambda state: None


class Registry(Generic[Thing]):
    """What plugins have registered of one kind in this process, by decorators as in pytest and timm."""

    def __init__(self, kind: str, bundled: Collection[str]) -> None:
        self._kind, self.bundled = kind, bundled
        self._things: dict[str, Thing] = {}
        self._homes: dict[str, str] = {}  # where each was defined

    def decorator(self, name: object, describe: Callable[[Any], Thing]) -> Callable[[Builder], Builder]:
        """A decorator that registers a function or class as it is described, once its name is checked."""
        call = f"register.{self._kind}({name!r})"

        def registered(build: Any) -> Any:
            if not isinstance(name, str) or not name.replace("-", "_").isidentifier() or len(name) > 100:
                raise ConfigError(f"{call} (allowed: a name of letters, digits, - and _)")
            if name in self.bundled:
                raise ConfigError(f"{call}: this {self._kind} comes with initmem (allowed: another name)")
            if not callable(build):
                raise ConfigError(f"{call}: {build!r} cannot be called (allowed: a function)")
            home = f"{getattr(build, '__module__', '')}.{getattr(build, '__qualname__', build)}"
            # A module that is imported again, as by `importlib.reload`, registers the same thing.
            if self._homes.get(name, home) != home:
                raise ConfigError(f"{call}: {self._homes[name]} has this name already")
            self._things[name], self._homes[name] = describe(build), home
            return build

        return registered

    def find(self, name: str) -> Thing | None:
        """What was registered under a name; None if nothing was."""
        if name not in self._things and name not in self.bundled:
            load_installed()
        return self._things.get(name)

    def names(self) -> list[str]:
        """The names of all that is registered."""
        load_installed()
        return list(self._things)


models: Registry[Model] = Registry("model", catalog.NETWORKS)
optimizers: Registry[RegisteredOptimizer] = Registry("optimizer", catalog.OPTIMIZERS)
datasets: Registry[Callable[[], Mapping[str, Any]]] = Registry("dataset", catalog.DATASETS)
interventions: Registry[RegisteredIntervention] = Registry("intervention", catalog.INTERVENTIONS)


def model(name: str, *, kernels: Any = None) -> Callable[[Builder], Builder]:
    """Register the builder of a network, called as `build(input, outputs, width, **options)`.

    `input` is (channel, height, width), or `Tokens` for token data. Every argument after `width` is an
    option, which study files set like a field of a recipe. Its type follows from its annotation or its
    default; `Literal["a", "b"]` lists choices.

    Args:
        name: for `model` in a recipe.
        kernels: which parameters are kernels, where the usual rule does not cover them; as for `Init.apply`.
    """
    return models.decorator(name, lambda build: Model(build, _options(name, build), kernels))


def optimizer(name: str) -> Callable[[Builder], Builder]:
    """Register a `torch.optim.Optimizer`: its class, or a function that returns one, with an argument `lr`.

    The learning rate of every update comes from the schedule. The arguments `momentum`, `betas`, `eps` and
    `weight_decay` are set by the fields of a recipe, with the defaults of the signature; all others keep
    their defaults.

    Args:
        name: for `optimizer` in a recipe.
    """
    return optimizers.decorator(
        name, lambda build: RegisteredOptimizer(build, _optimizer_fields(name, build))
    )


def dataset(name: str) -> Callable[[Builder], Builder]:
    """Register a function without arguments that returns the arrays of a dataset.

    They have the names of an .npz dataset: `x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`.

    Args:
        name: for `dataset` in a recipe.
    """
    return datasets.decorator(name, lambda load: load)


def intervention(
    name: str, *, number: tuple[float, float] | None = None, layers: bool = False
) -> Callable[[Builder], Builder]:
    """Register a function of the state of training, as `initmem.train.init.State` describes it.

    Args:
        name: its word in study files: `NAME`, or `NAME@EPOCH` after an epoch.
        number: limits of a value, which is then required: `NAME=VALUE`.
        layers: whether it takes patterns of layer names: `NAME=VALUE:PATTERN`. `state.chosen()` are the
            variables that they match.
    """
    target: Any = "layers" if layers else ""
    return interventions.decorator(name, lambda apply: RegisteredIntervention(number, target, apply=apply))


def check_name(kind: Literal["dataset", "model", "optimizer"], name: str) -> None:
    """Refuse, with a `ValueError`, a name in a recipe that neither initmem nor a plugin has."""
    registries: dict[str, Registry[Any]] = {"dataset": datasets, "model": models, "optimizer": optimizers}
    forms = {"dataset": DATASET_FORMS, "model": (), "optimizer": ("torch:NAME",)}[kind]
    registry, bundled = registries[kind], registries[kind].bundled
    is_form = kind == "dataset" and (name.endswith(".npz") or name.split(":")[0] in bundled)
    if name in bundled or is_form or registry.find(name):
        return
    of_torch = [one for one in bundled if one.startswith("torch:")]
    own = [one for one in bundled if one not in of_torch]
    offered = of_torch if name.startswith("torch:") and of_torch else [*own, *registry.names(), *forms]
    raise ValueError(allowed(offered, name) + "; --plugin MODULE brings others")


def has_any(model: str, optimizer: str, dataset: str) -> bool:
    """Whether a plugin registered the network, the optimizer or the dataset of a recipe."""
    return any((models.find(model), optimizers.find(optimizer), datasets.find(dataset)))


def options_of(name: str) -> Options | None:
    """The options of a network that is a plain module; None: no such network is known."""
    if name in catalog.NETWORKS and name not in catalog.PACKED:
        return catalog.NETWORKS[name].options
    registered = models.find(name)
    return None if registered is None else registered.options


def load(modules: Iterable[str]) -> None:
    """Import plugin modules by name; the folder in which the command was given counts as importable."""
    here = str(Path.cwd())
    for name in modules:
        if here not in sys.path:
            sys.path.insert(0, here)
        _imported(name, lambda name=name: importlib.import_module(name))  # type: ignore[misc]


def load_installed() -> None:
    """Import the plugins of installed packages, once."""
    for point in _entry_points(tuple(sys.path)):
        if point.value.partition(":")[0] not in sys.modules:
            _imported(point.value, point.load)


@cache
def _entry_points(path: tuple[str, ...]) -> importlib.metadata.EntryPoints:
    """What is installed on a search path; reading it takes milliseconds, and names are looked up often."""
    return importlib.metadata.entry_points(group=GROUP)


def _imported(name: str, action: Callable[[], Any]) -> None:
    try:
        action()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise ConfigError(f"plugin {name}: cannot be imported ({in_a_line(error)})") from None


@contextmanager
def plugin_code(what: str) -> Iterator[None]:
    """Code of a plugin may raise anything: say what raised it, unless it is a mistake in initmem's words."""
    try:
        yield
    except InitmemError:
        raise
    except Exception as error:
        raise ModelError(f"{what} raised {in_a_line(error)}") from None


def in_a_line(error: BaseException) -> str:
    """An exception in one line: its type, and what it says first."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _optimizer_fields(name: str, build: Callable[..., Any]) -> dict[str, float]:
    """The fields of a recipe that an optimizer takes, with the defaults of its signature."""
    try:
        signature = inspect.signature(build)
        signature.bind(None, lr=0.1).arguments["lr"]
    except (TypeError, ValueError, KeyError) as error:  # KeyError: `lr` is no argument of its own
        allowed_form = "(allowed: (params, lr, argument=default, ...))"
        raise ConfigError(f"register.optimizer({name!r}): {error} {allowed_form}") from None
    given = {key: parameter.default for key, parameter in signature.parameters.items()}
    betas = given.pop("betas", None)
    if isinstance(betas, tuple | list) and len(betas) == 2:
        given |= {"beta1": betas[0], "beta2": betas[1]}
    given["epsilon"] = given.pop("eps", None)
    names = ("momentum", "beta1", "beta2", "epsilon", "weight_decay")
    return {key: float(given[key]) for key in names if isinstance(given.get(key), int | float)}


def _options(name: str, build: Callable[..., Any]) -> Options:
    """Read the options of a network off the signature of its builder."""
    try:
        parameters = list(inspect.signature(build).parameters.values())
        hints = typing.get_type_hints(vars(build).get("__init__") if isinstance(build, type) else build)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"register.model({name!r}): its signature cannot be read ({error})") from None
    if tuple(parameter.name for parameter in parameters[: len(ARGUMENTS)]) != ARGUMENTS:
        raise ConfigError(
            f"register.model({name!r}): the builder takes ({', '.join(map(str, parameters))}) "
            "(allowed: (input, outputs, width, *, option=default, ...))"
        )
    options: dict[str, tuple[Any, Any]] = {}
    for parameter in parameters[len(ARGUMENTS) :]:
        where, default = f"register.model({name!r}): option {parameter.name}", parameter.default
        if default is parameter.empty:
            raise ConfigError(f"{where} has no default (allowed: {parameter.name}=VALUE)")
        hint = hints.get(parameter.name)
        is_choice = typing.get_origin(hint) is Literal
        kind: Any = hint if isinstance(hint, type) or is_choice else type(default)
        if kind not in KINDS and not is_choice:
            raise ConfigError(f"{where} is of type {kind.__name__} ({allowed(k.__name__ for k in KINDS)})")
        options[parameter.name] = (kind, float(default) if (kind, type(default)) == (float, int) else default)
    try:
        checked_options(options, {key: default for key, (_, default) in options.items()})
    except ConfigError as error:
        raise ConfigError(f"register.model({name!r}): the default {error}") from None
    return options


def checked_options(
    options: Options, given: Mapping[str, Any], fields: Collection[str] = ()
) -> tuple[tuple[str, Any], ...]:
    """The options of a network that differ from their defaults, in order of names; all mistakes at once.

    `fields` are names of a recipe, one of which may have been meant.
    """
    config = ConfigDict(strict=True, extra="forbid")
    schema: Any = create_model("Options", __config__=config, **dict(options))  # type: ignore[call-overload]
    values = validated(schema, given, near=fields).model_dump()
    return tuple((name, values[name]) for name in sorted(values) if values[name] != options[name][1])
