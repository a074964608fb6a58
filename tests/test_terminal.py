"""Tables in a terminal: nothing is cut, what leaves is named, and text from files is never obeyed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from conftest import fake_record
from initmem.cli import app, base, bundled, plan, results, run
from initmem.measures.measure import MEASURES
from initmem.plots import columns as listed
from initmem.plots.tables import fitted, meanings, print_table, printable
from initmem.store.store import Store
from initmem.study import Study
from initmem.table import Cell, Column, Table, cell, table_of

RESULTS = Path(__file__).parents[1] / "docs" / "results"
GRID, RATES, CHAOS = (str(RESULTS / f"{name}-mini.initmem") for name in ("main-grid", "lr-l2", "chaos"))
WIDTHS = (80, 100, 160)
NOT_THERE = ("chaos", "clocks", "collapse", "seeds", "layers", "function", "relaxation")  # in the archive
LONG = """
name = "a study with a long name"
scales = [0.1, 1.0, 2.5]
seeds = [0, 1]
[recipe]
dataset = "synthetic:100x1x8x8"
model = "mlp"
width = 2
batch_size = 16
epochs = 1
[[grid]]
optimizer = ["sgd", "momentum"]
learning_rate = [0.001, 0.12345]
l2 = [0.0, 0.00321]
"""
COMMANDS = [
    ["studies"],
    ["studies", "main-grid"],
    ["run", "LONG", "--store", "STORE", "--engine", "inline"],
    ["run", "LONG", "--store", "STORE", "--engine", "inline", "-v"],
    ["status", GRID],
    ["measure", "STORE"],
    ["measure", GRID],
    ["measure", GRID, "--metric", "test_loss"],
    *(["measure", RATES, "--what", what] for what in MEASURES if what not in NOT_THERE),
    *(["measure", GRID, "--what", what] for what in ("collapse", "clocks")),
    ["measure", CHAOS, "--what", "chaos"],
    *(["table", str(number), GRID, "--reference"] for number in (1, 2, 4, 7)),
    ["clocks", "LONG"],
    ["advise", "LONG", "--records", GRID],
    ["models"],
    ["data", "list"],
    ["theory", "fig9"],
]


class Screen(NamedTuple):
    """What one command printed at one width, and the tables it was asked to show."""

    width: int
    words: list[str]
    tables: list[Table]
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def has_legend(self) -> bool:
        return self.words[0] != "run" or "-v" in self.words


class Terminal(io.StringIO):
    """A stream that takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> list[Screen]:
    """Every command, printed on terminals of every width."""
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "long.toml").write_text(LONG)
    names = {"LONG": str(folder / "long.toml"), "STORE": str(folder / "store")}
    found = []
    for words in COMMANDS:
        printed: list[Callable[[], None]] = []
        tables: list[Table] = []

        def keep_line(text: str, *, err: bool = False, printed: list = printed) -> None:
            if not err:
                printed.append(lambda: base.say(text))

        def keep_table(
            table: Table, _: Console, *, legend: bool, printed: list = printed, tables: list = tables
        ) -> None:
            tables.append(table.without_pictures())
            printed.append(lambda: print_table(table, base.console(), legend=legend))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("initmem.plots.tables.print_table", keep_table)
            for module in (base, bundled, plan, results, run):
                patch.setattr(module, "say", keep_line)
            app([names.get(word, word) for word in words], standalone_mode=False)
        for width in WIDTHS:
            with pytest.MonkeyPatch.context() as patch, redirect_stdout(Terminal()) as stream:
                patch.setenv("COLUMNS", str(width))
                patch.setenv("TERM", "xterm")
                for show in printed:
                    show()
            text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
            found.append(Screen(width, words, tables, text))
    return found


def left_out(screen: Screen) -> list[str]:
    said = re.findall(r"left out to fit \d+ columns: (.*?) \(\| cat", " ".join(screen.text.split()))
    return [name for names in said for name in names.split(", ")]


def named(screen: Screen) -> str:
    return f"{screen.width}: initmem {' '.join(screen.words)}\n{screen.text}"


def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(screens: list[Screen]) -> None:
    for screen in screens:
        table = screen.text.partition("left out")[0]
        assert "…" not in table, named(screen)
        assert screen.tables, named(screen)
        for line in screen.lines:
            assert cell_len(line) <= screen.width or " " not in line.strip(), named(screen)  # a long path


def test_every_number_and_every_word_of_the_columns_that_stay_is_there(screens: list[Screen]) -> None:
    for screen in screens:
        for table in screen.tables:
            for i, column in enumerate(table.columns):
                if column.title in left_out(screen):
                    assert column.priority, f"{column.title} must stay. {named(screen)}"
                    continue
                for row in table.rows:
                    pieces = [row[i].text] if column.kind == "number" else row[i].text.split()
                    broken = screen.text.replace("\n", "")
                    for piece in pieces:
                        assert piece in screen.text or len(piece) > 30, f"{piece} of {named(screen)}"
                        assert len(piece) <= 30 or piece[:20] in broken


