"""Pipelines that come with initmem: a study file names them, and they run through the door of user code."""

from __future__ import annotations

from typing import NamedTuple

from initmem.clocks import Schedule
from initmem.data.sources import sizes
from initmem.engines.engine import Trainer
from initmem.errors import ConfigError
from initmem.recipe import AnyRecipe, PipelineRecipe, network_of
from initmem.study import Study
from initmem.theory import lab
from initmem.theory.lab import LinearSettings, linear_task


class BundledPipeline(NamedTuple):
    """What trains the runs of a pipeline, and how many of them at once."""

    trainer: Trainer
    pack: int


def schedule_of(recipe: AnyRecipe) -> tuple[Schedule, int]:
    """What fixes the learning rates of a recipe, and on how many examples it trains; known before any run."""
    if isinstance(recipe, PipelineRecipe) and recipe.pipeline == lab.PIPELINE:
        return LinearSettings.of(recipe), len(linear_task().x)
    network = network_of(recipe)
    return network, sizes(network).n_train


def bundled_pipeline(study: Study) -> BundledPipeline:
    """The pipeline that a study file names, its settings checked.

    A study file alone never brings code: any other name needs `--command`.
    """
    for recipe in study.recipes:
        if not isinstance(recipe, PipelineRecipe) or recipe.pipeline != lab.PIPELINE:
            name = recipe.pipeline if isinstance(recipe, PipelineRecipe) else None
            raise ConfigError(
                f"pipeline = {name!r} (allowed in a study file: {lab.PIPELINE}, in all of its recipes; "
                "your own program with --command)"
            )
        LinearSettings.of(recipe)
    return BundledPipeline(lab.train, lab.PACK)
