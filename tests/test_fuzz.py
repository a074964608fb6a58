"""Whatever is read from a study file, a store or a data file: at worst a clear error, nothing executed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from initmem.data.sources import load
from initmem.errors import ConfigError, DataError, StoreError
from initmem.files import read_bounded
from initmem.recipe import Recipe
from initmem.study_file import load_study

FUZZING = Path(__file__).with_name("fuzzing.py")


def test_bad_input_meets_clear_errors_alone(record_property) -> None:
    """A small share of what benchmarks/fuzz.py reads."""
    done = subprocess.run([sys.executable, FUZZING, "1500"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts.pop("breaches") == {}
    assert [problem for row in counts.values() for problem in row["problems"]] == []
    names = ("inputs", "read", "refused")
    rows = {reader: {name: row.get(name, 0) for name in names} for reader, row in counts.items()}
    assert sum(row["inputs"] for row in rows.values()) >= 1500
    assert sum(row["read"] for row in rows.values()) > 150  # much is still good after all: it is really read
    record_property("fuzz", rows)


def test_a_grid_without_end_is_refused_at_once(tmp_path: Path) -> None:
    axes = [f"{name} = {list(range(1, 11))}" for name in ("epochs", "batch_size", "width", "patience")]
    axes += [f"{name} = {[0.1 * n for n in range(1, 11)]}" for name in ("learning_rate", "epsilon", "l2")]
    path = tmp_path / "endless.toml"
    path.write_text("[[grid]]\n" + "\n".join(axes))
    with pytest.raises(ConfigError, match=r"the grid has 10,000,000 recipes \(allowed: up to 100,000\)"):
        load_study(str(path))


def test_a_study_without_end_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "endless.toml"
    path.write_text(f"scales = {[0.001 * n for n in range(1, 2001)]}\nseeds = {list(range(1000))}\n")
    with pytest.raises(ConfigError, match=r"2,000,000 runs \(allowed: up to 1,000,000\)"):
        load_study(str(path))
    path.write_text(
        f"scales = {[0.001 * n for n in range(1, 1001)]}\nseeds = {list(range(600))}\nchaos = true"
    )
    with pytest.raises(ConfigError, match=r"1,200,000 runs \(allowed: up to 1,000,000\)"):
        load_study(str(path))


def test_files_have_a_largest_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(28))
    assert read_bounded(path, 28) == path.read_bytes()
    with pytest.raises(StoreError, match=r"28 bytes \(allowed: up to 27\)"):
        read_bounded(path, 27)


def array_file(shape: tuple[int, ...], data: bytes) -> bytes:
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    text = repr(header).encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize("shape", [(1 << 40,), (30, 1 << 40), (29, 4), (31, 4), (-30, -4)])
def test_an_array_that_promises_what_its_file_does_not_hold_is_refused(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    path = tmp_path / "data.npz"

    def write(shape: tuple[int, ...]) -> Recipe:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", array_file(shape, bytes(120)))
            archive.writestr("y.npy", array_file((30,), bytes(range(30))))
        return Recipe(dataset=str(path), model="mlp")

    assert load(write((30, 4))).classes == 30
    with pytest.raises(DataError, match=r"data\.npz: (not a readable \.npz|x is|x has 29 examples)"):
        load(write(shape))


def test_labels_and_inputs_have_bounds(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    recipe = Recipe(dataset=str(path), model="mlp")
    np.savez(path, x=np.zeros((30, 4)), y=np.arange(30) * 10**12)
    with pytest.raises(DataError, match=r"labels from 0 to 29000000000000 \(allowed: 0 to 99,999\)"):
        load(recipe)
    np.savez(path, x=np.zeros((30, 0)), y=np.arange(30))
    with pytest.raises(DataError, match="needed: numbers of shape"):
        load(recipe)
