"""Size and first paint of the report, and of the board's first page, in chromium.

    python benchmarks/page.py [--store DIR] [--keep FILE] [--visits N]

Without a store, the 6,250 runs of the main grid are planted (see full_store.py): made, not trained. Aim: a
report below 6 MB; first paint of the report and of the board within 2 seconds. First paint is the browser's
own "first contentful paint", the median over visits with an empty cache. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from full_store import planted
from playwright.sync_api import Browser, sync_playwright

from initmem.report.board import Board
from initmem.report.page import write_report
from initmem.store.store import Store
from initmem.study_file import load_study

PAINT = """() => new Promise((done) => {
  const look = () => performance.getEntriesByName("first-contentful-paint")[0];
  const wait = () => (look() ? done(look().startTime) : setTimeout(wait, 10));
  wait();
})"""
LIMIT_SECONDS, LIMIT_MB = 2.0, 6.0


def plant(folder: Path) -> Store:
    """A store of the whole main grid."""
    study = load_study("main-grid", "paper")
    store = Store.create(folder)
    store.add_study(study)
    records = planted([study])
    for i in range(0, len(records), 50):
        store.commit(records[i : i + 50])
    return store


def paint(browser: Browser, url: str, visits: int) -> float:
    """Seconds to the first contentful paint, median over visits."""
    found = []
    for _ in range(visits):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.goto(url, wait_until="commit")
        found.append(page.evaluate(PAINT) / 1000)
        context.close()
    return statistics.median(found)


def all_there(browser: Browser, url: str) -> float:
    """Seconds from opening the board until no section is being read any more."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    began = time.perf_counter()
    page.goto(url)
    while page.get_by_text("Reading the store").count():
        page.wait_for_timeout(50)
    spent = time.perf_counter() - began
    context.close()
    return spent


def measure(browser: Browser, store: Store, report: Path, visits: int) -> None:
    began = time.perf_counter()
    write_report(store, report)
    print(f"  report written in     {time.perf_counter() - began:6.1f} s")
    print(f"  report, size          {report.stat().st_size / 1e6:6.2f} MB (aim {LIMIT_MB:g})")
    seconds = paint(browser, report.as_uri(), visits)
    print(f"  report, first paint   {seconds:6.2f} s (aim {LIMIT_SECONDS:g}, median of {visits})")
    board = Board(store, port=0)
    thread = threading.Thread(target=board.serve)
    thread.start()
    try:
        first = paint(browser, board.url, 1)
        print(f"  board, first paint    {first:6.2f} s, just started (aim {LIMIT_SECONDS:g})")
        print(f"  board, all sections   {all_there(browser, board.url):6.1f} s")
        later = paint(browser, board.url, visits)
        print(f"  board, first paint    {later:6.2f} s, once read (median of {visits})")
    finally:
        board.shutdown()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="measure this store instead of a planted one")
    parser.add_argument("--keep", type=Path, help="keep the report here")
    parser.add_argument("--visits", type=int, default=5)
    asked = parser.parse_args()
    flags: list[str] = ["--disable-gpu", "--disable-background-networking"]
    options: dict[str, Any] = {"executable_path": shutil.which("chromium")}
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as tool:
        store = Store(asked.store) if asked.store else plant(Path(temporary) / "store")
        print(f"{store.path}: load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        browser = tool.chromium.launch(args=flags + ["--no-sandbox"] * (os.getuid() == 0), **options)
        measure(browser, store, asked.keep or Path(temporary) / "report.html", asked.visits)
        browser.close()


if __name__ == "__main__":
    main()
