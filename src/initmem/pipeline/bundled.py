"""Pipelines that come with initmem: a study file names them, and they run through the door of user code."""

from __future__ import annotations

from typing import NamedTuple

from initmem.engines.settings import Trainer
from initmem.errors import ConfigError
from initmem.recipe import PipelineRecipe
from initmem.study import Study
from initmem.theory import lab
from initmem.theory.ensemble import LinearSettings


class BundledPipeline(NamedTuple):
    """What trains the runs of a pipeline, and how many of them at once."""

    trainer: Trainer
    pack: int


def bundled_pipeline(study: Study) -> BundledPipeline | None:
    """The pipeline that a study file names, its settings checked; None for a study of bundled networks.

    A study file alone never brings code: any other name needs `--command`.
    """
    named = {recipe.pipeline for recipe in study.recipes if isinstance(recipe, PipelineRecipe)}
    if not named:
        return None
    if named != {lab.PIPELINE} or len(study.recipes) != sum(
        isinstance(recipe, PipelineRecipe) for recipe in study.recipes
    ):
        names = ", ".join(sorted(named))
        raise ConfigError(
            f"pipeline = {names!r} (allowed in a study file: {lab.PIPELINE}, in all of its recipes; "
            "a program of your own with --command)"
        )
    for recipe in study.recipes:
        LinearSettings.of(recipe)
    return BundledPipeline(lab.train, lab.PACK)
