"""What the documents show really works."""

from __future__ import annotations

import functools
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def test_the_readme_code_prints_what_it_says(monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    sketch, code = blocks(ROOT / "README.md", "python")
    compile(
        sketch, "README.md", "exec"
    )  # of a pipeline that only its reader has; docs/own-pipeline.md has a whole one
    exec(compile(code, "README.md", "exec"), {})
    said = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    assert said
    assert set(said) <= set(capsys.readouterr().out.splitlines())


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
    for block in re.findall(r"^```(?:sh|text|console)?\n(.*?)^```", text, flags=re.M | re.S):
        for line in re.findall(
            r"^(?:\$ )?initmem (?!:)((?:\"[^\"]*\"|'[^']*'|[^\n\"'#])+)", block, flags=re.M
        ):
            yield shlex.split(line.rstrip(" &"))
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    yield from map(shlex.split, re.findall(r"`initmem ([^`]+)`", prose))


def parsed(words: list[str]) -> None:
    """Raise unless the command line has this command, these options and the values they choose from."""
    command, names = COMMAND_LINE, list(words)
    while children := getattr(command, "commands", {}):
        if not names or names[0] == "COMMAND" or names[0].startswith("--"):
            return
        command = children[names.pop(0)]
    context = command.make_context("initmem", [], resilient_parsing=True)  # `--command` alone may be named
    values, left, _ = command.make_parser(context).parse_args(names)
    assert not left, left
    assert values.get("what", "memory") in ("memory", *MEASURES)
    assert values.get("to", "csv") in FORMATS


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


def test_every_link_and_picture_is_there() -> None:
    targets = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)\)", page.read_text())]
    assert len(targets) > 50
    local = [(page, link) for page, link in targets if not link.startswith("http")]
    assert [(page.name, link) for page, link in local if not (page.parent / link).exists()] == []


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
    assert len(re.findall(r"mine lr=0\.3 +test_accuracy", scales)) == 5
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
    results, transformers = (
        (ROOT / "docs" / name).read_text("utf-8") for name in ("results.md", "transformers.md")
    )
    assert refreshed(results) == results
    assert refreshed(transformers) == transformers
    drawn = sorted((tmp_path / "docs" / "images").iterdir())
    assert drawn
    for picture in drawn:
        kept = ROOT / "docs" / "images" / picture.name
        assert f"](images/{picture.name})" in results
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
