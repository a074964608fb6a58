"""Packs of any `torch.nn.Module`, through `torch.func`: one call trains all replicas of a plain module.

The module knows nothing of packs. It maps inputs (batch, channel, height, width), or tokens (batch, length),
to logits (batch, class); for tokens also (batch, length, class). It is initialized by the rules of `Init`.
Whether runs with code of a plugin, a module or an optimizer, can share a pack and be resumed is tried, not
guessed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from initmem import register
from initmem.data.dataset import Dataset, Sizes, noise
from initmem.errors import ModelError
from initmem.recipe import Recipe
from initmem.record import COLUMNS
from initmem.register import in_a_line, plugin_code
from initmem.seeds import generator
from initmem.study import Run
from initmem.train.init import deviations, factors, initialize_replica
from initmem.train.layers import by_replica
from initmem.train.loop import train_epoch
from initmem.train.networks import BUILDERS, MODULES, Network, build, count
from initmem.train.pack import Pack
from initmem.train.variables import Share, Variable, torch_variables

Options = tuple[tuple[str, Any], ...]  # of a recipe
BUILDING, NOISE = 1, 1 << 40  # indices of the streams for building and for dropout: no epoch has them
# A trial of whether runs can share a pack.
SCALES = (0.5, 1.0, 2.0)
BATCH, BATCHES, EPOCHS = 4, 2, 2
TOLERANCE = 1e-8  # relative, in float64: that of the tests of bundled networks
OBSTACLES = {  # what torch.func says, and what it means
    "randomness": "it draws random numbers in training (dropout?)",
    "performance drop": "it uses an operation that torch.func does not batch",
    "in-place": "it changes a buffer in training (batch statistics?)",
    "inplace": "it changes a buffer in training (batch statistics?)",
    "data-dependent control flow": "its control flow depends on the data",
    ".item()": "its control flow depends on the data",
}

SHOWN_IMAGES = Sizes(1, 1, 1, 3, 32, 32, 10)
SHOWN_TOKENS = Sizes(1, 1, 1, 1, 1, 64, 96, 96, 64)


class ModulePack(Network):
    """R replicas of a module; alone, the module itself."""

    def __init__(
        self, modules: Sequence[nn.Module], variables: Sequence[Variable], sizes: Sizes, noise_seed: int
    ) -> None:
        super().__init__(len(modules))
        self.net, self.sizes = modules[0], sizes
        named = dict(self.net.named_parameters()) | dict(self.net.named_buffers())
        self.shapes = {name: tensor.shape for name, tensor in named.items()}  # of one replica
        _stack(modules)
        self._variables = list(variables)
        self._noise_seed = noise_seed

    def kernel_names(self) -> list[str]:
        """The parameters that are kernels by the rules of `Init`."""
        return [f"net.{variable.name}" for variable in self._variables if variable.role == "kernel"]

    def replica_variables(self, replica: int = 0) -> list[Variable]:
        """The parameters of one replica, under the names that they have in the module."""
        named = {v.name: self.net.get_parameter(v.name) for v in self._variables}
        shares = {name: by_replica(whole.detach(), self.replicas)[replica] for name, whole in named.items()}
        return [replace(v, place=Share(shares[v.name].view(self.shapes[v.name]))) for v in self._variables]

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * channel, h, w), or shared (batch, channel, h, w), to logits."""
        x = self._inputs(x)
        if self.replicas == 1:
            with torch.random.fork_rng([x.device] if x.is_cuda else [], enabled=self.training):
                if self.training:
                    torch.manual_seed(self._noise_seed + self.update)
                out: Tensor = self.net(x.squeeze(1))[None]
        else:
            axis = None if x.shape[1] == 1 else 1  # of the replicas; None: they share the inputs
            together = vmap(partial(functional_call, self.net), in_dims=(0, axis), randomness="error")
            out = together(self._by_replica(), x.squeeze(1) if axis is None else x)
        if self.sizes.labels == 1 and out.ndim == 4:  # one label: what follows the last token
            out = out[:, :, -1]
        return out.transpose(0, 1).flatten(1)

    def hidden(self, x: Tensor) -> Tensor | None:
        """The inputs of the layer with weights that the module calls last, replica by replica."""
        layers = [m for m in self.net.modules() if any(p.ndim > 1 for p in m.parameters(recurse=False))]
        inputs: list[Any] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0] if args else None))
            for layer in layers
        ]
        variables, features = self._by_replica(), []
        for r in range(self.replicas):
            inputs.clear()
            own = {name: tensor[r] for name, tensor in variables.items()}
            functional_call(self.net, own, (self._inputs(x).squeeze(1),))
            features += inputs[-1:]
        for hook in hooks:
            hook.remove()
        whole = [one for one in features if isinstance(one, Tensor) and one.shape[:1] == x.shape[:1]]
        return torch.cat([one.flatten(1) for one in whole], 1) if len(whole) == self.replicas else None

    def _inputs(self, x: Tensor) -> Tensor:
        """The inputs by replica, (batch, replica, ...); if they are shared, as if there were one replica."""
        channels, height, width = self.sizes.shape
        if self.sizes.vocabulary:
            return x.reshape(len(x), -1, width)
        return x.reshape(len(x), -1, channels, height, width)

    def _by_replica(self) -> dict[str, Tensor]:
        """Parameters and buffers, each of shape (replica, ...)."""
        named = dict(self.net.named_parameters()) | dict(self.net.named_buffers())
        return {name: t.view(self.replicas, *self.shapes[name]) for name, t in named.items()}


