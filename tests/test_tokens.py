"""Token data: sums modulo a number, and the characters of a text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from initmem.data.sources import load, sizes
from initmem.errors import ConfigError, DataError
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.study_file import load_study


def test_sums_are_right_and_every_pair_is_in_one_split() -> None:
    recipe = Recipe(dataset="modular-addition:13:0.3")
    data = load(recipe)
    assert sizes(recipe) == data.sizes == (51, 59, 59, 1, 1, 3, 13, 14, 1)
    pairs = []
    for part in (data.train, data.val, data.test):
        a, b, sign = part.x[:, 0, :, 0].T
        assert ((a + b) % 13 == part.y).all() and (sign == 13).all()
        pairs += list(zip(a.tolist(), b.tolist(), strict=True))
    assert sorted(pairs) == [(a, b) for a in range(13) for b in range(13)]
    assert not np.array_equal(data.train.y[:20], np.sort(data.train.y[:20]))  # permuted
    assert np.array_equal(load(recipe).train.x, data.train.x)


BAD_NAMES = (
    "modular-addition:2", "modular-addition:x", "modular-addition:7:1.0", "modular-addition:7:0.5:1",
    "text:1", "text:x", "text:-3:file",
)  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_of_token_data_are_one_line(name: str) -> None:
    with pytest.raises(DataError, match=f"dataset = '{name}' .allowed: "):
        sizes(Recipe(dataset=name))


def test_the_label_of_a_character_is_the_next_one(tmp_path: Path) -> None:
    text = "".join(chr(97 + i % 26) for i in range(1003)) + "ö"
    file = tmp_path / "letters.txt"
    file.write_text(text)
    data = load(Recipe(dataset=f"text:10:{file}"))
    assert data.sizes == (80, 10, 10, 1, 1, 10, 27, 27, 10)
    parts = [data.train, data.val, data.test]
    x = np.concatenate([part.x[:, 0, :, 0] for part in parts]).ravel()
    y = np.concatenate([part.y for part in parts]).ravel()
    order = sorted(set(text))
    assert "".join(order[token] for token in x) == text[:1000]
    assert "".join(order[token] for token in y) == text[1:1001]
    file.write_text("short")
    with pytest.raises(DataError, match="at least 201"):
        load(Recipe(dataset=f"text:10:{file}"))


def test_a_text_file_is_known_by_its_content(tmp_path: Path) -> None:
    study, file = tmp_path / "study.toml", tmp_path / "words.txt"
    study.write_text(f'[recipe]\nmodel = "gpt"\ndataset = "text:8:{file}"\n')
    ids = []
    for text in ("a b" * 100, "a b" * 100, "b a" * 100):
        file.write_text(text)
        (recipe,) = load_study(str(study)).recipes
        ids.append(recipe.id)
    assert ids[0] == ids[1] != ids[2]
    moved = tmp_path / "moved.txt"
    file.rename(moved)
    study.write_text(study.read_text().replace("words", "moved"))
    (again,) = load_study(str(study)).recipes
    assert again.id == ids[2]  # where it lies does not count
    study.write_text(study.read_text().replace("text:8", "text:9"))
    assert load_study(str(study)).recipes[0].id != ids[2]  # but how it is cut does
    run = Run(again, 1.0, 0)
    assert Run.from_json(run.to_json()) == run and load(run.recipe).sizes.width == 8
    moved.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        load_study(str(study))
