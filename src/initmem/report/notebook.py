"""A result that shows itself in a notebook: verdict, numbers and small pictures as one piece of HTML."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from initmem.measures.design import by_recipe, plain
from initmem.measures.memory import Memory
from initmem.measures.memory_columns import columns_of, memory_remark
from initmem.plots.html import sparkline
from initmem.plots.series import profile_series
from initmem.record import RunRecord
from initmem.report.page import environment, static
from initmem.report.verdicts import bar_limit, headline, pictured_cells
from initmem.table import Cell, Column, Table, cell

COLUMNS = (
    "recipe", "verdict", "curve", "bar", "memory", "interval", "train", "noise_range", "design", "remarks",
)  # fmt: skip


def verdict_html(rows: Sequence[Memory], records: Sequence[RunRecord]) -> str:
    """Show memories, and how their metric depends on the scale in the records behind them."""
    groups = {recipe.id: plain(group) for recipe, group in by_recipe(records).items()}
    curves = [profile_series(groups.get(row.recipe_id, []), row.metric) for row in rows]
    means = [mean for curve in curves for mean in curve.y]
    bounds = min(means, default=0.0), max(means, default=1.0)
    limit = bar_limit(rows)
    units = {row.unit for row in rows}
    unit = f" ({''.join(units)})" if len(units) == 1 and units != {""} else ""
    columns = columns_of(rows)
    columns |= {
        "curve": Column("by scale", "picture"),
        "bar": Column("memory against its noise range", "picture"),
        "memory": columns["memory"]._replace(title=f"memory{unit}"),
    }
    body = []
    for row, curve in zip(rows, curves, strict=True):
        pictures = {"curve": Cell(picture=sparkline(curve, *bounds)), "remarks": cell(memory_remark(row))}
        cells = pictured_cells(row, limit) | pictures
        body.append([cells[key] for key in COLUMNS])
    table = Table("Initialization memory", [columns[key] for key in COLUMNS], body)
    template = environment().get_template("verdict.html.j2")
    return template.render(headline=headline(rows), table=table, style=Markup(static("pictures.css")))
