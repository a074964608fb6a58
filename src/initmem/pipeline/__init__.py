"""Pipelines: training code of users, and the one that comes with initmem, which a study file may name."""

from __future__ import annotations

from initmem.clocks import Schedule
from initmem.data.sources import sizes
from initmem.engines.engine import Pipeline
from initmem.errors import ConfigError
from initmem.recipe import AnyRecipe
from initmem.study import Study


def schedule_of(recipe: AnyRecipe) -> tuple[Schedule, int]:
    """What fixes the learning rates of a recipe, and on how many examples it trains; known before any run."""
    if recipe.is_pipeline:
        from initmem.theory import lab

        if recipe.get("pipeline") == lab.PIPELINE:
            return lab.LinearSettings.of(recipe), len(lab.linear_task().x)
    network = recipe.network
    return network, sizes(network).n_train


def bundled_pipeline(study: Study) -> Pipeline | None:
    """The pipeline that a study file names, its settings checked; None for a study of networks.

    A study file alone never brings code: any other name needs `--command`.
    """
    if not any(recipe.is_pipeline for recipe in study.recipes):
        return None
    from initmem.theory import lab

    for recipe in study.recipes:
        if (name := recipe.get("pipeline")) != lab.PIPELINE:
            raise ConfigError(
                f"pipeline = {name!r} (allowed in a study file: {lab.PIPELINE}, in all of its recipes; "
                "your own program with --command)"
            )
        lab.LinearSettings.of(recipe)
    return Pipeline(lab.train, lab.PACK, schedule_of)
