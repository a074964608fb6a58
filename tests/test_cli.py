from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import fake_record
from initmem.cli import main
from initmem.store.store import Store
from initmem.study import Study


def initmem(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in this process: a new one takes a second to begin."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr("sys.argv", ["initmem", *map(str, arguments)])
        for name, value in environment.items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as stop:
            main()
    return subprocess.CompletedProcess(arguments, int(stop.value.code or 0), out.getvalue(), err.getvalue())


def spawned(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "initmem", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=3600,  # of a busy machine
        env=os.environ | environment,
    )


def told(*arguments: object) -> dict:
    """All that a command tells a program."""
    done = initmem(*arguments)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert list(content)[:2] == ["schema", "rows"]
    return content


def said(*arguments: object) -> list[dict]:
    """The rows of a command."""
    return told(*arguments)["rows"]


@pytest.fixture
def filled(tmp_path: Path, tiny_study: Study) -> Path:
    return fill(tmp_path / "store", tiny_study, slope=0.1)


def fill(path: Path, study: Study, slope: float) -> Path:
    """A store of a study whose test accuracy falls with the scale."""
    store = Store.create(path)
    store.add_study(study)
    rng = np.random.default_rng(0)
    store.commit([fake_record(r, 0.9 - slope * r.scale + rng.normal(0, 0.003)) for r in study.all_runs()])
    return store.path


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr


def test_mistakes_are_one_line_and_code_2(tmp_path: Path) -> None:
    assert_refused(spawned("run", "nosuch"), "nosuch", "quickstart")
    bad = tmp_path / "bad.toml"
    bad.write_text('[recipe]\noptimizer = "sgdd"\nbatch_size = 0\n')
    assert_refused(initmem("run", bad), "optimizer = 'sgdd'", "batch_size = 0", "adam")
    np.savez(tmp_path / "x.npz", x=np.zeros((30, 8, 8)))
    unlabelled = f"dataset={tmp_path / 'x.npz'}"
    target = tmp_path / "store"
    assert_refused(initmem("run", "quickstart", "--set", unlabelled, "--store", target), "needed: x and y")
    (tmp_path / "file").touch()
    assert_refused(initmem("run", "quickstart", "--store", tmp_path / "file" / "s"), "cannot be written")
    assert_refused(initmem("measure", tmp_path / "nothing"), "no store here")
    assert_refused(initmem("run", "quickstart", "--color", "red"), "--color")
    assert_refused(initmem("run", "quickstart", "--workers", "0"), "--workers")
    assert_refused(initmem("frobnicate"), "frobnicate")
    small = ["--set", "dataset=synthetic:100x1x4x4", "--store", target]
    assert_refused(initmem("run", "undertrained", *small), "4x4", "8x8")
    assert not list(target.glob("runs/*"))


def test_clocks_of_one_recipe() -> None:
    options = ["dataset=cifar10", "optimizer=sgd", "schedule=constant", "batch_size=128", "epochs=300"]
    (found,) = said("clocks", *(word for option in options for word in ("--set", option)), "--json")
    assert found["sgd"] == pytest.approx(7.3e-4, rel=0.01)
    assert found["updates"] == 300 * 313
    assert set(found) >= {"updates", "sgd", "l2", "adaptive"}
    assert len(said("clocks", "quickstart", "--json")) == 3


def test_models() -> None:
    rows = {row["name"]: row for row in said("models", "--json")}
    counts = {"width": 64, "trainable": 6_575_370, "total": 6_579_850}
    assert rows["resnet9"] == {"name": "resnet9", **counts, "paper": 6.58, "options": ""}
    assert rows["vit"]["options"] == "patch=4, depth=4, heads=4"
    assert {row["paper"] for row in rows.values()} == {6.58, 0.86, 1.74, None}
    assert all(row["paper"] in (None, round(row["total"] / 1e6, 2)) for row in rows.values())


def test_studies() -> None:
    rows = {(row["study"], row["preset"]): row for row in said("studies", "--json")}
    assert rows["quickstart", "demo"]["runs"] == 90
    assert rows["main-grid", "paper"]["runs"] == 6250
    names = {study for study, _ in rows}
    paper = {"best-recipe", "depth", "long-sgd", "lr-l2", "main-grid", "norm-aug"}
    assert names == paper | {
        "batch-norm", "chaos", "finetune", "layers", "optimizers", "quickstart", "relax", "schemes",
        "transformers", "undertrained", "widths",
    }  # fmt: skip
    for name in paper:
        assert {"smoke", "mini", "lab", "paper"} <= {preset for study, preset in rows if study == name}


def test_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("initmem.engines.plan.SECONDS_OF_TRIALS", 0.0)  # whatever the times are
    found = told("plan", "quickstart", "--preset", "smoke", "--json")
    assert (found["summary"]["runs"], found["summary"]["recipes"]) == (12, 3)
    assert len(found["rows"]) == 3
    assert found["rows"][0]["clock_adaptive"] > 0
    assert found["summary"]["hours_here"] > 0


@pytest.mark.parametrize(("seeds", "found"), [("2", (0, 1)), ("7,", (7,)), ("3,7,11", (3, 7, 11))])
def test_scales_and_seeds_have_options_of_their_own(seeds: str, found: tuple[int, ...]) -> None:
    from initmem.cli.base import seeds_option
    from initmem.study_file import load_study

    assert load_study("quickstart", "smoke", [seeds_option(seeds)]).seeds == found
    grid = said("plan", "quickstart", "--scales", "0.1,2", "--seeds", seeds, "--power", "1.0", "--json")
    assert {row["scales"] for row in grid} == {2}


def test_an_interrupted_run_says_what_is_kept_and_gives_no_verdict(
    filled: Path, tiny_study: Study, capsys
) -> None:
    import torch

    from initmem.cli.run import print_outcome
    from initmem.engines.engine import Settings
    from initmem.session import Outcome

    run = replace(tiny_study.all_runs()[0], seed=99)
    store = Store(filled)
    assert (run.recipe.dataset, run.recipe.batch_size) == ("synthetic:100x1x8x8", 16)  # 60 train: 4 updates
    store.checkpoints.write({run: ({"w": torch.zeros(1)}, {})}, update=9)
    study = replace(tiny_study, seeds=(*tiny_study.seeds, 99))
    outcome = Outcome(filled, 9, 0, 8, 0, 0, 1, interrupted=True, seconds=1.0)
    print_outcome(study, filled, outcome, Settings(), None, verbose=False, as_json=False)
    out = capsys.readouterr().out
    assert "interrupted; the same command resumes (2 epochs of unfinished runs are kept)" in out
    assert "memory" not in out


def test_status_and_measure(filled: Path) -> None:
    found = told("status", filled, "--json")
    (study,) = found["summary"]["studies"]
    assert (study["done"], study["runs"]) == (6, 6)
    assert [(row["study"], row["completed"]) for row in found["rows"]] == [(study["name"], 6)]
    (row,) = said("measure", filled, "--json")
    names = "recipe metric n_scales n_seeds memory low high noise_range p debiased verdict"
    assert set(names.split()) <= set(row)
    assert row["memory"] == pytest.approx(15, abs=1)
    assert "remembers" in initmem("measure", filled).stdout
    assert_refused(initmem("measure", filled, "--metric", "beauty"), "beauty", "test_accuracy")
    (row,) = said("measure", filled, "--scales", "0.5,1.0", "--json")
    assert (row["n_scales"], row["memory"]) == (2, pytest.approx(5, abs=1))
    assert_refused(initmem("measure", filled, "--scales", "0.5,7"), "[7.0]", "0.5, 1.0, 2.0")
    assert_refused(initmem("measure", filled, "--scales", "small"), "'small'", "0.5, 1.0, 2.0")


def test_a_whole_run_ends_with_a_verdict_and_a_second_trains_nothing(tmp_path: Path) -> None:
    store = tmp_path / "store"
    options = ["run", "quickstart", "--preset", "smoke", "--set", "epochs=1", "--store", store]
    options += ["--engine", "inline"]
    first = initmem(*options)
    assert first.returncode == 0, first.stderr
    assert "12 runs trained" in first.stdout
    assert "inconclusive" in first.stdout
    again = told(*options, "--json")["summary"]
    assert (again["trained"], again["completed"], again["missing"]) == (0, 12, 0)
    assert said("report", store, "--json")[0]["report"] == str(store / "report.html")


def test_several_stores_are_measured_as_one(filled: Path, tiny_study: Study, tmp_path: Path) -> None:
    """A run that two of them hold counts once; recipes of different stores are compared."""
    copy = tmp_path / "copy.initmem"
    assert initmem("archive", filled, "-o", copy).returncode == 0
    (alone,) = said("measure", filled, "--json")
    assert said("measure", filled, copy, "--json") == [alone]
    penalised = tiny_study.recipes[0].model_copy(update={"l2": 0.01})
    other = fill(tmp_path / "other", replace(tiny_study, recipes=(penalised,)), slope=0.02)
    assert len(said("measure", filled, other, "--json")) == 2
    (row,) = said("measure", filled, other, "--what", "difference", "--json")
    assert (row["field"], row["n_scales"], row["n_seeds"]) == ("l2", 3, 2)
    assert row["after"] < row["before"]
    assert_refused(initmem("measure", filled, tmp_path / "nowhere"), "nowhere")


def test_an_unknown_measure_names_what_there_is(filled: Path) -> None:
    assert_refused(initmem("measure", filled, "--what", "beauty"), "beauty", "half-life", "memory")
    assert "nothing to measure" in initmem("measure", filled, "--what", "chaos").stdout


TINY = """
scales = [0.5, 2.0]
seeds = [0, 1]
chaos = true
split = ["init", "order"]
[recipe]
dataset = "synthetic:100x1x8x8"
width = 2
batch_size = 16
epochs = 2
"""


@pytest.mark.usefixtures("no_workers")
def test_until_adds_seeds_and_stops(tmp_path: Path) -> None:
    study, store = tmp_path / "tiny.toml", tmp_path / "store"
    study.write_text(TINY)
    options = ["run", study, "--store", store, "--workers", 1, "--until", 0.5, "--max-seeds", 5, "--json"]
    found = told(*options)["summary"]
    (row,) = said("measure", store, "--json")
    # Plain runs and perturbed replicates of five seeds, and the two runs per role of the split.
    assert row["n_seeds"] == 5
    assert found["trained"] == found["completed"] == 5 * 2 * 2 + 2 * 2
    again = told(*options)["summary"]
    assert (again["trained"], again["missing"]) == (0, 0)
    assert said("measure", store, "--what", "chaos", "--json")[0]["n_pairs"] == 10
    roles = {row["role"] for row in said("measure", store, "--what", "seeds", "--json")}
    assert roles == {"all", "init", "order"}


def test_advise_compares_clocks_with_what_was_seen(filled: Path, tiny_study: Study) -> None:
    rows = {row["recipe"]: row for row in said("advise", "main-grid", "--preset", "paper", "--json")}
    sgd, adam = rows["sgd b128"], rows["adam b128"]
    assert sgd["paper"] == "26.5 pp at 0.000277: sgd b128 (main-grid)"  # the first message of the paper
    assert sgd["advice"] == "l2=0.05 (< 1.0 pp at 2.37: sgd lr=0.01 l2=0.005 b128 (lr-l2))"
    assert [change["field"] for change in adam["changes"]] == ["learning_rate", "batch_size", "epochs", "l2"]
    assert rows["adam b16"]["advice"] == "none (1.6 pp at 379: adam b16 (main-grid))"
    printed = initmem("advise", "main-grid", "--records", filled).stdout
    assert "this is not a prediction" in printed
    assert filled.name in printed
    assert_refused(initmem("advise", "main-grid", "--records", "nowhere"), "nowhere")


HEAVY = {"torch", "scipy", "sklearn", "matplotlib", "polars", "plotly"}


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], HEAVY | {"numpy"}),
        (["status", "STORE"], HEAVY),
        (["measure", "STORE"], HEAVY - {"scipy"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_command_loads_only_what_it_needs(filled: Path, words: list[str], heavy: set[str]) -> None:
    script = """
import sys
from initmem.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(*sys.modules, file=sys.stderr)
"""
    arguments = [str(filled) if word == "STORE" else word for word in words]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert not heavy & set(done.stderr.split())


def test_status_finds_what_left_no_other_trace(filled: Path) -> None:
    path = next(filled.glob("runs/*/record.json"))
    time = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b"0", b"1"))
    os.utime(path, ns=(time, time))
    found = initmem("status", filled, "--verify")
    assert found.returncode == 1
    assert f"unreadable: {path}: damaged record" in found.stdout
    assert "trains its run again" in found.stdout


