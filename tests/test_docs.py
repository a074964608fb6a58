"""What the documents show really works."""

from __future__ import annotations

import functools
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
import typer.main
from matplotlib.image import imread

import initmem
from conftest import fake_record
from initmem.cli import app
from initmem.export import FORMATS
from initmem.measures.measure import MEASURES
from initmem.store.store import Store
from initmem.study import Study
from initmem.study_file import load_study

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def test_the_numbers_of_the_readme_are_those_of_the_demo_the_notebook_and_the_results() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    (sketch,) = blocks(ROOT / "README.md", "python")
    compile(sketch, "README.md", "exec")  # of code that only its reader has; the notebook has the whole of it
    (verdicts,) = blocks(ROOT / "README.md", "text")
    cells = nbformat.read(ROOT / "examples" / "first_look.ipynb", as_version=4).cells
    printed = "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))
    assert verdicts.splitlines() == [line for line in printed.splitlines() if line.startswith("train wd=")]
    remembers, forgets, _ = initmem.memory_table(ROOT / "docs" / "results" / "quickstart.initmem")
    text = " ".join(readme.split())
    for row, shown in (
        (remembers, "{:.1f} points [{:.1f}, {:.1f}]"),
        (forgets, "{:.1f} [{:.0f}, {:.1f}]"),
    ):
        assert shown.format(row.memory, row.low, row.high) in text
    summary = (ROOT / "docs" / "results.md").read_text("utf-8").partition("\n## ")[0]
    measured = re.findall(r"([\d.]+) points\*{0,2} (\[[^]]+\]) \|", readme)
    assert len(measured) == 3
    assert [
        f"{value} {interval}" for value, interval in measured if f"{value} {interval}" not in summary
    ] == []


def test_the_examples_of_verdicts_have_the_numbers_of_their_archives() -> None:
    page = (ROOT / "docs" / "verdict.md").read_text("utf-8")
    for name, forgets in (("quickstart", 1), ("undertrained", 3)):
        rows = initmem.memory_table(ROOT / "docs" / "results" / f"{name}.initmem")
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `initmem run {name}`")]
        for row in (rows[0], rows[forgets]):
            assert f"{row.memory:.3g} pp [{row.low:.3g}, {row.high:.3g}]" in line
        assert f"{min(rows[0].fit.train):.1f} to" in line
    matched = rows[0].fit.matched
    assert f"{matched.memory:.1f} points at a common train accuracy of {100 * matched.level:g}%" in line


def test_the_notebook_code_runs(tmp_path: Path, tiny_study: Study, monkeypatch) -> None:
    store = Store.create(tmp_path / "demo-store")
    store.commit([fake_record(r, 0.9 - 0.1 * r.scale + 0.01 * r.seed) for r in tiny_study.all_runs()])
    monkeypatch.chdir(tmp_path)
    code = blocks(ROOT / "docs" / "report.md", "python")[0]
    names: dict[str, str] = {}
    exec(compile(code, "report.md", "exec"), names)
    assert 'data-label="memory" data-sort="15.0' in names["shown"]


def test_the_first_study_loads(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "docs" / "index.md", "toml")
    path = tmp_path / "my-study.toml"
    path.write_text(text)
    assert len(load_study(str(path)).all_runs()) == 4 * 3 * 4


def test_the_fields_of_initialization_do_what_their_page_says(tmp_path: Path, capsys) -> None:
    page = ROOT / "docs" / "scaled.md"
    (code, both_ways), (text,) = blocks(page, "python"), blocks(page, "toml")
    exec(compile(code, page.name, "exec"), {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    sizes = [float(row[-2]) for row in rows if row and row[0].endswith(("weight", "bias"))]
    body, output, bias = 64**-0.5, 32**-0.5, 0.2
    of_output = [body, bias, 2 * output, bias]
    of_biases = [body, 2 * bias, output, 2 * bias]
    smaller = [2 * body, bias, 2 * output * 0.1, bias]
    assert sizes == pytest.approx([*of_output, *of_biases, *smaller], rel=1e-3)
    exec(compile(both_ways, page.name, "exec"), {})
    kept, drawn = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("0.weight")
    ]
    assert (float(kept[-2]), float(drawn[-2])) == pytest.approx((2 * float(kept[-1]), 2.0), rel=1e-3)
    (tmp_path / "study.toml").write_text(text)
    assert len(load_study(str(tmp_path / "study.toml")).all_runs()) == 3 * 3 * 3


COMMAND_LINE = typer.main.get_command(app)


def shown_commands(text: str) -> Iterator[list[str]]:
    """The words of every `initmem ...`, in blocks of code, where quotes may span lines, and in sentences."""
    fenced = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.M | re.S)
    for language, block in fenced.findall(text):
        lines = r"^(?:\$ )?(?:\.venv/bin/)?initmem (?!:)((?:\"[^\"]*\"|'[^']*'|[^\n\"'#])+)"
        if language in ("", "sh", "text", "console"):
            yield from (shlex.split(line.rstrip(" &")) for line in re.findall(lines, block, flags=re.M))
    yield from map(shlex.split, re.findall(r"`initmem ([^`]+)`", fenced.sub("", text)))


