"""The bundled networks, optimizers and datasets, a row each, without torch: adding one is adding a row.

A network's row names its class in `initmem.train`, an optimizer's row its update rule in
`initmem.train.optimizers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# What a step is proportional to, which decides the clock that counts it: the gradient, an accumulated
# gradient, nothing (its size is that of the learning rate), or it is averaged.
Steps = Literal["gradient", "heavy ball", "normalized", "averaged"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a network, as the signature of its builder declares it."""

    name: str
    kind: type
    default: Any
    choices: tuple[Any, ...] = ()

    @property
    def permitted(self) -> str:
        """What is allowed, in words."""
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        return ", ".join(map(str, self.choices)) if self.choices else words[self.kind]

    def read(self, value: object) -> Any:
        """The value in the option's own type; a `ValueError` if it is not allowed."""
        if self.kind is float and type(value) is int:
            value = float(value)
        if type(value) is not self.kind or (self.choices and value not in self.choices):
            raise ValueError(f"allowed: {self.permitted}")
        return value

    def __str__(self) -> str:
        return f"{self.name}={self.default}"


@dataclass(frozen=True, slots=True)
class Network:
    """A bundled network, by default of this width; `packed`: written for packs, not a plain module."""

    width: int = 64
    packed: bool = True
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A bundled optimizer: its update rule, and the fields of a recipe that it reads, with its defaults."""

    steps: Steps
    rule: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the rule, beside the recipe
    # In a pack, replicas may have learning rates and penalties of their own: the state does not depend on the
    # rate, and a step is proportional to it.
    own_rates: bool = False
    packed: bool = True  # False: its steps depend on a whole variable, which in a pack holds all replicas


NETWORKS = {
    "resnet9": Network(),
    "resnet9-avgpool": Network(),
    "resnet56": Network(width=16),
    "resnet110": Network(width=16),
    "mlp": Network(width=256),
    "vit": Network(
        packed=False, options=(Option("patch", int, 4), Option("depth", int, 4), Option("heads", int, 4))
    ),
    "gpt": Network(
        packed=False, options=(Option("depth", int, 4), Option("heads", int, 4), Option("tied", bool, False))
    ),
}
PACKED = tuple(name for name, network in NETWORKS.items() if network.packed)

ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}
MUON = ADAM | {"momentum": 0.95, "weight_decay": 1e-4}
# Muon in Keras 3 handles only 2-D variables (here: dense kernels) and leaves convolutions to Adam; muon-conv
# handles both, as its author intended.
DENSE, DENSE_AND_CONV = {"axes": (2,)}, {"axes": (2, 4)}
# Fields and defaults of the signatures in torch.optim. Not among them are LBFGS, which needs a closure,
# SparseAdam (sparse gradients) and Muon (it takes matrices only).
TORCH_DECAY = {"weight_decay": 0.0}
TORCH_ADAM = {"weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

OPTIMIZERS = {
    "sgd": Optimizer("gradient", "SGD", own_rates=True),
    "momentum": Optimizer("heavy ball", "Momentum", {"momentum": 0.9}),
    "adam": Optimizer("normalized", "Adam", ADAM, own_rates=True),
    "adamw": Optimizer("normalized", "Adam", ADAM | {"weight_decay": 1e-4}, own_rates=True),
    "muon": Optimizer("normalized", "Muon", MUON, DENSE, own_rates=True),
    "muon-conv": Optimizer("normalized", "Muon", MUON, DENSE_AND_CONV, own_rates=True),
    "normuon": Optimizer(
        "normalized", "Muon", MUON | {"beta2": 0.95}, DENSE_AND_CONV | {"by_row": True}, own_rates=True
    ),
    "lion": Optimizer("normalized", "Lion", {"beta1": 0.9, "beta2": 0.99}, own_rates=True),
    "schedule-free-sgd": Optimizer(
        "averaged", "ScheduleFreeSGD", {"schedule": "constant", "beta1": 0.9, "weight_decay": 0.0}
    ),
    "schedule-free-adamw": Optimizer(
        "normalized", "ScheduleFreeAdamW", ADAM | {"schedule": "constant", "epsilon": 1e-8}
    ),
    "sf-normuon": Optimizer(
        "normalized", "ScheduleFreeNorMuon", MUON | {"schedule": "constant", "beta2": 0.95}, DENSE_AND_CONV
    ),
    "torch:ASGD": Optimizer("averaged", "torch", TORCH_DECAY),
    "torch:Adadelta": Optimizer("normalized", "torch", TORCH_DECAY | {"epsilon": 1e-6}),
    "torch:Adafactor": Optimizer("normalized", "torch", TORCH_DECAY, packed=False),
    "torch:Adagrad": Optimizer("normalized", "torch", TORCH_DECAY | {"epsilon": 1e-10}),
    "torch:Adam": Optimizer("normalized", "torch", TORCH_ADAM),
    "torch:AdamW": Optimizer("normalized", "torch", TORCH_ADAM | {"weight_decay": 0.01}),
    "torch:Adamax": Optimizer("normalized", "torch", TORCH_ADAM),
    "torch:NAdam": Optimizer("normalized", "torch", TORCH_ADAM),
    "torch:RAdam": Optimizer("normalized", "torch", TORCH_ADAM),
    "torch:RMSprop": Optimizer("normalized", "torch", TORCH_DECAY | {"momentum": 0.0, "epsilon": 1e-8}),
    "torch:Rprop": Optimizer("normalized", "torch"),
    "torch:SGD": Optimizer("heavy ball", "torch", TORCH_DECAY | {"momentum": 0.0}),
}

DATASETS = (
    "digits", "cifar10", "cifar100", "svhn", "mnist", "fashion-mnist", "synthetic", "modular-addition",
    "text",
)  # fmt: skip


def steps_of(optimizer: str) -> Steps | None:
    """What the steps of an optimizer are proportional to; None for one that a plugin registered."""
    row = OPTIMIZERS.get(optimizer)
    return None if row is None else row.steps


def defaults_of(model: object, optimizer: object) -> dict[str, Any]:
    """The defaults of a recipe that depend on its network and its optimizer."""
    network, rule = NETWORKS.get(str(model), Network()), OPTIMIZERS.get(str(optimizer))
    return {"width": network.width, "weight_decay": 0.0, "momentum": 0.9} | dict(rule.fields if rule else {})
