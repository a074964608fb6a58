from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import planted
from conftest import fake_record
from initmem import __version__
from initmem.errors import StoreError
from initmem.measures.difference import difference
from initmem.measures.measure import measure, measure_table
from initmem.measures.memory import Memory, memory_table
from initmem.measures.statistics import critical
from initmem.pipeline.result import Result
from initmem.plots.builders import scale_plot
from initmem.plots.html import MOST_POINTS, chart_json, numbers, thinned
from initmem.plots.matplotlib import draw
from initmem.plots.model import Plot, Series, caption
from initmem.plots.styles import split
from initmem.recipe import PipelineRecipe
from initmem.record import RunRecord, Summary, crashed, summarize
from initmem.report import charts
from initmem.report.content import Content
from initmem.report.page import SECTIONS, render, sections, verdict_html, write_report
from initmem.report.tables import by_levels, differences, headline, reached, run_rows, unfitted
from initmem.store.results import Collection
from initmem.store.store import Store
from initmem.study import Run, Study

IMAGE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def store(tmp_path: Path, tiny_study: Study) -> Store:
    store = Store.create(tmp_path / "store")
    store.add_study(replace(tiny_study, title=IMAGE))
    store.commit([fake_record(r, 0.9 - 0.1 * r.scale + 0.01 * r.seed) for r in tiny_study.all_runs()])
    return store


def content_of(studies: Sequence[Study], records: Sequence[RunRecord], *, in_flight: Sequence[str] = ()):
    return Content(Collection(records, studies, training=frozenset(in_flight)))


def series_of(plot: Plot) -> dict[str, Series]:
    return {series.recipe_id: series for panel in plot.panels for series in panel.series}


def text_of(page: str) -> str:
    """What a reader sees, less the pictures."""
    bare = re.sub(r"<(script|style|svg).*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", bare))


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs) -> None:
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


# -- the page as a file --------------------------------------------------------------------------------------


def test_the_page_needs_nothing_from_outside_and_escapes_the_store(store: Store) -> None:
    page = render(store)
    tags = Tags(page)
    assert not [tag for tag, attrs in tags.found if "src" in attrs or tag in ("img", "iframe")]
    assert all((link["href"] or "").startswith("data:") for link in tags.all("link"))
    assert IMAGE not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_only_the_page_s_own_style_and_script_may_run(store: Store) -> None:
    page = render(store)
    (policy,) = [m["content"] for m in Tags(page).all("meta") if m.get("http-equiv")]
    for tag in ("script", "style"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.S)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'")
    assert not [
        attrs for _, attrs in Tags(page).found if any(k.startswith("on") or k == "style" for k in attrs)
    ]


def test_the_page_says_the_question_the_verdict_and_the_numbers(store: Store) -> None:
    page = text_of(render(store))
    assert "Does training forget where it started?" in page
    assert "The recipe remembers its initialization (generalization)." in page
    (row,) = memory_table(store.records())
    assert f"{row.memory:.1f} points (95% interval {row.low:.1f} to {row.high:.1f}" in page
    assert f"noise alone would show {row.noise_range:.1f}" in page


