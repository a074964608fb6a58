"""A study: recipes x initialization scales x seeds, a finite grid of runs, read from a TOML file."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from operator import index
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from initmem.errors import ConfigError, allowed
from initmem.recipe import Recipe, content_id, labels, problems
from initmem.seeds import ROLES, Role

ID_SCHEMA = 1  # part of every run id: raising it makes all old records strangers
LARGEST_FILE = 1 << 20  # bytes of a study file
LARGEST_GRID = 100_000  # recipes
SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)  # of a study of a user's own, unless said
SEEDS = range(5)
POKE = 1.001  # what a chaos twin's single weight is multiplied by


@dataclass(frozen=True, slots=True)
class Run:
    """One training: a recipe from one scale and one seed.

    A role's seed can be pinned on its own; `poke` multiplies one single weight of the initialization.
    """

    recipe: Recipe
    scale: float
    seed: int
    pins: tuple[tuple[Role, int], ...] = ()
    poke: float = 1.0

    @property
    def id(self) -> str:
        """A content hash of everything that differs from the defaults."""
        return _run_id(self)

    def seed_of(self, role: Role) -> int:
        """The seed that drives one role."""
        return dict(self.pins).get(role, self.seed)

    def to_json(self) -> dict[str, Any]:
        """Plain values from which `from_json` rebuilds the run."""
        recipe = self.recipe.changes()
        if self.recipe.data_sha256 is not None:
            recipe["dataset"] = self.recipe.dataset
        return {"recipe": recipe} | _address(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Run:
        """Rebuild a run from `to_json`."""
        recipe = _shared_recipe(tuple(sorted(content["recipe"].items())))
        scale, seed, poke = content["scale"], content["seed"], content.get("poke", 1.0)
        pins = content.get("pins", {})
        whole = all(type(number) is int for number in (seed, *pins.values()))
        finite = all(type(number) in (int, float) and math.isfinite(number) for number in (scale, poke))
        if not whole or not finite or not set(pins) <= set(ROLES):
            raise ConfigError(f"run of scale {scale!r}, seed {seed!r}, pins {pins!r}, poke {poke!r}")
        return cls(recipe, float(scale), seed, tuple(pins.items()), float(poke))


@lru_cache(maxsize=4096)
def _shared_recipe(items: tuple[tuple[str, Any], ...]) -> Recipe:
    return Recipe.parse(dict(items))


@lru_cache(maxsize=1 << 16)
def _run_id(run: Run) -> str:
    return content_id({"schema": ID_SCHEMA, "recipe": _changes(run.recipe)} | _address(run))


@lru_cache(maxsize=4096)
def _changes(recipe: Recipe) -> dict[str, Any]:
    return recipe.changes()  # a study has thousands of runs of a few recipes


def _address(run: Run) -> dict[str, Any]:
    """Where a run stands in its study; what is at its default is left out."""
    address: dict[str, Any] = {"scale": run.scale, "seed": run.seed}
    if run.pins:
        address["pins"] = dict(run.pins)
    if run.poke != 1.0:
        address["poke"] = run.poke
    return address


@dataclass(frozen=True, slots=True)
class Study:
    """A resolved study: what `initmem run` trains."""

    name: str
    title: str
    effort: str
    about: str
    recipes: tuple[Recipe, ...]
    scales: tuple[float, ...]
    seeds: tuple[int, ...]
    pins: tuple[tuple[Role, int], ...] = ()
    poke: float = 1.0  # other than 1: every run gets a twin, poked by this factor
    split: tuple[Role, ...] = ()  # roles whose seed is also varied alone, the others held at the first seed
    more_seeds: tuple[tuple[str, tuple[int, ...]], ...] = ()  # per recipe id, beyond `seeds`

    def runs(self, recipe: Recipe) -> list[Run]:
        """The runs of one recipe, seed by seed, so that more seeds only append."""
        seeds = self.seeds + dict(self.more_seeds).get(recipe.id, ())
        runs = [Run(recipe, scale, seed, self.pins) for seed in seeds for scale in self.scales]
        if self.poke != 1.0:
            runs += [replace(run, poke=self.poke) for run in runs]
        first = self.seeds[0]
        runs += [
            Run(recipe, scale, first, ((role, seed),))
            for role in self.split
            for seed in self.seeds[1:]
            for scale in self.scales
        ]
        return runs

    def with_more_seeds(self, recipe: Recipe, count: int) -> Study:
        """The same study with so many more seeds for one recipe: the smallest numbers not yet taken."""
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
        """Plain values, kept in the store so that it knows what was asked for."""
        run = [Run(recipe, 1.0, 0).to_json()["recipe"] for recipe in self.recipes]
        return {
            "name": self.name,
            "title": self.title,
            "effort": self.effort,
            "about": self.about,
            "recipes": run,
            "scales": list(self.scales),
            "seeds": list(self.seeds),
            "pins": dict(self.pins),
            "poke": self.poke,
            "split": list(self.split),
            "more_seeds": {key: list(seeds) for key, seeds in self.more_seeds},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Study:
        """Rebuild a study from `to_json`; whatever does not fit is an error."""
        try:
            stored = _Stored.model_validate(content)
        except ValidationError as error:
            raise ConfigError("; ".join(problems(error))) from None
        return cls(
            name=stored.name,
            title=stored.title,
            effort=stored.effort,
            about=stored.about,
            recipes=tuple(Recipe.parse(recipe) for recipe in stored.recipes),
            scales=tuple(stored.scales),
            seeds=tuple(stored.seeds),
            pins=tuple(stored.pins.items()),
            poke=stored.poke,
            split=tuple(stored.split),
            more_seeds=tuple((key, tuple(seeds)) for key, seeds in stored.more_seeds.items()),
        )

    def encode(self) -> bytes:
        """The study as a file of a store, with a digest of what it says."""
        content = self.to_json()
        return json.dumps({"sha256": _digest(content)} | content, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Study:
        """Read a study's file back; anything that is not exactly what was written is an error."""
        try:
            content = json.loads(data)
            said = content.pop("sha256", None)  # the first stores were written without
            if said is not None and said != _digest(content):
                raise ConfigError("checksum does not match")
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{type(error).__name__}: {error}") from None
        return cls.from_json(content)


