from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest

import planted
from initmem.errors import ConfigError, StoreError
from initmem.paper import tables as papertables
from initmem.paper.tables import mean_of, paper_table
from initmem.plots.tables import latex_escape, render
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.table import Column, Mean, Table, cell, number, table_of
from planted import accuracies, recipe

ALL = planted.everything()
RECORDS = planted.records(*ALL)
NAMES = papertables.NAMES


def row_of(table: Table, *start: object) -> list:
    """The values of the only row that begins like this."""
    rows = [[one.value for one in row] for row in table.rows]
    (row,) = [row for row in rows if row[: len(start)] == list(start)]
    return row


def means(cells) -> list[float]:
    return [cell.mean for cell in cells]


# -- what the tables hold ---------------------------------------------------------------------------------


def test_table_1_lists_every_setting_once_with_its_batch_sizes() -> None:
    table = papertables.make("1", RECORDS, ALL)
    adamw = row_of(table, "adamw")
    assert adamw[1:] == [1e-3, 0.0, 1e-4, "", 0.9, 0.999, 1e-7, "cosine to 0.01", 6, "16, 128"]
    assert row_of(table, "muon")[4] == 0.95
    assert row_of(table, "momentum", 0.1)[1:5] == [0.1, 5e-4, 0.0, 0.9]
    assert len([row for row in table.rows if row[0].value == "sgd"]) == 13
    assert table.missing == []
    few = papertables.make("1", planted.records(ALL[2]), [ALL[2]])
    assert few.missing == [f"{name}: no recipe" for name in ("momentum", "adam", "adamw", "muon")]


def test_tables_2_and_3_hold_validation_accuracy_at_three_moments() -> None:
    small, large = (papertables.make(name, RECORDS, ALL) for name in ("2", "3"))
    assert "σ = 0.1" in small.title
    assert "σ = 2.5" in large.title
    curves = [
        planted.histories(recipe(optimizer="adam", batch_size=16), 0.1, s)["val_accuracy"]
        for s in planted.SEEDS
    ]
    at = [np.array([c[i] for c in curves]) for i in (3, 5)]
    at.insert(0, np.array([c[1 + s % 2] for c, s in zip(curves, planted.SEEDS, strict=True)]))
    row = row_of(small, 16, "adam")
    assert np.allclose(means(row[2:5]), [100 * x.mean() for x in at], rtol=1e-12)
    assert np.allclose([cell.std for cell in row[2:5]], [100 * x.std(ddof=1) for x in at], rtol=1e-9)
    repaired = 100 * (at[1] - at[0])
    assert (row[5].mean, row[5].std) == pytest.approx((repaired.mean(), repaired.std(ddof=1)), rel=1e-9)
    assert (row[6], row[7].mean, row[8]) == ("2", 4.0, "3 of 3")
    early = row_of(small, 16, "muon")  # selected before it interpolates
    assert (early[6], early[7].mean) == ("5", 4.0)
    assert early[5].mean < 0
    never = row_of(large, 128, "sgd")
    assert (never[2], never[5], never[6], never[8]) == ("not reached", "", "> 6", "0 of 3")
    assert row_of(small, 64, "sgd")[2:] == [None] * 8
    assert "sgd b64: no runs" in small.missing


def test_table_2_takes_the_nearest_scale() -> None:
    made = planted.study("mine", planted.grid(optimizer=["sgd"], batch_size=[16]), scales=[0.3, 1.0])
    table = papertables.make("2", planted.records(made), [made])
    assert "σ = 0.3" in table.title


