"""Interventions on the state of training, as study files write them: `WORD[=VALUE][:TARGET][@EPOCH]`.

    scale=2.5              multiplies the kernels before training
    scale=2:residual2*@20  multiplies the layers with these names after epoch 20
    mix=0.5:FILE           halfway between the initialization and a checkpoint
    warm=1                 begins where the same run ends that is trained on the first half of the data

This module reads them; `initmem.train.init` applies them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from initmem.catalog import INTERVENTIONS, InterventionRow, is_schedule_free
from initmem.errors import ConfigError, allowed, is_text
from initmem.recipe import AnyRecipe, Recipe
from initmem.register import interventions

NONE = "none"  # the run that others are compared with
# A point of the axis that a study varies: an initialization scale, or the label of an intervention.
Level: TypeAlias = float | str


@dataclass(frozen=True, slots=True)
class Intervention:
    """What is done to the state of training, and after which epoch; 0: before the first."""

    word: str
    value: str = ""
    target: str = ""  # a pattern of layer names, or a file
    epoch: int = 0

    @classmethod
    def parse(cls, text: str) -> Intervention:
        """Read an intervention; whether its word exists is checked by `checked`."""
        before, at, after = text.strip().rpartition("@")
        timed = bool(at) and after.isascii() and after.isdigit()
        head, epoch = (before, int(after)) if timed else (text.strip(), 0)
        word, _, rest = head.partition("=") if "=" in head else head.partition(":")
        row = row_of(word)
        if row is not None and not row.number:
            return cls(word, "", rest, epoch)
        value, _, target = rest.partition(":")
        return cls(word, value, target, epoch)

    @property
    def number(self) -> float:
        """The value, as a number."""
        return float(self.value)

    @property
    def path(self) -> Path:
        """The file that it names; behind the # stand the first digits of its SHA-256."""
        return Path(self.target.rpartition("#")[0])

    @property
    def label(self) -> str:
        """What people read, and what the id of a run contains: a file by its name and digest alone."""
        row = row_of(self.word)
        if row is not None and row.target == "file":
            return str(replace(self, target=self.target.rpartition("/")[2]))
        return str(self)

    def __str__(self) -> str:
        parts = [part for part in (self.value, self.target) if part]
        given = f"={':'.join(parts)}" if parts else ""
        return f"{self.word}{given}" + (f"@{self.epoch}" if self.epoch else "")


def row_of(word: str) -> InterventionRow | None:
    """What an intervention of initmem or of a plugin takes; None: its word is not known here."""
    return INTERVENTIONS.get(word) or interventions.find(word)


def level_text(level: Level) -> str:
    """A level as people read it."""
    return level if isinstance(level, str) else f"{level:g}"


def level_order(level: Level) -> tuple[bool, float, str]:
    """The order of levels: scales by size, then the untouched run, then interventions by name."""
    if isinstance(level, str):
        return True, 0.0, "" if level == NONE else level
    return False, level, ""


def checked(text: str, recipe: AnyRecipe) -> str:
    """An intervention in its usual form; a `ConfigError` if it is unknown or does nothing in a recipe."""
    one = Intervention.parse(text)
    row = row_of(one.word)
    if row is None:
        words = [*INTERVENTIONS, *interventions.names()]
        raise ConfigError(f"intervention {text!r}: unknown word ({allowed(words, one.word)})")
    _check_value(text, one, row)
    check_epoch(text, one, recipe)
    problem = ""
    if row.when == "later" and not one.epoch:
        problem = f"does nothing before training (allowed: {one.word}@EPOCH)"
    elif row.when == "start" and one.epoch:
        problem = f"is an initialization (allowed: without @{one.epoch})"
    elif isinstance(recipe, Recipe) and row.draws and recipe.init_mode == "rescale":
        problem = "with init_mode = 'rescale' (it draws by fan-in: redraw)"
    elif one.word == "warm" and recipe.is_pipeline:
        problem = "of user code (allowed: bundled networks; mix=VALUE:FILE takes a checkpoint)"
    elif one.word == "warm" and recipe.get("patience"):
        problem = f"with patience = {recipe.get('patience')} (what it begins from trains to the last epoch)"
    elif isinstance(recipe, Recipe) and one.epoch and is_schedule_free(recipe.optimizer):
        average = "it also trains an average of the weights"
        problem = f"with optimizer = {recipe.optimizer!r} ({average}; allowed: before training)"
    if problem:
        raise ConfigError(f"intervention {text!r} {problem}")
    value = f"{one.number:g}" if row.number else ""
    target = _with_digest(text, one.target) if row.target == "file" else one.target
    return str(replace(one, value=value, target=target))


def _check_value(text: str, one: Intervention, row: InterventionRow) -> None:
    needed = ""
    if row.number:
        low, high = row.number
        try:
            fits = low <= one.number <= high
        except ValueError:
            fits = False
        needed = "" if fits else f"{one.word}=VALUE from {low:g} to {high:g}"
    if one.target and not row.target:
        needed = f"{one.word} without a target"
    if row.target == "file" and not one.target:
        needed = f"{one.word}=VALUE:FILE"
    if needed:
        raise ConfigError(f"intervention {text!r} (allowed: {needed})")


def check_epoch(text: str, one: Intervention, recipe: AnyRecipe) -> None:
    """Refuse an epoch after which nothing is trained."""
    epochs = recipe.get("epochs")
    if one.epoch and epochs is not None and one.epoch >= epochs:
        raise ConfigError(
            f"intervention {text!r}: the recipe has {epochs} epochs (allowed: @1 to @{epochs - 1})"
        )


def _with_digest(text: str, target: str) -> str:
    """A file is known by its content: a changed one makes new runs."""
    path = Path(target.rpartition("#")[0] or target) if not Path(target).exists() else Path(target)
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"intervention {text!r} ({error.strerror})") from None
    if not is_text(str(path.resolve())):
        raise ConfigError(f"intervention {text!r} (allowed: a path of printable characters)")
    return f"{path.resolve()}#{digest[:12]}"
