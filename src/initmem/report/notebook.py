"""A result that shows itself in a notebook: verdict, numbers and small pictures as one piece of HTML."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from initmem.measures.design import by_recipe
from initmem.measures.memory import TOLERANCE_PP, Memory
from initmem.plots.curves import curve
from initmem.report.html import environment, static
from initmem.report.pictures import glyph, interval_bar, nice_limit, spark
from initmem.report.verdicts import headline
from initmem.store.record import RunRecord


def verdict_html(rows: Sequence[Memory], records: Sequence[RunRecord]) -> str:
    """Show memories, and how their metric depends on the scale in the records behind them."""
    groups = {recipe.id: group for recipe, group in by_recipe(records).items()}
    curves = {row.recipe_id: curve(groups.get(row.recipe_id, []), row.metric) for row in rows}
    means = [mean for one in curves.values() for mean in one.mean]
    bounds = min(means, default=0.0), max(means, default=1.0)
    limit = nice_limit(max((row.high or row.memory or 0.0 for row in rows), default=1.0))
    shown = [
        {
            "row": row,
            "glyph": glyph(row.verdict),
            "bar": interval_bar(row, limit, TOLERANCE_PP if row.unit == "pp" else None),
            "spark": spark(curves[row.recipe_id], *bounds),
        }
        for row in rows
    ]
    template = environment().get_template("verdict.html.j2")
    return template.render(headline=headline(rows), shown=shown, style=Markup(static("pictures.css")))