@torch.no_grad()
def _stack(modules: Sequence[nn.Module]) -> None:
    """Put the variables of all modules into the first, each of shape (replica * n, ...)."""
    first = modules[0]
    each = [
        dict(module.named_parameters(remove_duplicate=False))
        | dict(module.named_buffers(remove_duplicate=False))
        for module in modules
    ]
    stacked: dict[int, Tensor] = {}  # by the tensor of the first module: a tied tensor stays one
    for name, tensor in each[0].items():
        if id(tensor) not in stacked:
            whole = torch.stack([own[name] for own in each]) if len(each) > 1 else tensor.contiguous()
            whole = whole.flatten(0, 1).detach() if len(each) > 1 and tensor.ndim else whole.detach()
            is_parameter = isinstance(tensor, nn.Parameter)
            stacked[id(tensor)] = nn.Parameter(whole, tensor.requires_grad) if is_parameter else whole
        path, _, attribute = name.rpartition(".")
        setattr(first.get_submodule(path), attribute, stacked[id(tensor)])


def module_pack(runs: Sequence[Run], sizes: Sizes, *, device: torch.device, dtype: torch.dtype) -> ModulePack:
    """Build, initialize and stack the module of every run."""
    recipe = runs[0].recipe.network
    modules: list[nn.Module] = []
    variables: list[Variable] = []
    for run in runs:
        module = build_module(recipe, sizes, seed=_seed(run, "init", BUILDING)).to(device, dtype)
        variables = _variables(module, recipe)
        initialize_replica(variables, run, module.state_dict())
        modules.append(module)
    return ModulePack(modules, variables, sizes, _seed(runs[0], "augment", NOISE))


def _seed(run: Run, role: Any, index: int) -> int:
    return int(generator(run.seed_of(role), role, index).integers(1 << 62))


def builder(recipe: Recipe) -> Callable[..., Any]:
    """The builder of a recipe's module."""
    if recipe.model in MODULES:
        return MODULES[recipe.model]
    if (registered := register.models.find(recipe.model)) is not None:
        return registered.build
    raise ModelError(f"model = {recipe.model!r}: no plugin that registers it is loaded (--plugin MODULE)")


def build_module(recipe: Recipe, sizes: Sizes, *, seed: int = 0) -> nn.Module:
    """Call the builder of a recipe's module; what it draws itself depends on the seed alone."""
    build = builder(recipe)
    with torch.random.fork_rng([]), plugin_code(f"{_told(recipe, sizes)}: its builder"):
        torch.manual_seed(seed)
        module = build(sizes.input, sizes.classes, recipe.width, **recipe.network_options())
    if not isinstance(module, nn.Module):
        what = f"an object of type {type(module).__name__} (needed: a torch.nn.Module)"
        raise ModelError(f"{_told(recipe, sizes)}: its builder returned {what}")
    if any(parametrize.is_parametrized(part) for part in module.modules()):
        raise ModelError(f"model = {recipe.model!r}: parametrized weights (allowed: through initmem.run)")
    return module