def test_an_empty_store_or_an_unwritable_place_is_explained(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no finished run yet"):
        render(Store.create(tmp_path / "empty"))
    with pytest.raises(StoreError, match="cannot be written"):
        write_report(store, tmp_path / "nowhere" / "report.html")


def test_every_part_has_its_place_for_every_kind_of_study() -> None:
    studies = [
        planted.study("depth", planted.grid(model=["resnet9", "resnet56"], batch_size=[16, 128])),
        planted.study("one seed", planted.grid(optimizer=["adam"]), seeds=[1]),
        planted.study("one scale", planted.grid(optimizer=["muon"]), scales=[1.0]),
    ]
    parts = sections(content_of(studies, planted.records(*studies)))
    assert list(parts) == [name for name in SECTIONS if name not in ("layers", "init")]  # not planted
    for part in parts.values():
        assert "NaN" not in part.html
        assert "Infinity" not in part.html


# -- what the page says --------------------------------------------------------------------------------------


def memory_row(verdict: str, **values: object) -> Memory:
    numbers = {"memory": 3.0, "low": 1.0, "high": 5.0, "noise_range": 1.0, "p": 0.01, "debiased": 2.5}
    fixed = {"unit": "pp", "recipe_id": "0" * 16}
    return Memory("r", "test_accuracy", 5, 3, **(numbers | fixed | values), verdict=verdict)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([], "No run has finished yet."),
        (["forgets"], "The recipe forgets its initialization."),
        (["remembers"] * 2, "Both recipes remember their initialization."),
        (["inconclusive"] * 3, "All 3 recipes are inconclusive."),
        (
            ["forgets", "remembers", "inconclusive", "remembers"],
            "2 of 4 recipes remember their initialization; 1 forgets its initialization; 1 is inconclusive.",
        ),
        (
            ["forgets", "forgets", "inconclusive"],
            "2 of 3 recipes forget their initialization; 1 is inconclusive.",
        ),
    ],
)
def test_the_answer_is_a_sentence(verdicts: list[str], said: str) -> None:
    assert headline([memory_row(verdict) for verdict in verdicts]) == said


def test_the_numbers_are_those_of_the_measures() -> None:
    studies = [planted.main_grid()]
    records = planted.records(*studies)
    content = content_of(studies, records)
    order = [recipe for study in studies for recipe in study.recipes]
    memories = list(content.memories.values())
    assert memories == memory_table(records, recipes=order)
    assert memories[0].memory == pytest.approx(float(np.ptp(planted.accuracies(order[0]).mean(axis=1))))
    plots = charts.curves(content)
    series = series_of(plots["test_accuracy"])
    assert set(series) == {recipe.id for recipe in order}
    data = chart_json(plots)
    written = {one["recipe"]: one for panel in data["choices"][0]["panels"] for one in panel["series"]}
    for recipe in order:
        line, values = series[recipe.id], data["values"][written[recipe.id]["values"]]
        expected = planted.accuracies(recipe)  # (scale, seed)
        assert np.allclose(line.y, expected.mean(axis=1), rtol=1e-12)
        # The seeds of a planted recipe move together: one comparison, so Student's interval is the band.
        half = stats.t.ppf(0.975, 2) * expected.std(axis=1, ddof=1) / np.sqrt(3)
        assert np.allclose(line.high, expected.mean(axis=1) + half, rtol=1e-3)
        half = 4.302653 * expected.std(axis=1, ddof=1) / np.sqrt(3)  # Student's t, two degrees of freedom
        assert np.allclose([b - a for a, b in line.limits], 2 * half, rtol=1e-6)
        assert line.n == [3] * 5
        for name in ("y", "low", "high", "limits", "n"):
            assert np.allclose(values[name], getattr(line, name), rtol=1e-4)


def test_every_point_leads_to_its_runs() -> None:
    studies = [planted.main_grid()]
    content = content_of(studies, planted.records(*studies))
    recipe = studies[0].recipes[3]
    series = series_of(charts.curves(content)["test_accuracy"])[recipe.id]
    wanted = {Run(recipe, 1.8, seed).id for seed in planted.SEEDS}
    assert set(series.runs[list(series.x).index(1.8)]) == wanted
    data = chart_json(charts.curves(content))
    (written,) = [
        one for panel in data["choices"][0]["panels"] for one in panel["series"] if one["recipe"] == recipe.id
    ]
    assert set(data["runs"][written["runs"]][written["x"].index(1.8)]) == wanted
    rows = run_rows(content, recipe)
    shown = {row[0] for row in rows["rows"] if row[rows["columns"].index("scale")] == 1.8}
    assert shown == wanted


