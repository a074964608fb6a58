"""The path of one run, as CONTRIBUTING tells it, is the path that it really takes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from modules import of_quickstart

ROOT = Path(__file__).parents[1]

MOST = 62  # modules on the path of a run: a new one should replace an old one


def told() -> set[str]:
    """The modules that the page lists, by their full names."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    block = page.partition("## The path of one run")[2].partition("```\n")[2].partition("```")[0]
    names = set()
    for line in block.splitlines():
        room, modules = re.fullmatch(r"(\w+)\s+(.*?)(?:\s{2,}.*)", line).groups()
        for module in modules.split(", "):
            top = room == "initmem" or (module == room and room != "store")  # store.store is a module
            names.add(f"initmem.{module}" if top else f"initmem.{room}.{module}")
    return names


def test_the_page_lists_the_modules_that_a_run_imports() -> None:
    run, report = of_quickstart()
    assert told() == run - {"initmem"}
    assert len(run) <= MOST
    assert "initmem.train.pack" in run and "initmem.report.page" in report  # it does look into workers
