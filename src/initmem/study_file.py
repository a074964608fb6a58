"""Study files: read a bundled study or the user's TOML file, and multiply out its grid."""

from __future__ import annotations

import hashlib
import itertools
import math
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from operator import index
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from initmem import register
from initmem.catalog import INTERVENTIONS
from initmem.errors import ConfigError, allowed, is_text, validated
from initmem.files import reason
from initmem.intervention import Intervention, check_epoch, checked
from initmem.recipe import AnyRecipe, Recipe, parse_recipe
from initmem.seeds import ROLES, Role
from initmem.study import PERTURBATION, Scale, Seed, Study, Word

LARGEST_GRID = 100_000  # recipes


class _Block(BaseModel):
    """A block of the grid: fields of recipes, and seeds of these recipes beyond those of the study."""

    model_config = ConfigDict(extra="allow", strict=True)

    more_seeds: list[Seed] = []


class _Part(BaseModel):
    """What the top of a study file and each of its presets may say."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    about: str = ""
    scales: Annotated[list[Scale], Field(min_length=1)] | None = None
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None
    interventions: list[Word] | None = None  # varied in place of the scale
    recipe: dict[str, Any] = {}
    grid: list[_Block] | None = None


class _File(_Part):
    name: str = ""
    title: str = ""
    preset: str = "full"
    default_preset: str | None = None
    pin: dict[Role, int] = {}
    chaos: bool = False  # give every run a perturbed replicate
    split: list[Role] = []
    presets: dict[str, _Part] = {}


def bundled() -> list[str]:
    """Names of the studies that come with the package."""
    folder = resources.files("initmem") / "paper/studies"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml"))


def load_study(
    name: str, preset: str | None = None, overrides: Sequence[str] = (), *, plugins: Sequence[str] = ()
) -> Study:
    """Read a bundled study by name, or a study file by path.

    Args:
        name: a study of `initmem studies`, or the path of a .toml file.
        preset: the size of the study; the default preset unless given.
        overrides: fields to change, as in `["epochs=50", "seeds=[0, 1]"]`.
        plugins: modules to import first; they register networks and datasets that the study names.
    """
    register.load(plugins)
    file = _at_preset(_read(name), preset)
    settings = [override(text) for text in overrides]
    for key, value in settings:
        file = _apply(file, key, value)
    try:
        recipes = _expand(file)
    except ConfigError as error:
        raise error if settings else ConfigError(f"study {name}: {error}") from None
    programs = [recipe.get("pipeline") for recipe in recipes if recipe.is_pipeline]
    if file.interventions and programs:
        raise ConfigError(f"interventions with pipeline = {programs[0]!r} (allowed: networks)")
    about = ", ".join(f"with {text}" for text in overrides) or file.about
    named = {"name": file.name or Path(name).stem, "about": about}
    return _resolved(file.model_copy(update=named), recipes)


def _resolved(file: _File, recipes: Mapping[AnyRecipe, tuple[int, ...]], own: Collection[str] = ()) -> Study:
    """The study of a file at one preset, once its grid is multiplied out; every value once, in order."""
    if file.interventions and file.scales:
        raise ConfigError("scales and interventions in one study (allowed: one of them)")
    texts = [_usual_form(text, recipes, own) for text in file.interventions or ()]
    return Study(
        name=file.name,
        title=file.title,
        preset=file.preset,
        about=file.about,
        recipes=tuple(recipes),
        scales=tuple(dict.fromkeys(file.scales or [1.0])),
        interventions=tuple(dict.fromkeys(texts)),
        seeds=tuple(dict.fromkeys(file.seeds or [0])),
        more_seeds=tuple((recipe.id, seeds) for recipe, seeds in recipes.items() if seeds),
        pins=tuple((role, file.pin[role]) for role in ROLES if role in file.pin),
        perturbation=PERTURBATION if file.chaos else 1.0,
        split=tuple(role for role in ROLES if role in file.split),
    )


def presets(name: str) -> dict[str, str]:
    """The presets of a study and what each of them changes; the default one comes first."""
    file = _read(name)
    changes = {file.preset: file.about} | {key: part.about for key, part in file.presets.items()}
    first = file.default_preset or file.preset
    return {first: changes[first]} | changes


def own_study(
    name: str,
    recipe: Mapping[str, Any],
    scales: Iterable[float],
    seeds: Iterable[int],
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    chaos: bool = False,
    split: Sequence[Role] = (),
    interventions: Sequence[str] = (),
    own: Collection[str] = (),
) -> Study:
    """A study of user code: recipes that bear its name, one for every combination of the grid's values.

    Interventions that are in `own` are functions of the user.
    """
    declared, grid = {**recipe, "pipeline": name}, grid or {}
    for key, axis in grid.items():
        if isinstance(axis, str) or not isinstance(axis, Sequence) or not axis:
            raise ConfigError(f"grid[{key!r}] = {axis!r} (allowed: a list of at least one value)")
        if key in declared:
            raise ConfigError(f"{key}: in the recipe and in the grid (allowed: in one of them)")
    # A list is an axis, and in the recipe of user code it is one value.
    axes = {key: [value] for key, value in declared.items()} | {key: list(grid[key]) for key in grid}
    try:
        given = {
            "name": name,
            "title": f"{name}: your own training code",
            "recipe": axes,
            "scales": None if interventions else [float(scale) for scale in scales],
            "interventions": list(interventions) or None,
            "seeds": [index(seed) for seed in seeds],
            "chaos": chaos,
            "split": list(split),
        }
    except (TypeError, ValueError) as error:
        raise ConfigError(f"scales or seeds: {error} (allowed: numbers, and whole numbers from 0)") from None
    file = validated(_File, given)
    return _resolved(file, _expand(file), own)


def _usual_form(text: str, recipes: Iterable[AnyRecipe], own: Collection[str]) -> str:
    """An intervention of initmem in its usual form, or the name that a user gave to a function."""
    if text not in own:
        forms = [checked(text, recipe) for recipe in recipes]
        return forms[0]
    one = Intervention.parse(text)
    for recipe in recipes:
        check_epoch(text, one, recipe)
    if one.word in INTERVENTIONS or str(one) != text or not is_text(text):
        raise ConfigError(f"interventions[{text!r}] (allowed: NAME or NAME@EPOCH, with a name not taken)")
    return text


def single(overrides: Sequence[str]) -> AnyRecipe:
    """One recipe from `key=value` texts alone."""
    return next(iter(_expand(_Part(recipe=dict(override(text) for text in overrides)))))


def _read(name: str) -> _File:
    text = _text(name)
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # lists in lists in lists
        raise ConfigError(f"study {name}: not valid TOML: {error}") from None
    try:
        return validated(_File, raw, recipe_fields=Recipe.model_fields)
    except ConfigError as error:
        wrong = {str(error): None}
    try:  # the recipe's mistakes in the same breath, as far as it can be read at all
        _expand(validated(_Part, {key: raw[key] for key in ("recipe", "grid") if key in raw}))
    except ConfigError as error:
        wrong[str(error)] = None
    raise ConfigError(f"study {name}: " + "; ".join(wrong))


def _text(name: str) -> str:
    if name in bundled():
        return (resources.files("initmem") / "paper/studies" / f"{name}.toml").read_text("utf-8")
    path = Path(name)
    if path.suffix != ".toml" and not path.exists():
        names = allowed(bundled(), name)
        raise ConfigError(f"no study named {name!r} ({names}, or the path of a .toml file)")
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:  # a name may not hold everything, and not everything is text
        raise ConfigError(f"study file {name}: cannot be read: {error}") from None


def _at_preset(file: _File, preset: str | None) -> _File:
    """The file with the chosen preset laid over its top."""
    chosen = preset or file.default_preset or file.preset
    if chosen == file.preset:
        return file
    if chosen not in file.presets:
        raise ConfigError(f"preset = {chosen!r} ({allowed([file.preset, *file.presets], chosen)})")
    return _over(file, file.presets[chosen]).model_copy(update={"preset": chosen})


def _over(file: _File, given: _Part) -> _File:
    """The file with what is given laid over its top. Seeds that are given in another place are all seeds."""
    grid = file.grid if given.seeds is None else _without(file.grid, "more_seeds")
    levels = file if given.scales is None and given.interventions is None else given
    update = {
        "about": given.about,
        "scales": levels.scales,
        "interventions": levels.interventions,
        "seeds": given.seeds or file.seeds,
        "recipe": file.recipe | given.recipe,
        "grid": grid if given.grid is None else given.grid,
    }
    return file.model_copy(update=update)


def override(text: str) -> tuple[str, Any]:
    """Read `key=value`. A list has brackets or, if it is one of numbers, commas alone."""
    key, sign, value = (part.strip() for part in text.partition("="))
    if not sign or not key:
        raise ConfigError(f"--set {text!r} (allowed: key=value)")
    for literal in (value, f"[{value}]" if "," in value else value):
        with suppress(ValueError, RecursionError):
            return key, tomllib.loads(f"v = {literal}")["v"]
    return key, value  # a bare word: optimizer=adam


def listed(key: str, value: Any) -> list[Any]:
    """The scales or seeds that a user wrote. One number as the seeds could mean that seed or so many."""
    if key == "seeds" and not isinstance(value, list):
        hint = "a list of whole numbers, as in seeds=[5]; --seeds 5 for the seeds 0 to 4"
        raise ConfigError(f"seeds = {value!r} (allowed: {hint})")
    return value if isinstance(value, list) else [value]


def _apply(file: _File, key: str, value: Any) -> _File:
    """Set one value everywhere: for a recipe field that a grid varies, the override wins."""
    if key in ("scales", "seeds", "interventions"):
        return _over(file, validated(_Part, {key: listed(key, value)}))
    update = {"recipe": file.recipe | {key: value}, "grid": _without(file.grid, key)}
    return file.model_copy(update=update)


def _without(grid: list[_Block] | None, key: str) -> list[_Block] | None:
    """The grid without one field."""
    return grid and [_Block(**{name: value for name, value in block if name != key}) for block in grid]


def _expand(part: _Part) -> dict[AnyRecipe, tuple[int, ...]]:
    """Multiply out the grid: in a block, every list is an axis; blocks add up; duplicates merge.

    Each recipe comes with its seeds beyond those of the study.
    """
    recipes: dict[AnyRecipe, tuple[int, ...]] = {}
    wrong: dict[str, None] = {}
    for block in part.grid or [_Block()]:
        more = tuple(seed for seed in dict.fromkeys(block.more_seeds) if seed not in (part.seeds or [0]))
        fields = part.recipe | (block.model_extra or {})
        for values in combinations(fields):
            try:
                recipe = _with_digest(parse_recipe(values))
                recipes[recipe] = more or recipes.get(recipe, ())
            except ConfigError as error:
                wrong |= dict.fromkeys(str(error).split("; "))
    if wrong:
        raise ConfigError("; ".join(wrong))
    if not recipes:
        raise ConfigError("the study has no recipe: an axis of its grid is an empty list")
    return recipes


def combinations(fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of single values: a list is an axis."""
    axes = [value if isinstance(value, list) else [value] for value in fields.values()]
    if (size := math.prod(map(len, axes))) > LARGEST_GRID:
        raise ConfigError(f"the grid has {size:,} recipes (allowed: up to {LARGEST_GRID:,})")
    return (dict(zip(fields, values, strict=True)) for values in itertools.product(*axes))


def _with_digest(recipe: AnyRecipe) -> AnyRecipe:
    """A user's file, FILE.npz or text:LENGTH:FILE, is known by its content: a changed file makes new runs."""
    if not isinstance(recipe, Recipe):
        return recipe
    kind, _, rest = recipe.dataset.partition(":")
    name = rest.partition(":")[2] if kind == "text" else recipe.dataset
    if not name or (kind != "text" and not name.endswith(".npz")):
        return recipe
    path = Path(name)
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise ConfigError(f"dataset = {recipe.dataset!r} ({reason(error)})") from None
    dataset = recipe.dataset.removesuffix(name) + str(path.resolve())
    return recipe.model_copy(update={"data_sha256": digest, "dataset": dataset})