def test_runs_that_never_fitted_are_counted_not_dropped() -> None:
    studies = [planted.main_grid()]
    content = content_of(studies, planted.records(*studies))
    data = chart_json(charts.curves(content))
    (choice,) = [choice for choice in data["choices"] if choice["key"] == "fitted"]
    assert choice["ceiling"]
    sgd = data["values"][choice["panels"][0]["series"][0]["values"]]  # from scales above 1.5 it never fits
    assert sgd["y"][-2:] == [None, None]
    assert sgd["never"] == [0, 0, 0, 3, 3]
    assert sgd["n"] == [3] * 5


def test_charts_have_few_lines_and_an_optimizer_keeps_its_color() -> None:
    studies = planted.everything()
    content = content_of(studies, planted.records(*studies))
    facets = charts.facets_by_study(content)
    assert sum(len(facet.members) for facet in facets) == len(content.stats)
    hues: dict[object, set[str]] = {}
    for facet in facets:
        assert len(facet.members) <= 8
        assert len({label for _, label, _ in facet.members}) == len(facet.members)
        assert len({style for _, _, style in facet.members}) == len(facet.members)
        for recipe, _, style in facet.members:
            hues.setdefault(recipe.get("optimizer"), set()).add(style.hue)
    assert all(len(chosen) == 1 for chosen in hues.values())
    assert len(set.union(*hues.values())) == len(hues)


def test_a_chart_that_is_small_enough_is_not_split() -> None:
    recipes = planted.grid(dataset=["digits", "cifar10"], optimizer=["sgd", "adam", "muon"], width=[4, 8])
    few = [*recipes[:9], *planted.grid(dataset=["svhn"], optimizer=["sgd", "adam"])]
    facets = charts.facets_by_study(content_of([study := planted.study("s", few)], planted.records(study)))
    by_title = {facet.title: len(facet.members) for facet in facets}
    assert sorted(by_title.values()) == [2, 3, 6]  # by dataset alone: none of them needs another field
    assert all("width" not in title for title in by_title)


def test_fields_with_values_that_read_alike_divide_once() -> None:
    sizes = ["synthetic:100x1x8x8", "synthetic:200x1x8x8"]
    parts = split(planted.grid(optimizer=planted.OPTIMIZERS, dataset=sizes), ["dataset", "width"])
    assert [(title, len(recipes)) for title, recipes in parts] == [("synthetic", 8), ("synthetic (2)", 2)]


def test_two_memories_are_compared_as_the_measure_does() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd", "adam"], batch_size=[16, 128]))
    records = planted.records(study)
    short = [record for record in records if record.run.recipe != study.recipes[0] or record.run.seed < 2]
    content = content_of([study], short)
    words = differences(content)
    ids = [recipe.id for recipe in study.recipes]
    assert set(words) == {f"{ids[i]} {ids[j]}" for i, j in ((1, 2), (1, 3), (2, 3))}  # the first lacks a seed
    for key, text in words.items():
        one, other = (
            content.groups[recipe] for i in key.split() for recipe in study.recipes if recipe.id == i
        )
        row = difference(one, other)
        numbers = [float(n.replace("−", "-")) for n in re.findall(r"−?\d+\.\d", text)]
        assert numbers == [round(row[name], 1) for name in ("difference", "low", "high")]


def test_the_headline_counts_cells_that_never_fitted() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd", "adam"]))
    records = planted.records(study)
    fitted = [replace(one, summary=replace(one.summary, tau_interp=2)) for one in records]
    assert unfitted(content_of([study], fitted)) == ""
    cells: dict[object, list[bool]] = {}
    for one in records:
        cells.setdefault((one.run.recipe, one.run.scale), []).append(one.summary.tau_interp is None)
    never = sum(2 * sum(runs) > len(runs) for runs in cells.values())
    assert 0 < never < len(cells)
    assert unfitted(content_of([study], records)).startswith(f"In {never} of {len(cells)} cells of the grid")
    assert "1 of 2 recipes remembers its initialization (generalization)" in headline(
        [memory_row("remembers", mode="generalization"), memory_row("untrained")]
    )


