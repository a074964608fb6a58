"""Every bundled example runs, trains something, and ends with a verdict and what it means."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
import os
import re
import runpy
import sys
import tomllib
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import pytest

import initmem
from initmem.cli import app
from initmem.store.store import Store

pytestmark = pytest.mark.filterwarnings("ignore")  # those libraries warn about each other

FOLDER = Path(__file__).parents[1] / "examples"
VERDICT = re.compile(
    r"\w+.*: \w+ \S+( pp)? \[\S+, \S+\], noise range \S+, (remembers|forgets|inconclusive|untrained)\b"
)
MEANINGS = {
    "remembers": "which is significant at the 5% level",
    "forgets": "which is within the tolerance of",
    "inconclusive": "neither memory nor its absence is established",
    "untrained": "so there is nothing to remember",
}
# What may be said of training as short as here.
SHORT = (
    "no noise was measured",
    "every update used the same batch",
    "matched fit",
    "untrained",
    "chance is not known",
    "still improving",
    "own working directories",
)
# Each with a loss that training makes smaller.
EXAMPLES = {
    "char_gpt": "test_loss",
    "digits_vit": "val_loss",
    "grokking": "train_loss",
    "jax_optax": "val_loss",
    "keras_model": "train_loss",
    "lightning_module": "train_loss",
    "numpy_loop": "val_loss",
    "sklearn_mlp": "train_loss",
    "table_mlp": "val_loss",
    "transformers_trainer": "train_loss",
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {
        *EXAMPLES,
        "hydra_app",
        "plain_program",
        "wrapped_script",
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_ends_with_a_verdict_and_its_meaning(name: str, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--quick"])
    # In worker processes it would take longer: each imports everything again.
    here = functools.partial(initmem.run, engine="inline", progress=False)
    monkeypatch.setattr(initmem, "run", here)
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")

    # No note of failures or of parameters that were left as they are follows.
    lines = [line for line in capfd.readouterr().out.strip().splitlines() if "miss most memories" not in line]
    last = max(i for i, line in enumerate(lines) if VERDICT.match(line))
    assert MEANINGS[VERDICT.match(lines[last])[2]] in lines[last + 1]
    assert all(any(words in note for words in SHORT) for note in lines[last + 2 :])
    records = Store(tmp_path / "runs" / name).records()
    assert {record.status for record in records} == {"completed"}
    assert change(records, EXAMPLES[name]) < 0
    assert all({"train_accuracy", "train_loss"} & record.history.keys() for record in records)


def change(records: list[initmem.RunRecord], column: str) -> float:
    """What training makes of a quantity, from its first epoch to its last, in the mean of all runs."""
    return sum(record.history[column][-1] - record.history[column][0] for record in records) / len(records)


@pytest.mark.usefixtures("empty_folder", "no_workers", "programs_here")
def test_a_program_that_never_heard_of_initmem(tmp_path, capsys) -> None:
    page = (FOLDER / "plain_program.py").read_text()
    said = re.search(r"--command \\+\n +\"python examples/(.*?)\"", page)[1]
    said = said.replace("--epochs 30", "--epochs 4")
    options = ["--set", "scales=[0.1, 2.5]", "--set", "seeds=[0, 1]", "--store", str(tmp_path), "--json"]
    with pytest.raises(SystemExit) as ended:
        app(["run", "--command", f"{sys.executable} {FOLDER}/{said}", *options])
    assert ended.value.code in (0, None)
    assert json.loads(capsys.readouterr().out)["summary"]["completed"] == 4
    assert change(Store(tmp_path).records(), "val_loss") < 0
    assert change(Store(tmp_path).records(), "train_accuracy") > 0


# -- uv run examples/x.py ---------------------------------------------------------------------------------

SCRIPT = re.compile(r"(?m)^# /// script$\n((?:^#(?:| .*)$\n)+?)^# ///$")  # as PEP 723 defines it


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_declares_every_package_that_it_imports(path: Path) -> None:
    (header,) = SCRIPT.findall(path.read_text())
    metadata = tomllib.loads("".join(line[2:] or "\n" for line in header.splitlines(keepends=True)))
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    assert metadata["requires-python"] == project["requires-python"]
    declared = {re.split(r"[\[<>=]", name)[0] for name in metadata["dependencies"]}
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    tops = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    providers = importlib.metadata.packages_distributions()
    missing = {top for top in tops if not declared & set(providers.get(top, [top]))}
    assert missing == set()
    if "initmem" in declared:  # from this checkout, not from an index
        source = path.parent / metadata["tool"]["uv"]["sources"]["initmem"]["path"]
        assert source.resolve() == FOLDER.parent
