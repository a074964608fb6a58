"""What a run loads: few modules, among them the ten that CONTRIBUTING walks through."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from size import WALK, code_lines, of_quickstart

ROOT = Path(__file__).parents[1]

MOST = 55  # modules that a run loads: a new one should replace an old one


def test_a_run_loads_few_modules_and_all_of_the_walk() -> None:
    run, report = of_quickstart()
    assert {f"initmem.{name.replace('/', '.')}" for name in WALK} <= run
    assert len(run) <= MOST
    assert "initmem.train.pack" in run and "initmem.report.page" in report  # it does look into workers


def test_the_page_walks_through_these_files_in_this_order() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("in ten files")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/]+)\.py` \| (\d+) \|", section, flags=re.M)
    assert [name for name, _ in rows] == list(WALK)
    for name, lines in rows:
        actual = len((ROOT / "src" / "initmem" / f"{name}.py").read_text().splitlines())
        assert int(lines) == pytest.approx(actual, rel=0.1), name


def test_code_lines_are_those_with_code(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '"""A docstring\n\nof three lines."""\n\n# a comment\nx = (\n    1,\n)\n\n\ndef f():\n    """A."""\n'
    )
    assert code_lines(module) == 4
