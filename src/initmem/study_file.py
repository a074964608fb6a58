"""Study files: read a bundled study or the user's TOML file, and multiply out its grid."""

from __future__ import annotations

import hashlib
import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from operator import index
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from initmem import register
from initmem.errors import ConfigError, allowed, problems
from initmem.recipe import AnyRecipe, PipelineRecipe, Recipe, parse_recipe
from initmem.seeds import ROLES, Role
from initmem.study import PERTURBATION, Scales, Seeds, Study

LARGEST_GRID = 100_000  # recipes
MORE_SEEDS = "more_seeds"  # in a block of the grid: seeds of its recipes beyond those of the study


class _Part(BaseModel):
    """What the top of a study file and each of its presets may say."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    about: str = ""
    scales: Scales | None = None
    seeds: Seeds | None = None
    recipe: dict[str, Any] = {}
    grid: list[dict[str, Any]] | None = None


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

    `plugins` are modules to import first: they register networks and datasets that the study names.
    """
    register.load(plugins)
    file = _read(name)
    settings = [override(text) for text in overrides]
    part, chosen = _choose(file, preset)
    for key, value in settings:
        part = _apply(part, key, value)
    recipes = _expand(part)
    return Study(
        name=file.name or Path(name).stem,
        title=file.title,
        preset=chosen,
        about=part.about,
        recipes=tuple(recipes),
        scales=tuple(dict.fromkeys(part.scales or [1.0])),
        seeds=tuple(dict.fromkeys(part.seeds or [0])),
        more_seeds=_more_seeds(part),
        pins=tuple((role, file.pin[role]) for role in ROLES if role in file.pin),
        perturbation=PERTURBATION if file.chaos else 1.0,
        split=tuple(role for role in ROLES if role in file.split),
    )


def presets(name: str) -> dict[str, str]:
    """The presets of a study and what each of them changes; the default one comes first."""
    file = _read(name)
    found = {file.preset: file.about} | {key: part.about for key, part in file.presets.items()}
    first = file.default_preset or file.preset
    return {first: found[first]} | found


def own_study(
    name: str,
    recipe: Mapping[str, Any],
    scales: Iterable[float],
    seeds: Iterable[int],
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    chaos: bool = False,
    split: Sequence[Role] = (),
) -> Study:
    """A study of user code: recipes that bear its name, one for every combination of the grid's values."""
    try:
        part = _Part(scales=[float(scale) for scale in scales], seeds=[index(seed) for seed in seeds])
    except ValidationError as error:
        raise ConfigError("; ".join(problems(error, _Part))) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"scales or seeds: {error} (allowed: numbers, and whole numbers from 0)") from None
    for role in split:
        if role not in ROLES:
            raise ConfigError(f"split = {role!r} ({allowed(ROLES)})")
    return Study(
        name=name,
        title=f"{name}: your own training code",
        preset="full",
        about="",
        recipes=tuple(_own_recipes({**recipe, "pipeline": name}, grid or {})),
        scales=tuple(dict.fromkeys(part.scales or [])),
        seeds=tuple(dict.fromkeys(part.seeds or [])),
        perturbation=PERTURBATION if chaos else 1.0,
        split=tuple(role for role in ROLES if role in split),
    )


