"""initmem studies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from initmem.cli.base import AsJson, app, bundled_studies, print_json, say, show
from initmem.errors import duration

if TYPE_CHECKING:
    from initmem.table import Columns

FIRST = "quickstart"


@app.command(name="studies")
def list_studies(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A study: list its presets.", show_default="every study", autocompletion=bundled_studies
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the bundled studies and how long they take here.

    With a name: the presets of that study, its smaller and larger versions.
    """
    from initmem.plots.columns import PRESETS, STUDIES
    from initmem.table import table_of

    rows = _rows(name)
    if as_json:
        print_json("studies", rows)
        return
    shown = [row | {"time": duration(3600 * row["hours_here"])} for row in rows]
    if name is None:
        brief = [row for row in shown if row["default"]]
        show(table_of("Bundled studies", _only(brief, STUDIES), STUDIES))
        say("`initmem studies NAME` lists smaller and larger versions of one.")
    else:
        title = f"{name}: {rows[0]['title']}"
        columns = {key: column for key, column in PRESETS.items() if key != "study"}
        show(table_of(title, _only(shown, columns), columns))
        say("`initmem run STUDY --preset NAME` runs one; `initmem plan STUDY` times real training steps.")


def _rows(name: str | None) -> list[dict[str, Any]]:
    """A row per study and preset; quickstart first, and of every study its default preset."""
    from initmem import study_file as studies
    from initmem.engines.engine import cores
    from initmem.engines.plan import rough_hours, study_flops

    names = [name] if name else sorted(studies.bundled(), key=lambda one: (one != FIRST, one))
    presets = {one: studies.presets(one) for one in names}
    loaded = [
        (one, studies.load_study(one, preset), about)
        for one in names
        for preset, about in presets[one].items()
    ]
    hours = rough_hours([study for _, study, _ in loaded], cores())
    return [
        {
            "study": study.name,
            "title": study.title,
            "preset": study.preset,
            "default": study.preset == next(iter(presets[one])),
            "recipes": len(study.recipes),
            "scales": len(study.scales),
            "seeds": len(study.seeds),
            "runs": len(study.all_runs()),
            "flops": study_flops(study),
            "hours_here": here,
            "about": about,
        }
        for (one, study, about), here in zip(loaded, hours, strict=True)
    ]


def _only(rows: list[dict[str, Any]], columns: Columns) -> list[dict[str, Any]]:
    return [{str(key): row[str(key)] for key in columns} for row in rows]