def check_module(recipe: Recipe, sizes: Sizes) -> list[Variable]:
    """Pass two examples through a new module, look at what comes out, and return its parameters."""
    module = build_module(recipe, sizes)
    variables = _variables(module, recipe)
    size_of = deviations if recipe.init_mode == "redraw" else factors
    size_of(recipe, 1.0, variables)  # whether the layers that the recipe names are there, with their fan-ins
    told = _told(recipe, sizes)
    with plugin_code(f"{told}: its forward pass"), torch.no_grad(), torch.random.fork_rng([]):
        out = module.eval()(_zeros(2, sizes))
    if not isinstance(out, Tensor) or not out.is_floating_point():
        kind = str(out.dtype) if isinstance(out, Tensor) else type(out).__name__
        raise ModelError(f"{told}: its output is {kind} (needed: a tensor of floating-point logits)")
    allowed: list[tuple[int, ...]] = [(2, sizes.classes)] if sizes.labels == 1 else []
    allowed += [(2, sizes.width, sizes.classes)] if sizes.vocabulary else []
    if tuple(out.shape) not in allowed:
        needed = " or ".join(map(str, allowed))
        raise ModelError(f"{told}: its output for 2 examples has shape {tuple(out.shape)} (needed: {needed})")
    return variables


@lru_cache(maxsize=64)
def forward_flops(
    model: str, options: Options, width: int, sizes: Sizes, code: Callable[..., Any]
) -> tuple[int, int]:
    """FLOPs of one example through a module, as torch counts them, and the number of its kernels.

    They are remembered for as long as the name stands for the same code, that of the builder.
    """
    module = build_module(Recipe.parse({"model": model, "options": options, "width": width}), sizes)
    x = _zeros(1, sizes)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:  # it does not see what C computes
        module.double().eval()(x if sizes.vocabulary else x.double())
    return counter.get_total_flops(), sum(parameter.ndim > 1 for parameter in module.parameters())


def _zeros(n: int, sizes: Sizes) -> Tensor:
    """Inputs for a first look at a module."""
    tokens = torch.zeros(n, sizes.width, dtype=torch.int64)
    return tokens if sizes.vocabulary else torch.zeros(n, *sizes.shape)


def _variables(module: nn.Module, recipe: Recipe) -> list[Variable]:
    model = register.models.find(recipe.model)
    variables = torch_variables(module, None if model is None else model.kernels)
    stuck = [f"{v.name}: {v.note}" for v in variables if v.role == "stuck"]
    if stuck:
        raise ModelError(f"model = {recipe.model!r}: cannot initialize {'; '.join(stuck)}")
    if not any(v.role == "kernel" for v in variables):
        names = ", ".join(v.name for v in variables) or "it has none"
        raise ModelError(
            f"model = {recipe.model!r}: no kernel among its parameters ({names}; "
            "register.model(..., kernels=...) says which)"
        )
    return variables


def catalogue() -> list[dict[str, Any]]:
    """Every network at its default width, with its number of variables and its options."""
    rows: list[dict[str, Any]] = []
    for name in (*BUILDERS, *MODULES, *register.models.names()):
        recipe = Recipe.parse({"model": name, "dataset": "synthetic"})
        trainable, total = _counted(recipe, SHOWN_IMAGES) or _counted(recipe, SHOWN_TOKENS) or (None, None)
        row = {"name": name, "width": recipe.width, "trainable": trainable, "total": total}
        options = (register.options_of(name) or {}).items()
        rows.append(row | {"options": ", ".join(f"{key}={default}" for key, (_, default) in options)})
    return rows


def _counted(recipe: Recipe, sizes: Sizes) -> tuple[int, int] | None:
    """Numbers of trained and of all variables; None where the network does not take such an input."""
    try:
        return count((build_module if recipe.is_module else build)(recipe, sizes))
    except ModelError:
        return None


def _told(recipe: Recipe, sizes: Sizes) -> str:
    """What a builder was called with."""
    given = {"input": sizes.input, "outputs": sizes.classes, "width": recipe.width}
    options = ", ".join(f"{name}={value}" for name, value in (given | recipe.network_options()).items())
    return f"model = {recipe.model!r} ({options})"


