"""What plugins register: names, options, ids, packs, and what is refused."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

import initmem
from initmem import register
from initmem.data.sources import load, sizes
from initmem.engines.packs import packs
from initmem.engines.plan import plan
from initmem.errors import ConfigError, InitmemError, ModelError
from initmem.labels import labels
from initmem.recipe import Recipe, stored_recipe
from initmem.store.store import Store
from initmem.study import Run, Study, recipe_json
from initmem.study_file import load_study
from initmem.train.loop import train_epoch, train_pack
from initmem.train.modules import obstacle
from initmem.train.optimizers import optimizer_for
from initmem.train.pack import Pack
from initmem.train.requirements import check

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"
PLUGIN, FADING, SPIRALS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
STUDY = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)[0]
TINY = {"dataset": "synthetic:60x1x8x8", "width": 4, "batch_size": 12, "epochs": 2, "learning_rate": 0.01}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the plugin and the study of the page, as the current one."""
    (tmp_path / "convmixer.py").write_text(PLUGIN)
    (tmp_path / "mixing.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "convmixer", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(initmem.__file__).parents[1]))
    return tmp_path


def study_of(*recipes: Recipe) -> Study:
    return Study("own", "Own", "full", "", recipes, (0.5, 1.0), (0, 1))


def flat(input, outputs, width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(int(np.prod(input)), width), nn.ReLU(), nn.Linear(width, outputs)
    )


def test_the_plugin_of_the_page_has_at_most_30_lines() -> None:
    assert len(PLUGIN.splitlines()) <= 31  # the first is its name


def test_options_are_read_off_the_signature() -> None:
    @register.model("own")
    def own(
        input, outputs, width, *, depth: int = 2, rate=0.5, kind: Literal["a", "b"] = "a", bias: bool = True
    ):
        """Not called."""

    assert register.models.find("own").options == {
        "depth": (int, 2), "rate": (float, 0.5), "kind": (Literal["a", "b"], "a"), "bias": (bool, True),
    }  # fmt: skip
    recipe = Recipe.parse({"model": "own", "depth": 3, "rate": 1, "kind": "b", "bias": False})
    assert recipe.network_options() == {"depth": 3, "rate": 1.0, "kind": "b", "bias": False}
    with pytest.raises(ConfigError) as caught:
        Recipe.parse({"model": "own", "depth": 2.5, "kind": "c", "bias": 1, "dept": 1, "learning_rate": -1.0})
    said = str(caught.value)
    assert "depth = 2.5 (allowed: a valid integer)" in said
    assert "kind = 'c' (allowed: 'a' or 'b')" in said
    assert "bias = 1 (allowed: a valid boolean)" in said
    assert "unknown field dept = 1 (did you mean depth?)" in said
    assert "learning_rate = -1.0" in said


def test_an_option_is_part_of_id_and_label_unless_it_is_the_default() -> None:
    register.model("own")(lambda input, outputs, width, depth=2: None)
    plain, same, deep = (Recipe.parse({"model": "own"} | more) for more in ({}, {"depth": 2}, {"depth": 3}))
    assert plain == same and plain.id == same.id != deep.id
    assert labels([plain, deep]) == ["sgd depth=2", "sgd depth=3"]
    other = Recipe.parse({"model": "mlp"})
    assert labels([plain, other]) == ["sgd own w64", "sgd mlp w256"]  # one value tells nothing apart
    assert deep.get("depth") == 3 and plain.get("depth") == 2


def test_a_store_is_read_without_the_plugin() -> None:
    register.model("own")(lambda input, outputs, width, depth=2: None)
    recipe = Recipe.parse({"model": "own", "depth": 3, "epochs": 2})
    content = recipe_json(recipe)
    register.models._things.clear()
    again = stored_recipe(content)
    assert again == recipe and again.id == recipe.id
    with pytest.raises(ConfigError, match=r"model = 'own' \(allowed: resnet9, .*gpt; --plugin MODULE brings"):
        Recipe.parse(content)


def test_settings_that_would_do_nothing_are_refused() -> None:
    for values, text in (
        ({"model": "vit", "norm": "layer"}, "norm = 'layer' with model = 'vit'"),
        ({"model": "mlp", "init_mode": "rescale"}, "init_mode = 'rescale' with model = 'mlp'"),
        ({"model": "vit", "init_mode": "rescale", "bias_std": 0.1}, "bias_std = 0.1 with init_mode"),
    ):
        with pytest.raises(ConfigError, match=re.escape(text)):
            Recipe.parse(values)


@pytest.mark.parametrize(
    ("name", "build", "text"),
    [
        ("resnet9", flat, "this model comes with initmem"),
        ("vit", flat, "this model comes with initmem"),
        ("two words", flat, "a name of letters, digits, - and _"),
        ("own", 3, "3 cannot be called"),
        ("own", lambda x, y: None, r"the builder takes \(x, y\)"),
        ("own", lambda input, outputs, width, **more: None, "option more has no default"),
        ("own", lambda input, outputs, width, depth: None, "option depth has no default"),
        ("own", lambda input, outputs, width, depth=(1, 2): None, "option depth is of type tuple"),
    ],
)
def test_a_bad_registration_is_one_clear_line(name: str, build: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        register.model(name)(build)
    assert "\n" not in str(caught.value)


def test_two_plugins_cannot_share_a_name() -> None:
    register.model("own")(flat)
    register.model("own")(flat)  # the same again, as when a module is reloaded
    with pytest.raises(
        ConfigError, match=r"register.model\('own'\): test_plugins.flat has this name already"
    ):
        register.model("own")(lambda input, outputs, width: None)
    with pytest.raises(ConfigError, match="this dataset comes with initmem"):
        register.dataset("digits")(dict)


def test_an_option_named_like_a_field_is_refused_where_it_is_used() -> None:
    register.model("own")(lambda input, outputs, width, epochs=2: None)
    with pytest.raises(ConfigError, match="epochs: a field of every recipe"):
        Recipe.parse({"model": "own", "epochs": 3, "depth": 1})


def test_a_study_file_alone_imports_nothing(folder: Path) -> None:
    (folder / "convmixer.py").write_text("raise SystemExit('imported')\n")
    with pytest.raises(ConfigError, match="model = 'convmixer'"):
        load_study("mixing.toml")
    (folder / "mixing.toml").write_text('plugins = ["convmixer"]\n' + STUDY)
    with pytest.raises(ConfigError, match="unknown field plugins"):
        load_study("mixing.toml")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise ValueError('boom\\nand more')", "plugin broken: cannot be imported (ValueError: boom)"),
        ("import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("import sys; sys.exit(3)", "plugin broken: cannot be imported (SystemExit: 3)"),
        ("def (", "plugin broken: cannot be imported (SyntaxError: "),
    ],
)
def test_a_broken_plugin_is_one_clear_line(folder: Path, command, code: str, text: str) -> None:
    (folder / "broken.py").write_text(code + "\n")
    status, _, said = command("plan", "mixing.toml", "--plugin", "broken")
    assert status == 2 and text in said and len(said.splitlines()) == 1


class Wrong(nn.Module):
    def __init__(self, output) -> None:
        super().__init__()
        self.layer, self.output = nn.Linear(8, 8), output

    def forward(self, x):
        return self.output(self.layer(x))


def _raise(*_: object) -> None:
    raise RuntimeError("the builder's own words")


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (_raise, "its builder raised RuntimeError: the builder's own words"),
        (lambda: 3, "its builder returned an object of type int (needed: a torch.nn.Module)"),
        (lambda: Wrong(lambda x: x), "its output for 2 examples has shape (2, 1, 8, 8) (needed: (2, 10))"),
        (lambda: Wrong(lambda x: (x, x)), "its output is tuple"),
        (lambda: Wrong(lambda x: x.argmax(-1)), "its output is torch.int64"),
        (lambda: Wrong(_raise), "its forward pass raised RuntimeError: the builder's own words"),
        (lambda: nn.Sequential(nn.Flatten()), "no kernel among its parameters (it has none;"),
        (lambda: nn.Sequential(nn.LazyLinear(10)), "has no shape yet"),
    ],
)
def test_a_broken_network_is_refused_before_anything_is_trained(build, text: str) -> None:
    register.model("own")(lambda input, outputs, width: build())
    with pytest.raises(ModelError, match=re.escape(text)) as caught:
        check(study_of(Recipe.parse(TINY | {"model": "own"})))
    assert "\n" not in str(caught.value)


