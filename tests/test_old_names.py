"""Names of losses say whether the kernel penalty is in them, and records from before still open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from initmem.cli import app
from initmem.measures.design import present_name
from initmem.recipe import PipelineRecipe
from initmem.record import COLUMNS, RunRecord, summarize
from initmem.store.archive import Archive, pack, restore
from initmem.store.encoding import decode, encode
from initmem.store.store import Store
from initmem.study import Run

RESULTS = Path(__file__).parents[1] / "docs" / "results"
PENALIZED = RESULTS / "lr-l2-mini.initmem"  # trained and archived before the names changed
STORED = {"train_loss", "val_loss", "val_cross_entropy"}


def as_stored(record: RunRecord) -> dict:
    return json.loads(encode(record))["record"]


def test_an_old_record_opens_under_names_that_say_which() -> None:
    records = [record for record in Archive(PENALIZED).records() if record.run.recipe.get("l2")]
    assert records
    for record in records:
        history, summary, l2 = record.history, record.summary, record.run.recipe.get("l2")
        stored = as_stored(record)
        assert set(COLUMNS) <= set(history)
        assert set(stored["history"]) >= STORED
        assert history["train_cross_entropy"].tolist() == stored["history"]["train_loss"]
        assert history["val_objective"].tolist() == stored["history"]["val_loss"]
        squares = history["norm"] ** 2
        assert np.allclose(history["val_objective"], history["val_cross_entropy"] + l2 * squares, rtol=1e-5)
        assert np.allclose(history["train_objective"], history["train_cross_entropy"] + l2 * squares)
        assert summary.test_loss is None
        assert summary.test_cross_entropy == stored["summary"]["test_loss"]
        assert summary.test_objective == pytest.approx(summary.test_cross_entropy + l2 * summary.norm_best**2)


def test_an_old_record_is_copied_as_it_was(tmp_path: Path) -> None:
    archive = Archive(PENALIZED)
    assert archive.verify() == []
    again = tmp_path / "again.initmem"
    again.write_bytes(pack(archive.studies(), archive.records()))
    copied = {record.id: encode(record) for record in Archive(again).records()}
    assert copied == {record.id: encode(record) for record in archive.records()}
    store = Store.create(tmp_path / "store")
    restore(archive, store)
    one = archive.records()[0]
    written = json.loads((tmp_path / "store" / "runs" / one.id / "record.json").read_text())["record"]
    assert written["schema"] == 1
    assert "train_loss" in written["history"]
    assert store.read(one.id).same_result(one)
    assert next(record for record in store.records() if record.id == one.id).same_result(one)


def test_old_user_code_keeps_its_own_names() -> None:
    run = Run(PipelineRecipe.parse({"pipeline": "mine", "l2": 0.1}), 1.0, 0)
    history = {"train_loss": np.array([2.0, 1.0]), "val_loss": np.array([2.0, 1.5])}
    summary = summarize(history, norm_init=1.0, test_loss=1.25)
    old = decode(encode(RunRecord(run, "completed", summary, history, schema=1)))
    assert set(old.history) == {"train_loss", "val_loss"}
    assert (old.summary.test_loss, old.summary.test_cross_entropy) == (1.25, None)
    assert as_stored(old)["summary"].keys().isdisjoint({"test_cross_entropy", "test_objective"})


def test_the_former_name_is_understood_and_the_present_one_is_shown(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        app(["measure", str(PENALIZED), "--metric", "val_loss"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "memory of val_objective" in said
    assert "val_loss" not in said
    mine = RunRecord(
        Run(PipelineRecipe.parse({"pipeline": "mine"}), 1.0, 0), "completed", summarize({}, norm_init=1.0), {}
    )
    assert present_name("val_loss", [mine]) == "val_loss"


def test_a_record_of_an_unknown_schema_is_refused() -> None:
    record = Archive(PENALIZED).records()[0]
    with pytest.raises(Exception, match=r"record of schema 3 \(allowed: 1, 2\)"):
        decode(encode(replace(record, schema=3)))