def test_table_4_has_scales_spread_train_and_the_rows_for_comparison() -> None:
    table = papertables.make("4", RECORDS, ALL, reference=True)
    names = [str(column) for column in table.columns]
    assert names[3:] == [
        *(f"σ = {s:g} (%)" for s in planted.SCALES),
        "spread (pp)",
        "spread, paper (pp)",
        "train (%)",
    ]
    row = row_of(table, 128, "sgd η = 0.01, λ = 0.001")
    expected = accuracies(recipe(optimizer="sgd", learning_rate=0.01, l2=1e-3, batch_size=128))
    assert np.allclose(means(row[3:8]), expected.mean(axis=1), rtol=1e-12)
    assert row[8] == pytest.approx(np.ptp(expected.mean(axis=1)), rel=1e-9)
    assert row[9] == "17.4"
    assert row[10] == pytest.approx(96.0)  # 100% at three scales, 90% at two
    assert row_of(table, 16, "adam η = 0.001")[9] == "1.6"
    long = row_of(table, 128, "sgd constant η, 9 epochs")
    assert long[2] == "constant, 9 epochs"
    assert [cell.n for cell in long[3:8]] == [1] * 5
    assert long[9] == "≈ 26.0"
    assert len(table.rows) == 28
    assert table.missing == []


def test_table_5_has_accuracies_above_and_epochs_below() -> None:
    table = papertables.make("5", RECORDS, ALL, reference=True)
    test = row_of(table, "test accuracy, %", 128, "sgd", "resnet56")
    one = recipe(model="resnet56", patience=30, optimizer="sgd", batch_size=128)
    assert np.allclose(means(test[4:9]), accuracies(one).mean(axis=1), rtol=1e-12)
    assert test[10] == "24.2"
    assert row_of(table, "τ_interp, epochs", 128, "sgd", "resnet56")[4:] == [
        "2",
        "2",
        "2",
        "> 6",
        "> 6",
        "",
        "",
    ]
    assert means(row_of(table, "τ_best, epochs", 16, "adam", "resnet9")[4:9]) == [4.0] * 5
    assert len(table.rows) == 4 * 16


def test_table_6_compares_norms() -> None:
    table = papertables.make("6", RECORDS, ALL, reference=True)
    layer = row_of(table, 16, "sgd", "layer norm, flip-crop")
    one = recipe(norm="layer", augment="flip-crop", optimizer="sgd", batch_size=16)
    assert layer[8] == pytest.approx(np.ptp(accuracies(one).mean(axis=1)), rel=1e-9)
    assert layer[9] == "5.1"
    assert row_of(table, 128, "adam", "batch norm, flip-crop")[9] == "≤ 3.5"


def test_table_7_sets_both_scales_side_by_side() -> None:
    table = papertables.make("7", RECORDS, ALL, reference=True)
    row = row_of(table, "momentum lr=0.1 l2=0.0005", 128)
    ends = accuracies(recipe(optimizer="momentum", learning_rate=0.1, l2=5e-4, batch_size=128)).mean(axis=1)[
        [0, -1]
    ]
    assert means([row[2], row[4]]) == pytest.approx(ends)
    assert (row[3], row[5], row[7]) == ("94.2", "94.2", "0.0")
    assert row[6] == pytest.approx(ends[0] - ends[1])
    assert row[8:] == ["2 / 2", "4 / 4"]
    assert row_of(table, "momentum lr=0.1 l2=0.0005", 16)[2] is None
    assert "momentum lr=0.1 l2=0.0005 b16: no runs" in table.missing
    assert "adam lr=0.001 b256: no runs" in table.missing


def test_a_change_of_the_study_by_its_user_gets_its_row() -> None:
    made = planted.study(
        "best-recipe",
        planted.grid(optimizer=["momentum"], learning_rate=[0.2], augment=["flip-crop"], batch_size=[128]),
    )
    table = papertables.make("7", planted.records(made), [made])
    assert row_of(table, "momentum lr=0.2", 128)[2].n == 3


def test_partial_seeds_show_their_number() -> None:
    some = [
        r
        for r in RECORDS
        if not (r.run.seed == 2 and r.run.scale == 0.1 and r.run.recipe.optimizer == "adam")
    ]
    text = render(papertables.make("2", some, ALL), "txt")
    (line,) = [line for line in text.splitlines() if line.split()[:2] == ["16", "adam"]]
    assert line.count("(2)") == 6
    assert "over n = 3 seeds; where n differs it is given in parentheses" in text
    assert "adam b16: 2 of 3 seeds at σ = 0.1" in text


# -- how they are written down ----------------------------------------------------------------------------