def recipes_of(studies: Iterable[Study]) -> list[Recipe]:
    """The recipes that studies ask for, as they list them, each once."""
    return list(dict.fromkeys(recipe for study in studies for recipe in study.recipes))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


Scales = Annotated[list[Annotated[float, Field(gt=0, le=1e6)]], Field(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Seeds = Annotated[list[Seed], Field(min_length=1)]


class _Stored(BaseModel):
    """What a study's file in a store may say."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    name: str
    title: str
    effort: str
    about: str
    recipes: Annotated[list[dict[str, Any]], Field(min_length=1)]
    scales: Scales
    seeds: Seeds
    pins: dict[Role, int]
    poke: float = 1.0
    split: list[Role] = []
    more_seeds: dict[str, list[Seed]] = {}


class _Part(BaseModel):
    """What the top of a study file and each of its efforts may say."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    about: str = ""
    scales: Scales | None = None
    seeds: Seeds | None = None
    recipe: dict[str, Any] = {}
    grid: list[dict[str, Any]] | None = None


class _File(_Part):
    name: str = ""
    title: str = ""
    effort: str = "full"
    default_effort: str | None = None
    pin: dict[Role, int] = {}
    chaos: bool = False  # give every run a poked twin
    split: list[Role] = []
    efforts: dict[str, _Part] = {}


def bundled() -> list[str]:
    """Names of the studies that come with the package."""
    folder = resources.files("initmem") / "studies"
    return sorted(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".toml"))


def load_study(name: str, effort: str | None = None, overrides: Sequence[str] = ()) -> Study:
    """Read a bundled study by name, or a study file by path."""
    file = _read(name)
    settings = [override(text) for text in overrides]
    part, chosen = _choose(file, effort)
    for key, value in settings:
        part = _apply(part, key, value)
    recipes = _expand(part)
    return Study(
        name=file.name or Path(name).stem,
        title=file.title,
        effort=chosen,
        about=part.about,
        recipes=tuple(recipes),
        scales=tuple(dict.fromkeys(part.scales or [1.0])),
        seeds=tuple(dict.fromkeys(part.seeds or [0])),
        pins=tuple((role, file.pin[role]) for role in ROLES if role in file.pin),
        poke=POKE if file.chaos else 1.0,
        split=tuple(role for role in ROLES if role in file.split),
    )


def efforts(name: str) -> dict[str, str]:
    """The efforts of a study and what each of them changes; the default one comes first."""
    file = _read(name)
    found = {file.effort: file.about} | {key: part.about for key, part in file.efforts.items()}
    first = file.default_effort or file.effort
    return {first: found[first]} | found


def own_study(
    name: str,
    recipe: Mapping[str, Any],
    scales: Iterable[float],
    seeds: Iterable[int],
    *,
    chaos: bool = False,
    split: Sequence[Role] = (),
) -> Study:
    """A study of training code of a user's own: one recipe that bears its name."""
    try:
        part = _Part(scales=[float(scale) for scale in scales], seeds=[index(seed) for seed in seeds])
    except ValidationError as error:
        raise ConfigError("; ".join(problems(error))) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"scales or seeds: {error} (allowed: numbers, and whole numbers from 0)") from None
    for role in split:
        if role not in ROLES:
            raise ConfigError(f"split = {role!r} ({allowed(ROLES)})")
    return Study(
        name=name,
        title=f"{name}: training code of your own",
        effort="full",
        about="",
        recipes=(Recipe.parse({**recipe, "pipeline": name}),),
        scales=tuple(dict.fromkeys(part.scales or [])),
        seeds=tuple(dict.fromkeys(part.seeds or [])),
        poke=POKE if chaos else 1.0,
        split=tuple(role for role in ROLES if role in split),
    )


