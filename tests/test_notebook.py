"""What shows itself in a notebook, and the example notebook."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

import initmem
from conftest import fake_record
from initmem.measures.memory import Memories, memory_table
from initmem.store.results import open_results, write_archive
from initmem.store.store import Store
from initmem.study import Study

IMAGE = "<img src=x onerror=alert(1)>"
NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_look.ipynb"


@pytest.fixture
def store(tmp_path: Path, tiny_study: Study) -> Store:
    store = Store.create(tmp_path / "store")
    store.add_study(replace(tiny_study, name=IMAGE))
    store.commit([fake_record(r, 0.9 - 0.1 * r.scale + 0.01 * r.seed) for r in tiny_study.all_runs()[:-1]])
    return store


def test_memories_are_a_table_of_text(store: Store) -> None:
    rows = memory_table(store.records())
    named = Memories([replace(rows[0], recipe=IMAGE, notes=(IMAGE,))])
    for shown in (named._repr_html_(), named[0]._repr_html_()):
        assert IMAGE not in shown and html.escape(IMAGE) in shown
        assert rows[0].verdict_text in shown and f"{rows[0].memory:.3g}" in shown
    assert "memory of nothing" in Memories()._repr_html_()


def test_a_store_and_an_archive_count_their_runs(store: Store, tmp_path: Path) -> None:
    write_archive(tmp_path / "all.initmem", store.studies(), store.records())
    for results in (store, open_results(tmp_path / "all.initmem")):
        shown = results._repr_html_()
        assert IMAGE not in shown and html.escape(IMAGE) in shown
        assert "5 records" in shown
        cells = re.findall(r"<td[^>]*>(.*?)</td>", shown)
        assert cells[2:] == ["6", "5", "0", "0", "0", "1"]  # runs, completed, ..., missing


def test_a_description_is_a_table_of_parameters() -> None:
    shown = initmem.Init(0.5).describe(nn.ModuleDict({"<b>": nn.Linear(3, 2)}))._repr_html_()
    assert "&lt;b&gt;.weight" in shown and "<b>.weight" not in shown and "2 x 3" in shown


def outputs(notebook) -> list[dict]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def test_the_example_notebook_shows_what_it_promises(tmp_path: Path, monkeypatch) -> None:
    """A new run agrees with the outputs that the repository holds."""
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("PYTHONPATH", str(Path(initmem.__file__).parents[1]))
    monkeypatch.syspath_prepend(NOTEBOOK.parents[1] / "docs")
    from build_notebook import executed

    stored, now = nbformat.read(NOTEBOOK, as_version=4), executed(tmp_path)
    assert [[output["output_type"] for output in outputs(one)] for one in (stored, now)] == [
        ["execute_result", "execute_result", "stream", *["execute_result"] * 4]
    ] * 2
    described, result, text, memories, scales, picture, store = outputs(stored)
    assert "0.weight" in described["data"]["text/html"]
    assert "wd=0.01" in result["data"]["text/html"] and "<svg" in result["data"]["text/html"]
    assert memories["data"]["text/html"].count("<tr>") == 3
    assert "<table" in scales["data"]["text/html"]
    assert picture["data"]["image/png"]
    assert "<strong>runs/digits: 30 records" in store["data"]["text/html"]
    line = re.compile(
        r"^train wd=([\d.]+): test_accuracy ([\d.]+) pp .*?, (remembers: generalization|forgets) ", re.M
    )
    before, after = line.findall(text["text"]), line.findall(outputs(now)[2]["text"])
    assert [(decay, verdict) for decay, _, verdict in before] == [
        ("0", "remembers: generalization"),
        ("0.01", "forgets"),
    ]
    assert [row[::2] for row in after] == [row[::2] for row in before]
    memories_before, memories_after = ([float(memory) for _, memory, _ in rows] for rows in (before, after))
    assert memories_after == pytest.approx(memories_before, abs=0.5)  # other processors round differently
    assert {record.status for record in Store(tmp_path / "runs" / "digits").records()} == {"completed"}
