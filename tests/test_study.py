from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from initmem import study_file as studies
from initmem.errors import ConfigError
from initmem.recipe import PipelineRecipe, Recipe
from initmem.study import Run, Study
from initmem.study_file import load_study


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_quickstart_is_three_recipes_five_scales_six_seeds() -> None:
    study = load_study("quickstart")
    runs = study.all_runs()
    assert (len(study.recipes), len(study.scales), len(study.seeds)) == (3, 5, 6)
    assert len(runs) == 90 == len({run.id for run in runs})
    assert study.labels() == ["sgd lr=0.01", "sgd lr=0.1 l2=0.02", "adam lr=0.01"]


def test_golden_run_ids() -> None:
    """These must never change: a new field with a default keeps the ids of earlier runs."""
    assert Run(Recipe(), 1.0, 0).id == "ec637d9d0fc87453"
    assert Run(Recipe(), 1.0, 0, (("order", 7),)).id == "54888b6c018ae5c0"
    assert Run(Recipe(), 1.0, 0, perturbation=1.001).id == "9f529e818c3fb78d"
    assert Run(Recipe(lr_floor=0.5, scaled="biases"), 1.0, 0).id == "51aa26a3159a420e"
    user_code = PipelineRecipe.parse({"pipeline": "mine", "batch_size": 32, "optimizer": "adam"})
    assert Run(user_code, 0.5, 1).id == "1fcf9a114fd3d626"
    assert load_study("quickstart").all_runs()[0].id == "6da83011179fd5e2"


def test_what_a_user_declares_counts_even_where_it_equals_a_default() -> None:
    said = {"pipeline": "mine", "batch_size": 128, "epochs": 300, "optimizer": "sgd"}
    declared, silent = PipelineRecipe.parse(said), PipelineRecipe.parse({"pipeline": "mine"})
    assert declared.get("batch_size") == 128 and silent.get("batch_size") is None
    assert Run(declared, 1.0, 0).id != Run(silent, 1.0, 0).id
    assert Run.from_json(Run(declared, 1.0, 0).to_json()).recipe == declared


def test_a_grid_is_a_product_and_duplicates_merge(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        scales = [1.0]
        seeds = [0]
        [recipe]
        dataset = "digits"
        [[grid]]
        optimizer = ["sgd", "adam"]
        batch_size = [16, 128]
        [[grid]]
        optimizer = "sgd"
        batch_size = 16
        """,
    )
    found = {(r.optimizer, r.batch_size) for r in load_study(path).recipes}
    assert found == {("sgd", 16), ("sgd", 128), ("adam", 16), ("adam", 128)}
    assert len(load_study(path).recipes) == 4


def test_overrides_win_over_the_grid_and_can_be_axes() -> None:
    study = load_study(
        "quickstart", overrides=["optimizer=momentum", "batch_size=[16, 32]", "seeds=[7]", "scales=1.5"]
    )
    assert {r.optimizer for r in study.recipes} == {"momentum"}
    assert {r.batch_size for r in study.recipes} == {16, 32}
    assert (study.seeds, study.scales) == ((7,), (1.5,))


def test_lists_have_brackets_or_commas_and_one_number_is_no_list_of_seeds() -> None:
    study = load_study("quickstart", overrides=["scales=0.1,1", "seeds=3,5", "learning_rate=0.1, 0.2"])
    assert (study.scales, study.seeds) == ((0.1, 1.0), (3, 5))
    assert {recipe.learning_rate for recipe in study.recipes} == {0.1, 0.2}
    assert study.about == "with scales=0.1,1, with seeds=3,5, with learning_rate=0.1, 0.2"
    with pytest.raises(ConfigError, match=r"seeds = 5 .allowed: a list.*--seeds 5 for the seeds 0 to 4"):
        load_study("quickstart", overrides=["seeds=5"])


def test_more_seeds_only_append_runs() -> None:
    few = load_study("quickstart", overrides=["seeds=[0, 1]"])
    many = load_study("quickstart", overrides=["seeds=[0, 1, 2]"])
    for recipe in few.recipes:
        assert many.runs(recipe)[: len(few.runs(recipe))] == few.runs(recipe)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("scales = [", "not valid TOML"),
        ("scales = []", "scales"),
        ("scales = [0.0]", "scales.0 = 0.0"),
        ("seeds = [-1]", "seeds.0 = -1"),
        ("color = 1", "unknown field color = 1"),
        ("[[grid]]\noptimizer = []", "empty list"),
        ('[recipe]\noptimizer = "sgdd"\nbatch_size = 0', "optimizer = 'sgdd'.*batch_size = 0"),
        ('color = 1\n[recipe]\noptimizer = "sgdd"', "color.*sgdd"),
    ],
)
def test_a_bad_file_is_explained(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_study(write(tmp_path, text))


@pytest.mark.parametrize("text", ["nokey", "=3"])
def test_a_bad_override_is_explained(text: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        load_study("quickstart", overrides=[text])


def test_an_unknown_preset_or_study_names_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"preset = 'huge' .allowed: demo, smoke"):
        load_study("quickstart", "huge")
    with pytest.raises(ConfigError, match=r"nosuch.*quickstart"):
        load_study("nosuch")


def test_an_npz_is_known_by_its_content(tmp_path: Path) -> None:
    def digest(folder: str, values: np.ndarray) -> Recipe:
        path = tmp_path / folder / "data.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, x=values, y=np.arange(len(values)) % 2)
        return studies.single([f"dataset={path}"])

    first = digest("a", np.zeros((30, 4)))
    moved = digest("b", np.zeros((30, 4)))
    changed = digest("a", np.ones((30, 4)))
    assert first.dataset != moved.dataset
    assert first.id == moved.id != changed.id


def test_json_round_trip(tiny_study: Study) -> None:
    assert Study.from_json(tiny_study.to_json()) == tiny_study
    pinned = Run(tiny_study.recipes[0], 0.3, 5, (("augment", 2),))
    assert Run.from_json(pinned.to_json()) == pinned
    assert (pinned.seed_of("augment"), pinned.seed_of("order")) == (2, 5)
