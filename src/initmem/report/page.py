"""From content to one HTML page. Every text goes through the templates, which escape it."""

from __future__ import annotations

import hashlib
import json
import shlex
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from initmem import __version__
from initmem.errors import StoreError, count
from initmem.files import write_atomic
from initmem.measures.fit import cold_notes
from initmem.metric import metric_title
from initmem.plots.html import chart_json, heat_rows
from initmem.report import audit, charts, tables
from initmem.report.content import Content
from initmem.report.verdicts import verdicts
from initmem.store.results import Results, Survey

STYLES = ("pictures.css", "page.css")
SCRIPTS = ("charts.js", "page.js")
LIVE_SCRIPTS = (*SCRIPTS, "board.js")


class Part(NamedTuple):
    """A section of the page: its heading in the navigation, and its HTML."""

    title: str
    html: Markup

    @property
    def tag(self) -> str:
        """Changes when the part does."""
        return hashlib.sha256(self.html.encode()).hexdigest()[:16]


def parts(content: Content) -> dict[str, Part]:
    """All sections, in order; those that have nothing to show are left out."""
    made = {}
    for name, (title, data) in PARTS.items():
        values = data(content)
        if values is not None:
            made[name] = Part(title, fragment(name, values))
    return made


def fragment(name: str, values: Mapping[str, Any]) -> Markup:
    """The inside of one section."""
    return Markup(environment().get_template(f"parts/{name}.html.j2").render(values))


def whole_page(
    title: str,
    sections: Mapping[str, Part],
    *,
    scripts: tuple[str, ...],
    inline: bool,
    runs: Mapping[str, Any] | None = None,
    origin: str = "",
    command: str = "",
) -> str:
    """A page of sections: with everything inside, or with its style and scripts as files beside it."""
    style = "".join(map(static, STYLES))
    script = "".join(map(static, scripts))
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            title=title,
            sections=sections,
            policy=policy(style, script) if inline else "",
            style=Markup(style) if inline else "",
            script=Markup(script) if inline else "",
            live=not inline,
            styles=STYLES,
            scripts=scripts,
            runs=runs,
            origin=origin,
            command=command,
            version=__version__,
        )
    )


def policy(style: str, script: str) -> str:
    """A content-security policy for one file: nothing is fetched, nothing runs but what was put there."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def static(name: str) -> str:
    """A file of the style sheet or the scripts."""
    return (resources.files("initmem") / "report/static" / name).read_text("utf-8")


@cache
def environment() -> jinja2.Environment:
    """The templates."""
    loader = jinja2.PackageLoader("initmem", "report/templates")
    made = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=loader)
    made.policies["json.dumps_function"] = _compact
    made.undefined = jinja2.StrictUndefined
    return made


def _compact(value: Any, **options: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _curves(content: Content) -> dict[str, Any] | None:
    plots = charts.curves(content)
    return {"data": chart_json(plots)} if plots else None


def _learning(content: Content) -> dict[str, Any] | None:
    plots = charts.learning(content)
    return {"data": chart_json(plots)} if plots else None


def _heat(content: Content) -> dict[str, Any] | None:
    maps = charts.metric_maps(content, content.facets)
    values = {
        "memory": charts.memory_maps(content),
        "maps": maps,
        "metric": metric_title(content.metric),
        "crossed": any(any(row) for panel in maps for row in panel.crossed),
        "heat_rows": heat_rows,
    }
    return values if maps else None


def _slopes(content: Content) -> dict[str, Any] | None:
    if not any(len(item.beta.beta) for item in content.stats.values()):
        return None
    return {
        "data": chart_json(charts.slopes(content)),
        "metrics": list(dict.fromkeys(s.followed.replace("_", " ") for s in content.stats.values())),
        "half_lives": tables.half_life_table(content),
        "collapse": tables.collapse_table(content),
        "cold": cold_notes({content.names[recipe]: group for recipe, group in content.groups.items()}),
    }


def _clocks(content: Content) -> dict[str, Any] | None:
    if not content.names:
        return None
    return {"clocks": tables.clock_table(content)}


def _paper(content: Content) -> dict[str, Any] | None:
    table = tables.paper_table(content)
    return {"table": table} if table else None


def _runs(content: Content) -> dict[str, Any]:
    return {
        "progress": audit.progress_table(content),
        "environments": audit.environment_table(content),
        "mixtures": audit.mixtures(content),
        "packs": audit.packs(content),
        "failures": audit.failures(content),
        "diverged": audit.diverged_table(content),
        "missing": audit.missing(content),
        "damaged": content.survey.damaged,
        "n_runs": len(content.survey.records),
        "recipes": [
            {"id": recipe.id, "label": content.names[recipe], "scales": sorted(item.runs)}
            for recipe, item in content.stats.items()
        ],
    }


PARTS: dict[str, tuple[str, Callable[[Content], dict[str, Any] | None]]] = {
    "verdicts": ("Verdicts", verdicts),
    "curves": ("Curves", _curves),
    "learning": ("Learning", _learning),
    "heat": ("Heat maps", _heat),
    "slopes": ("Forgetting", _slopes),
    "clocks": ("Clocks", _clocks),
    "paper": ("Paper", _paper),
    "runs": ("Runs", _runs),
}


# -- the report -------------------------------------------------------------------------------------------


def write_report(store: Results, path: Path, *, command: str | None = None) -> Path:
    """Write the report of a store; it names the command that makes it again."""
    try:
        write_atomic(path, render(store, command=command).encode())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})") from None
    return path


def render(store: Results, *, command: str | None = None) -> str:
    """The report as HTML."""
    survey = Survey.of(store)
    if not survey.records:
        raise StoreError(f"{store.path}: no finished run yet (initmem run makes them)")
    content = Content(survey)
    return whole_page(
        title_of(survey),
        parts(content),
        scripts=SCRIPTS,
        inline=True,
        runs={recipe.id: audit.run_rows(content, records) for recipe, records in content.groups.items()},
        origin=f"{count(len(survey.records), 'run')}, written {now()}",
        command=command or command_for("report", store),
    )


def now() -> str:
    """The time at which a page is made."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def command_for(name: str, store: Results) -> str:
    """A command about a store, as one would type it here."""
    here, path = Path.cwd(), store.path
    return shlex.join(["initmem", name, str(path.relative_to(here) if path.is_relative_to(here) else path)])


def title_of(survey: Survey) -> str:
    """What the page is about."""
    return ", ".join(dict.fromkeys(study.name for study in survey.studies)) or "report"