def test_columns_leave_in_the_order_of_their_priorities(screens: list[Screen]) -> None:
    seen = 0
    for screen in screens:
        for table in screen.tables:
            priorities = {column.title: column.priority for column in table.columns}
            gone = [priorities[name] for name in left_out(screen) if name in priorities]
            stay = [p for name, p in priorities.items() if p and name not in left_out(screen)]
            assert gone == sorted(gone, reverse=True), named(screen)
            assert not gone or max(stay, default=0) <= min(gone), named(screen)
            seen += len(gone)
    assert seen > 10  # narrow terminals do make columns leave


def test_p_debiased_and_noise_range_are_the_first_to_leave(screens: list[Screen]) -> None:
    for screen in screens:
        if screen.words[0] in ("measure", "run") and "--what" not in screen.words:
            order = ["p", "debiased", "noise range", "p (adjusted)", "scales × seeds", "at equal fit"]
            assert left_out(screen) == order[: len(left_out(screen))], named(screen)
    narrow = [s for s in screens if s.width == 80 and s.words[0] == "run"]
    assert all(map(left_out, narrow))
    wide = [s for s in screens if s.width == 160]
    of_memory = [s for s in wide if s.words[0] == "measure" and "--what" not in s.words]
    assert of_memory
    assert all(set(left_out(s)) <= {"p", "debiased"} for s in of_memory)


def test_a_legend_explains_every_column_that_is_shown(screens: list[Screen]) -> None:
    for screen in screens:
        text = " ".join(screen.text.split())
        for table in screen.tables:
            for column in table.columns:
                if column.title not in left_out(screen):
                    assert column.about, f"{column.title} of {named(screen)}"
                    assert (f": {column.about}" in text) == screen.has_legend, named(screen)


def test_tables_with_the_same_columns_share_one_legend(capsys) -> None:
    base.show(numbers(0, 0), numbers(0, 0))
    out = capsys.readouterr().out
    assert (out.count("title"), out.count("1,234,568"), out.count("c0, c1: x")) == (2, 2, 1)


def test_a_run_prints_a_table_and_one_line(screens: list[Screen]) -> None:
    """On stdout; the notes of a verdict stay with the table."""
    (brief,) = [s for s in screens if s.width == 160 and s.words[0] == "run" and not s.has_legend]
    (full,) = [s for s in screens if s.width == 160 and s.words[0] == "run" and s.has_legend]
    rule = next(i for i, line in enumerate(brief.lines) if line.startswith("──"))
    foot = [line for line in brief.lines[rule + 1 + len(brief.tables[0].rows) :] if line]
    assert foot[-1].startswith("48 runs trained in ") and "; next: initmem report " in foot[-1]
    notes = [f"{note}." for note in brief.tables[0].notes]
    assert "".join("".join(foot[:-1]).split()) == "".join("".join(notes).split())
    assert "metric: test_accuracy" in full.text and "metric: " not in brief.text


def test_memory_and_verdict_stand_in_one_line_at_80_columns(screens: list[Screen], command) -> None:
    """As the JSON has them."""
    (screen,) = [s for s in screens if s.width == 80 and s.words == ["measure", GRID]]
    _, told, _ = command("measure", GRID, "--json")
    for row in json.loads(told)["rows"]:
        (line,) = [line for line in screen.lines if line.startswith(f"{row['recipe']} ")]
        interval = f"{row['low']:.1f} to {row['high']:.1f}"
        for piece in (row["verdict"], f"{row['memory']:.1f}", interval):
            assert piece in line


def test_studies_begin_with_quickstart_and_take_one_line_each(screens: list[Screen]) -> None:
    for screen in screens:
        if screen.words == ["studies"]:
            rows = screen.tables[0].rows
            lines = [line.split()[0] for line in screen.lines if line.split()]
            start = lines.index("quickstart")
            assert lines[start : start + len(rows)] == [row[0].text for row in rows]
            assert len(rows) == 17


def test_a_pipe_shows_every_column(command) -> None:
    _, piped, _ = command("measure", GRID)
    head = next(line for line in piped.splitlines() if line.startswith("recipe"))
    assert re.sub(" +", " ", head).strip() == (
        "recipe verdict memory 95% interval train accuracy at equal fit noise range debiased p "
        "p (adjusted) scales × seeds"
    )
    assert "left out" not in piped


# -- the renderer ------------------------------------------------------------------------------------------


def printed(table: Table, width: int) -> str:
    stream = io.StringIO()
    print_table(table, Console(width=width, force_terminal=True, color_system=None, file=stream))
    return stream.getvalue()


def numbers(*priorities: int) -> Table:
    columns = [Column(f"c{i}", about="x", priority=p) for i, p in enumerate(priorities)]
    return Table("title", columns, [[cell(1234567 + i) for i in range(len(priorities))]])


def test_every_column_that_a_command_lists_has_a_meaning() -> None:
    tables = [table for table in vars(listed).values() if isinstance(table, dict)]
    of_tables = [table for table in tables if all(isinstance(one, Column) for one in table.values())]
    assert len(of_tables) == 8
    assert all(column.about for table in of_tables for column in table.values())


