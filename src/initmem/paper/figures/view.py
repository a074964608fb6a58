"""The cells of one figure against what was asked for: from here to series, spreads, gaps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from initmem.paper.figures.select import Asked, Key, Selection, asked_for, name_of, shortfall
from initmem.paper.reference import find, memory_of
from initmem.plots import captions
from initmem.plots.model import AnyPanel, Entry, Interval, Intervals, Mark, Member, Plot, Series
from initmem.plots.series import Value, common_grid, scale_series, spread_over, usual_grid
from initmem.recipe import Recipe, network_of
from initmem.record import RunRecord
from initmem.study import Study

__all__ = ["Member", "View", "legend_entries"]


@dataclass(frozen=True, slots=True)
class View:
    """A selection of records and the studies that asked for them."""

    selection: Selection
    studies: Sequence[Study]
    asked: Asked
    grid: Sequence[float]  # the scales of most cells
    scales: Sequence[float]  # all that were run or asked for

    @classmethod
    def of(cls, selection: Selection, studies: Sequence[Study]) -> View:
        """See a selection against its studies."""
        asked = asked_for(studies)
        run = {record.run.scale for group in selection.cells.values() for record in group}
        wanted = {scale for recipe in selection.recipes() for scale, _ in asked.get(recipe, ())}
        return cls(selection, studies, asked, usual_grid(selection.cells.values()), sorted(run | wanted))

    def cell(self, key: Key) -> list[RunRecord]:
        """The records of a cell; none where there are no runs."""
        return self.selection.cells.get(key, [])

    def series(self, members: Sequence[Member], value: Value) -> list[Series]:
        """A series for every member that has runs."""
        return [
            scale_series(self.cell(key), value, self.expected(key), label=label, style=style)
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

    def published(self, where: str, members: Sequence[Member]) -> tuple[Mark, ...]:
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
    ) -> Intervals:
        """The spread of every member over the scales that most of them share, and the published one."""
        if grid is None:
            grid = self.grid_of([key for key, _, _ in members])
        rows = []
        for key, label, style in members:
            void = "incomplete" if self.cell(key) else "no runs"
            row = Interval(label, style, spread_over(self.cell(key), grid), void=void)
            item = memory_of(self.recipe(key), where)
            if item is not None:
                row = row._replace(
                    reference=item.value, relation=item.relation, reference_scales=item.n_scales
                )
            rows.append(row)
        return Intervals(title, f"spread, {len(grid)} scales (pp)", rows, len(grid))

    def recipe(self, key: Key) -> Recipe:
        """The recipe of a cell; for one without runs, what it would be."""
        records = self.cell(key)
        if records:
            return network_of(records[0].run.recipe)
        # Not validated: what is wanted of every store need not be allowed with every network.
        return Recipe.model_construct(
            **dict(self.selection.setting) | dict(zip(self.selection.fields, key, strict=True))
        )

    def missing(self, keys: Sequence[Key]) -> list[str]:
        """What the cells lack, one line for each cell that is not whole."""
        return [
            text
            for key in keys
            for text in shortfall(name_of(self.selection.fields, key), self.cell(key), self.expected(key))
        ]

    def source(self, keys: Sequence[Key], *, reference: bool) -> list[str]:
        """Where the numbers of a table come from, and what its recipes share."""
        recipes = [self.recipe(key) for key in keys if self.cell(key)]
        paper = "; reference: the paper" if reference else ""
        common = captions.common(recipes, self.selection.fields)
        return [captions.source(recipes, self.studies) + paper, common]

    def plot(
        self,
        rows: Sequence[Sequence[AnyPanel]],
        members: Sequence[Member],
        *,
        head: str,
        about: Sequence[str] = (),
        reference: bool = False,
    ) -> Plot:
        """Put a figure together: panels, a legend that names every member once, and gaps."""
        keys = list(dict.fromkeys(key for key, _, _ in members))
        source, setting = self.source(keys, reference=False)
        return Plot(
            rows=rows,
            legend=[legend_entries(members, {key for key in keys if self.cell(key)})],
            head=head,
            about=about,
            source=source,
            setting=setting,
            missing=self.missing(keys),
            notes=self.selection.notes,
            reference=reference,
        )


def legend_entries(members: Sequence[Member], with_runs: set[Key]) -> list[Entry]:
    """Every label once; without runs if none of its cells has any."""
    present = {label for key, label, _ in members if key in with_runs}
    return list({label: Entry(label, style, label in present) for _, label, style in members}.values())