@pytest.fixture
def odd() -> Table:
    return paper_table(
        title="A table of a_b & <c>",
        columns=[
            Column("name_of", "text"),
            Column("σ", unit="%"),
            Column("spread", unit="pp"),
            Column("τ | x", "text"),
        ],
        rows=[
            ["a_b & <c>", Mean(85.04, 0.26, 3), cell(1.25, ".2f"), "> 300"],
            ["100% #1 {x} ~^\\$", Mean(80.0, None, 1), None, "*"],
        ],
        notes=["50% of a_b"],
        missing=["a_b: no runs"],
    )


def test_latex_is_escaped_and_booked(odd: Table) -> None:
    text = render(odd, ".tex")
    assert r"a\_b \& \textless{}c\textgreater{} & 85.0 $\pm$ 0.3 & 1.25 & \textgreater{} 300 \\" in text
    assert (
        r"100\% \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{}\$ & 80.0 (1) & --- & * \\"
        in text
    )
    assert r"name\_of & $\sigma$ (\%) & spread (pp) & $\tau$ \textbar{} x \\" in text
    assert r"\begin{tabular}{lrrl}" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 2, 1]
    assert r"50\% of a\_b." in text
    assert r"--- missing: a\_b: no runs." in text


def test_latex_escapes_every_special_sign_once() -> None:
    assert latex_escape("\\{}") == r"\textbackslash{}\{\}"
    assert not re.search(r"(?<!\\)[#%&_]", latex_escape("# % & _ a"))
    assert latex_escape("plain text, 1.5") == "plain text, 1.5"


def test_markdown_has_equal_cells_and_escapes_bars(odd: Table) -> None:
    lines = [line for line in render(odd, "md").splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 5 for line in lines)
    assert lines[0] == r"| name\_of | σ (%) | spread (pp) | τ \| x |"
    assert lines[1] == "|:---|---:|---:|:---|"
    assert lines[2] == r"| a\_b & \<c\> | 85.0 ± 0.3 | 1.25 | \> 300 |"


def test_csv_splits_means_and_can_be_read_back(odd: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(render(odd, "csv"))))
    assert rows[0] == {
        "name_of": "a_b & <c>",
        "σ (%)": "85.04",
        "σ std": "0.26",
        "σ n": "3",
        "spread (pp)": "1.25",
        "τ | x": "> 300",
    }
    assert (rows[1]["σ std"], rows[1]["spread (pp)"]) == ("", "")


def test_text_lines_up_and_names_what_is_missing(odd: Table) -> None:
    text = render(odd, "txt")
    lines = text.splitlines()
    assert lines[0] == "A table of a_b & <c>"
    assert "—" in next(line for line in lines if line.startswith("100%"))
    ends = [
        line.index(word) + len(word)
        for line, word in zip((lines[2], lines[4]), ("σ (%)", "85.0 ± 0.3"), strict=True)
    ]
    assert ends[0] == ends[1]  # numbers end under their head
    assert "— missing: a_b: no runs." in text


@pytest.mark.parametrize("name", NAMES)
def test_every_table_is_written_in_every_format_from_a_store_with_gaps(name: str) -> None:
    some: list[RunRecord] = [r for i, r in enumerate(RECORDS) if i % 3 and r.run.recipe.batch_size == 16]
    table = papertables.make(name, some, ALL, reference=True)
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert table.missing or name == "1"  # its rows come from what was asked for
    for ending in (".txt", ".md", ".tex", ".csv"):
        text = render(table, ending)
        assert text.count("\n") > len(table.rows)
        assert name == "1" or ending == ".csv" or "b128: no runs" in text.replace("\n", " ")


def test_the_preset_is_said_and_the_reference() -> None:
    table = papertables.make("4", RECORDS, ALL, reference=True)
    assert any(note.startswith("Study: main-grid (preset mini), lr-l2 (preset mini)") for note in table.notes)
    plain = papertables.make("4", RECORDS, ALL)
    assert not any("paper" in str(column) for column in plain.columns)
    assert not any("published" in note for note in table.notes)


def test_a_table_without_published_values_says_so() -> None:
    digits = planted.study("mine", planted.grid(dataset=["digits"], optimizer=["adam"], batch_size=[16]))
    for name in ("2", "3", "4", "5", "6", "7"):
        table = papertables.make(name, planted.records(digits), [digits], reference=True)
        assert "No published values for what is shown" in table.notes, name