@pytest.mark.parametrize(
    ("width", "stay"),  # a number takes nine columns, and two lie between two of them
    [(53, "01234"), (52, "0134"), (42, "0134"), (41, "034"), (31, "034"), (30, "03"), (20, "03"), (19, "03")],
)
def test_the_largest_priority_leaves_first_and_ties_from_the_right(width: int, stay: str) -> None:
    kept, gone = fitted(numbers(0, 2, 3, 0, 1), width)
    titles = [column.title for column in kept.columns]
    assert titles == [f"c{i}" for i in stay]
    assert [column.title for column in gone] == ["c2", "c1", "c4"][: len(gone)]
    tie, left = fitted(numbers(0, 1, 1), 20)
    assert [column.title for column in tie.columns] == ["c0", "c1"]
    assert [column.title for column in left] == ["c2"]


def test_a_screen_too_narrow_for_any_table_gets_a_line_per_cell() -> None:
    text = printed(numbers(0, 0, 0), 20)
    lines = [line.rstrip() for line in text.splitlines()]
    assert "c0  1,234,567" in lines
    assert "c2  1,234,569" in lines
    assert max(map(len, lines)) <= 20


def test_numbers_do_not_wrap_and_long_words_break_without_loss() -> None:
    word = "x" * 75
    table = Table("", [Column("name", "text"), Column("n")], [[cell(f"a label {word}"), cell(1234567890)]])
    lines = [line.rstrip() for line in printed(table, 50).splitlines()]
    assert sum(line.count("x") for line in lines) == 75
    assert sum("1,234,567,890" in line for line in lines) == 1
    assert max(map(len, lines)) <= 50


def test_equal_meanings_share_a_line_of_the_legend() -> None:
    columns = [
        Column("a", about="first"),
        Column("b", about="same"),
        Column("c"),
        Column("d", about="same", unit="%"),
    ]
    assert meanings(columns) == ["a: first", "b, d (%): same"]


def test_rows_become_a_table_by_their_keys() -> None:
    columns = {"b": Column("B", form=".1f"), ("low", "high"): Column("interval", form=".2f")}
    table = table_of("t", [{"a": True, "low": 1.0, "high": 2.0, "b": 3.14159, "curve": {"x": 1}}], columns)
    assert [str(column) for column in table.columns] == ["B", "interval", "a"]
    assert [one.text for one in table.rows[0]] == ["3.1", "1.00 to 2.00", "yes"]
    assert [one.value for one in table.rows[0]][::2] == [3.14159, True]
    assert table.columns[2].priority > 0
    assert table_of("t", [], columns).rows == []


def test_cells_sort_by_value_unless_told_otherwise() -> None:
    assert cell(2.5).sort_key == 2.5
    assert cell("x").sort_key is None
    assert Cell("a to b", "a to b", order=0.5).sort_key == 0.5
    assert cell(None).sort_key is None


# -- text from files ---------------------------------------------------------------------------------------


def test_names_are_printed_as_they_are_and_never_obeyed(tmp_path: Path, tiny_study: Study, command) -> None:
    name = "x[/red] [v1] [bold]b[/bold] \x1b[31mred\x1b[2J a\rb \u202egnp :boom: \x9b5m"
    store = Store.create(tmp_path / "store")
    store.add_study(replace(tiny_study, name=name, title=name))
    store.commit([fake_record(run, 0.9 - 0.1 * run.scale) for run in tiny_study.all_runs()])
    code, out, complaint = command("status", store.path)
    assert (code, complaint) == (0, "")
    assert printable(name) in out
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out)
    code, out, complaint = command("run", f"{name}.toml")
    assert code == 2
    assert "No such file" in complaint
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", complaint)


def test_printable_text_stays_and_control_characters_become_visible() -> None:
    assert printable("β₁ = 0.9 [x] — é 漢字") == "β₁ = 0.9 [x] — é 漢字"
    assert printable("\x1b[31m\n\x9b\u202e") == r"\x1b[31m\n\x9b\u202e"


def test_a_label_of_user_code_is_no_markup(tmp_path: Path, command) -> None:
    from initmem.recipe import PipelineRecipe
    from initmem.study import Run

    recipe = PipelineRecipe.parse({"pipeline": "[/]\x1b[2Jmine"})
    study = Study("s", "", "full", "", recipes=(recipe,), scales=(0.5, 2.0), seeds=(0, 1, 2))
    store = Store.create(tmp_path / "store")
    store.add_study(study)
    rng = np.random.default_rng(0)
    store.commit(
        [fake_record(Run(recipe, r.scale, r.seed), 0.5 + rng.normal(0, 0.01)) for r in study.all_runs()]
    )
    for words in (["measure"], ["status"], ["measure", "--what", "radial"]):
        code, out, _ = command(*words, store.path)
        assert code == 0
        assert r"[/]\x1b[2Jmine" in out
        assert "\x1b" not in out