def test_the_headline_does_not_take_a_bad_fit_for_memory() -> None:
    modes = ("generalization", "trainability", "fit unknown", "trainability")
    assert headline([memory_row("remembers", mode=mode) for mode in modes]) == (
        "1 of 4 recipes remembers its initialization (generalization); "
        "3 differ by scale, but may be undertrained (2 trainability, 1 fit unknown)."
    )


def test_long_curves_are_thinned_with_both_ends() -> None:
    assert thinned(100).tolist() == list(range(100))
    at = thinned(5000)
    assert (at[0], at[-1]) == (0, 4999)
    assert len(at) <= MOST_POINTS
    assert (np.diff(at) > 0).all()
    assert numbers([float("nan"), None, 1.23456789]) == [None, None, 1.2346]


def test_a_user_s_own_code_is_shown_by_what_it_recorded() -> None:
    recipe = PipelineRecipe.parse({"pipeline": IMAGE})
    study = planted.study("own", [recipe], seeds=[0, 1, 2])
    records = [
        RunRecord(
            run,
            "completed",
            Summary(epochs=3, tau_best=3),
            {"perplexity": np.array([9.0, 8.0, 5 + run.scale + 0.1 * run.seed])},
        )
        for run in study.all_runs()
    ]
    content = content_of([study], records)
    parts = sections(content)
    seen = text_of(parts["verdicts"].html)
    assert "how far apart the mean perplexity of the best and the worst scale end" in seen
    assert "Its memory: 2.4 (95% interval" in seen  # scales from 0.1 to 2.5, no percentage points
    assert "resnet9" not in seen and "cifar10" not in seen  # of which nothing is known
    assert content.memories[recipe].verdict in text_of(parts["clocks"].html)
    assert list(charts.curves(content)) == ["perplexity", "settling"]
    rows = run_rows(content, recipe)
    assert rows["columns"][-1] == "perplexity"
    assert sorted(row[-1] for row in rows["rows"])[0] == pytest.approx(5.1)
    assert content.epochs(recipe) == 3
    assert IMAGE not in "".join(part.html for part in parts.values())


def of_losses(n_seeds: int = 4) -> tuple[Study, list[RunRecord]]:
    """User code that records losses alone, close to each other as losses are."""
    recipes = [PipelineRecipe.parse({"pipeline": "gpt", "batch_size": size}) for size in (8, 64)]
    study = planted.study("losses", recipes, scales=[0.5, 1.0, 2.0], seeds=range(n_seeds))
    epochs = np.arange(1.0, 6.0)
    records = []
    for run in study.all_runs():
        end = 0.61 + 0.004 * run.scale + 0.0005 * (run.seed % 3)
        history = {"val_loss": end + 1 / epochs - 0.2, "clock_sgd": epochs, "perplexity": np.exp(epochs)}
        summary = summarize(history, norm_init=None, test_accuracy=None, test_loss=None)
        records.append(RunRecord(run, "completed", summary, history))
    return study, records


def test_a_study_without_any_record_has_a_page() -> None:
    study = planted.study("new", planted.grid(optimizer=["sgd"]))
    every = [crashed(run, "ValueError: no such luck", {}) for run in study.all_runs()]
    parts = sections(content_of([study], []))
    assert "No run has finished yet." in parts["verdicts"].html and "learning" not in parts
    parts = sections(content_of([study], every))
    assert "15 of 15 runs crashed" in text_of(parts["verdicts"].html) and "learning" not in parts