def test_figures_and_tables(filled: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    drawn = said("figure", "1", filled, "-o", tmp_path / "one.svg", "--json")
    assert (tmp_path / "one.svg").read_text().startswith("<?xml")
    assert drawn[0]["missing"]  # a tiny store lacks most of what the figure wants, and says so
    made = said("table", "all", filled, "-o", out, "--json")
    assert [row["table"] for row in made] == [str(i) for i in range(1, 8)]
    assert sorted(path.name for path in out.iterdir()) == [f"table{i}.md" for i in range(1, 8)]
    assert_refused(initmem("figure", "9", filled), "'9'", "all")
    assert_refused(initmem("figure", "1", filled, "-o", tmp_path / "one.doc"), "doc")
    assert_refused(initmem("table", "1", filled, "-o", tmp_path / "one.doc"), "doc")


# -- JSON, exit codes, hints -------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "json.md").read_text("utf-8")


def documented(schema: str) -> set[str]:
    """The keys that the page of JSON gives a schema."""
    (section,) = re.findall(rf"^### {re.escape(schema)}\n(.*?)(?=^#|\Z)", PAGE, flags=re.M | re.S)
    return set(re.findall(r"`([\w-]+)`", section))


@pytest.mark.parametrize(
    "words",
    [
        ["studies"], ["studies", "chaos"], ["plan", "quickstart", "--preset", "smoke"],
        ["status", "STORE"], ["measure", "STORE"],
        *(["measure", "STORE", "--what", what] for what in ("fit", "beta", "half-life")),
        *(["measure", "STORE", "--what", what] for what in ("radial", "layers", "function")),
        *(["measure", "STORE", "--what", what] for what in ("scale", "failures")),
        ["measure", "GRID", "--what", "clocks"], ["measure", "GRID", "--what", "function"],
        ["plan", "quickstart", "--power", "1.0"],
        *(["measure", "STORE", "--what", what] for what in ("interpolation", "repair", "chaos", "collapse")),
        ["measure", "GRID", "--what", "collapse"], ["measure", "GRID", "--what", "difference"],
        ["measure", "CHAOS", "--what", "chaos"], ["report", "STORE", "-o", "OUT/r.html"],
        ["figure", "scale", "STORE", "-o", "OUT/f.svg"], ["table", "7", "STORE"],
        ["table", "1", "STORE", "-o", "OUT/t.csv"], ["archive", "STORE", "-o", "OUT/a.initmem"],
        ["restore", "GRID", "--store", "OUT/back"], ["export", "STORE", "--to", "csv", "-o", "OUT/csv"],
        ["clocks", "quickstart"], ["clocks"], ["advise", "main-grid", "--records", "GRID"], ["models"],
        ["advise", "GRID"], ["plan", "GRID", "--power", "GRID"],
        ["data", "list"], ["theory", "resetting"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_json_has_one_shape_and_every_key_is_documented(words: list[str], filled: Path, command) -> None:
    names = {"STORE": filled, "OUT": filled.parent} | {
        name: ROOT / "docs" / "results" / f"{file}-mini.initmem"
        for name, file in (("GRID", "main-grid"), ("CHAOS", "chaos"))
    }
    place = [re.sub("^(STORE|GRID|CHAOS|OUT)", lambda found: str(names[found[1]]), word) for word in words]
    code, out, complaint = command(*place, "--json")
    assert (code, complaint) == (0, "")
    content = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(content) in ({"schema", "rows"}, {"schema", "rows", "summary"})
    assert re.fullmatch(r"initmem(\.[\w-]+)+/1", content["schema"])
    assert len({tuple(row) for row in content["rows"]}) <= 1
    keys = {key for row in content["rows"] for key in row} | set(content.get("summary", {}))
    assert keys <= documented(content["schema"]), content["schema"]


def test_json_is_the_same_in_full_precision_and_without_infinities(capsys) -> None:
    from initmem.cli.base import print_json

    print_json("x", [{"a": 1 / 3, "b": float("nan"), "c": [float("inf"), {"d": -float("inf")}]}], n=1)
    content = json.loads(capsys.readouterr().out)
    assert content["rows"] == [{"a": 1 / 3, "b": None, "c": [None, {"d": None}]}]
    assert (content["schema"], content["summary"]) == ("initmem.x/1", {"n": 1})


def test_help_names_every_option_and_cuts_nothing() -> None:
    shown = initmem("run", "--help", COLUMNS="80", TERM="dumb").stdout
    for name in ("--checkpoint-every", "--engine-option", "--retry-crashed", "--max-seeds"):
        assert re.search(rf"^ +(-\w, )?{name} ", shown, flags=re.M)
    assert "<bool>" not in shown
    assert "…" not in shown
    whole = initmem("--help", COLUMNS="80", TERM="dumb").stdout
    assert "..." not in whole.partition("Commands:")[2]
    assert re.search(r"0 all .*1 some .*2 a mistake .*130 interrupted", " ".join(whole.split()))
    assert initmem(COLUMNS="80", TERM="dumb").stdout == whole
    assert "get" in initmem("data").stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("initmem run qu", ["quickstart"]),
        ("initmem run quickstart --set batch_s", ["batch_size=", "batch_statistics="]),
        ("initmem figure sc", ["scale"]),
    ],
)
def test_completion_knows_studies_fields_and_figures(words: str, found: list[str]) -> None:
    shell = {"_INITMEM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert sorted(initmem(**shell).stdout.split()) == found


def test_hints_say_what_was_meant_and_where_it_belongs(tmp_path: Path) -> None:
    assert_refused(initmem("clocks", "--set", "lr=0.1"), "did you mean learning_rate?")
    assert_refused(initmem("data", "get", "imagenet"), "'imagenet'", "cifar10", "mnist", ".npz")
    assert_refused(initmem("data", "get", "digits"), "needs no download")
    assert_refused(initmem("data", "get", "mnst"), "did you mean mnist?")
    assert_refused(initmem("plan", "quickstar"), "did you mean quickstart?")
    assert_refused(initmem("clocks", "--set", "optimizer=adm"), "did you mean adam?")
    assert_refused(initmem("run"), "nothing to run", "quickstart", "--command")
    assert_refused(initmem("plan", "quickstart", "--preset", "smok"), "did you mean smoke?")
    file = tmp_path / "study.toml"
    for text, words in [
        ("epochs = 3", "epochs belongs in [recipe] or [[grid]]"),
        ("lr = 0.1", "learning_rate belongs in [recipe] or [[grid]]"),
        ("[recipe]\nscales = [1.0]", "scales = 1.0 (it belongs at the top of the study file)"),
        ("[recipe]\nepochs = -1", "epochs = -1"),
        ("[[grid]]\nseeds = [1]", "seeds = 1 (it belongs at the top of the study file)"),
        ("[presets.small]\nepochs = 2", "epochs belongs in recipe = {...} of the preset"),
        ("[presets.small]\nchaos = true", "presets.small.chaos = True (it belongs at the top"),
        ("[presets.small]\nscale = 1", "presets.small.scale = 1 (allowed"),
    ]:
        file.write_text(text)
        assert_refused(initmem("run", file), words, str(file))


def test_the_fields_of_a_study_are_those_of_its_file() -> None:
    from initmem.errors import STUDY_FIELDS, SYNONYMS
    from initmem.recipe import Recipe
    from initmem.study_file import _File

    assert set(STUDY_FIELDS) == set(_File.model_fields)
    assert set(SYNONYMS.values()) <= set(Recipe.model_fields)
    assert not set(SYNONYMS) & set(Recipe.model_fields)


def test_ctrl_c_is_130(command, monkeypatch) -> None:
    monkeypatch.setattr("initmem.train.modules.catalogue", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert command("models") == (130, "", "initmem: interrupted\n")


def test_bench_needs_a_checkout_and_says_so(tmp_path: Path) -> None:
    """As from a wheel: the package alone, somewhere else."""
    import initmem as package

    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "initmem").symlink_to(Path(package.__file__).parent)
    done = spawned("bench", PYTHONPATH=str(tmp_path / "site"))
    assert_refused(done, "checkout", "pip install -e .")


def test_names_of_studies_make_no_paths() -> None:
    from initmem.store.paths import default_store

    def place(name: str) -> Path:
        return default_store(f"{name}-full")

    assert place("main-grid") == Path("runs/main-grid-full")
    names = [
        "../../x",
        "/etc/x",
        "a b",
        "a_b",
        "a/b",
        "..",
        ".hidden",
        "\x1b[2J",
        "x" * 1000,
        "x" * 1001,
        "é",
    ]
    places = [place(name) for name in names]
    assert len(set(places)) == len(names)
    assert all(one.parent == Path("runs") and one.name[0] != "." and len(one.name) < 120 for one in places)


def test_a_pipe_that_takes_ascii_alone_gets_the_whole_answer(tmp_path: Path, tiny_study: Study) -> None:
    Store.create(tmp_path / "store").add_study(replace(tiny_study, name="café"))
    done = subprocess.run(
        [sys.executable, "-c", "from initmem.cli import main; main()", "status", tmp_path / "store"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii:strict"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"caf\\xe9" in done.stdout
