"""A study: a finite grid of runs, recipes x scales (or interventions) x seeds. Run ids are content hashes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator

from initmem.errors import ConfigError, validated
from initmem.intervention import Intervention, Level
from initmem.labels import labels
from initmem.recipe import AnyRecipe, Recipe, content_id, stored_recipe
from initmem.seeds import Role

LARGEST_STUDY = 1_000_000  # runs
ID_SCHEMA = 1  # part of every run id: raising it makes all old records strangers
SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)  # the default for user code
SEEDS = range(5)
PERTURBATION = 1.001  # the factor on perturbed weights

# The types of fields also check what is read from a store, where tuples are lists and pairs are objects.
T = TypeVar("T")
Scale: TypeAlias = Annotated[float, Field(gt=0, le=1e6)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 63)]
Word: TypeAlias = Annotated[str, Field(min_length=1, max_length=1000)]
Count: TypeAlias = Annotated[int, Field(ge=1)]
Several: TypeAlias = Annotated[tuple[T, ...], Field(min_length=1)]
Pairs: TypeAlias = Annotated[
    tuple[T, ...], BeforeValidator(lambda given: tuple(given.items()) if isinstance(given, dict) else given)
]
StoredRecipe: TypeAlias = Annotated[AnyRecipe, PlainValidator(lambda content: _shared_recipe(content))]


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: a recipe, an initialization scale and a seed.

    Attributes:
        recipe: the training procedure.
        scale: multiplies the initial weights.
        seed: of the initialization, the data order and the augmentation.
        pins: seeds of single roles that differ from `seed`, as pairs (role, seed).
        perturbation: multiplies one initial weight (bundled networks) or the largest of every kernel (user
            code), to measure chaos.
        intervention: what is varied in place of the scale, as in `scale=2@20`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, allow_inf_nan=False)

    recipe: StoredRecipe
    scale: float
    seed: int
    pins: Pairs[tuple[Role, int]] = ()
    perturbation: float = 1.0
    intervention: str = ""

    @property
    def level(self) -> Level:
        """Where the run lies on the axis that its study varies: its intervention, or else its scale."""
        return Intervention.parse(self.intervention).label if self.intervention else self.scale

    @property
    def is_warm(self) -> bool:
        """Whether it begins from a parent: the same run, trained on half of the data."""
        return Intervention.parse(self.intervention).word == "warm"

    @property
    def id(self) -> str:
        """A hash of everything that differs from the defaults."""
        return _run_id(self)

    def seed_of(self, role: Role) -> int:
        """The seed that drives one role."""
        return dict(self.pins).get(role, self.seed)

    def to_json(self) -> dict[str, Any]:
        """The run as plain values, for `from_json`."""
        return {"recipe": recipe_json(self.recipe)} | _address(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Run:
        """Rebuild a run from `to_json`; malformed content is an error."""
        return validated(cls, content)


def recipe_json(recipe: AnyRecipe) -> dict[str, Any]:
    """Plain values from which `stored_recipe` rebuilds a recipe."""
    content = recipe.changes()
    if isinstance(recipe, Recipe) and recipe.data_sha256 is not None:
        content["dataset"] = recipe.dataset
    return content


def _shared_recipe(content: Mapping[str, Any]) -> AnyRecipe:
    """The same object for every run of a recipe: a store has thousands of runs of a few recipes."""
    return _recipe_of(json.dumps(content, sort_keys=True))


@lru_cache(maxsize=4096)
def _recipe_of(text: str) -> AnyRecipe:
    return stored_recipe(json.loads(text))


@lru_cache(maxsize=1 << 16)
def _run_id(run: Run) -> str:
    address = _address(run) | ({"intervention": run.level} if run.intervention else {})
    return content_id({"schema": ID_SCHEMA, "recipe": _hashed(run.recipe)} | address)


@lru_cache(maxsize=4096)
def _hashed(recipe: AnyRecipe) -> dict[str, Any]:
    return recipe.changes()  # a study has thousands of runs of a few recipes


def _address(run: Run) -> dict[str, Any]:
    """The scale and seed of a run; its pins, its perturbation and its intervention if it has any."""
    usual: dict[str, Any] = {"pins": {}, "perturbation": 1.0, "intervention": ""}
    given = {"pins": dict(run.pins), "perturbation": run.perturbation, "intervention": run.intervention}
    changed = {name: value for name, value in given.items() if value != usual[name]}
    return {"scale": run.scale, "seed": run.seed} | changed


@dataclass(frozen=True, slots=True)
class Study:
    """A resolved study, as `initmem run` trains it and `load_study` returns it.

    The runs are the product of `recipes`, `scales` and `seeds`, plus those that the other fields add.

    Attributes:
        name: of the study, in the store and in commands.
        title: one line for tables and the report.
        preset: the size of the study.
        about: a few sentences.
        recipes: the training procedures.
        scales: the initialization scales.
        seeds: of every recipe and scale.
        pins: seeds of single roles, for every run.
        perturbation: if not 1, every run also has a perturbed replicate.
        split: roles whose seeds are also varied alone, with the others at the first seed.
        more_seeds: seeds beyond `seeds`, by recipe id.
        schedule: numbers of seeds at which `--until` analyzes the results.
        analyzed: numbers of seeds analyzed before others were added without a plan.
        interventions: varied in place of the scale, at scale 1.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    name: str
    title: str
    preset: str
    about: str
    recipes: Several[StoredRecipe]
    scales: Several[Scale]
    seeds: Several[Seed]
    pins: Pairs[tuple[Role, int]] = ()
    perturbation: float = 1.0
    split: tuple[Role, ...] = ()
    more_seeds: Pairs[tuple[str, Annotated[tuple[Seed, ...], Field(strict=False)]]] = ()  # JSON has lists
    schedule: tuple[Count, ...] = ()
    analyzed: tuple[Count, ...] = ()
    interventions: tuple[Word, ...] = ()

    @property
    def levels(self) -> tuple[tuple[float, str], ...]:
        """The axis of the study: pairs of a scale and an intervention."""
        every = [(scale, "") for scale in self.scales]
        return tuple((1.0, text) for text in self.interventions) or tuple(every)

    def seeds_of(self, recipe: AnyRecipe) -> tuple[int, ...]:
        """All seeds of one recipe."""
        return self.seeds + dict(self.more_seeds).get(recipe.id, ())

    def __post_init__(self) -> None:
        seeds, repeats = len(self.seeds), 1 if self.perturbation == 1.0 else 2
        levels = len(self.levels)
        each = levels * (seeds * repeats + len(self.split) * max(0, seeds - 1))
        more = levels * repeats * sum(len(extra) for _, extra in self.more_seeds)
        if (runs := len(self.recipes) * each + more) > LARGEST_STUDY:
            raise ConfigError(f"study {self.name!r} has {runs:,} runs (allowed: up to {LARGEST_STUDY:,})")

    def runs(self, recipe: AnyRecipe) -> list[Run]:
        """The runs of one recipe, seed by seed, so that more seeds only append."""
        runs = [
            Run(recipe, scale, seed, self.pins, intervention=text)
            for seed in self.seeds_of(recipe)
            for scale, text in self.levels
        ]
        if self.perturbation != 1.0:
            runs += [replace(run, perturbation=self.perturbation) for run in runs]
        first = self.seeds[0]
        runs += [
            Run(recipe, scale, first, ((role, seed),), intervention=text)
            for role in self.split
            for seed in self.seeds[1:]
            for scale, text in self.levels
        ]
        return runs

    def with_more_seeds(self, recipe: AnyRecipe, count: int) -> Study:
        """The same study with `count` more seeds for one recipe: the smallest unused numbers."""
        extra = dict(self.more_seeds)
        taken = self.seeds + extra.get(recipe.id, ())
        fresh = [seed for seed in range(len(taken) + count) if seed not in taken][:count]
        extra[recipe.id] = extra.get(recipe.id, ()) + tuple(fresh)
        return replace(self, more_seeds=tuple(extra.items()))

    def all_runs(self) -> list[Run]:
        """Every run of the study, exactly once."""
        return [run for recipe in self.recipes for run in self.runs(recipe)]

    def labels(self) -> list[str]:
        """A short name for each recipe."""
        return labels(self.recipes)

    def to_json(self) -> dict[str, Any]:
        """Values for JSON, kept in the store so that it knows what was asked for."""
        content: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)} | {
            "recipes": [recipe_json(recipe) for recipe in self.recipes],
            "pins": dict(self.pins),
            "more_seeds": dict(self.more_seeds),
        }
        later = ("schedule", "analyzed", "interventions")  # fields that the first version did not have
        return {name: value for name, value in content.items() if value or name not in later}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Study:
        """Rebuild a study from `to_json`; malformed content is an error."""
        return validated(cls, content)


def recipes_of(studies: Iterable[Study]) -> list[AnyRecipe]:
    """The recipes of several studies, in order, each once."""
    return list(dict.fromkeys(recipe for study in studies for recipe in study.recipes))
