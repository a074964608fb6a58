"""A result that shows itself in a notebook: verdict, numbers and small pictures as one piece of HTML."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from initmem.measures.design import by_recipe, plain
from initmem.measures.memory import Memory
from initmem.measures.memory_columns import columns_of, memory_cells, memory_remark
from initmem.plots.builders import memory_interval
from initmem.plots.html import glyph, interval_bar, nice_limit, sparkline
from initmem.plots.series import profile_series
from initmem.record import RunRecord
from initmem.report.page import environment, static
from initmem.report.verdicts import headline
from initmem.table import Cell, Column, Table, cell

SHOWN = (
    "recipe",
    "verdict",
    "curve",
    "bar",
    "memory",
    "interval",
    "train",
    "noise_range",
    "design",
    "remarks",
)


def verdict_html(rows: Sequence[Memory], records: Sequence[RunRecord]) -> str:
    """Show memories, and how their metric depends on the scale in the records behind them."""
    groups = {recipe.id: group for recipe, group in by_recipe(records).items()}
    records_of = {row.recipe_id: plain(groups.get(row.recipe_id, [])) for row in rows}
    curves = {row.recipe_id: profile_series(records_of[row.recipe_id], row.metric) for row in rows}
    means = [mean for curve in curves.values() for mean in curve.y]
    bounds = min(means, default=0.0), max(means, default=1.0)
    limit = nice_limit(max((row.high or row.memory or 0.0 for row in rows), default=1.0))
    pictures = {"curve": "by scale", "bar": "memory against its noise range"}
    units = {row.unit for row in rows}
    unit = f" ({''.join(units)})" if len(units) == 1 and units != {""} else ""
    columns = columns_of(rows) | {key: Column(title, "picture") for key, title in pictures.items()}
    columns["memory"] = columns["memory"]._replace(title=f"memory{unit}")
    cells = [
        memory_cells(row)
        | {
            "verdict": memory_cells(row)["verdict"]._replace(picture=glyph(row.verdict)),
            "curve": Cell(picture=sparkline(curves[row.recipe_id], *bounds)),
            "bar": Cell(picture=interval_bar(memory_interval(row), limit, row.tolerance)),
            "remarks": cell(memory_remark(row)),
        }
        for row in rows
    ]
    body = [[row[key] for key in SHOWN] for row in cells]
    table = Table("Initialization memory", [columns[key] for key in SHOWN], body)
    template = environment().get_template("verdict.html.j2")
    return template.render(headline=headline(rows), table=table, style=Markup(static("pictures.css")))