def test_losses_have_digits_a_legend_and_a_slope_of_their_own() -> None:
    study, records = of_losses()
    content = content_of([study], records)
    parts = sections(content)
    seen = text_of(parts["verdicts"].html)
    by_scale = reached(content)[0].by_scale
    expected = [0.61 + 0.004 * scale + 0.0005 for scale in study.scales]
    means = [by_scale[scale].mean for scale in study.scales]
    assert means == pytest.approx([value - 0.000125 for value in expected])  # seeds 0, 1, 2, 0
    assert "0.6124 ± 0.0005" in seen and "0.6144" in seen and "0.6184" in seen
    assert "dashed" not in seen and "the tolerance, " not in seen  # a loss has no tolerance of its own
    assert "never given here: val loss has no natural tolerance" in seen
    assert "slope of val loss on the initialization scale" in text_of(parts["slopes"].html)
    assert content.stats[study.recipes[0]].beta.beta[-1] == pytest.approx(0.004)
    assert list(content.families) == ["gpt"]  # no batch size stands for all
    assert list(charts.curves(content))[:2] == ["val_loss", "perplexity"]  # before what is derived
    assert list(charts.learning(content)) == ["val_loss", "perplexity", "seeds"]


def test_differences_of_losses_have_digits_and_those_of_points_tenths() -> None:
    def shown(records: Sequence[RunRecord]) -> str:
        (row,) = measure_table("difference", measure(records, "difference")).rows
        return row[5].text

    _, losses = of_losses()
    shifted = [
        replace(
            r,
            summary=replace(r.summary, test_loss=0.6 + 0.001 * r.run.scale * r.run.recipe.get("batch_size")),
        )
        for r in losses
    ]
    assert shown(shifted) == "0.084"  # 1.5 scales times 0.001 times (64 - 8)
    points = planted.study("s", planted.grid(optimizer=["sgd"], batch_size=[16, 516]))
    assert shown(planted.records(points)) == "24.0"  # 2.4 scales times 100 points times (516 - 16) / 5000


def test_what_each_scale_reached_has_deviation_and_n_and_follows_the_verdicts() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd", "adam"]))
    records = planted.records(study)
    gone = records.pop()  # the last run of adam at the largest scale
    content = content_of([study], records)
    sgd, fitted, adam, _ = reached(content)
    assert (sgd.metric, fitted.metric) == ("test_accuracy", "train_accuracy")
    assert [fitted.by_scale[scale].mean for scale in (0.1, 2.5)] == pytest.approx([100.0, 90.0])
    for row in (sgd, adam):
        for i, scale in enumerate(planted.SCALES[:-1]):
            values, at = planted.accuracies(row.recipe)[i], row.by_scale[scale]
            assert (at.mean, at.deviation, at.n) == pytest.approx((values.mean(), values.std(ddof=1), 3))
    assert adam.by_scale[2.5].n == 2 and gone.run.scale == 2.5
    seen = text_of(sections(content)["verdicts"].html)
    assert "(n = 2)" in seen and "2 to 3" in seen
    assert seen.index("Initialization memory") < seen.index("What each scale reached")


def test_learning_curves_are_means_over_seeds_by_scale() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd"]))
    content = content_of([study], planted.records(study))
    plots = charts.learning(content)
    assert list(plots)[:3] == ["val_accuracy", "val_objective", "val_cross_entropy"]
    (panel,) = plots["val_accuracy"].panels
    assert [line.label for line in panel.series] == [f"σ = {scale:g}" for scale in planted.SCALES]
    for line, scale in zip(panel.series, planted.SCALES, strict=True):
        each = [planted.histories(study.recipes[0], scale, seed)["val_accuracy"] for seed in planted.SEEDS]
        assert np.allclose(line.y, 100 * np.mean(each, axis=0)) and line.n == [3] * planted.EPOCHS
    many = planted.study("many", planted.grid(optimizer=["sgd"]), scales=np.linspace(0.1, 2.5, 25).tolist())
    plot = charts.learning(content_of([many], planted.records(many)))["val_objective"]
    labels = [line.label for line in plot.panels[0].series]
    assert len(labels) == 6 and labels[0] == "σ = 0.1" and labels[-1] == "σ = 2.5"
    assert "6 of 25 scales are drawn" in plot.about[0]


