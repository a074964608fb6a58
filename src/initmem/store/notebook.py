"""A store or an archive that shows itself in a notebook: what was asked for, and how much of it is there."""

from __future__ import annotations

from initmem.errors import count
from initmem.html_table import html_table
from initmem.store.results import Results, store_status


def results_html(results: Results) -> str:
    """A row per study and recipe, with counts of its runs by what became of them."""
    status = store_status(results)
    rows = [
        {"study": study["name"], "effort": study["effort"], **recipe}
        for study in status["studies"]
        for recipe in study["recipes"]
    ]
    notes = [f"damaged: {line}" for line in status["damaged"]]
    return html_table(
        rows, title=f"{results.path.name}: {count(len(results.records()), 'record')}", notes=notes
    )
