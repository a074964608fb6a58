from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from conftest import fake_record
from initmem.errors import StoreError
from initmem.present.curves import scale_plot
from initmem.present.report import render, write_report
from initmem.store import Store
from initmem.study import Study


@pytest.fixture
def store(tmp_path: Path, tiny_study: Study) -> Store:
    store = Store.create(tmp_path / "store")
    store.add_study(replace(tiny_study, title="<img src=x onerror=alert(1)>"))
    store.commit([fake_record(r, 0.9 - 0.1 * r.scale + 0.01 * r.seed) for r in tiny_study.all_runs()])
    return store


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_needs_nothing_from_outside_and_escapes_the_store(store: Store) -> None:
    tags = Tags()
    page = render(store)
    tags.feed(page)
    assert not [tag for tag, attrs in tags.found if "src" in attrs or tag in ("link", "img", "iframe")]
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert page.count("<script>") == 2  # the plotting library once, and the page's own


def test_the_page_says_the_question_the_verdict_and_the_numbers(store: Store) -> None:
    page = re.sub(r"<script>.*?</script>", "", render(store), flags=re.S)
    assert "Does training forget where it started?" in page
    assert "remembers" in page
    assert "15.0 pp" in page
    assert "Provenance" in page


def test_plot_data_are_means_and_percentiles(store: Store) -> None:
    (curve,) = scale_plot(store.records(), "test_accuracy").curves
    assert curve.scales == [0.5, 1.0, 2.0]
    assert curve.n == [2, 2, 2]
    assert np.allclose(curve.mean, [85.5, 80.5, 70.5])
    assert np.allclose(curve.low, np.percentile([[85, 80, 70], [86, 81, 71]], 10, axis=0))
    assert np.allclose(curve.high, np.percentile([[85, 80, 70], [86, 81, 71]], 90, axis=0))


def test_an_empty_store_or_an_unwritable_place_is_explained(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no finished run yet"):
        render(Store.create(tmp_path / "empty"))
    with pytest.raises(StoreError, match="cannot be written"):
        write_report(store, tmp_path / "nowhere" / "report.html")
