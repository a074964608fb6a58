"""Report and board in a real browser: chromium, where there is one."""

from __future__ import annotations

import csv
import itertools
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import planted
from conftest import fake_record
from initmem.engines import worker
from initmem.engines.engine import EpochEnded, Event
from initmem.engines.local import InlineEngine
from initmem.recipe import Recipe
from initmem.record import crashed
from initmem.report import watch
from initmem.report.board import Board
from initmem.report.page import write_report
from initmem.session import run_study
from initmem.store.results import open_results
from initmem.store.store import Store
from initmem.study import Study
from initmem.study_file import load_study

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
playwright = pytest.importorskip("playwright.sync_api")
expect = playwright.expect
expect.set_options(timeout=60_000)  # of a busy machine

GRID = Path(__file__).parents[1] / "docs" / "results" / "main-grid-mini.initmem"
IMAGE = "<img src=x onerror=alert(1)>"
FLAGS = ["--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
STUDY = f"""
name = "{IMAGE}"
scales = [0.5, 1.0]
seeds = [0]

[recipe]
dataset = "synthetic:400x1x8x8"
width = 4
batch_size = 16
epochs = 9
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    flags = [*FLAGS, "--no-sandbox"] if os.getuid() == 0 else FLAGS
    with playwright.sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


class Visit:
    """A page with all it complained about."""

    def __init__(self, chromium, **options) -> None:
        options = {"viewport": {"width": 1280, "height": 900}} | options
        self.context = chromium.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.complaints: list[str] = []
        self.page.on("console", lambda m: m.type in ("error", "warning") and self.complaints.append(m.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append("a dialog opened"), dialog.dismiss()))


@pytest.fixture
def visit(chromium, request: pytest.FixtureRequest) -> Iterator[Visit]:
    made = Visit(chromium, **getattr(request, "param", {}))
    yield made
    made.context.close()
    assert made.complaints == []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of planted records, one recipe of which has an unfriendly name."""
    folder = tmp_path_factory.mktemp("report")
    odd = Recipe(dataset=f"{IMAGE}.npz", width=8, epochs=planted.EPOCHS)
    recipes = [*planted.grid(optimizer=["sgd", "adam"], batch_size=[16, 128]), odd]
    study = replace(planted.study(IMAGE, recipes), title=IMAGE)
    layers = {"layer_epochs": np.arange(3), "cosine:head": np.linspace(1, 0.2, 3), "norm:head": np.ones(3)}
    records = [replace(record, arrays=layers) for record in planted.records(study)]
    records[0] = crashed(records[0].run, f"Traceback\nValueError: {IMAGE}", {})
    store = Store.create(folder / "store")
    store.add_study(study)
    store.commit(records)
    return write_report(store, folder / "report.html").as_uri()


@pytest.fixture
def board_of(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Store], str]]:
    """Serve a store, at a brisk pace, for as long as a test lasts."""
    monkeypatch.setattr(watch, "TICK", 0.1)
    monkeypatch.setattr(watch, "READ_EVERY", 0.5)
    served: list[tuple[Board, threading.Thread]] = []

    def serve(store: Store) -> str:
        board = Board(store, port=0)
        thread = threading.Thread(target=board.serve)
        thread.start()
        served.append((board, thread))
        return board.url

    yield serve
    visit.page.goto("about:blank")  # before the server goes, or the page would complain about it
    for board, thread in served:
        board.shutdown()
        thread.join(60)


def columns(page, table: str) -> list[str]:
    return [text.strip() for text in page.locator(f"#{table} thead th").all_inner_texts()]


def cells(page, table: str, title: str) -> list[str]:
    place = columns(page, table).index(title) + 1
    return page.locator(f"#{table} tbody td:nth-child({place})").all_inner_texts()


@pytest.mark.parametrize("visit", [{"offline": True}], indirect=True)
def test_the_report_opens_without_a_network_and_says_what_it_is_about(visit: Visit, report: str) -> None:
    visit.page.goto(report)
    expect(visit.page.get_by_role("heading", level=1)).to_have_text("Does training forget where it started?")
    expect(visit.page.locator("#memory tbody tr")).to_have_count(5)
    expect(visit.page.locator("#memory svg.bar").first).to_be_visible()
    assert visit.page.locator("img").count() == 0
    assert IMAGE in visit.page.locator("#verdicts").inner_text()


