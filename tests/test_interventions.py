"""Interventions: what they do to one network, that they leave its neighbors alone, and what is refused."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from initmem import register
from initmem.catalog import INTERVENTIONS
from initmem.data.dataset import Dataset, Sizes, noise
from initmem.errors import ConfigError
from initmem.intervention import Intervention, checked
from initmem.recipe import PipelineRecipe, Recipe
from initmem.study import Run
from initmem.study_file import load_study
from initmem.train.init import APPLY, initialized, replica_tensors
from initmem.train.loop import evaluate, evaluated_model, train_epoch, train_pack
from initmem.train.pack import Checkpoint, Pack
from initmem.train.requirements import check

SIZES = Sizes(32, 16, 16, 1, 8, 8, 3)
CPU = torch.device("cpu")
VIT = {"model": "vit", "width": 8, "patch": 4, "depth": 1, "heads": 2}


def recipe(**fields: object) -> Recipe:
    usual = {"dataset": "digits", "model": "mlp", "width": 8, "epochs": 4, "batch_size": 8, "train_size": 32}
    return Recipe.parse(usual | {"learning_rate": 0.05} | fields)


def data() -> Dataset:
    return noise(SIZES, n_train=32, n_val=16)


def run(text: str, *, seed: int = 0, of: Recipe | None = None) -> Run:
    return Run(of or recipe(), 1.0, seed, intervention=checked(text, of or recipe()) if text else "")


def initial(text: str, of: Recipe | None = None) -> dict[str, torch.Tensor]:
    network = initialized([run(text, of=of)], SIZES, device=CPU, dtype=torch.float64)
    return {name: value.clone() for name, value in replica_tensors(network, 0).items()}


def histories(*texts: str, of: Recipe | None = None) -> list[dict[str, list[float]]]:
    records = train_pack([run(text, of=of) for text in texts], data(), dtype=torch.float64)
    return [{k: v.tolist() for k, v in record.history.items() if k != "seconds"} for record in records]


# -- grammar ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("scale=2.5", ("scale", "2.5", "", 0)),
        ("scale=2@20", ("scale", "2", "", 20)),
        ("scale=2:residual2*@20", ("scale", "2", "residual2*", 20)),
        ("redraw=residual2*@20", ("redraw", "", "residual2*", 20)),
        ("reset-optimizer@3", ("reset-optimizer", "", "", 3)),
        ("mix=0.5:a@b/c.safetensors", ("mix", "0.5", "a@b/c.safetensors", 0)),
        ("none", ("none", "", "", 0)),
    ],
)
def test_an_intervention_is_read_and_written_alike(text: str, parts: tuple[str, str, str, int]) -> None:
    one = Intervention.parse(text)
    assert (one.word, one.value, one.target, one.epoch) == parts
    assert str(one) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("orthogonl", r"unknown word .*orthogonal"),
        ("scale", "scale=VALUE from 0"),
        ("scale=x", "scale=VALUE from 0"),
        ("shrink-perturb=1.5@1", "from 0 to 1"),
        ("reset-optimizer", "reset-optimizer@EPOCH"),
        ("orthogonal@2", "is an initialization"),
        ("scale=2@4", "the recipe has 4 epochs .allowed: @1 to @3"),
        ("mix=0.5", "mix=VALUE:FILE"),
        ("warm=1@2", "is an initialization"),
        ("mix=0.5:nowhere.safetensors", "No such file"),
        ("none:head", "without a target"),
    ],
)
def test_what_would_do_nothing_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        checked(text, recipe())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("scale=2:nothing*", "nothing here is named 'nothing.'"), ("zero-residual", "zero-residual=PATTERN")],
)
def test_layers_that_are_not_there_are_named_before_training(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(f'interventions = ["{text}"]\n[recipe]\ndataset = "digits"\nmodel = "mlp"\n')
    with pytest.raises(ConfigError, match=message):
        check(load_study(str(path)))


def test_schedule_free_optimizers_are_left_alone_in_training() -> None:
    with pytest.raises(ConfigError, match="average of the weights"):
        checked("scale=2@1", recipe(optimizer="schedule-free-sgd"))


# -- identity ---------------------------------------------------------------------------------------------


def test_a_run_keeps_its_id_in_any_spelling_and_a_file_counts_by_its_content(tmp_path: Path) -> None:
    assert run("scale=2.50@2").id == run("scale=2.5@2").id != run("scale=2.5").id
    assert Run.from_json(run("scale=2@2").to_json()) == run("scale=2@2")
    one, other = tmp_path / "w.safetensors", tmp_path / "b" / "w.safetensors"
    other.parent.mkdir()
    for path in (one, other):
        save_file({"x": torch.ones(1)}, path)
    first = run(f"mix=0.5:{one}")
    assert first.id == run(f"mix=0.5:{other}").id
    assert str(tmp_path) not in str(first.level) and str(first.level).startswith("mix=0.5:w.safetensors#")
    save_file({"x": torch.zeros(1)}, one)
    assert first.id != run(f"mix=0.5:{one}").id


def test_a_study_of_interventions_runs_each_at_scale_1(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        'interventions = ["none", "scale=2@2"]\nseeds = [0, 1]\n[recipe]\ndataset = "digits"\nepochs = 4\n'
    )
    study = load_study(str(path))
    assert [run.level for run in study.all_runs()] == ["none", "scale=2@2"] * 2
    assert {run.scale for run in study.all_runs()} == {1.0}
    assert type(study).from_json(study.to_json()) == study
    assert load_study(str(path), None, ["scales=[0.5, 2]"]).interventions == ()
    changed = load_study(str(path), None, ['interventions=["orthogonal"]'])
    assert changed.interventions == ("orthogonal",)
    path.write_text('scales = [1.0]\ninterventions = ["none"]\n')
    with pytest.raises(ConfigError, match="scales and interventions"):
        load_study(str(path))


# -- at the start -----------------------------------------------------------------------------------------


def test_a_scale_at_the_start_is_the_initialization_scale() -> None:
    scaled = initialized([Run(recipe(), 2.5, 0)], SIZES, device=CPU, dtype=torch.float64)
    ours = initial("scale=2.5")
    for name, value in replica_tensors(scaled, 0).items():
        torch.testing.assert_close(ours[name], value, rtol=1e-12, atol=0)


def test_schemes_draw_what_their_names_say() -> None:
    wide = recipe(width=64)
    plain, orthogonal = initial("none", wide), initial("orthogonal", wide)
    kernel = orthogonal["hidden2.kernel"]
    torch.testing.assert_close(kernel @ kernel.T, torch.eye(64, dtype=torch.float64))
    assert torch.equal(plain["hidden2.bias"], orthogonal["hidden2.bias"])
    uniform = initial("kaiming-uniform", wide)["hidden1.kernel"]
    limit = np.sqrt(6 / 64)
    assert 0.97 * limit < float(uniform.abs().max()) <= limit
    exact = initial("exact-norm", wide)
    for name in ("hidden1.kernel", "hidden2.kernel", "head.kernel"):
        assert float(exact[name].norm()) == pytest.approx(np.sqrt(exact[name].shape[0]), rel=1e-9)
        assert float(plain[name].norm()) != pytest.approx(np.sqrt(exact[name].shape[0]), rel=1e-5)


def test_residual_branches_begin_at_zero() -> None:
    before, deep = (initial(text, recipe(model="resnet56", width=2)) for text in ("", "zero-residual"))
    ends = {name for name in deep if name.endswith("conv2.kernel")}
    assert len(ends) == 27
    for name in deep:
        assert torch.equal(deep[name], torch.zeros_like(deep[name]) if name in ends else before[name])


def test_a_mix_lies_between_the_initialization_and_a_checkpoint(tmp_path: Path) -> None:
    pack = Pack([run("")], data(), dtype=torch.float64)
    train_epoch(pack)
    (saved,) = pack.checkpoint()
    save_file(saved.tensors, tmp_path / "w.safetensors")
    start = initial("")
    for share in (0.0, 0.25, 1.0):
        mixed = initial(f"mix={share}:{tmp_path / 'w.safetensors'}")
        for name, value in mixed.items():
            wanted = (1 - share) * start[name] + share * saved.tensors[f"best/{name}"].view_as(start[name])
            torch.testing.assert_close(value, wanted)
    with pytest.raises(ConfigError, match=r"hidden1\.kernel is of shape"):
        initial(f"mix=0.5:{tmp_path / 'w.safetensors'}", recipe(width=16))


# -- warm starts ------------------------------------------------------------------------------------------


def half() -> Dataset:
    return replace(data(), train=data().train.take(slice(0, 16)))


@pytest.mark.parametrize("fields", [{}, {"model": "resnet9", "width": 4, "optimizer": "adam"}, VIT])
def test_a_warm_start_is_a_mix_with_the_end_of_training_on_half_of_the_data(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    of = recipe(**fields)
    parent = Pack([run("", of=of)], half(), dtype=torch.float64)
    while not parent.finished:
        train_epoch(parent)
    path = tmp_path / "w.safetensors"
    save_file(
        {f"best/{name}": value.contiguous() for name, value in replica_tensors(parent.network, 0).items()},
        path,
    )
    untouched, halfway, whole = histories("none", "warm=0.5", "warm=1", of=of)
    assert [untouched, halfway, whole] == histories("none", f"mix=0.5:{path}", f"mix=1:{path}", of=of)
    assert untouched["norm"] != halfway["norm"] != whole["norm"]


def test_the_record_of_a_warm_run_names_its_parent() -> None:
    fresh, warm = train_pack([run("none"), run("warm=1", seed=3)], data())
    assert "parent" not in fresh.provenance
    other = Run(recipe(train_size=16), 1.0, 3)
    (alone,) = train_pack([other], half())
    assert warm.provenance["parent"] == {
        "run": other.id,
        "train_size": 16,
        "epochs": 4,
        "status": "completed",
        "train_accuracy": pytest.approx(alone.history["train_accuracy"][-1]),
        "val_accuracy": pytest.approx(alone.history["val_accuracy"][-1]),
    }


class Stopped(Exception):
    pass


def test_a_warm_run_is_resumed_without_its_parent_and_is_bit_equal() -> None:
    runs = [run("none"), run("warm=0.5"), run("warm=1", seed=1)]
    saved: list[Checkpoint] = []
    parents = []

    def stop(pack: Pack) -> None:
        saved[:] = pack.checkpoint()
        raise Stopped

    with pytest.raises(Stopped):
        train_pack(runs, data(), on_epoch=stop, on_parent=parents.append)
    assert len(parents) == 4  # epochs of both parents in one pack
    whole = train_pack(runs, data())
    resumed = train_pack(runs, data(), resume=saved, on_parent=stop)
    for one, other in zip(whole, resumed, strict=True):
        assert one.same_result(other)
        assert one.provenance.get("parent") == other.provenance.get("parent")
    with pytest.raises(Stopped):
        train_pack(runs, data(), on_parent=stop)


def test_warm_starts_are_refused_where_they_have_no_meaning() -> None:
    with pytest.raises(ConfigError, match=r"of user code .allowed: bundled networks"):
        checked("warm=1", PipelineRecipe.parse({"pipeline": "mine"}))
    with pytest.raises(ConfigError, match="with patience = 3"):
        checked("warm=1", recipe(patience=3))


# -- in training ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["scale=2@2", "redraw=hidden2@2", "shrink-perturb=0.4@2"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_intervention_changes_its_own_replica_from_the_next_epoch_on(text: str, optimizer: str) -> None:
    of = recipe(optimizer=optimizer)
    untouched, changed, neighbor = histories("none", text, "none", of=of)
    assert [untouched, neighbor] == histories("", "", "", of=of)[::2]
    for name in ("val_cross_entropy", "norm"):
        assert untouched[name][:2] == changed[name][:2]
        assert untouched[name][2] != changed[name][2]


def test_redrawing_one_layer_leaves_the_others_and_depends_on_the_seed_alone() -> None:
    pack = Pack([run("redraw=hidden2*@1"), run("redraw=hidden2*@1")], data(), dtype=torch.float64)
    train_epoch(pack)
    before = [replica_tensors(pack.network, r) for r in (0, 1)]
    before = [{name: value.clone() for name, value in tensors.items()} for tensors in before]
    pack.intervene()
    after = [replica_tensors(pack.network, r) for r in (0, 1)]
    for r in (0, 1):
        changed = {name for name, value in after[r].items() if not torch.equal(value, before[r][name])}
        assert changed == {"hidden2.kernel", "hidden2.bias"}
    assert torch.equal(after[0]["hidden2.kernel"], after[1]["hidden2.kernel"])
    assert float(after[0]["hidden2.kernel"].std()) == pytest.approx(1 / np.sqrt(8), rel=0.3)


def test_resetting_the_optimizer_clears_the_moments_of_one_replica() -> None:
    of = recipe(optimizer="adam")
    pack = Pack([run("none", of=of), run("reset-optimizer@1", of=of)], data())
    train_epoch(pack)
    pack.intervene()
    kept, cleared = pack.checkpoint()
    moments = [name for name in kept.tensors if name.startswith(("mean/", "square/"))]
    assert moments
    assert all(kept.tensors[name].any() and not cleared.tensors[name].any() for name in moments)


@pytest.mark.parametrize("after", [2, 2.5])
def test_a_run_that_is_resumed_around_its_intervention_is_bit_equal(after: float) -> None:
    runs = [run("none"), run("scale=2@2"), run("redraw@2", seed=1)]
    whole = train_pack(runs, data())
    pack = Pack(runs, data())
    train_epoch(pack), train_epoch(pack)
    if after == 2.5:
        assert not train_epoch(pack, lambda: True)
    resumed = train_pack(runs, data(), resume=pack.checkpoint())
    assert all(one.same_result(other) for one, other in zip(whole, resumed, strict=True))


def test_interventions_reach_plain_modules() -> None:
    of = recipe(**VIT)
    untouched, scaled, redrawn = histories("none", "scale=2@1", "redraw=head*@1", of=of)
    assert untouched["norm"][0] == scaled["norm"][0] == redrawn["norm"][0]
    assert scaled["norm"][1] == pytest.approx(2 * untouched["norm"][1], rel=0.1)
    assert redrawn["norm"][1] != untouched["norm"][1]


def test_with_batch_norm_a_rescaling_leaves_validation_accuracy_as_it_is() -> None:
    of = recipe(model="resnet9", width=4, batch_statistics="re-estimated")
    pack = Pack([run("scale=2:kernels,biases@2", of=of)], data(), dtype=torch.float64)
    train_epoch(pack), train_epoch(pack)

    def measured() -> tuple[float, float]:
        with evaluated_model(pack, pack.batches(2)):
            return float(evaluate(pack, pack.val)[1]), float(pack.kernel_squares().sqrt())

    accuracy, norm = measured()
    pack.intervene()
    again, doubled = measured()
    assert again == pytest.approx(accuracy, abs=1e-9)
    assert doubled == pytest.approx(2 * norm, rel=1e-12)


# -- plugins ----------------------------------------------------------------------------------------------


def test_the_plugin_of_the_page_is_an_intervention_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "interventions.md").read_text()
    *_, plugin = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    (tmp_path / "clipping.py").write_text(plugin)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    register.load(["clipping"])
    wide = recipe(width=64)
    before, after = initial("", wide), initial("clip-weights=0.1:hidden2", wide)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"hidden2.kernel"}
    torch.testing.assert_close(after["hidden2.kernel"], before["hidden2.kernel"].clamp(-0.1, 0.1))
    with pytest.raises(ConfigError, match="clip-weights=VALUE from 0 to 10"):
        checked("clip-weights=11", wide)
    with pytest.raises(ConfigError, match="comes with initmem"):
        register.intervention("scale")(lambda state: None)


def test_the_page_lists_every_word() -> None:
    page = (Path(__file__).parents[1] / "docs" / "interventions.md").read_text()
    words = set(re.findall(r"^\| `([a-z-]+)", page, flags=re.M))
    assert words - {"schemes", "relax", "layers", "finetune"} == set(INTERVENTIONS) == set(APPLY)