def parsed(words: list[str]) -> dict[str, Any]:
    """The values of a command line; raises unless it has this command, these options and such values."""
    command, names = COMMAND_LINE, list(words)
    while children := getattr(command, "commands", {}):
        if not names or names[0] == "COMMAND" or names[0].startswith("--"):
            return {}
        command = children[names.pop(0)]
    context = command.make_context("initmem", [], resilient_parsing=True)  # `--command` alone may be named
    values, left, _ = command.make_parser(context).parse_args(names)
    assert not left, left
    assert values.get("what", "memory") in ("memory", *MEASURES)
    assert values.get("to", "csv") in FORMATS
    return dict(values)


def options(command: Any) -> set[str]:
    """The options of a command and of its subcommands."""
    own = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return own.union(*(options(child) for child in getattr(command, "commands", {}).values()))


def test_every_command_in_the_documents_parses() -> None:
    known, wrong = options(COMMAND_LINE), []
    for page in (*PAGES, ROOT / "AGENTS.md"):
        text = page.read_text()
        for words in shown_commands(text):
            try:
                parsed(words)
            except Exception as error:
                wrong.append(f"{page.name}: initmem {shlex.join(words)}: {error!r}")
        mentioned = set(re.findall(r"(?<=`)--[a-z-]+(?=[` ])", text))
        wrong += [f"{page.name}: {option}" for option in mentioned - known]
    assert wrong == []


# Commands that are parsed only, by a word of them, and why.
NOT_RUN = {
    "ray": "a cluster", "slurm": "a cluster", "cuda": "a GPU", "get": "a download", "bench": "minutes",
    "board": "serves until it is stopped", "--until": "up to 30 seeds", "lab": "a weekend on a GPU",
    "mlflow": "test_export.py", "wandb": "test_export.py", "tensorboard": "test_export.py",
    "trackio": "test_export.py", "tradeoff": "test_tradeoff.py, and results.md",
    "--plugin": "test_plugins.py", "--command": "test_command.py, test_hydra.py",
    "theory": "test_theory_page.py", "COMMAND": "a placeholder",
}  # fmt: skip
# What stands for the reader's own study, metric or file name.
MINE = {
    "STUDY": "quickstart", "FILE": "copy.initmem", "runs": "runs/own", "/shared/runs": "shared/runs",
    "test_loss": "test_cross_entropy",
}  # fmt: skip
OWN_TESTS = ("results.md", "transformers.md", "assumptions.md", "own-pipeline.md", "theory.md")


def cheap_commands() -> dict[str, list[str]]:
    """What can be run in seconds, each command once, in the order of the pages."""
    found = {}
    for page in (*PAGES, ROOT / "AGENTS.md"):
        for words in () if page.name in OWN_TESTS else shown_commands(page.read_text("utf-8")):
            words = [MINE.get(word, word) for word in words]
            options_alone = all(word.startswith("-") for word in words[1:])
            if not (set(words) & set(NOT_RUN) or (options_alone and words[0] not in ("studies", "models"))):
                found[shlex.join(words)] = words
    return found


@pytest.mark.usefixtures("no_workers")
def test_every_command_in_the_documents_that_is_cheap_runs(tmp_path: Path, monkeypatch, command) -> None:
    """Studies at the preset for tests. What reads a store that no page trains reads a small one."""
    monkeypatch.chdir(tmp_path)
    (text,) = blocks(ROOT / "docs" / "index.md", "toml")
    Path("my-study.toml").write_text(
        text.replace("epochs = 30", "epochs = 1").replace("width = 8", "width = 2")
    )
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results").symlink_to(ROOT / "docs" / "results")
    smaller = ["--preset", "smoke", "--workers", "1"]
    assert command("run", "quickstart", "--store", "trained", *smaller)[0] == 0
    refused = []
    for line, words in cheap_commands().items():
        for path in map(Path, _read(words)):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.suffix == ".initmem":
                    shutil.copy(ROOT / "docs" / "results" / "quickstart.initmem", path)
                else:
                    shutil.copytree("trained", path)
        bundled = words[0] == "run" and "my-study.toml" not in words and "--preset" not in words
        code, _, complaint = command(*words, *(smaller if bundled else []))
        if code:
            refused.append(f"initmem {line}: {code}, {complaint}")
    assert refused == []
    assert len(cheap_commands()) > 40


