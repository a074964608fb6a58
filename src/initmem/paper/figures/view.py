"""The cells of one figure, with what was asked for: from here to lines, spreads, captions. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from initmem.paper.figures.select import Asked, Key, Selection, asked_for, name_of, shortfall
from initmem.paper.reference import find
from initmem.plots import captions
from initmem.plots.plotdata import (
    Entry,
    Line,
    Mark,
    Panel,
    PanelPlot,
    Spread,
    SpreadPanel,
    Style,
    Value,
    common_grid,
    line,
    spread_over,
    usual_grid,
)
from initmem.recipe import Recipe, network_of
from initmem.store.record import RunRecord
from initmem.study import Study


class Member(NamedTuple):
    """One line of a panel: which cell, and how it is named and drawn."""

    key: Key
    label: str
    style: Style


@dataclass(frozen=True, slots=True)
class View:
    """A selection of records and the studies that asked for them."""

    found: Selection
    studies: Sequence[Study]
    asked: Asked
    grid: Sequence[float]  # the scales of most cells
    scales: Sequence[float]  # all that were run or asked for

    @classmethod
    def of(cls, found: Selection, studies: Sequence[Study]) -> View:
        """See a selection against its studies."""
        asked = asked_for(studies)
        run = {record.run.scale for group in found.cells.values() for record in group}
        wanted = {scale for recipe in found.recipes() for scale, _ in asked.get(recipe, ())}
        return cls(found, studies, asked, usual_grid(found.cells.values()), sorted(run | wanted))

    def cell(self, key: Key) -> list[RunRecord]:
        """The records of a cell; none where there are no runs."""
        return self.found.cells.get(key, [])

    def lines(self, members: Sequence[Member], value: Value) -> list[Line]:
        """A line for every member that has runs."""
        return [
            line(label, style, self.cell(key), value, self.expected(key))
            for key, label, style in members
            if self.cell(key)
        ]

    def expected(self, key: Key) -> dict[float, int]:
        """How many seeds there should be at every scale of a cell, in ascending order of scale.

        Without a study to tell: at every scale that most cells have, as many as the fullest has.
        """
        records = self.cell(key)
        if not records:
            return {}
        n = Counter(record.run.scale for record in records)
        wanted = Counter(scale for scale, _ in self.asked.get(records[0].run.recipe, ()))
        if not wanted:
            wanted = Counter(dict.fromkeys(self.grid, max(n.values())))
        return {scale: max(wanted[scale], n[scale]) for scale in sorted(wanted.keys() | n.keys())}

    def grid_of(self, keys: Sequence[Key]) -> list[float]:
        """The scales over which these cells can be compared."""
        return common_grid([self.expected(key) for key in keys if self.cell(key)])

    def marks(self, where: str, members: Sequence[Member]) -> tuple[Mark, ...]:
        """Published test accuracies at single scales."""
        items = [
            (scale, find(where, self.recipe(key), "test", scale), style)
            for key, _, style in members
            if self.cell(key)
            for scale in self.expected(key)
        ]
        return tuple(Mark(scale, item.value, style) for scale, item, style in items if item)

    def spreads(
        self, where: str, title: str, members: Sequence[Member], grid: Sequence[float] | None = None
    ) -> SpreadPanel:
        """The spread of every member over the scales that most of them share, and the published one."""
        if grid is None:
            grid = self.grid_of([key for key, _, _ in members])
        rows = []
        for key, label, style in members:
            item = find(where, self.recipe(key), "spread")
            value, relation = (item.value, item.relation) if item else (None, "=")
            void = "incomplete" if self.cell(key) else "no runs"
            rows.append(Spread(label, style, spread_over(self.cell(key), grid), value, relation, void))
        return SpreadPanel(title, f"spread, {len(grid)} scales (pp)", rows, len(grid))

    def recipe(self, key: Key) -> Recipe:
        """The recipe of a cell; for one without runs, what it would be."""
        records = self.cell(key)
        if records:
            return network_of(records[0].run.recipe)
        # Not validated: what is wanted of every store need not be allowed with every network.
        return Recipe.model_construct(
            **dict(self.found.setting) | dict(zip(self.found.fields, key, strict=True))
        )

    def missing(self, keys: Sequence[Key]) -> list[str]:
        """What the cells lack, one line for each cell that is not whole."""
        return [
            text
            for key in keys
            for text in shortfall(name_of(self.found.fields, key), self.cell(key), self.expected(key))
        ]

    def source(self, keys: Sequence[Key], *, reference: bool) -> list[str]:
        """Where the numbers of these cells come from."""
        recipes = [self.recipe(key) for key in keys if self.cell(key)]
        text = captions.source(recipes, self.studies, reference=reference)
        return [text, captions.common(recipes, self.found.fields)]

    def plot(
        self,
        rows: list[list[Panel | SpreadPanel]],
        members: Sequence[Member],
        *,
        head: str,
        about: Sequence[str] = (),
        bands: str = captions.BANDS,
        reference: bool = False,
    ) -> PanelPlot:
        """Put a figure together: panels, a legend that names every member once, caption and gaps."""
        keys = list(dict.fromkeys(key for key, _, _ in members))
        missing = self.missing(keys)
        panels = [panel for row in rows for panel in row]
        parts = [f"{bands}, {captions.counts(panels)}", *about]
        parts += [captions.published(panels)] if reference else []
        parts += self.source(keys, reference=reference and captions.has_published(panels))
        text = captions.caption(head, parts, missing, self.found.notes)
        return PanelPlot(rows, [self.entries(members)], text, missing, self.found.notes)

    def entries(self, members: Sequence[Member]) -> list[Entry]:
        """The legend: every label once; without runs if none of its cells has any."""
        present = {label for key, label, _ in members if self.cell(key)}
        found = {label: Entry(label, style, label in present) for _, label, style in members}
        return list(found.values())
