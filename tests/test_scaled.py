"""What the scale multiplies, and what kernels are drawn from, in bundled networks and in torch ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from initmem.data.dataset import Sizes
from initmem.data.sources import load
from initmem.errors import ConfigError
from initmem.pipeline.init import Init
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.study_file import load_study
from initmem.train.init import draw, initialized
from initmem.train.loop import train_pack
from initmem.train.requirements import check

SHAPE = (64, 12, 5, 5)
DRAWN = {
    name: draw(np.random.default_rng(3), SHAPE, name)
    for name in ("normal", "uniform", "truncated", "orthogonal")
}


@pytest.mark.parametrize("name", DRAWN)
def test_every_distribution_has_mean_zero_and_variance_one(name: str) -> None:
    values = DRAWN[name]
    assert values.shape == SHAPE
    error = 1 / math.sqrt(values.size)
    assert abs(values.mean()) < 4 * error
    assert values.var() == pytest.approx(1, abs=6 * error)


@pytest.mark.parametrize(
    ("name", "law"),
    [
        ("normal", stats.norm()),
        ("uniform", stats.uniform(-math.sqrt(3), 2 * math.sqrt(3))),
        ("truncated", stats.truncnorm(-2, 2, scale=1 / math.sqrt(stats.truncnorm(-2, 2).var()))),
    ],
)
def test_the_laws_are_what_they_say(name: str, law) -> None:
    assert stats.kstest(DRAWN[name].ravel(), law.cdf).pvalue > 0.001
    others = [other for other in ("normal", "uniform", "truncated") if other != name]
    assert all(stats.kstest(DRAWN[other].ravel(), law.cdf).pvalue < 0.001 for other in others)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (4, 3, 3, 3)])
def test_orthogonal_kernels_have_equal_singular_values(shape: tuple[int, ...]) -> None:
    matrix = draw(np.random.default_rng(0), shape, "orthogonal").reshape(shape[0], -1)
    np.testing.assert_allclose(np.linalg.svd(matrix)[1], math.sqrt(max(matrix.shape)), rtol=1e-12)


def test_orthogonal_kernels_have_no_preferred_direction() -> None:
    corners = [draw(np.random.default_rng(seed), (3, 3), "orthogonal")[0, 0] for seed in range(400)]
    assert abs(np.mean(corners)) < 4 / math.sqrt(400)  # a plain QR has them all of one sign


# -- bundled networks -----------------------------------------------------------------------------------


def variables(scale: float, seed: int = 0, **fields: object) -> dict[str, torch.Tensor]:
    """The initial variables of a small bundled network."""
    recipe = Recipe.parse({"model": "mlp", "width": 40} | fields)
    network = initialized([Run(recipe, scale, seed)], Sizes(1, 1, 1, 3, 4, 4, 3), dtype=torch.float64)
    return {variable.name: variable.place.value().detach() for variable in network.replica_variables()}


KERNELS = {"hidden1.kernel", "hidden2.kernel", "head.kernel"}
BIASES = {"hidden1.bias", "hidden2.bias", "head.bias"}


@pytest.mark.parametrize(
    ("scaled", "expected"),
    [
        ("kernels", KERNELS),
        ("biases", BIASES),
        ("output", {"head.kernel"}),
        ("hidden*", {"hidden1.kernel", "hidden2.kernel", "hidden1.bias", "hidden2.bias"}),
        ("hidden1", {"hidden1.kernel"}),
        ("hidden?", {"hidden1.kernel", "hidden2.kernel"}),
        ("output, biases", {"head.kernel"} | BIASES),
    ],
)
def test_the_scale_multiplies_what_it_names_and_nothing_else(scaled: str, expected: set[str]) -> None:
    base, small, large = (variables(scale, scaled=scaled) for scale in (1.0, 0.5, 2.0))
    plain = variables(1.0)
    for name, value in base.items():
        assert torch.equal(value, plain[name])  # at scale 1 a scaled changes nothing
        factor = 4.0 if name in expected else 1.0
        torch.testing.assert_close(large[name], factor * small[name], rtol=1e-12, atol=0)


def test_fixed_factors_by_name() -> None:
    plain = variables(0.7)
    scaled = variables(0.7, layer_scales="output=0.5, hidden* = 3, head.bias=0")
    expected = dict.fromkeys(plain, 3.0) | {"head.kernel": 0.5, "head.bias": 0.0}
    for name, factor in expected.items():
        torch.testing.assert_close(scaled[name], factor * plain[name], rtol=1e-12, atol=0)


def test_mup_shrinks_the_output_alone() -> None:
    plain, shrunk = variables(2.0), variables(2.0, mup_base=10)
    for name in plain:
        factor = 1 / 2 if name == "head.kernel" else 1.0
        torch.testing.assert_close(shrunk[name], factor * plain[name], rtol=1e-12, atol=0)


def test_seeds_pair_scales_in_every_distribution() -> None:
    for name in DRAWN:
        small, large = (variables(scale, distribution=name)["hidden1.kernel"] for scale in (0.5, 2.0))
        torch.testing.assert_close(large, 4 * small, rtol=1e-12, atol=0)
        assert large.std().item() == pytest.approx(2 / math.sqrt(48), rel=0.1)


def test_a_torch_network_is_probed_alike() -> None:
    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.hidden1, self.hidden2, self.head = nn.Linear(48, 40), nn.Linear(40, 40), nn.Linear(40, 3)

    fields = {"distribution": "uniform", "scaled": "hidden2,output", "layer_scales": "hidden1=2"}
    fields |= {"bias_std": 0.3}
    twin = Init(1.7, 5, **fields).apply(Twin().double(), draw="fan-in")
    for name, value in variables(1.7, 5, **fields).items():
        path, _, kind = name.rpartition(".")
        layer = getattr(twin, path)
        assert torch.equal(value, layer.weight if kind == "kernel" else layer.bias), name


def test_a_tied_output_is_found_under_each_of_its_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.hidden = nn.Embedding(30, 16), nn.Linear(16, 16)
            self.head = nn.Linear(16, 30, bias=False)
            self.head.weight = self.embedding.weight

    for scaled in ("output", "head", "embedding.weight"):
        rows = Init(3.0, scaled=scaled).describe(Tied(), draw="fan-in").rows()
        assert {row["parameter"]: row["std"] for row in rows if row["role"] == "kernel"} == {
            "embedding.weight": 3 / 4,
            "hidden.weight": 1 / 4,
        }


def test_rescaling_follows_the_probe() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Init(4.0, scaled="output, 0.bias", layer_scales="0=2").apply(model)
    factors = {"0.weight": 2.0, "0.bias": 4.0, "1.weight": 4.0, "1.bias": 1.0}
    for name, value in model.state_dict().items():
        assert torch.equal(value, factors[name] * before[name])


# -- studies --------------------------------------------------------------------------------------------


def test_packs_train_with_probes() -> None:
    fields = {"dataset": "synthetic:100x1x8x8", "width": 2, "epochs": 1, "distribution": "orthogonal"}
    recipe = Recipe.parse(fields | {"scaled": "biases"})
    other = Recipe.parse(fields | {"scaled": "stem*"})
    small, large = train_pack([Run(recipe, 0.5, 0), Run(recipe, 2.0, 0)], load(recipe))
    assert small.summary.norm_init == pytest.approx(large.summary.norm_init)
    assert small.summary.test_cross_entropy != pytest.approx(
        large.summary.test_cross_entropy, rel=1e-3
    )  # by the head's bias
    small, large = train_pack([Run(other, 0.5, 0), Run(other, 2.0, 0)], load(other))
    assert small.summary.norm_init < large.summary.norm_init


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scaled": ","}, "scaled = ',' (allowed: kernels, biases, output"),
        ({"layer_scales": "head"}, "layer_scales = 'head' (allowed: NAME=FACTOR"),
        ({"layer_scales": "head=-1"}, "layer_scales = 'head=-1' (allowed: NAME=FACTOR"),
        ({"layer_scales": "=2"}, "layer_scales = '=2' (allowed: NAME=FACTOR"),
        ({"distribution": "cauchy"}, "distribution = 'cauchy' (allowed: 'normal', 'uniform'"),
        ({"mup_base": 0}, "mup_base = 0"),
    ],
)
def test_mistakes_are_explained(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.parse(fields)
    assert str(caught.value).startswith(words)


def test_names_that_are_not_there_are_found_before_anything_is_run(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    text = 'scales = [1.0]\n[recipe]\ndataset = "digits"\nwidth = 2\n'
    path.write_text(text + "[[grid]]\nscaled = ['kernels', 'haed']\n")
    with pytest.raises(ConfigError, match=r"scaled = 'haed': nothing here is named 'haed' .*head\.kernel"):
        check(load_study(str(path)))
    path.write_text(text + 'scaled = "head"\nlayer_scales = "stem*=2"\n')
    check(load_study(str(path)))
    with pytest.raises(ConfigError, match=r"scaled = 'head': nothing here is named 'head' .*0\.weight"):
        Init(1.0, scaled="head").apply(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ConfigError, match="plain arrays have no names"):
        Init(1.0, scaled="output").kernel(2, 2, fan_in=2)