def _own_recipes(recipe: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]) -> list[PipelineRecipe]:
    """Recipes of user code; a list counts as an axis in the grid alone, elsewhere as one value."""
    for key, axis in grid.items():
        if isinstance(axis, str) or not isinstance(axis, Sequence) or not axis:
            raise ConfigError(f"grid[{key!r}] = {axis!r} (allowed: a list of at least one value)")
        if key in recipe:
            raise ConfigError(f"{key}: in the recipe and in the grid (allowed: in one of them)")
    if (size := math.prod(map(len, grid.values()))) > LARGEST_GRID:
        raise ConfigError(f"the grid has {size:,} recipes (allowed: up to {LARGEST_GRID:,})")
    chosen = (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    return list(dict.fromkeys(PipelineRecipe.parse({**recipe, **values}) for values in chosen))


def single(overrides: Sequence[str]) -> AnyRecipe:
    """One recipe from `key=value` texts alone."""
    return _expand(_Part(recipe=dict(override(text) for text in overrides)))[0]


def _read(name: str) -> _File:
    text = _text(name)
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # lists in lists in lists
        raise ConfigError(f"study {name}: not valid TOML: {error}") from None
    found: list[str] = []
    try:
        return _File.model_validate(raw)
    except ValidationError as error:
        found = problems(error, _File, Recipe.model_fields)
    # Report the recipe's mistakes in the same breath, as far as it can be read at all.
    try:
        _expand(_Part(recipe=raw.get("recipe", {}), grid=raw.get("grid")))
    except ConfigError as error:
        found.append(str(error))
    except ValidationError:
        pass
    raise ConfigError(f"study {name}: " + "; ".join(found))


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
    grid = file.grid if over.seeds is None else _without_more_seeds(file.grid)
    return _Part(
        about=over.about,
        scales=over.scales or file.scales,
        seeds=over.seeds or file.seeds,
        recipe=file.recipe | over.recipe,
        grid=grid if over.grid is None else over.grid,
    ), chosen


def override(text: str) -> tuple[str, Any]:
    """Read `key=value`."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {text!r} (allowed: key=value)")
    try:
        return key.strip(), tomllib.loads(f"v = {value}")["v"]
    except (ValueError, RecursionError):
        return key.strip(), value.strip()  # a bare word: optimizer=adam


def _apply(part: _Part, key: str, value: Any) -> _Part:
    """Set one value everywhere: for a recipe field that a grid varies, the override wins."""
    if key in ("scales", "seeds"):
        values = value if isinstance(value, list) else [value]
        if key == "seeds":
            part = part.model_copy(update={"grid": _without_more_seeds(part.grid)})
        try:
            return _Part.model_validate(part.model_dump(include=set(_Part.model_fields)) | {key: values})
        except ValidationError as error:
            raise ConfigError("; ".join(problems(error, _Part))) from None
    grid = [{k: v for k, v in block.items() if k != key} for block in part.grid or []]
    return part.model_copy(update={"recipe": part.recipe | {key: value}, "grid": grid or None})


def _more_seeds(part: _Part) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The seeds that blocks of the grid give their recipes beyond those of the study."""
    found: dict[str, tuple[int, ...]] = {}
    for block in part.grid or []:
        if MORE_SEEDS not in block:
            continue
        try:
            asked = _Part.model_validate({"seeds": block[MORE_SEEDS]}).seeds or []
        except ValidationError as error:
            raise ConfigError(f"{MORE_SEEDS} of the grid: {'; '.join(problems(error, _Part))}") from None
        extra = tuple(seed for seed in dict.fromkeys(asked) if seed not in (part.seeds or [0]))
        found |= {recipe.id: extra for recipe in _expand(part.model_copy(update={"grid": [block]}))}
    return tuple(found.items())


def _without_more_seeds(grid: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Where seeds are given anew, they are all."""
    return grid and [{key: value for key, value in block.items() if key != MORE_SEEDS} for block in grid]


def _expand(part: _Part) -> list[AnyRecipe]:
    """Multiply out the grid: in a block, every list is an axis; blocks add up; duplicates merge."""
    found: dict[AnyRecipe, None] = {}
    wrong: dict[str, None] = {}
    for block in _without_more_seeds(part.grid) or [{}]:
        fields = part.recipe | block
        axes = [value if isinstance(value, list) else [value] for value in fields.values()]
        if (size := math.prod(len(axis) for axis in axes)) > LARGEST_GRID:
            raise ConfigError(f"the grid has {size:,} recipes (allowed: up to {LARGEST_GRID:,})")
        for values in itertools.product(*axes):
            try:
                recipe = parse_recipe(dict(zip(fields, values, strict=True)))
                found[_with_digest(recipe)] = None
            except ConfigError as error:
                wrong |= dict.fromkeys(str(error).split("; "))
    if wrong:
        raise ConfigError("; ".join(wrong))
    if not found:
        raise ConfigError("the study has no recipe: an axis of its grid is an empty list")
    return list(found)


def _with_digest(recipe: AnyRecipe) -> AnyRecipe:
    """A user's file is known by its content: a changed file makes new runs."""
    if not isinstance(recipe, Recipe) or (place := _file_of(recipe.dataset)) is None:
        return recipe
    path = Path(place)
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"dataset = {recipe.dataset!r} ({reason})") from None
    dataset = recipe.dataset.removesuffix(place) + str(path.resolve())
    return recipe.model_copy(update={"data_sha256": digest, "dataset": dataset})


def _file_of(dataset: str) -> str | None:
    """The file that a dataset names: FILE.npz or text:LENGTH:FILE."""
    if dataset.endswith(".npz"):
        return dataset
    words = dataset.split(":", 2)
    return words[2] if words[0] == "text" and len(words) == 3 else None
