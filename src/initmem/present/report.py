"""The report: one self-contained HTML page that opens offline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from initmem import __version__
from initmem.errors import StoreError
from initmem.measures.memory import Memory, memory_table
from initmem.present.curves import Curve, scale_plot
from initmem.present.status import store_status
from initmem.record import RunRecord
from initmem.results import Results
from initmem.store import write_atomic

WORDS = {
    "remembers": "The initialization scale is still visible in the trained predictor.",
    "forgets": "Whatever the initialization scale, training ends within the tolerance.",
    "undetermined": "Too few or too noisy runs to tell; more seeds would settle it.",
}


def write_report(store: Results, path: Path) -> Path:
    """Write the report of a store."""
    try:
        write_atomic(path, render(store).encode())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def render(store: Results) -> str:
    """The report as HTML."""
    import jinja2
    from plotly.offline import get_plotlyjs

    records = store.records()
    if not records:
        raise StoreError(f"{store.path}: no finished run yet (initmem run makes them)")
    studies = store.studies()
    order = [recipe for study in studies for recipe in study.recipes]
    plots = [scale_plot(records, metric, order=order) for metric in ("test_accuracy", "norm_best")]
    rows = memory_table(records, order=order)
    means = [mean for curve in plots[0].curves for mean in curve.mean]
    bounds = (min(means, default=0.0), max(means, default=100.0))
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = (resources.files("initmem") / "present/templates/report.html.j2").read_text("utf-8")
    return environment.from_string(template).render(
        studies=studies,
        cards=[_card(row, curve, bounds) for row, curve in zip(rows, plots[0].curves, strict=True)],
        bounds=bounds,
        plots=[
            {"title": p.title, "y_title": p.y_title, "curves": [c._asdict() for c in p.curves]} for p in plots
        ],
        rows=rows,
        status=store_status(store),
        provenance=provenance(records),
        n_runs=len(records),
        version=__version__,
        plotly=get_plotlyjs(),
    )


def _card(row: Memory, curve: Curve, bounds: tuple[float, float]) -> dict[str, Any]:
    line = sparkline(curve, *bounds)
    return {"row": row, "words": WORDS[row.verdict], "colour": curve.colour, "line": line}


def sparkline(curve: Curve, low: float, high: float, *, width: int = 200, height: int = 56) -> str:
    """Points of a small polyline: the curve's means on an axis from low to high."""
    if not curve.scales:
        return ""
    first, span = curve.scales[0], (curve.scales[-1] - curve.scales[0]) or 1.0
    return " ".join(
        f"{3 + (width - 6) * (scale - first) / span:.1f},"
        f"{3 + (height - 6) * (high - mean) / ((high - low) or 1.0):.1f}"
        for scale, mean in zip(curve.scales, curve.mean, strict=True)
    )


def provenance(records: Sequence[RunRecord]) -> dict[str, str]:
    """With what the runs were trained; several values of one kind stand side by side."""
    found: dict[str, str] = {}
    for key in ("hardware", "device", "threads", "pack", "torch", "python", "initmem", "attempts"):
        counts = Counter(str(record.provenance.get(key, "unknown")) for record in records)
        found[key] = ", ".join(
            value if len(counts) == 1 else f"{value} ({n} runs)" for value, n in counts.most_common()
        )
    seconds = sum(float(record.history["seconds"].sum()) for record in records if record.history)
    found["training time"] = f"{seconds:,.0f} processor seconds"
    return found
