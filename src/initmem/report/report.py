"""The report: one self-contained HTML page that opens offline."""

from __future__ import annotations

from pathlib import Path

from initmem.errors import StoreError
from initmem.report import audit, html
from initmem.report.content import Content
from initmem.store.files import write_atomic
from initmem.store.results import Results, Survey


def write_report(store: Results, path: Path) -> Path:
    """Write the report of a store."""
    try:
        write_atomic(path, render(store).encode())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def render(store: Results) -> str:
    """The report as HTML."""
    survey = Survey.of(store)
    if not survey.records:
        raise StoreError(f"{store.path}: no finished run yet (initmem run makes them)")
    content = Content(survey)
    return html.whole_page(
        title_of(survey),
        html.parts(content),
        scripts=html.SCRIPTS,
        inline=True,
        runs={recipe.id: audit.run_rows(content, records) for recipe, records in content.groups.items()},
        note=f"{len(survey.records):,} runs",
    )


def title_of(survey: Survey) -> str:
    """What the page is about."""
    return ", ".join(dict.fromkeys(study.name for study in survey.studies)) or "report"
