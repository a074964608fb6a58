"""The documentation site: it builds strictly, works offline, and what it shows is true."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

import initmem
from initmem.cli import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REGISTERED = ("model", "optimizer", "dataset", "intervention")
METHODS_OF_INIT = ("apply", "describe", "generator", "kernel", "bias")
METHODS_OF_TRACKER = ("attach", "step", "intervene", "end_epoch", "finish", "predictions")


# No --quiet: it would also hide warnings from --strict.
def build(folder: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    return subprocess.run(words, text=True, capture_output=True, cwd=ROOT)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.ids |= {value for name, value in attrs if name in ("id", "name") and value}
        if tag == "a" and known.get("href"):
            self.links.append(known["href"])
        if tag in ("script", "img", "iframe") and known.get("src"):
            self.loaded.append(known["src"])
        if tag == "link" and known.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(known.get("href") or "")


def test_every_link_leads_somewhere_and_nothing_is_fetched(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 30
    for path, page in pages.items():
        for target in (*page.links, *page.loaded):
            where = urlsplit(target)
            if where.scheme:
                embedded = where.scheme == "data"
                assert embedded or target not in page.loaded, f"{path.name} fetches {target}"
                continue
            file = (path.parent / unquote(where.path)).resolve() if where.path else path
            assert file.exists(), f"{path.name}: {target}"
            if where.fragment and file in pages:
                assert unquote(where.fragment) in pages[file].ids | {"__codelineno"}, f"{path.name}: {target}"


def test_a_broken_link_or_a_forgotten_page_breaks_the_build(tmp_path: Path) -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[0]
    (tmp_path / "docs").mkdir()
    for name in ("site.css", "iframe-worker.js"):
        (tmp_path / "docs" / name).write_text("")
    config = re.sub(r"(?ms)^hooks:.*?$|^  - mkdocstrings:.*?(?=^markdown_extensions)", "", config)
    (tmp_path / "mkdocs.yml").write_text(f"{config}\nnav:\n  - Home: index.md\n")
    index = tmp_path / "docs" / "index.md"
    index.write_text("# Home")
    assert build(tmp_path / "out", tmp_path / "mkdocs.yml").returncode == 0
    index.write_text("# Home\n\n[x](gone.md) [y](#nowhere)")
    (tmp_path / "docs" / "forgotten.md").write_text("# Not in the navigation")
    refused = build(tmp_path / "out", tmp_path / "mkdocs.yml")
    assert refused.returncode != 0
    for name in ("gone.md", "#nowhere", "forgotten.md"):
        assert re.search(f"WARNING.*{name}|WARNING[^W]*{name}", refused.stderr), (name, refused.stderr)


def public(owner: object) -> list[str]:
    """The methods and properties that a class defines for its users."""
    return [
        name
        for name, value in vars(owner).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property | classmethod))
    ]


def undescribed_parameters(function: object, text: str) -> list[str]:
    """Parameters that a docstring neither lists nor names."""
    parameters = inspect.signature(function).parameters
    return [
        name for name in parameters if name != "self" and not re.search(rf"\b{name}: |`[^`]*\b{name}\b", text)
    ]


def test_docstrings_explain_every_parameter() -> None:
    pytest.importorskip("lightning")
    from initmem.pipeline.lightning import LightningTracker
    from initmem.report.page import verdict_html

    public = [getattr(initmem, name) for name in initmem.__all__]
    callables = [value for value in public if callable(value) and value is not initmem.InitmemError]
    callables += [getattr(initmem.plot, name) for name in initmem.plot.__all__]
    callables += [getattr(initmem.register, name) for name in REGISTERED]
    callables += [LightningTracker, verdict_html]
    for owner, names in ((initmem.Init, METHODS_OF_INIT), (initmem.Tracker, METHODS_OF_TRACKER)):
        callables += [getattr(owner, name) for name in names]
    gaps = {each: undescribed_parameters(each, inspect.getdoc(each) or "") for each in callables}
    assert not {each: names for each, names in gaps.items() if names}


def test_every_public_name_is_described_and_has_an_example(site: Path) -> None:
    page = (DOCS / "api.md").read_text("utf-8")
    shown = Page(site / "api.html").ids
    sections = dict(re.findall(r"^::: initmem\.(\w+)\n(.*?)(?=^::: |\Z)", page, flags=re.M | re.S))
    assert set(sections) == set(initmem.__all__)
    for name in initmem.__all__:
        assert f"initmem.{name}" in shown
        assert ">>> " in sections[name], name
        value = getattr(initmem, name)
        if inspect.isclass(value):
            undescribed = [each for each in public(value) if not inspect.getdoc(getattr(value, each))]
            assert undescribed == [], name
        if not isinstance(value, str):
            assert inspect.getdoc(value), name
    assert {f"initmem.plot.{name}" for name in initmem.plot.__all__} <= shown
    assert {f"initmem.register.{name}" for name in REGISTERED} <= shown
    callbacks = ("lightning.LightningTracker", "keras.KerasTracker", "transformers.TransformersTracker")
    assert {f"initmem.pipeline.{name}" for name in callbacks} | {"initmem.report.page.verdict_html"} <= shown


def test_the_examples_of_the_reference_print_what_they_say(tmp_path: Path, monkeypatch) -> None:
    matplotlib.use("agg")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = doctest.testfile(
        str(DOCS / "api.md"), module_relative=False, optionflags=doctest.ELLIPSIS, verbose=False
    )
    assert found.attempted > 40 and not found.failed


def test_the_command_line_reference_has_every_command_and_option(site: Path) -> None:
    import typer.main

    text = re.sub(r"<[^>]+>", "", (site / "cli.html").read_text("utf-8"))

    def check(command, name: str) -> int:
        children = getattr(command, "commands", {})
        for parameter in () if children else command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert option == "--help" or not option.startswith("-") or option in text, (name, option)
        assert children or name in text
        return 1 + sum(check(child, f"{name} {each}") for each, child in children.items())

    assert check(typer.main.get_command(app), "initmem") > 15


def test_the_pictures_of_the_concepts_are_what_the_script_draws(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    matplotlib.use("agg")
    from build_concepts import PICTURES
    from build_concepts import build as draw

    draw(tmp_path)
    page = (DOCS / "concepts.md").read_text("utf-8")
    for name in PICTURES:
        assert f"](images/{name}.png)" in page
        kept, drawn = (imread(folder / f"{name}.png") for folder in (DOCS / "images", tmp_path))
        assert np.abs(kept - drawn).max() < 0.02, f"{name}: python docs/build_concepts.py"


def test_the_page_of_the_notebook_shows_its_outputs(site: Path) -> None:
    page = (site / "examples" / "first_look.html").read_text("utf-8")
    for shown in (
        "remembers: generalization (small)",
        "<svg",
        "data:image/png;base64,",
        "runs/digits: 30 records",
    ):
        assert shown in page


def test_a_public_name_stays_what_it_is_whatever_was_imported_before() -> None:
    """A module has the name of a function: importing it must not put it in the function's place."""
    code = "import initmem; initmem.load_study, initmem.Recipe; import initmem.clocks, initmem.study; "
    check = "print([type(getattr(initmem, n)).__name__ for n in ('clocks', 'load_study')])"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['function', 'function']"