def test_a_table_sorts_by_value_and_copies(visit: Visit, report: str) -> None:
    page = visit.page
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(report)
    head = page.locator("#memory").get_by_role("button", name="memory", exact=True)
    head.click()
    shown = [float(text) for text in cells(page, "memory", "memory") if text]
    assert shown == sorted(shown, reverse=True)
    assert len(set(shown)) > 3
    expect(page.locator("#memory th[aria-sort=descending]")).to_have_text("memory")
    head.click()
    assert [float(text) for text in cells(page, "memory", "memory") if text] == shown[::-1]
    page.locator("[data-copy=memory]").click()
    expect(page.locator("[data-copy=memory]")).to_have_text("Copied")
    lines = page.evaluate("navigator.clipboard.readText()").split("\n")
    assert len(lines) == 6
    assert lines[0].split("\t")[:3] == ["recipe", "verdict", "memory"]  # pictures are left out
    assert [float(line.split("\t")[2]) for line in lines[1:]] == shown[::-1]


def test_a_point_says_n_interval_and_runs_and_leads_to_them(visit: Visit, report: str) -> None:
    page = visit.page
    page.goto(report)
    plot = page.locator("#curves .plot").first
    plot.scroll_into_view_if_needed()
    dot = plot.locator(".series .dot").nth(4).bounding_box()
    page.mouse.move(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    tip = page.locator("#tip")
    expect(tip).to_be_visible()
    said = tip.inner_text()
    assert "initialization scale σ = 2.5" in said and "n = 3" in said
    assert re.search(r"95% interval of the mean: [\d.]+ to [\d.]+", said)
    ids = re.findall(r"[0-9a-f]{16}", said)
    assert len(ids) == 3
    page.mouse.click(dot["x"] + dot["width"] / 2, dot["y"] + dot["height"] / 2)
    expect(page.locator("#run-list tbody tr")).to_have_count(3)
    assert set(cells(page, "run-list", "run")) == set(ids)


def test_charts_are_read_with_the_keyboard_and_switched(visit: Visit, report: str) -> None:
    page = visit.page
    page.goto(report)
    page.locator("#curves .plot").first.focus()
    expect(page.locator("#curves .plot svg").first).to_be_visible()  # drawn when it comes into view
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tip")).to_contain_text("σ = 0.5")
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    page.get_by_role("radio", name="Weight norm").check()
    expect(page.locator("#curves svg .title").last).to_have_text("Frobenius norm")
    lines = page.locator("#curves .plot").first.locator(".series")
    before = lines.count()
    page.locator("#curves .legend button").first.click()
    expect(lines).to_have_count(before - 1)


def test_the_table_of_verdicts_is_whole_on_a_laptop_and_no_label_of_an_axis_lies_on_its_title(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    page.goto(write_report(open_results(GRID), tmp_path / "report.html").as_uri())
    frame = page.locator(".scroll:has(> #memory)")
    assert frame.evaluate("it => it.scrollWidth - it.clientWidth") <= 0
    for part in ("curves", "slopes"):  # labels such as 90, and such as 0.001 or 1e-4
        plot = page.locator(f"#{part} .plot").first
        plot.scroll_into_view_if_needed()
        expect(plot.locator("svg")).to_be_visible()
        title = plot.locator(".title[transform]").bounding_box()
        labels = [label.bounding_box() for label in plot.locator(".tick[text-anchor=end]").all()]
        assert len(labels) > 1
        assert min(box["x"] for box in labels) > title["x"] + title["width"]


OUTSIDE = """() => [...document.querySelectorAll(".plot svg")].flatMap((svg) => {
  const box = svg.querySelector("clipPath rect"), far = (at, low, size) => at < low || at > low + size;
  const marks = [...svg.querySelectorAll(".dot")].map((dot) => dot.transform.baseVal.consolidate().matrix);
  const [left, top, width, height] = ["x", "y", "width", "height"].map((name) => +box.getAttribute(name));
  return marks.filter((at) => far(at.e, left, width) || far(at.f, top, height)).map((at) => at.e);
})"""


def test_no_mark_lies_outside_its_plot_and_recipes_of_unequal_length_share_no_linear_axis(
    visit: Visit, tmp_path: Path
) -> None:
    recipe = Recipe(dataset="digits", width=4, batch_statistics="re-estimated")
    long = [recipe.model_copy(update={"epochs": epochs}) for epochs in (6, 600)]
    study = planted.study("lengths", long)
    records = [
        replace(one, history=dict(one.history) | {"clock_sgd": one.history["clock_sgd"] ** 3})
        for one in planted.records(study)
    ]  # a clock of eight decades
    store = Store.create(tmp_path / "store")
    store.add_study(study)
    store.commit(records)
    page = visit.page
    page.goto(write_report(store, tmp_path / "report.html").as_uri())
    slopes = page.locator("#slopes")
    slopes.scroll_into_view_if_needed()
    for choice in slopes.get_by_role("radio").all():
        choice.check()
        expect(slopes.locator(".plot svg").first).to_be_visible()
        assert slopes.locator(".plot .dot").count() > 2
        assert page.evaluate(OUTSIDE) == []
    slopes.get_by_role("radio").first.check()
    expect(slopes.locator(".plot svg").first).to_be_visible()
    ticks = slopes.locator(".tick[text-anchor=middle]").all_text_contents()
    assert {"1", "10", "100"} <= set(ticks)  # a log axis: six epochs are not a smear at its left end
    learning = page.locator("#learning")
    learning.scroll_into_view_if_needed()
    expect(learning.locator("svg").nth(1)).to_be_visible()
    ends = [
        chart.locator(".tick[text-anchor=middle]").last.text_content()
        for chart in learning.locator(".chart").all()
    ]
    assert ends == ["6", "600"]


def test_charts_have_axes_that_fit_them_and_legends_of_what_they_draw(visit: Visit, tmp_path: Path) -> None:
    """Two datasets and two lengths: each chart has its own limits, one a logarithmic axis of epochs."""
    easy = planted.grid(optimizer=["sgd", "adam"], dataset=["mnist"])
    hard = planted.grid(optimizer=["sgd", "adam"], dataset=["cifar10"])
    hard += [one.replace(epochs=600) for one in hard]
    hard += planted.grid(optimizer=["adamw", "momentum", "muon"], dataset=["cifar10"])
    study = planted.study("s", [*easy, *hard])
    records = [
        replace(one, summary=replace(one.summary, test_accuracy=one.summary.test_accuracy * share))
        for one in planted.records(study)
        for share in [1.0 if one.run.recipe.dataset == "mnist" else 0.2]
    ]
    store = Store.create(tmp_path / "store")
    store.add_study(study)
    store.commit([one for one in records if one.run.recipe != hard[-1] or one.run.scale == 1.0])
    page = visit.page
    page.goto(write_report(store, tmp_path / "report.html").as_uri())
    curves, slopes = page.locator("#curves"), page.locator("#slopes")

    def heights() -> list[list[str]]:
        expect(curves.locator(".plot svg").nth(1)).to_be_attached()
        charts = curves.locator(".chart").all()
        return [chart.locator(".tick[text-anchor=end]").all_text_contents() for chart in charts]

    curves.scroll_into_view_if_needed()
    first, second = heights()
    assert first != second
    curves.get_by_role("radio", name="same for all").check()
    first, second = heights()
    assert first == second
    slopes.scroll_into_view_if_needed()
    expect(slopes.locator(".plot svg").nth(1)).to_be_attached()
    ticks = [
        chart.locator(".tick[text-anchor=middle]").all_text_contents()
        for chart in slopes.locator(".chart").all()
    ]
    assert ticks[0][-1] == "6" and {"1", "10", "100"} <= set(ticks[1])
    keys = slopes.locator(".legend .name").all_inner_texts()
    assert all("muon" not in key for key in keys)  # from one scale there is no slope
    assert len(keys) == slopes.locator("g.series path.mean").count()


def test_words_choose_the_recipes_of_tables_and_charts(visit: Visit, report: str) -> None:
    page = visit.page
    page.goto(report)
    page.locator("#filter").fill("adam b128")
    expect(page.locator("#matches")).to_have_text("1 of 5")
    expect(page.locator("#memory tbody tr:visible")).to_have_count(1)
    expect(page.locator("#by-scale tbody tr:visible")).to_have_count(2)  # its test and its train accuracy
    page.locator("#curves").scroll_into_view_if_needed()
    expect(page.locator("#curves g.series")).to_have_count(1)
    expect(page.locator("#learning .chart:visible")).to_have_count(1)
    page.locator("#filter").fill("")
    expect(page.locator("#memory tbody tr:visible")).to_have_count(5)
    expect(page.locator("#curves g.series")).to_have_count(5)


@pytest.mark.parametrize("visit", [{"offline": True}], indirect=True)
def test_two_recipes_are_compared_on_one_chart_and_the_address_keeps_it(visit: Visit, report: str) -> None:
    page = visit.page
    page.goto(report)
    first, second = page.locator("select.compared").all()
    names = first.locator("option").all_inner_texts()[2:4]
    first.select_option(names[1])
    second.select_option(names[0])
    words = page.locator("#difference")
    expect(words).to_contain_text(f"{names[1]} minus {names[0]}: ")
    curves = page.locator("#curves")
    curves.get_by_role("radio", name="Weight norm").check()
    curves.get_by_role("radio", name="from 0").check()

    def is_compared() -> None:
        expect(page.locator("#memory tbody tr:visible")).to_have_count(2)
        curves.scroll_into_view_if_needed()
        expect(curves.locator(".chart:visible")).to_have_count(1)
        expect(curves.locator("g.series")).to_have_count(2)
        lines = curves.locator("g.series").evaluate_all("all => all.map((one) => one.dataset.name)")
        assert lines == names[::-1]
        assert "0" in curves.locator(".tick[text-anchor=end]").all_text_contents()

    is_compared()
    said = words.text_content()
    page.goto(page.url)  # what a colleague sees who gets the address
    expect(words).to_have_text(said)
    expect(curves.get_by_role("radio", name="Weight norm")).to_be_checked()
    is_compared()
    first.select_option("")
    expect(words).to_be_empty()
    expect(page.locator("#memory tbody tr:visible")).to_have_count(5)


def test_headings_descend_by_one_and_each_number_is_no_stop_of_the_tab_key(visit: Visit, report: str) -> None:
    page = visit.page
    page.goto(report)
    levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map((one) => +one.tagName[1])")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))
    assert page.locator("#by-scale tbody a").count() > 20
    assert page.locator("#by-scale tbody a:not([tabindex='-1'])").count() == 0
    assert page.locator("#memory tbody a:not([tabindex='-1'])").count() == 5


@pytest.mark.parametrize("width", [1280, 800, 390])
def test_long_names_cut_no_number(visit: Visit, tmp_path: Path, width: int) -> None:
    page = visit.page
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(write_report(open_results(GRID.with_stem("transformers-mini")), tmp_path / "r.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    shown = (
        "it => [...it.querySelectorAll('tbody td.number')].map((one) => one.getBoundingClientRect().right)"
    )
    assert max(page.locator("#memory").evaluate(shown)) <= width
    if width == 1280:
        assert max(page.locator("#by-scale").evaluate(shown)) <= width
    cards = page.locator("#memory tbody tr").evaluate_all("all => all.map((one) => one.offsetHeight)")
    assert sorted(cards)[len(cards) // 2] <= 160  # pixels


@pytest.mark.parametrize("visit", [{"offline": True}], indirect=True)
def test_a_chart_is_saved_as_svg_and_its_values_as_csv(visit: Visit, report: str) -> None:
    page = visit.page
    page.goto(report)
    chart = page.locator("#curves .chart").first
    chart.scroll_into_view_if_needed()
    expect(chart.locator("svg").first).to_be_visible()
    saved = {}
    for kind in ("SVG", "CSV"):
        with page.expect_download() as download:
            chart.get_by_label("Save this chart").select_option(kind)
        assert download.value.suggested_filename == f"Test_accuracy.{kind.lower()}"
        saved[kind] = Path(download.value.path()).read_text()
    with page.expect_download() as download:
        chart.get_by_label("Save this chart").select_option("PNG")
    with Image.open(download.value.path()) as picture:
        assert picture.width == 2 * round(chart.locator("svg").first.bounding_box()["width"])
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 10  # something is drawn
    drawing = ElementTree.fromstring(saved["SVG"])
    svg = "{http://www.w3.org/2000/svg}"
    words = {text.text for text in drawing.iter(f"{svg}text")}
    legend = page.locator("#curves .legend .name").all_inner_texts()
    assert {"initialization scale σ", "test accuracy (%)", *legend} <= words
    lines = [path for path in drawing.iter(f"{svg}path") if path.get("fill") == "none"]
    strokes = {line.get("stroke") for line in lines}  # shades of two optimizers, as other programs read them
    assert len(strokes) == 5 and all(re.fullmatch(r"rgb\(\d+, \d+, \d+\)", stroke) for stroke in strokes)
    assert not [part for part in drawing.iter() if part.get("class") or part.tag == f"{svg}script"]
    head, *rows = csv.reader(saved["CSV"].splitlines())
    assert head[:3] == ["line", "initialization scale σ", "test accuracy (%)"]
    (row,) = [row for row in rows if "adam" in row[0] and "b128" in row[0] and row[1] == "2.5"]
    recipe = planted.recipe(optimizer="adam", batch_size=128)
    assert float(row[2]) == pytest.approx(planted.accuracies(recipe)[-1].mean(), rel=1e-4)
    assert row[-1] == "3"


def test_memory_by_seeds_and_learning_curves_have_a_chart_per_recipe(visit: Visit, report: str) -> None:
    page = visit.page
    page.goto(report)
    curves, learning = page.locator("#curves"), page.locator("#learning")
    expect(curves.locator(".legend")).to_be_visible()
    curves.get_by_role("radio", name="Memory by seeds").check()
    expect(curves.locator(".chart")).to_have_count(5)
    expect(curves.locator(".legend")).to_be_hidden()
    expect(curves.locator(".chart").first.locator("g.series")).to_have_count(1)
    curves.get_by_role("radio", name="Weight norm").check()
    expect(curves.locator(".chart")).to_have_count(1)
    learning.get_by_role("radio", name="Train cross entropy").check()
    expect(learning.locator(".chart")).to_have_count(5)
    learning.scroll_into_view_if_needed()
    expect(learning.locator(".chart").first.locator("g.series")).to_have_count(len(planted.SCALES))
    learning.get_by_role("button", name="σ = 0.5").click()
    expect(learning.locator(".chart").first.locator("g.series")).to_have_count(len(planted.SCALES) - 1)


def test_themes_follow_the_system_or_the_switch_and_have_enough_contrast(visit: Visit, report: str) -> None:
    page = visit.page
    page.emulate_media(color_scheme="light")
    page.goto(report)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    assert light != dark
    page.get_by_role("radio", name="Light").check()
    assert page.evaluate(ground) == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("radio", name="Dark").check()
    assert page.evaluate(ground) == dark
    for theme in ("Light", "Dark"):
        page.get_by_role("radio", name=theme).check()
        for selector in CONTRASTED:
            assert page.evaluate(CONTRAST, selector) >= 4.5, (theme, selector)


CONTRASTED = (
    "p.lead",
    "td.verdict",
    "th .sort",
    ".heat .h1",
    ".heat .h5",
    ".heat .h8",
    "nav a",
    "details summary",
)
# WCAG 2: relative luminance of the text and of the first painted ground behind it.
CONTRAST = """selector => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const node = document.querySelector(selector);
  let ground = node;
  while (parse(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
  const pair = [getComputedStyle(node).color, getComputedStyle(ground).backgroundColor];
  const [a, b] = pair.map((color) => light(parse(color)));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


@pytest.mark.parametrize("visit", [{"viewport": {"width": 360, "height": 740}}], indirect=True)
def test_a_phone_shows_everything_without_scrolling_sideways(visit: Visit, report: str) -> None:
    page = visit.page
    page.goto(report)
    for part in page.locator("section.part").all():
        part.scroll_into_view_if_needed()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.locator("#curves .plot svg").first.bounding_box()["width"] <= 340
    expect(page.locator("#memory td.verdict").first).to_be_visible()


def test_the_board_follows_a_real_study_from_its_first_run_to_the_verdict(
    visit: Visit, tmp_path: Path, board_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run appears, progresses and finishes, and the page is never loaded again."""
    monkeypatch.setattr(worker, "SHOW_EVERY", 0.0)
    (tmp_path / "study.toml").write_text(STUDY)
    store = Store.create(tmp_path / "store")
    page = visit.page
    page.goto(board_of(store))
    expect(page.locator("#live")).to_contain_text("No study has been run")
    page.evaluate("window.unchanged = true")
    seen = threading.Event()

    def wait_for_the_page(event: Event) -> None:
        if isinstance(event, EpochEnded) and event.epoch == 5:
            assert seen.wait(300)

    training = threading.Thread(
        target=run_study,
        args=(load_study(str(tmp_path / "study.toml")), store.path, InlineEngine()),
        kwargs={"pack": 2, "watch": lambda runs, left: wait_for_the_page},
    )
    training.start()
    try:
        row = page.locator("#live-runs tbody tr").first
        expect(row.locator("td.epoch")).to_have_text(re.compile(r"\b[45]/9"))
        row.locator("td.id a").click()
        expect(page.locator("dialog.run svg").first).to_be_visible()
        expect(page.locator("dialog.run h2")).to_have_text(re.compile(r"σ = (0\.5|1), seed 0$"))
        page.locator("dialog.run").get_by_role("button", name="Close").click()
        seen.set()
        expect(page.locator("#live")).to_contain_text("All 2 runs are done.", timeout=60_000)
        expect(page.locator("#memory td.verdict")).to_have_text(
            re.compile("remembers|forgets|inconclusive|untrained")
        )
        expect(page.locator("#curves .plot svg").first).to_be_attached()
        assert page.evaluate("window.unchanged") is True
        assert IMAGE in page.locator("#verdicts").inner_text()
        assert page.locator("img").count() == 0
    finally:
        seen.set()
        training.join(300)


def test_runs_are_ticked_and_their_curves_seen_together(
    visit: Visit, tmp_path: Path, tiny_study: Study, board_of
) -> None:
    """Ticks survive an update; the dialog has a line per run in every chart."""
    store = Store.create(tmp_path / "store")
    store.add_study(tiny_study)
    *runs, last = tiny_study.all_runs()
    store.commit([fake_record(run, 0.9 - 0.1 * run.scale + 0.01 * run.seed) for run in runs])
    store.claims.take([last])
    row = {"val_accuracy": 0.25, "train_accuracy": 0.5}
    store.live.append(last, [row], fresh=True)
    page = visit.page
    page.goto(f"{board_of(store)}#runs:{last.recipe.id}")
    page.locator(f"#live-runs input[data-pick='{last.id}']").check()
    page.locator("#explorer").scroll_into_view_if_needed()
    page.locator(f"#run-list input[data-pick='{runs[0].id}']").check()
    store.live.append(last, [row | {"val_accuracy": 0.5}], fresh=False)
    expect(page.locator("#live-runs td.val")).to_have_text("50.0")
    expect(page.locator(f"#live-runs input[data-pick='{last.id}']")).to_be_checked()
    expect(page.locator(".picks")).to_contain_text("2 runs chosen")
    page.get_by_role("button", name="Compare").click()
    chart = page.locator("dialog.run .chart").first
    expect(chart.locator("figcaption")).to_contain_text("val accuracy")
    expect(chart.locator("g.series")).to_have_count(2)
    for run, status in ((last, "training, 2 epochs"), (runs[0], "completed, 4 epochs")):
        expect(page.locator("dialog.run .keys")).to_contain_text(f"seed {run.seed}: {status}, run {run.id}")
    page.locator("dialog.run").get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator(f"#run-list input[data-pick='{runs[0].id}']")).not_to_be_checked()


def test_what_the_reader_did_survives_an_update(
    visit: Visit, tmp_path: Path, tiny_study: Study, board_of
) -> None:
    """Sorting, the chosen metric and the open details stay when sections are replaced."""
    store = Store.create(tmp_path / "store")
    store.add_study(tiny_study)
    *runs, last = tiny_study.all_runs()
    store.commit([fake_record(run, 0.9 - 0.1 * run.scale + 0.01 * run.seed) for run in runs])
    page = visit.page
    page.goto(board_of(store))
    page.locator("#curves").get_by_role("radio", name="Weight norm").check()
    details = page.locator("#slopes details.more")
    for _ in range(5):  # a section that is replaced just under the pointer misses the click
        if details.get_attribute("open") is None:
            details.locator("summary").click()
    page.locator("#progress").get_by_role("button", name="runs", exact=True).click()
    expect(page.locator("#progress tbody")).to_contain_text("5")
    store.commit([fake_record(last, 0.6)])
    expect(page.locator("#live")).to_contain_text("All 6 runs are done.", timeout=30_000)
    expect(page.locator("#progress tbody td").nth(3)).to_have_text("6")
    expect(page.locator("#curves").get_by_role("radio", name="Weight norm")).to_be_checked()
    expect(page.locator("#slopes details.more")).to_have_attribute("open", "")
    expect(page.locator("#progress th[aria-sort=descending]")).to_have_text("runs")
    page.locator("#memory td.name a").click()
    expect(page.locator("#run-list tbody tr")).to_have_count(6)
