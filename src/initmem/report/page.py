"""From content to one HTML page, or to a piece of one for a notebook. The templates escape every text."""

from __future__ import annotations

import hashlib
import json
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from initmem import __version__
from initmem.errors import StoreError, count
from initmem.files import write_output
from initmem.intervention import level_text
from initmem.measures.design import by_recipe, plain, shared_notes
from initmem.measures.fit import cold_remarks
from initmem.measures.memory import Memory
from initmem.measures.provenance import TITLE, applied_tables
from initmem.measures.verdict import memory_cells, memory_remark
from initmem.metric import metric_title
from initmem.plots.html import chart_json, sparkline
from initmem.plots.series import profile_series
from initmem.record import RunRecord
from initmem.report import charts, tables
from initmem.report.content import Content, at_level, clocks, runs_of
from initmem.store.faults import cause_line
from initmem.store.results import Collection, Results, surveyed
from initmem.table import Cell, cell

STYLES = ("pictures.css", "page.css")
SCRIPTS = ("charts.js", "page.js")
LIVE_SCRIPTS = (*SCRIPTS, "board.js")


class Section(NamedTuple):
    """A section of the page: its title in the navigation, and its HTML."""

    title: str
    html: Markup

    @property
    def tag(self) -> str:
        """Changes when the section does."""
        return hashlib.sha256(self.html.encode()).hexdigest()[:16]


# -- sections ---------------------------------------------------------------------------------------------


def sections(content: Content) -> dict[str, Section]:
    """The sections that have something to show, in order."""
    every = {name: section(name, content) for name in SECTIONS}
    return {name: one for name, one in every.items() if one.html}


def section(name: str, content: Content) -> Section:
    """One section; without HTML where there is nothing to show."""
    title, values_of = SECTIONS[name]
    return Section(title, fragment(name, {"content": content, **values_of(content)}))


def fragment(name: str, values: Mapping[str, Any]) -> Markup:
    """The HTML inside one section."""
    return Markup(_render(f"parts/{name}", **values))


def _render(template: str, **values: Any) -> str:
    return environment().get_template(f"{template}.html.j2").render(values)


def _slopes(content: Content) -> dict[str, Any]:
    cold = [(content.names[recipe], cold_remarks(group)) for recipe, group in content.groups.items()]
    return {
        "data": chart_json(charts.slopes(content)),
        "metrics": list(dict.fromkeys(s.followed.replace("_", " ") for s in content.stats.values())),
        "half_lives": {recipe: stats.half_life for recipe, stats in content.stats.items()},
        "cold": shared_notes(cold),
    }


def _init(content: Content) -> dict[str, Any]:
    shown = [replace(t, id=f"init-{i}") for i, t in enumerate(applied_tables(content.survey.records))]
    return {"tables": shown, "title": TITLE}


SECTIONS: dict[str, tuple[str, Callable[[Content], dict[str, Any]]]] = {
    "verdicts": ("Verdicts", tables.verdicts),
    "curves": ("Curves", lambda content: {"data": chart_json(charts.curves(content))}),
    "learning": ("Learning", lambda content: {"data": chart_json(charts.learning(content))}),
    "layers": ("Layers", lambda content: {"layers": charts.layer_maps(content)}),
    "slopes": ("Forgetting", _slopes),
    "clocks": ("Clocks", clocks),
    "init": ("Model", _init),
    "runs": ("Runs", tables.audit),
}


# -- the page ---------------------------------------------------------------------------------------------


def write_report(store: Results, path: Path, *, command: str | None = None) -> Path:
    """Write the report of a store; it names the command that writes it again."""
    write_output(path, render(store, command=command).encode())
    return path


def render(store: Results, *, command: str | None = None) -> str:
    """The report as HTML, with its style and scripts inside."""
    survey = surveyed(store)
    if not survey.records:
        raise StoreError(f"{store.path}: no finished run yet (initmem run makes them)")
    content = Content(survey)
    style, script = "".join(map(static, STYLES)), "".join(map(static, SCRIPTS))
    return _page(
        sections(content),
        live=False,
        title=title_of(survey),
        origin=f"{count(len(survey.records), 'run')}, written",
        command=command or command_for("report", store),
        policy=policy(style, script),
        style=Markup(style),
        script=Markup(script),
        runs={recipe.id: tables.run_rows(content, recipe) for recipe in content.groups},
    )


def render_live(store: Results, title: str, shown: Mapping[str, Section]) -> str:
    """The page of the board, with its style and scripts in files of their own."""
    files = {"styles": STYLES, "scripts": LIVE_SCRIPTS}
    command = command_for("board", store)
    return _page(shown, live=True, title=f"{title}, live", origin="Live, opened", command=command, **files)


def _page(shown: Mapping[str, Section], *, origin: str, **values: Any) -> str:
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return _render("page", version=__version__, sections=shown, origin=f"{origin} {now}", **values)


def policy(style: str, script: str) -> str:
    """A content security policy for one file: it fetches nothing and runs its own script only."""

    script_hash, style_hash = (
        f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}" for text in (script, style)
    )
    return (
        f"default-src 'none'; script-src '{script_hash}'; style-src '{style_hash}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


@cache
def static(name: str) -> str:
    """A style sheet or a script."""
    return (resources.files("initmem") / "report/static" / name).read_text("utf-8")


@cache
def environment() -> jinja2.Environment:
    """The templates."""
    templates = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.PackageLoader("initmem", "report/templates"),
    )
    templates.policies["json.dumps_function"] = lambda value, **_: to_json(value)
    templates.filters["count_of"] = count
    shared = (at_level, cause_line, level_text, memory_cells, metric_title, runs_of, tables.describe)
    templates.globals |= {function.__name__: function for function in shared}
    return templates


def to_json(value: Any) -> str:
    """Compact JSON for the page's scripts."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def command_for(name: str, store: Results) -> str:
    """A command about a store, as one would type it here."""
    here, path = Path.cwd(), store.path
    return shlex.join(["initmem", name, str(path.relative_to(here) if path.is_relative_to(here) else path)])


def title_of(survey: Collection) -> str:
    """The names of the studies."""
    return ", ".join(dict.fromkeys(study.name for study in survey.studies)) or "report"


# -- notebooks ----------------------------------------------------------------------------------------------


NOTEBOOK_COLUMNS = (
    "recipe", "verdict", "curve", "bar", "memory", "interval", "train", "noise_range", "design", "remarks",
)  # fmt: skip


def verdict_html(rows: Sequence[Memory], records: Sequence[RunRecord]) -> str:
    """A fragment of HTML for your own page: verdicts, memories and small curves over scales.

    Args:
        rows: memories, as `initmem.memory_table` returns them.
        records: the runs behind them, for the curves.
    """
    groups = {recipe.id: plain(group) for recipe, group in by_recipe(records).items()}
    curves = [profile_series(groups.get(row.recipe_id, []), row.metric) for row in rows]
    means = [mean for curve in curves for mean in curve.y]
    bounds = min(means, default=0.0), max(means, default=1.0)
    extra = [
        {"curve": Cell(picture=sparkline(curve, *bounds)), "remarks": cell(memory_remark(row))}
        for row, curve in zip(rows, curves, strict=True)
    ]
    return _render(
        "verdict",
        headline=tables.headline(rows),
        table=tables.memory_table(rows, NOTEBOOK_COLUMNS, extra),
        style=Markup(static("pictures.css")),
    )