def test_the_page_says_when_and_by_which_command_it_was_written(store: Store) -> None:
    seen = text_of(render(store, command="initmem report runs/demo"))
    now = datetime.now(UTC)
    assert re.search(rf"6 runs, written {now:%Y-%m}-\d\d \d\d:\d\d UTC by initmem {__version__}", seen)
    assert "initmem report runs/demo" in seen
    assert f"initmem report {store.path}" in text_of(render(store))


# -- the audit -----------------------------------------------------------------------------------------------


def test_failed_diverged_missing_and_mixed_runs_are_listed() -> None:
    study = planted.study("odd", planted.grid(optimizer=["sgd", "adam"]))
    runs = study.all_runs()
    records = [
        replace(planted.record(run), provenance={"hardware": "left" if i % 2 else "right", "device": "cpu"})
        for i, run in enumerate(runs[:-3])
    ]
    records[0] = crashed(runs[0], f"Traceback\n  {IMAGE}\nValueError: no such luck", {"hardware": "left"})
    records[1] = crashed(runs[1], "Traceback\n  elsewhere\nValueError: no such luck", {"hardware": "left"})
    records[2] = replace(records[2], status="diverged")
    parts = sections(content_of([study], records, in_flight=[runs[-1].id]))
    page = parts["runs"].html
    seen = text_of(page)
    remarks = text_of(parts["verdicts"].html)
    assert "All recipes : mixed hardware" in remarks  # what several share is stated once
    assert "sgd : 2 crashed; 1 diverged" in remarks
    assert "2 runs: ValueError: no such luck" in seen
    assert IMAGE not in page
    assert records[2].id in seen
    assert "odd adam 15 12 0 0 1 3 " in seen  # runs, completed, diverged, crashed, training, missing
    assert "Mixed hardware." in seen
    assert re.search(r"sgd: \d+ on (left|right) \(cpu\), ", seen)


def test_the_page_says_which_failure_rates_forgets_does_not_exclude() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd", "adam"]))
    content = content_of([study], planted.records(study))
    recipe, row = next(iter(content.memories.items()))
    forgotten = replace(row, verdict="forgets", size=None, failure_limit=0.52)
    content.memories[recipe] = forgotten
    seen = text_of(sections(content)["verdicts"].html)
    assert f"{forgotten.recipe} : failure rates up to 52% not excluded" in seen


def test_failures_stand_in_the_headline() -> None:
    study = planted.study("odd", planted.grid(optimizer=["sgd"]))
    records = planted.records(study)
    fine = text_of(sections(content_of([study], records))["verdicts"].html)
    assert "failed" not in fine and "diverged" not in fine
    records[0] = crashed(records[0].run, "Traceback\nValueError: no such luck", {})
    records[5] = replace(records[5], status="diverged")
    seen = text_of(sections(content_of([study], records))["verdicts"].html)
    said = "1 of 15 runs crashed: 1 with ValueError: no such luck (the first: scale 0.1, seed 0)."
    assert f"{said} 1 of 15 runs diverged." in seen
    assert seen.index(said) < seen.index("What each scale reached")


def test_a_single_kind_of_hardware_is_not_flagged(store: Store) -> None:
    assert "Mixed hardware." not in render(store)


def test_a_damaged_record_is_named(store: Store) -> None:
    path = next((store.path / "runs").glob("*/record.json"))
    path.write_bytes(path.read_bytes().replace(b"completed", b"COMPLETED"))
    assert f"Damaged record, left out of every number: {path}" in text_of(render(store))


def test_the_report_holds_every_run(store: Store) -> None:
    (text,) = re.findall(r'id="run-rows">(.*?)</script>', render(store), flags=re.S)
    rows = [row for group in json.loads(text).values() for row in group["rows"]]
    assert {row[0] for row in rows} == {record.id for record in store.records()}