def test_tokens_and_images_are_not_mixed_up() -> None:
    for model, dataset, text in (
        ("mlp", "modular-addition:7", "model = 'mlp' cannot take tokens"),
        ("vit", "modular-addition:7", "'vit' reads images, not tokens"),
        ("gpt", "synthetic", "'gpt' reads tokens, not images"),
    ):
        with pytest.raises(ModelError, match=text):
            check(study_of(Recipe.parse({"model": model, "dataset": dataset})))


def test_installed_packages_bring_plugins_by_entry_point(folder: Path) -> None:
    about = folder / "mixers-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mixers\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[initmem.plugins]\nconvmixer = convmixer\n")
    sys.path.insert(0, str(folder))
    assert load_study("mixing.toml").recipes[0].model == "convmixer"
    assert register.models.names() == ["convmixer"]


def test_a_registered_dataset_is_trained_on() -> None:
    exec(SPIRALS, {})
    register.model("own")(flat)
    recipe = Recipe.parse(TINY | {"model": "own", "dataset": "spirals"})
    assert sizes(recipe)[:3] == (240, 80, 80) and load(recipe).classes == 2
    check(study_of(recipe))
    for function, text in (
        (_raise, "its function raised RuntimeError"),
        (lambda: {"x": np.zeros(3)}, "contains x"),
        (lambda: {"x": np.zeros((30, 4)), "y": np.zeros(30)}, "y is float64"),
    ):
        register.datasets._things["other"] = function
        with pytest.raises(InitmemError, match=text):
            load(Recipe.parse(TINY | {"dataset": "other"}))


