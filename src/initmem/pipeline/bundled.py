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


def bundled_pipeline(study: Study) -> BundledPipeline:
    """The pipeline that a study file names, its settings checked.

    A study file alone never brings code: any other name needs `--command`.
    """
    for recipe in study.recipes:
        if not isinstance(recipe, PipelineRecipe) or recipe.pipeline != lab.PIPELINE:
            name = recipe.pipeline if isinstance(recipe, PipelineRecipe) else None
            raise ConfigError(
                f"pipeline = {name!r} (allowed in a study file: {lab.PIPELINE}, in all of its recipes; "
                "a program of your own with --command)"
            )
        LinearSettings.of(recipe)
    return BundledPipeline(lab.train, lab.PACK)
