"""What the scale of a run acts on, and from which distribution kernels are drawn. Pure.

A selector names variables: `kernels`, `biases`, `output` (the kernel of the last layer), or a pattern of
variable or layer names (`head`, `residual*`); several stand with commas between them.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.errors import ConfigError, allowed
from initmem.recipe import Distribution, Recipe, selectors

Array = NDArray[np.float64]
Names = tuple[str, ...]  # of one variable: a tied one has several

CUT = 2.0  # a truncated normal ends after so many deviations


class Layout(NamedTuple):
    """The variables of a network, by names; a variable is known by the first of its names."""

    fan_ins: Mapping[Names, float]  # of kernels
    biases: Sequence[Names]
    output: Names  # the kernel of the last layer


def deviations(recipe: Recipe, scale: float, layout: Layout) -> dict[str, float]:
    """The standard deviation of every variable."""
    factor = factors(recipe, scale, layout)
    found = {names[0]: factor[names[0]] / math.sqrt(fan_in) for names, fan_in in layout.fan_ins.items()}
    if recipe.width_scaling == "mup":  # the output then vanishes with the width, as its gradient does
        found[layout.output[0]] /= math.sqrt(layout.fan_ins[layout.output])
    return found | {names[0]: factor[names[0]] * recipe.bias_std for names in layout.biases}


def factors(recipe: Recipe, scale: float, layout: Layout) -> dict[str, float]:
    """The factor of every variable: the run's scale where it acts, times those that are fixed."""
    scaled = _chosen(recipe.scaled, "scaled", layout)
    found = {names[0]: scale if names in scaled else 1.0 for names in (*layout.fan_ins, *layout.biases)}
    for selector, factor in recipe.fixed_scales.items():
        for names in _chosen(selector, "layer_scales", layout):
            found[names[0]] *= factor
    return found


def _chosen(text: str, field: str, layout: Layout) -> set[Names]:
    found: set[Names] = set()
    for selector in selectors(text):
        match selector:
            case "kernels":
                these = set(layout.fan_ins)
            case "biases":
                these = set(layout.biases)
            case "output":
                these = {layout.output}
            case _:
                these = {names for names in layout.fan_ins if _matches(names, selector, of_layers=True)}
                these |= {names for names in layout.biases if _matches(names, selector, of_layers=False)}
        if not these:
            known = [names[0] for names in (*layout.fan_ins, *layout.biases)]
            raise ConfigError(
                f"{field} = {text!r}: nothing here is named {selector!r} "
                f"({allowed(['kernels', 'biases', 'output', *known])})"
            )
        found |= these
    return found


def _matches(names: Names, pattern: str, *, of_layers: bool) -> bool:
    """A layer's name stands for its kernel; a bias has to be named itself."""
    every = [*names, *(name.rpartition(".")[0] for name in names if of_layers)]
    return any(fnmatch.fnmatchcase(name, pattern) for name in every)


def draw(rng: np.random.Generator, shape: Sequence[int], distribution: Distribution = "normal") -> Array:
    """A kernel whose values have mean 0 and variance 1."""
    match distribution:
        case "normal":
            return rng.standard_normal(tuple(shape))
        case "uniform":
            return rng.uniform(-math.sqrt(3), math.sqrt(3), tuple(shape))
        case "truncated":
            return _truncated(rng.random(tuple(shape)))
        case "orthogonal":
            return _orthogonal(rng.standard_normal((shape[0], math.prod(shape[1:])))).reshape(tuple(shape))


def _truncated(uniform: Array) -> Array:
    from scipy.special import ndtr, ndtri

    inside = 2 * ndtr(CUT) - 1
    density = math.exp(-(CUT**2) / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * CUT * density / inside
    return np.asarray(ndtri(ndtr(-CUT) + inside * uniform) / math.sqrt(variance))


def _orthogonal(normal: Array) -> Array:
    """Rows, or columns if there are more rows, at right angles, uniformly over all such matrices."""
    rows, columns = normal.shape
    q, r = np.linalg.qr(normal if rows >= columns else normal.T)
    q = q * np.sign(np.diag(r))
    return np.asarray((q if rows >= columns else q.T) * math.sqrt(max(rows, columns)))