def _read(words: list[str]) -> list[str]:
    """The stores and archives that a command reads."""
    values = parsed(words)
    stores = (
        []
        if words[0] in ("run", "restore")
        else [values.get("store"), values.get("study") == "STORE" and "STORE"]
    )
    pilot = values.get("power") or ""
    stores += [*values.get("stores", ()), *values.get("archives", ()), pilot if "/" in pilot else None]
    return [store for store in stores if store]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_and_picture_is_there() -> None:
    """As GitHub shows the files; the site has a test of its own."""
    others = [
        ROOT / name for name in ("AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")
    ]
    pages = [*PAGES, *others]
    targets = [
        (page, link) for page in pages for link in re.findall(r"\]\(([^) ]+)\)", page.read_text("utf-8"))
    ]
    assert len(targets) > 100
    wrong = []
    repository = "https://github.com/initmem/initmem/blob/HEAD/"
    for page, link in targets:
        target, _, fragment = link.partition("#")
        if target.startswith("http") and not target.startswith(repository):
            continue
        file = page if not target else page.parent / target
        if target.startswith(repository):
            file = ROOT / target.removeprefix(repository)
        if not file.exists() or (fragment and fragment not in anchors(file)):
            wrong.append((page.name, link))
    assert wrong == []


@pytest.mark.parametrize("page", ["frameworks.md", "wrap-a-script.md"])
def test_lines_that_wrap_a_script_are_those_of_its_example(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(
        r"/(examples/\w+\.py)\)(?:(?!/examples/).)*?^```diff\n(.*?)^```", text, flags=re.M | re.S
    )
    assert len(blocks) == text.count("```diff")
    for path, block in blocks:
        script = (ROOT / path).read_text().splitlines()
        lines = [line for line in block.splitlines() if not line.startswith("@")]
        assert all((line[1:] in script) == (line[0] != "-") for line in lines)
        assert any(line[0] == "+" for line in lines)


def test_the_ten_minute_page_runs_as_written(tmp_path: Path, monkeypatch, capsys) -> None:
    """In an empty folder, block by block; only smaller."""
    page = (ROOT / "docs" / "own-pipeline.md").read_text()
    smaller = {
        "range(5)": "range(2)",
        "EPOCHS = 20": "EPOCHS = 3",
    }
    for long, short in smaller.items():
        assert long in page
        page = page.replace(long, short)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(Path(initmem.__file__).parents[1]))
    monkeypatch.syspath_prepend(tmp_path)
    here = functools.partial(initmem.run, engine="inline", progress=False)
    monkeypatch.setattr(initmem, "run", here)
    said = []
    for language, text in re.findall(r"^```(python|sh)\n(.*?)^```", page, flags=re.M | re.S):
        if language == "python":
            (tmp_path / re.match(r"# (\w+\.py)\n", text)[1]).write_text(text)
        else:
            said += [_typed(shlex.split(line), capsys) for line in text.splitlines()]
    first, grid, measured, fit, scales = said[0], *said[-4:]
    assert re.search(r"^0\.weight +64 x 64 +kernel +1 ", first, flags=re.M)
    assert re.search(r"^mine lr=0\.01: test_accuracy .* \(5 scales x 2 seeds\)$", first, flags=re.M)
    of_mine = [record for record in Store("runs").records() if record.run.recipe.get("pipeline") == "mine"]
    assert len(of_mine) == 2 * 10  # each was trained once, whoever asked
    assert grid.count("(5 scales x 2 seeds)") == 2
    assert len(re.findall(r"mine lr=0\.3 +\S+ +test_accuracy", scales)) == 5
    assert all(f"mine lr={rate} " in text for rate in (0.01, 0.3) for text in (measured, fit))
    assert not any("no train metric" in text for text in said)
    (timing,) = blocks(ROOT / "docs" / "scales-and-seeds.md", "python")
    exec(compile(timing, "scales-and-seeds.md", "exec"), {})
    assert re.search(r"5 x 5 on two cores: \d+ s", capsys.readouterr().out)
    assert Path("scale.png").stat().st_size > 1000
    assert "mine" in Path("runs/report.html").read_text()