def single(overrides: Sequence[str]) -> Recipe:
    """One recipe from `key=value` texts alone."""
    return _expand(_Part(recipe=dict(override(text) for text in overrides)))[0]


def _read(name: str) -> _File:
    text = _text(name)
    try:
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers without end, lists in lists in lists
        raise ConfigError(f"study {name}: not valid TOML: {error}") from None
    found: list[str] = []
    try:
        return _File.model_validate(raw)
    except ValidationError as error:
        found = problems(error)
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
        return (resources.files("initmem") / "studies" / f"{name}.toml").read_text("utf-8")
    path = Path(name)
    if path.suffix != ".toml" and not path.exists():
        raise ConfigError(f"no study named {name!r} ({allowed(bundled())}, or the path of a .toml file)")
    try:
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise ConfigError(f"study file {name}: {size:,} bytes (allowed: up to {LARGEST_FILE:,})")
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:  # a name may not hold everything, and not everything is text
        raise ConfigError(f"study file {name}: cannot be read: {error}") from None


def _choose(file: _File, effort: str | None) -> tuple[_Part, str]:
    """Lay the chosen effort over the top of the file."""
    chosen = effort or file.default_effort or file.effort
    if chosen == file.effort:
        return file, chosen
    if chosen not in file.efforts:
        raise ConfigError(f"effort = {chosen!r} ({allowed([file.effort, *file.efforts])})")
    over = file.efforts[chosen]
    return _Part(
        about=over.about,
        scales=over.scales or file.scales,
        seeds=over.seeds or file.seeds,
        recipe=file.recipe | over.recipe,
        grid=file.grid if over.grid is None else over.grid,
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
        try:
            return _Part.model_validate(part.model_dump(include=set(_Part.model_fields)) | {key: values})
        except ValidationError as error:
            raise ConfigError("; ".join(problems(error))) from None
    grid = [{k: v for k, v in block.items() if k != key} for block in part.grid or []]
    return part.model_copy(update={"recipe": part.recipe | {key: value}, "grid": grid or None})


def _expand(part: _Part) -> list[Recipe]:
    """Multiply out the grid: in a block, every list is an axis; blocks add up; duplicates merge."""
    found: dict[Recipe, None] = {}
    wrong: dict[str, None] = {}
    for block in part.grid or [{}]:
        fields = part.recipe | block
        axes = [value if isinstance(value, list) else [value] for value in fields.values()]
        if (size := math.prod(len(axis) for axis in axes)) > LARGEST_GRID:
            raise ConfigError(f"the grid has {size:,} recipes (allowed: up to {LARGEST_GRID:,})")
        for values in itertools.product(*axes):
            try:
                recipe = Recipe.parse(dict(zip(fields, values, strict=True)))
                found[_with_digest(recipe)] = None
            except ConfigError as error:
                wrong |= dict.fromkeys(str(error).split("; "))
    if wrong:
        raise ConfigError("; ".join(wrong))
    if not found:
        raise ConfigError("the study has no recipe: an axis of its grid is an empty list")
    return list(found)


def _with_digest(recipe: Recipe) -> Recipe:
    """A user's file is known by its content: a changed file makes new runs."""
    if not recipe.dataset.endswith(".npz"):
        return recipe
    path = Path(recipe.dataset)
    try:
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"dataset = {recipe.dataset!r} ({reason})") from None
    return recipe.model_copy(update={"data_sha256": digest, "dataset": str(path.resolve())})