def test_published_epochs_and_test_accuracies_stand_in_tables_2_3_and_5() -> None:
    small, large = (papertables.make(name, RECORDS, ALL, reference=True) for name in ("2", "3"))
    titles = [column.title for column in large.columns]
    assert titles[9:] == ["test", "test, paper", "τ_interp, paper", "τ_best, paper"]
    assert row_of(small, 16, "adam")[10:] == ["", "≈ 30 to 40", "≈ 5 to 7"]
    assert row_of(small, 128, "sgd")[10:] == ["85.0", "", ""]
    assert row_of(large, 128, "sgd")[10:] == ["58.6", "", ""]
    assert row_of(large, 128, "muon")[10:] == ["≈ 85.0", "", ""]
    one = recipe(optimizer="muon", batch_size=128)
    assert row_of(large, 128, "muon")[9].mean == pytest.approx(accuracies(one).mean(axis=1)[-1])
    depth = papertables.make("5", RECORDS, ALL, reference=True)
    assert row_of(depth, "train accuracy, last, %", 128, "sgd", "resnet9")[-1] == "> 99.0"
    assert row_of(depth, "train accuracy, last, %", 128, "sgd", "resnet56")[-1] == ""
    assert row_of(depth, "τ_best, epochs", 16, "adam", "resnet9")[-1] == "≈ 5 to 7"


def test_table_1_says_where_settings_differ_from_the_published_ones() -> None:
    table = papertables.make("1", RECORDS, ALL, reference=True)
    at = [column.title for column in table.columns].index("paper")
    assert [row_of(table, name, 1e-3, 0.0)[at] for name in ("momentum", "adamw", "muon")] == [
        "300 epochs"
    ] * 3
    assert row_of(table, "momentum", 0.1)[at] == ""
    full = planted.study("main-grid", [Recipe.parse({"optimizer": name}) for name in ("sgd", "adamw")])
    shown = papertables.make("1", RECORDS[:1], [full], reference=True)
    assert row_of(shown, "adamw")[at] == "as published"
    heavy = planted.study(
        "mine", [Recipe.parse({"optimizer": "adamw", "weight_decay": 0.1, "lr_floor": 0.0})]
    )
    shown = papertables.make("1", RECORDS[:1], [heavy], reference=True)
    assert row_of(shown, "adamw")[at] == "weight decay 0.0001, lr floor 0.01"


def test_table_7_says_when_its_runs_were_not_augmented() -> None:
    words = "trained without augmentation"
    plain = papertables.make("7", planted.records(ALL[0]), [ALL[0]])
    assert any(words in note for note in plain.notes)
    assert not any(words in note for note in papertables.make("7", RECORDS, ALL).notes)


def test_deviations_are_those_of_a_sample() -> None:
    assert mean_of([1.0, 2.0, 4.0, None]) == Mean(
        pytest.approx(7 / 3), pytest.approx(np.std([1, 2, 4], ddof=1)), 3
    )
    assert mean_of([5.0]) == Mean(5.0, None, 1)
    assert mean_of([None]) is None


def test_mistakes_are_explained(odd: Table) -> None:
    with pytest.raises(
        ConfigError, match=r"table format = 'docx' \(allowed: txt, md, tex, csv, markdown, latex\)"
    ):
        render(odd, "docx")
    with pytest.raises(ConfigError, match=r"table = '8' \(allowed: 1, 2"):
        papertables.make("8", RECORDS, ALL)
    with pytest.raises(StoreError, match="no finished run yet"):
        papertables.make("1", [], ALL)


def test_no_cell_of_a_csv_file_is_a_formula() -> None:
    rows = [{"name": "=1+1", "value": -1.5}, {"name": "@x", "value": 2.0}, {"name": "a-b", "value": 3.0}]
    columns = {"name": Column("-name", "text"), "value": number("value", "", ".1f")}
    lines = render(table_of("", rows, columns), "csv").splitlines()
    assert lines == ["'-name,value", "'=1+1,-1.5", "'@x,2.0", "a-b,3.0"]