def _typed(words: list[str], capsys) -> str:
    """What a command prints. Only the first script has a process and workers: each takes seconds to begin."""
    if words == ["python", "mine.py"]:
        return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
    if words[0] == "python":
        runpy.run_path(words[1], run_name="__main__")
        return capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        app(words[1:])
    assert not ended.value.code
    return capsys.readouterr().out


def test_the_pages_of_results_are_what_their_commands_print_and_draw(tmp_path: Path, monkeypatch) -> None:
    """No number on them but from a command; their pictures come out of a fresh folder the same."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    from build_results import refreshed

    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "docs" / "results").symlink_to(ROOT / "docs" / "results")
    monkeypatch.chdir(tmp_path)
    names = ("results.md", "transformers.md", "interventions-results.md", "function.md")
    pages = [(ROOT / "docs" / name).read_text("utf-8") for name in names]
    for page in pages:
        assert refreshed(page) == page
    drawn = sorted((tmp_path / "docs" / "images").iterdir())
    assert drawn
    for picture in drawn:
        kept = ROOT / "docs" / "images" / picture.name
        assert any(f"](images/{picture.name})" in page for page in pages)
        assert np.abs(imread(picture) - imread(kept)).max() < 0.02, picture.name


def test_the_page_of_assumptions_is_what_its_commands_print(monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    from build_results import refreshed

    monkeypatch.chdir(ROOT)
    page = ROOT / "docs" / "assumptions.md"
    assert refreshed(page.read_text("utf-8")) == page.read_text("utf-8")
    capsys.readouterr()
    (code,) = blocks(page, "python")
    exec(compile(code, page.name, "exec"), {})
    said = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    assert said == capsys.readouterr().out.splitlines()


def test_every_picture_is_on_a_page_and_has_a_command_that_draws_it(tmp_path: Path, monkeypatch) -> None:
    """Pictures of results and concepts are compared elsewhere, the theory's here; a screenshot below."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    from build_concepts import PICTURES as CONCEPTS
    from build_screens import PICTURES as SCREENS

    from initmem.theory.show import PARTS, show

    pages = "".join(page.read_text("utf-8") for page in PAGES)
    theory = [f"theory-{name}" for name, part in PARTS.items() if part.plot]
    commands = re.findall(r"^\$ initmem figure .* -o docs/images/([\w-]+)\.png$", pages, flags=re.M)
    scripts = re.findall(r"^\$ python docs/build_interventions\.py (\w+)$", pages, flags=re.M)
    benchmarks = re.findall(r"`python benchmarks/\w+\.py docs/images/([\w-]+)\.png`", pages)
    drawn = {*CONCEPTS, *SCREENS, *theory, *commands, *scripts, *benchmarks, "batch-norm"} - {"function"}
    assert {path.stem for path in (ROOT / "docs" / "images").iterdir()} == drawn
    assert set(re.findall(r"\]\((?:docs/)?images/([\w-]+)\.png\)", pages)) == drawn
    for name in theory:
        show(name.removeprefix("theory-"), output=tmp_path / f"{name}.png")
        kept, now = (imread(folder / f"{name}.png") for folder in (ROOT / "docs" / "images", tmp_path))
        assert kept.shape == now.shape
        assert np.abs(kept - now).mean() < 0.005, f"{name}: python docs/build_theory.py"  # markers may move


def test_the_screenshot_of_the_report_is_of_the_present_version(tmp_path: Path, monkeypatch) -> None:
    """In blocks of 20 x 20 pixels: letters may differ between machines, sections and colors may not."""
    tool = pytest.importorskip("playwright.sync_api")
    if not shutil.which("chromium"):
        pytest.skip("no chromium")
    monkeypatch.syspath_prepend(ROOT / "docs")
    from build_screens import launch, report

    with tool.sync_playwright() as playwright:
        browser = launch(playwright)
        report(browser, tmp_path, tmp_path / "report-light.png")
        browser.close()
    kept, now = (
        imread(folder / "report-light.png")[..., :3].reshape(45, 20, 64, 20, 3).mean(axis=(1, 3))
        for folder in (ROOT / "docs" / "images", tmp_path)
    )
    assert np.abs(kept - now).max() < 0.1, "python docs/build_screens.py"
