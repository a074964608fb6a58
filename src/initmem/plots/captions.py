"""What is written under a figure or a table: where the numbers come from and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from initmem.plots.plotdata import Panel, SpreadPanel
from initmem.recipe import AnyRecipe
from initmem.study import Study

SIGMA = "initialization scale σ"
BANDS = "Lines: means over seeds; bands: 10th to 90th percentile"
NAMED = 6  # how many missing cells a caption names; the plot data hold them all


def source(recipes: Sequence[AnyRecipe], studies: Sequence[Study], *, reference: bool = False) -> str:
    """At which effort of which study the recipes were measured, and beside what."""
    shown = set(recipes)
    found = [study for study in studies if shown & set(study.recipes)]
    efforts = list(dict.fromkeys(study.effort for study in found))
    names = list(dict.fromkeys(study.name for study in found))
    text = f"Measured at effort {' and '.join(efforts)} ({', '.join(names)})" if found else "Effort unknown"
    return text + ("; reference: the paper" if reference else "")


def common(recipes: Sequence[AnyRecipe], shown: Iterable[str] = ()) -> str:
    """What all these recipes share: data, network, length, rate."""
    if not recipes:
        return ""
    silent = {"data_sha256", "optimizer", *shown}
    changed = {name for recipe in recipes for name in recipe.changes()}
    names = ["dataset", "train_size", "model", "width", "norm", "learning_rate", "schedule", "epochs"]
    known = dict.fromkeys(name for recipe in recipes for name in recipe.settings())
    names += [name for name in known if name in changed and name not in names]
    same = [
        name
        for name in names
        if name not in silent and len({str(recipe.get(name)) for recipe in recipes}) == 1
    ]
    usual = {"train_size": None, "norm": "batch", "schedule": "cosine"}
    same = [name for name in same if recipes[0].get(name) not in (None, usual.get(name))]
    return ", ".join(phrase(recipes[0], name) for name in same)


def phrase(recipe: AnyRecipe, name: str) -> str:
    """One field of a recipe in words."""
    value = recipe.get(name)
    match name:
        case "epochs":
            return f"{value:,} epoch{'s' if value != 1 else ''}"
        case "train_size":
            return f"{value:,} images" if value else "all images"
        case "width":
            return f"width {value}"
        case _:
            return recipe.label([name])


def counts(panels: Iterable[Panel | SpreadPanel], what: str = "per point") -> str:
    """How many runs stand behind the points."""
    lines = [line for panel in panels if isinstance(panel, Panel) for line in panel.lines]
    points = [
        (n, n < expected or censored > 0)
        for line in lines
        for n, y, expected, censored in zip(line.n, line.y, line.expected, line.n_censored, strict=True)
        if y == y  # a NaN is no point
    ]
    if not points:
        return "no values"
    least, most = min(n for n, _ in points), max(n for n, _ in points)
    text = f"n = {least} {what}" if least == most else f"n = {least} to {most} {what}"
    return text + (" (open markers: some are missing)" if any(partial for _, partial in points) else "")


def has_published(panels: Iterable[Panel | SpreadPanel]) -> bool:
    """Whether any published value is shown."""
    return bool(_signs(panels))


def published(panels: Iterable[Panel | SpreadPanel]) -> str:
    """How published values are marked in these panels."""
    signs = _signs(panels)
    if not signs:
        return "No published values for what is shown"
    spread = "; spread: largest less smallest mean test accuracy" if "open diamonds" in signs else ""
    return f"Published values: {', '.join(signs)}{spread}"


def _signs(panels: Iterable[Panel | SpreadPanel]) -> list[str]:
    found: dict[str, None] = {}
    for panel in panels:
        spreads = panel if isinstance(panel, SpreadPanel) else panel.inset
        for spread in spreads.spreads if spreads else []:
            if spread.reference is not None:
                sign = "open triangles (upper limits)" if spread.relation in ("<", "<=") else "open diamonds"
                found[sign] = None
        if isinstance(panel, Panel):
            found |= {"stars": None} if panel.marks else {}
            found |= {f"dotted line at {panel.level:g}": None} if panel.level is not None else {}
    return list(found)


def caption(head: str, parts: Sequence[str], missing: Sequence[str], notes: Sequence[str] = ()) -> str:
    """Sentences in a row, the missing cells last."""
    sentences = [head, *(part for part in parts if part), *notes]
    if missing:
        sentences.append(f"Hatched: no runs. Missing: {first_of(missing, NAMED)}")
    return ". ".join(sentences) + "."


def first_of(names: Sequence[str], most: int) -> str:
    """So many names at most, and how many more there are."""
    rest = f"; and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + rest
