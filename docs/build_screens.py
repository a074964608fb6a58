"""Screenshots of the report and of the board: docs/images/report-light.png, board-light.png.

python docs/build_screens.py    # with playwright and chromium; about a minute
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from playwright.sync_api import Browser, Playwright, sync_playwright

from initmem.report.board import Board
from initmem.report.page import write_report
from initmem.store.results import open_results
from initmem.store.store import Store

DOCS = Path(__file__).parent.resolve()
PICTURES = ("report-light", "board-light")
SIZE = {"width": 1280, "height": 900}
FAR = "parseInt(document.querySelector('.live-runs .epoch')?.textContent) > 60"  # runs have curves to show


def screenshot(browser: Browser, address: str, path: Path, condition: str = "true") -> None:
    """Save what a page shows first, once a condition holds."""
    page = browser.new_page(viewport=SIZE, color_scheme="light")
    page.goto(address)
    while not page.evaluate(condition):
        page.wait_for_timeout(500)
    page.screenshot(path=path)
    page.close()


def launch(tool: Playwright) -> Browser:
    """The browser that takes the pictures."""
    return tool.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])


def report(browser: Browser, folder: Path, picture: Path) -> None:
    """The report of the demo's archive."""
    archive = open_results(DOCS / "results" / "quickstart.initmem")
    command = "initmem report docs/results/quickstart.initmem"
    screenshot(browser, write_report(archive, folder / "report.html", command=command).as_uri(), picture)


def main() -> None:
    """Take both pictures; the board is that of a demo in training."""
    with sync_playwright() as tool, tempfile.TemporaryDirectory() as folder:
        browser = launch(tool)
        report(browser, Path(folder), DOCS / "images" / "report-light.png")
        os.chdir(folder)
        store = Path("demo")
        training = subprocess.Popen([sys.executable, "-m", "initmem", "run", "quickstart", "--store", store])
        while not list(store.glob("runs/*/history.jsonl")):
            time.sleep(0.2)
        board = Board(Store(store), port=0)
        serving = threading.Thread(target=board.serve)
        serving.start()
        screenshot(browser, board.url, DOCS / "images" / "board-light.png", FAR)
        training.terminate()
        training.wait()
        board.shutdown()
        serving.join()
        browser.close()


if __name__ == "__main__":
    main()
