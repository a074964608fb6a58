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
from initmem.intervention import Intervention, check_epoch, checked
from initmem.recipe import AnyRecipe, PipelineRecipe, Recipe, parse_recipe
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
    file = _read(name)
    settings = [override(text) for text in overrides]
    part, chosen = _choose(file, preset)
    for key, value in settings:
        part = _apply(part, key, value)
    try:
        recipes = _expand(part)
    except ConfigError as error:
        raise error if settings else ConfigError(f"study {name}: {error}") from None
    return Study(
        name=file.name or Path(name).stem,
        title=file.title,
        preset=chosen,
        about=", ".join(f"with {text}" for text in overrides) or part.about,
        recipes=tuple(recipes),
        scales=tuple(dict.fromkeys(part.scales or [1.0])),
        interventions=_interventions(part, recipes),
        seeds=tuple(dict.fromkeys(part.seeds or [0])),
        more_seeds=tuple((recipe.id, seeds) for recipe, seeds in recipes.items() if seeds),
        pins=tuple((role, file.pin[role]) for role in ROLES if role in file.pin),
        perturbation=PERTURBATION if file.chaos else 1.0,
        split=tuple(role for role in ROLES if role in file.split),
    )


def _interventions(part: _Part, recipes: Collection[AnyRecipe]) -> tuple[str, ...]:
    """The interventions in their usual form, each checked with every recipe."""
    if part.interventions and part.scales:
        raise ConfigError("scales and interventions in one study (allowed: one of them)")
    for recipe in recipes if part.interventions else ():
        if recipe.is_pipeline:
            raise ConfigError(f"interventions with pipeline = {recipe.get('pipeline')!r} (allowed: networks)")
    forms = [[checked(text, recipe) for text in part.interventions or ()] for recipe in recipes]
    return tuple(dict.fromkeys(forms[0]))


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
    try:
        given = {"scales": [float(scale) for scale in scales], "seeds": [index(seed) for seed in seeds]}
    except (TypeError, ValueError) as error:
        raise ConfigError(f"scales or seeds: {error} (allowed: numbers, and whole numbers from 0)") from None
    part = validated(_Part, given)
    for role in split:
        if role not in ROLES:
            raise ConfigError(f"split = {role!r} ({allowed(ROLES)})")
    recipes = tuple(_own_recipes({**recipe, "pipeline": name}, grid or {}))
    return Study(
        name=name,
        title=f"{name}: your own training code",
        preset="full",
        about="",
        recipes=recipes,
        interventions=tuple(dict.fromkeys(_own_intervention(text, recipes, own) for text in interventions)),
        scales=tuple(dict.fromkeys(part.scales or [])),
        seeds=tuple(dict.fromkeys(part.seeds or [])),
        perturbation=PERTURBATION if chaos else 1.0,
        split=tuple(role for role in ROLES if role in split),
    )


def _own_intervention(text: str, recipes: Sequence[AnyRecipe], own: Collection[str]) -> str:
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


def _own_recipes(recipe: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> dict[PipelineRecipe, None]:
    """Recipes of user code; a list counts as an axis in the grid alone, elsewhere as one value."""
    for key, axis in grid.items():
        if isinstance(axis, str) or not isinstance(axis, Sequence) or not axis:
            raise ConfigError(f"grid[{key!r}] = {axis!r} (allowed: a list of at least one value)")
        if key in recipe:
            raise ConfigError(f"{key}: in the recipe and in the grid (allowed: in one of them)")
    return dict.fromkeys(PipelineRecipe.parse({**recipe, **values}) for values in _combinations(grid))


def _combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of one value of each axis."""
    if (size := math.prod(map(len, axes.values()))) > LARGEST_GRID:
        raise ConfigError(f"the grid has {size:,} recipes (allowed: up to {LARGEST_GRID:,})")
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


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


def _choose(file: _File, preset: str | None) -> tuple[_Part, str]:
    """Lay the chosen preset over the top of the file."""
    chosen = preset or file.default_preset or file.preset
    if chosen == file.preset:
        return file, chosen
    if chosen not in file.presets:
        raise ConfigError(f"preset = {chosen!r} ({allowed([file.preset, *file.presets], chosen)})")
    over = file.presets[chosen]
    grid = file.grid if over.seeds is None else _without(file.grid, "more_seeds")
    levels = over if over.scales or over.interventions else file
    return _Part(
        about=over.about,
        scales=levels.scales,
        interventions=levels.interventions,
        seeds=over.seeds or file.seeds,
        recipe=file.recipe | over.recipe,
        grid=grid if over.grid is None else over.grid,
    ), chosen


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


def _apply(part: _Part, key: str, value: Any) -> _Part:
    """Set one value everywhere: for a recipe field that a grid varies, the override wins."""
    if key not in ("scales", "seeds", "interventions"):
        update = {"recipe": part.recipe | {key: value}, "grid": _without(part.grid, key)}
        return part.model_copy(update=update)
    given = validated(_Part, {key: listed(key, value)})
    grid = _without(part.grid, "more_seeds") if key == "seeds" else part.grid
    other = {"scales": {"interventions": None}, "interventions": {"scales": None}}.get(key, {})
    return part.model_copy(update={key: getattr(given, key), "grid": grid} | other)


def _without(grid: list[_Block] | None, key: str) -> list[_Block] | None:
    """The grid without one field. Seeds that are given in another place are all seeds."""
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
        axes = {key: value if isinstance(value, list) else [value] for key, value in fields.items()}
        for values in _combinations(axes):
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
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"dataset = {recipe.dataset!r} ({reason})") from None
    dataset = recipe.dataset.removesuffix(name) + str(path.resolve())
    return recipe.model_copy(update={"data_sha256": digest, "dataset": dataset})