# -- what is worked out once ---------------------------------------------------------------------------------


def test_stats_are_kept_until_their_records_change(tiny_study: Study) -> None:
    records = [fake_record(run, 0.5 + 0.1 * run.seed) for run in tiny_study.all_runs()]
    (recipe,) = tiny_study.recipes
    first = content_of([tiny_study], records)
    again = Content(Collection(list(records), [tiny_study]), first)
    assert again.stats[recipe] is first.stats[recipe]
    assert again.state == first.state
    retried = [replace(records[0], status="crashed", error="once more"), *records[1:]]
    other = Content(Collection(retried, [tiny_study]), first)
    assert other.stats[recipe].curve("test_accuracy").n != first.stats[recipe].curve("test_accuracy").n
    assert other.state != first.state


# -- notebooks -----------------------------------------------------------------------------------------------


def test_a_result_shows_itself_in_a_notebook(store: Store) -> None:
    records = store.records()
    rows = [replace(row, recipe=IMAGE) for row in memory_table(records)]
    shown = verdict_html(rows, records)
    assert IMAGE not in shown
    assert "The recipe remembers its initialization (generalization)." in shown
    assert f"{rows[0].low:.1f} to {rows[0].high:.1f}" in shown
    tags = Tags(shown)
    assert len([attrs for attrs in tags.all("svg") if attrs.get("role") == "img"]) == 2
    (points,) = [attrs["points"] for attrs in tags.all("polyline")]
    heights = [float(pair.split(",")[1]) for pair in points.split()]
    assert heights == sorted(heights)  # accuracy falls with scale; in a picture, down is more


def test_the_result_of_measure_is_such_a_picture_with_its_notes(store: Store, tiny_study: Study) -> None:
    shown = Result(store, tiny_study)._repr_html_()
    assert len(Tags(shown).all("svg")) == 4  # the sign of the verdict, the curve, the interval and its axis
    assert "The recipe remembers its initialization (generalization)." in shown
    run = tiny_study.all_runs()[0]
    store.set_aside(lambda record: record.id == run.id)
    store.commit([crashed(run, f"ValueError: {IMAGE}", {})])
    noted = Result(store, tiny_study)._repr_html_()
    assert "1 of 6 runs crashed" in noted and IMAGE not in noted


def test_plot_data_are_means_and_simultaneous_bands(store: Store) -> None:
    panel, fitted = scale_plot(store.records(), "test_accuracy").panels
    assert fitted.y_title == "train accuracy (%)"
    _, (left, right) = draw(scale_plot(store.records(), "test_accuracy"))
    assert left.get_ylim() == right.get_ylim()  # the fit is seen at once
    (curve,) = panel.series
    assert curve.x == [0.5, 1.0, 2.0]
    assert curve.n == [2, 2, 2]
    assert np.allclose(curve.y, [85.5, 80.5, 70.5])
    seeds = np.array([[85.0, 80.0, 70.0], [86.0, 81.0, 71.0]])
    half = critical(seeds) * seeds.std(axis=0, ddof=1) / np.sqrt(2)
    assert np.allclose(curve.low, seeds.mean(axis=0) - half)
    assert caption(scale_plot(store.records())).startswith("Lines: mean over seeds, with a 95% simultaneous")
    assert np.allclose(curve.high, seeds.mean(axis=0) + half)


