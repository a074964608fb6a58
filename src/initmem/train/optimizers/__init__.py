"""The optimizer of a recipe."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from initmem.recipe import ALONE, Recipe
from initmem.train.optimizers.rules import (
    SGD,
    Adam,
    Decoupled,
    Lion,
    Momentum,
    Muon,
    Optimizer,
    PerReplica,
    times,
)

__all__ = ["Optimizer", "PerReplica", "optimizer_for", "times"]


def optimizer_for(
    recipe: Recipe, variables: Sequence[Tensor], replicas: int = 1, decayed: Sequence[int] | None = None
) -> Optimizer:
    """The optimizer of a recipe; `decayed` holds the indices of the variables that decay, by default all."""
    if replicas > 1 and recipe.optimizer in ALONE:
        raise ValueError(f"optimizer = {recipe.optimizer!r} trains one replica at a time")
    chosen = list(range(len(variables))) if decayed is None else list(decayed)
    if recipe.optimizer.startswith("torch:") or recipe.has_own_optimizer:
        from initmem.train.optimizers.from_torch import from_torch

        return from_torch(recipe, variables, chosen)
    if recipe.optimizer in ("schedule-free-sgd", "schedule-free-adamw", "sf-normuon"):
        return _schedule_free(recipe, variables, replicas, chosen)
    rule = _rule(recipe, variables, replicas)
    points = [variables[i] for i in chosen]
    return Decoupled(rule, points, recipe.weight_decay) if recipe.weight_decay and points else rule


def _rule(recipe: Recipe, variables: Sequence[Tensor], replicas: int) -> Optimizer:
    """The rule without its decoupled decay, so adamw is adam here."""
    match recipe.optimizer:
        case "sgd":
            return SGD(variables)
        case "momentum":
            return Momentum(variables, recipe.momentum)
        case "adam" | "adamw":
            return Adam(variables, recipe.beta1, recipe.beta2, recipe.epsilon)
        case "lion":
            return Lion(variables, recipe.beta1, recipe.beta2)
        case "muon":
            # Muon in Keras 3 handles only 2-D variables (here: dense kernels) and leaves conv kernels to
            # Adam; muon-conv handles both, as its author intended.
            return Muon(variables, _matrices(variables, replicas, (2,)), recipe)
        case "muon-conv" | "normuon":
            matrices = _matrices(variables, replicas, (2, 4))
            return Muon(variables, matrices, recipe, by_row=recipe.optimizer == "normuon")
        case unknown:
            raise ValueError(f"optimizer = {unknown!r} has no update rule")


def _schedule_free(
    recipe: Recipe, variables: Sequence[Tensor], replicas: int, decayed: Sequence[int]
) -> Optimizer:
    from initmem.train.optimizers import schedule_free

    if recipe.optimizer == "sf-normuon":
        matrices = _matrices(variables, replicas, (2, 4))
        return schedule_free.ScheduleFreeNorMuon(variables, matrices, recipe, decayed)
    if recipe.optimizer == "schedule-free-sgd":
        return schedule_free.ScheduleFreeSGD(variables, recipe, decayed)
    return schedule_free.ScheduleFreeAdamW(variables, recipe, decayed)


def _matrices(variables: Sequence[Tensor], replicas: int, axes: Sequence[int]) -> list[tuple[int, int]]:
    """Variables with this many axes, as pairs (index, rows of one replica's matrix)."""
    return [(i, len(v) // replicas) for i, v in enumerate(variables) if v.ndim in axes]