class Dropping(nn.Sequential):
    def __init__(self, outputs: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, outputs))


class Branching(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, outputs)

    def forward(self, x):
        y = self.layer(x.flatten(1))
        return y if y.sum() > 0 else 2 * y


class Mixing(nn.Module):
    """Its batch statistics live in a buffer that it replaces."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, outputs)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        x = x.flatten(1)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.layer(x - self.mean)


@pytest.mark.parametrize(
    ("network", "text"),
    [
        (Dropping, "random numbers"),
        (Branching, "control flow"),
        (Mixing, "do not follow the trajectories"),
    ],
)
@pytest.mark.usefixtures("untimed")
def test_what_cannot_be_packed_is_trained_alone_and_plan_says_so(network, text: str) -> None:
    register.model("own")(lambda input, outputs, width: network(outputs))
    recipe = Recipe.parse(TINY | {"model": "own"})
    study = study_of(recipe)
    assert text in obstacle(recipe, sizes(recipe))
    assert {len(pack) for pack in packs(study, size=4, workers=1)} == {1}
    ((row,), _) = plan(study, workers=1)
    assert row["pack"] == 1 and row["note"].startswith("trains alone: ") and text in row["note"]


@pytest.mark.usefixtures("untimed")
def test_packable_modules_are_packed_and_parameters_without_a_rule_are_named() -> None:
    class Shifted(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.shift, self.layer = nn.Parameter(torch.ones(64)), nn.Linear(64, outputs)

        def forward(self, x):
            return self.layer(x.flatten(1) + self.shift)

    register.model("own")(lambda input, outputs, width: Shifted(outputs))
    ((row,), _) = plan(study_of(Recipe.parse(TINY | {"model": "own"})), workers=1)
    assert (row["pack"], row["note"]) == (4, "as the builder made them: shift")


@pytest.mark.usefixtures("no_workers")
def test_the_plugin_of_the_page_resumes_after_sigkill_to_the_same_records(folder: Path, command) -> None:
    """Swept over scale, optimizer and option, packed, killed in the middle; then its code is edited."""
    (folder / "mixing.toml").write_text(STUDY.replace("train_size = 200", "train_size = 60"))
    arguments = ("run", "mixing.toml", "--plugin", "convmixer", "--store", "store", "--workers", "1")
    killed = subprocess.Popen(
        [sys.executable, "-m", "initmem", *arguments, "--checkpoint-every", "0"],
        cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while not list(folder.rglob("*.safetensors")):
        assert killed.poll() is None
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = len(Store(folder / "store").records())
    assert command(*arguments)[0] == 0
    study = load_study("mixing.toml")
    cut = packs(study, size=None, workers=1)
    expected = [record for pack in cut for record in train_pack(pack, load(pack[0].recipe))]
    found = {record.id: record for record in Store(folder / "store").records()}
    assert before < len(found) == len(expected) == 24
    assert all(found[record.id].same_result(record) for record in expected)
    assert {record.provenance["pack"] for record in found.values()} == {6}
    assert max(record.provenance["attempts"] for record in found.values()) == 2  # some did resume

    (folder / "convmixer.py").write_text(PLUGIN.replace("nn.GELU()", "nn.ReLU()"))
    del sys.modules["convmixer"]
    status, _, said = command(*arguments)
    assert status == 2
    assert "24 of 24 runs" in said and "module convmixer was edited" in said and "--keep-old" in said
    del sys.modules["convmixer"]
    assert command(*arguments, "--keep-old")[0] == 0


def test_models_lists_options_of_plugins(folder: Path, command) -> None:
    status, said, _ = command("models", "--plugin", "convmixer")
    assert status == 0
    assert re.search(r"^convmixer +64 +[\d,]+ +[\d,]+ +patch=2, depth=2 *$", said, flags=re.M)
    assert re.search(r"^gpt +64 .* depth=4, heads=4, tied=False *$", said, flags=re.M)


def test_runs_differ_by_what_the_builder_draws_itself() -> None:
    """A parameter without a rule comes from a generator that the run seeds, not from a global one."""
    from initmem.train.modules import module_pack

    class Random(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.shift, self.layer = nn.Parameter(torch.randn(64)), nn.Linear(64, outputs)

    register.model("own")(lambda input, outputs, width: Random(outputs))
    recipe = Recipe.parse(TINY | {"model": "own"})
    runs = [Run(recipe, scale, seed) for scale, seed in ((1.0, 0), (2.0, 0), (1.0, 1))]
    made = [module_pack(runs, sizes(recipe), device=torch.device("cpu"), dtype=torch.float32) for _ in "ab"]
    first, again = (pack.net.shift.view(3, 64) for pack in made)
    assert torch.equal(first, again)
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])


# -- optimizers -----------------------------------------------------------------------------------------


class Plain(torch.optim.Optimizer):
    """Gradient descent; tests override how a variable moves."""

    def __init__(self, params, lr, betas=(0.5, 0.25), eps=1e-3, weight_decay=0.1, other="x") -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.move(p, group)

    def move(self, p, group) -> None:
        p.sub_(group["lr"] * p.grad)


class OverWhole(Plain):
    """Its step depends on a whole variable: that of all replicas in a pack."""

    def move(self, p, group) -> None:
        p.sub_(group["lr"] * p.grad / (p.grad.norm() + 1e-8))


class Hidden(Plain):
    """It counts where no checkpoint looks."""

    count = 0

    def move(self, p, group) -> None:
        self.count += 1
        p.sub_(group["lr"] * p.grad / self.count)


def own_optimizer(**values: object) -> Recipe:
    return Recipe.parse(TINY | {"model": "mlp", "optimizer": "own"} | values)


def test_the_arguments_of_an_optimizer_are_fields_with_the_defaults_of_its_signature() -> None:
    register.optimizer("own")(Plain)
    recipe = own_optimizer()
    assert (recipe.beta1, recipe.beta2, recipe.epsilon, recipe.weight_decay) == (0.5, 0.25, 1e-3, 0.1)
    assert recipe.momentum == 0.9  # not its own
    group = Pack([Run(own_optimizer(beta2=0.75), 1.0, 0)], load(recipe)).optimizer.optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.5, 0.75), 1e-3, 0.1)


def test_runs_of_a_registered_optimizer_keep_their_ids_without_the_plugin() -> None:
    register.optimizer("own")(Plain)
    recipes = [own_optimizer(), own_optimizer(weight_decay=0.0)]
    register.optimizers._things.clear()
    for recipe in recipes:
        again = stored_recipe(recipe_json(recipe))
        assert (again, again.id) == (recipe, recipe.id)
    assert recipes[0].id != recipes[1].id
    with pytest.raises(ConfigError, match=r"optimizer = 'own' .*--plugin MODULE brings others"):
        own_optimizer()
    with pytest.raises(ModelError, match="no plugin that registers it is loaded"):
        Pack([Run(recipes[0], 1.0, 0)], load(recipes[0]))


def test_a_registered_optimizer_computes_what_it_says() -> None:
    """Against the same descent written for bundled networks, to the last bit; packed too."""
    register.optimizer("own")(Plain)
    runs = [
        [Run(r, scale, 0) for scale in (0.5, 2.0)] for r in (own_optimizer(), own_optimizer(optimizer="sgd"))
    ]
    data = load(runs[0][0].recipe)
    ours, theirs = (train_pack(pack, data) for pack in runs)
    for one, other in zip(ours, theirs, strict=True):
        assert np.array_equal(one.history["train_cross_entropy"], other.history["train_cross_entropy"])
    assert not obstacle(runs[0][0].recipe, data.sizes)


@pytest.mark.usefixtures("untimed")
def test_an_optimizer_that_sees_all_replicas_trains_alone_and_plan_says_so() -> None:
    register.optimizer("own")(OverWhole)
    ((row,), _) = plan(study_of(own_optimizer()), workers=1)
    assert row["pack"] == 1 and row["note"].startswith("trains alone: ")
    check(study_of(own_optimizer()))


def _fading() -> Recipe:
    exec(FADING, {})
    return Recipe.parse(TINY | {"model": "mlp", "optimizer": "fading-sgd", "weight_decay": 0.01, "epochs": 3})


def test_the_optimizer_of_the_page_follows_its_formula() -> None:
    """Its count is a plain number: a run that is resumed between two updates goes on from it."""
    recipe = _fading()
    data, run = load(recipe), Run(recipe, 1.0, 0)
    whole, pieces = Pack([run], data), Pack([run], data)
    while not whole.finished:
        train_epoch(whole)
    while not pieces.finished:
        train_epoch(pieces, lambda: True)
        saved, pieces = pieces.checkpoint(), Pack([run], data)
        pieces.restore(saved)
    assert pieces.history[0]["train_cross_entropy"] == whole.history[0]["train_cross_entropy"]

    w = torch.tensor([1.0, -2.0], dtype=torch.float64)
    rule = optimizer_for(recipe, [w])
    for k, (rate, g) in enumerate([(0.5, 3.0), (0.25, -1.0), (0.1, 2.0)], start=1):
        expected = w * (1 - rate * 0.01) - rate * g / math.sqrt(k)
        rule.step([torch.full_like(w, g)], rate, k)
        torch.testing.assert_close(w, expected)


def _no_optimizer(params, lr):
    return "an optimizer"


def _raises(params, lr):
    raise RuntimeError("its own words")


class NeedsClosure(Plain):
    def step(self, closure) -> None:
        closure()


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (_no_optimizer, "its builder returned an object of type str (needed: a torch.optim.Optimizer)"),
        (_raises, "it raised RuntimeError: its own words"),
        (NeedsClosure, "an update raised TypeError"),
        (Hidden, "a resumed run takes other steps"),
    ],
)
def test_a_broken_optimizer_is_refused_before_anything_is_trained(build, text: str) -> None:
    register.optimizer("own")(build)
    with pytest.raises(ModelError, match=re.escape(text)) as caught:
        check(study_of(own_optimizer()))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "build", "text"),
    [
        ("adam", Plain, "this optimizer comes with initmem"),
        (
            "own",
            lambda params: None,
            r"unexpected keyword argument 'lr' \(allowed: \(params, lr, argument=default",
        ),
        ("own", lambda lr: None, "multiple values for argument 'lr'"),
        ("own", lambda params, lr, more: None, "missing a required argument: 'more'"),
        ("torch:Own", Plain, "a name of letters, digits, - and _"),
    ],
)
def test_a_bad_registration_of_an_optimizer_is_one_clear_line(name: str, build: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        register.optimizer(name)(build)


@pytest.mark.usefixtures("no_workers")
def test_records_of_an_edited_optimizer_are_refused(folder: Path, command) -> None:
    (folder / "fading.py").write_text(FADING)
    study = (
        'scales = [1.0]\nseeds = [0]\n[recipe]\ndataset = "synthetic:60x1x8x8"\nmodel = "mlp"\nwidth = 4\n'
    )
    (folder / "fade.toml").write_text(study + 'epochs = 1\nbatch_size = 12\noptimizer = "fading-sgd"\n')
    arguments = ("run", "fade.toml", "--plugin", "fading", "--store", "faded", "--workers", "1")
    assert command(*arguments)[0] == 0
    assert command("status", "faded")[0] == command("measure", "faded")[0] == 0
    (folder / "fading.py").write_text(FADING.replace("k**0.5", "k**0.25"))
    del sys.modules["fading"]
    status, _, said = command(*arguments)
    assert status == 2 and "1 of 1 runs" in said and "module fading was edited" in said