def test_layers_have_a_heat_map_only_where_they_are_recorded(tiny_study: Study) -> None:
    def with_layers(run: Run) -> RunRecord:
        record = fake_record(run, 0.8)
        last = 0.2 + 0.1 * run.scale
        arrays = {"layer_epochs": np.arange(5), "cosine:head": np.linspace(1.0, last, 5)}
        return replace(record, arrays=arrays | {"norm:head": np.ones(5)})

    runs = tiny_study.all_runs()
    old = content_of([tiny_study], [fake_record(run, 0.8) for run in runs])
    assert charts.layer_maps(old) == []
    assert "layers" not in sections(old)
    content = content_of([tiny_study], [with_layers(run) for run in runs])
    (heat,) = charts.layer_maps(content)
    (row,) = heat.rows
    assert (row.label, row.x) == ("head", [0, 1, 2, 3, 4])
    mean = 0.2 + 0.1 * np.mean([run.scale for run in runs])
    assert [row.y[0], row.y[-1]] == pytest.approx([1.0, mean])
    html = sections(content)["layers"].html
    assert f"epoch 4: cosine {mean:.3f}" in html
    colors = re.findall(r'<td class="(h\d)">.*?>([\d.]+)</a>', html)
    assert (colors[0], colors[-1]) == (("h8", "1.00"), (f"h{int(9 * mean)}", f"{mean:.2f}"))  # from 0 to 1


def test_long_names_are_short_on_the_page_with_the_rest_on_hover() -> None:
    recipes = planted.grid(
        optimizer=["sgd", "schedule-free-adamw"], dataset=["mnist", "cifar10"], weight_decay=[0.0, 0.5]
    )
    recipes += [planted.recipe(optimizer="adam", dataset="svhn", learning_rate=0.125)]
    study = planted.study("s", [one.replace(schedule="constant") for one in recipes[:4]] + recipes[4:])
    content = content_of([study], planted.records(study))
    assert list(content.names.values()) == [
        *("sgd mnist", "sgd mnist wd=0.5", "sgd cifar10", "sgd cifar10 wd=0.5"),
        *("schedule-free-adamw mnist", "schedule-free-adamw mnist wd=0.5"),
        *("schedule-free-adamw cifar10", "schedule-free-adamw cifar10 wd=0.5"),
        "adam svhn",
    ]
    assert list(content.full_names.values()) == study.labels()
    page = sections(content)["verdicts"].html
    assert f'title="{study.labels()[0]}"' in page
    few = planted.study("s", planted.grid(optimizer=["sgd", "adam"], learning_rate=[0.1, 0.01]))
    assert list(content_of([few], planted.records(few)).names.values()) == few.labels()


def test_scales_and_interventions_have_charts_and_tables_of_their_own() -> None:
    first = planted.study("scaled", planted.grid(optimizer=["sgd", "adam"]))
    second = planted.study("intervened", planted.grid(optimizer=["muon"]), scales=(1.0,))
    records = planted.records(first, second)
    names = ("none", "scale=2@2")
    of_muon = [one for one in records if one.run.recipe.optimizer == "muon"]
    intervened = [replace(one, run=replace(one.run, intervention=name)) for one in of_muon for name in names]
    content = content_of(
        [first, replace(second, interventions=names)],
        [one for one in records if one not in of_muon] + intervened,
    )
    panels = chart_json(charts.curves(content))["choices"][0]["panels"]
    assert [panel["names"] for panel in panels] == [[], list(names)]
    assert panels[0]["series"][0]["x"] == list(planted.SCALES)
    grouped = by_levels(reached(content))
    assert [(levels, {row.recipe.optimizer for row in rows}) for levels, rows in grouped] == [
        (list(planted.SCALES), {"sgd", "adam"}),
        (list(names), {"muon"}),
    ]


def test_single_seeds_are_drawn_run_by_run() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd", "adam"]))
    plot = charts.learning(content_of([study], planted.records(study)))["seeds"]
    assert [len(panel.series) for panel in plot.panels] == [len(planted.SCALES) * len(planted.SEEDS)] * 2
    one = next(series for series in plot.panels[1].series if series.name == "adam, σ = 1.8, seed 2")
    expected = planted.histories(study.recipes[1], 1.8, 2)["val_accuracy"]
    assert np.allclose(one.y, 100 * expected)