# -- whether runs can share a pack ------------------------------------------------------------------------


def obstacle(recipe: Recipe, sizes: Sizes) -> str:
    """Why runs of a recipe cannot share a pack; empty if they can.

    A few updates are made in a pack and alone, in float64: every replica has to follow the trajectory that it
    follows alone. The optimizers of initmem keep replicas apart by construction, so one trial speaks for all
    of them; a registered one is tried itself.
    """
    trial, code = _trial(recipe)
    return _tried(trial, sizes._replace(n_train=0, n_val=0, n_test=0), code)


def _trial(recipe: Recipe) -> tuple[Recipe, tuple[Callable[..., Any], ...]]:
    """A short recipe with the network and the registered optimizer of another, and the code of both."""
    fields: dict[str, Any] = {"model": recipe.model, "width": recipe.width, "norm": recipe.norm}
    fields |= {"options": recipe.options} if recipe.options else {}
    code = (builder(recipe),) if recipe.is_module else ()
    if (own := register.optimizers.find(recipe.optimizer)) is not None:
        fields |= {"optimizer": recipe.optimizer, "decay_on": recipe.decay_on}
        fields |= {name: getattr(recipe, name) for name in own.fields}
        code = (*code, own.build)
    rest = {"dataset": "synthetic", "epochs": EPOCHS, "learning_rate": 0.01, "batch_size": BATCH}
    return Recipe.parse(fields | rest), code


def check_optimizer(recipe: Recipe, sizes: Sizes) -> None:
    """Make a few updates with a registered optimizer, and again with a resumption between them."""
    trial, _ = _trial(recipe)
    data, runs = noise(sizes, n_train=BATCH * BATCHES, n_val=BATCH), [Run(trial, 1.0, 0)]
    told = f"optimizer = {recipe.optimizer!r}"
    whole, resumed = Pack(runs, data), Pack(runs, data)
    with plugin_code(f"{told}: an update"):
        train_epoch(whole)
        resumed.restore(whole.checkpoint())
        for pack in (whole, resumed):
            train_epoch(pack)
    if not _same(whole.history[0], resumed.history[0], tolerance=0.0):
        raise ModelError(
            f"{told}: a resumed run takes other steps (needed: all that changes is in its state or "
            "param_groups, as tensors or numbers)"
        )


@lru_cache(maxsize=64)
def _tried(recipe: Recipe, sizes: Sizes, code: tuple[Callable[..., Any], ...]) -> str:
    """The trial, remembered for as long as the names stand for the same code."""
    data = noise(sizes, n_train=BATCH * BATCHES, n_val=BATCH)
    runs = [Run(recipe, scale, seed) for seed, scale in enumerate(SCALES)]
    try:
        alone = [_history([run], data)[0] for run in runs]
    except Exception as error:  # whatever the module raises; if float32 does not help, training will tell
        return f"it cannot be tried in float64 ({in_a_line(error)})"
    try:
        with warnings.catch_warnings():
            # A warning of vmap says that an operation is done replica by replica: a pack would not pay.
            warnings.filterwarnings("error", message="There is a performance drop")
            packed = _history(runs, data)
    except Exception as error:  # whatever the module or vmap raises
        meanings = (words for text, words in OBSTACLES.items() if text in str(error))
        return next(meanings, f"torch.func raised {in_a_line(error)}")
    if all(_same(one, other) for one, other in zip(packed, alone, strict=True)):
        return ""
    return "in a pack its replicas do not follow the trajectories they follow alone"


def _history(runs: list[Run], data: Dataset) -> list[dict[str, list[float]]]:
    pack = Pack(runs, data, dtype=torch.float64)
    while not pack.finished:
        train_epoch(pack)
    pack.checkpoint()  # which splits the state of the optimizer by replica
    return pack.history


def _same(
    one: dict[str, list[float]], other: dict[str, list[float]], *, tolerance: float = TOLERANCE
) -> bool:
    return all(
        len(one[name]) == len(other[name])
        and np.allclose(one[name], other[name], rtol=tolerance, atol=1e-4 * tolerance)
        for name in COLUMNS
        if name != "seconds"
    )
