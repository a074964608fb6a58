"""Initialization of any torch model: what is drawn, how large, and what is left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from initmem.data.dataset import Sizes
from initmem.errors import ConfigError, ModelError
from initmem.pipeline.init import Init, UntouchedWarning
from initmem.recipe import PipelineRecipe, Recipe
from initmem.seeds import generator
from initmem.study import Run
from initmem.train.init import initialized


def applied(model: nn.Module, scale: float = 1.0, seed: int = 0, **how: object) -> nn.Module:
    return Init(scale, seed).apply(model, **{"draw": "fan-in"} | how)


# Fan-ins counted by hand: how many inputs are summed into one output.
LAYERS = [
    (nn.Linear(300, 200), {"weight": 300}),
    (nn.Bilinear(20, 30, 50), {"weight": 600}),
    (nn.Conv1d(16, 64, 5), {"weight": 80}),
    (nn.Conv2d(16, 64, 3, groups=4), {"weight": 36}),
    (nn.Conv3d(8, 32, 3), {"weight": 216}),
    (nn.ConvTranspose1d(32, 64, 4, stride=2), {"weight": 64}),
    (nn.ConvTranspose2d(32, 64, 4, stride=2, groups=2), {"weight": 64}),
    (nn.ConvTranspose3d(16, 32, 2, stride=2), {"weight": 16}),
    (nn.Embedding(300, 50), {"weight": 1}),
    (nn.EmbeddingBag(300, 50), {"weight": 1}),
    (nn.MultiheadAttention(64, 4), {"in_proj_weight": 64, "out_proj.weight": 64}),
    (nn.MultiheadAttention(64, 4, kdim=32, vdim=16), {"k_proj_weight": 32, "v_proj_weight": 16}),
    (nn.LSTM(40, 60, num_layers=2), {"weight_ih_l0": 40, "weight_hh_l0": 60, "weight_ih_l1": 60}),
    (nn.LSTM(40, 60, proj_size=30), {"weight_hh_l0": 30, "weight_hr_l0": 60}),
    (nn.GRUCell(40, 60), {"weight_ih": 40, "weight_hh": 60}),
    (parametrizations.weight_norm(nn.Linear(300, 200)), {"weight": 300}),
]


@pytest.mark.parametrize(("layer", "fan_ins"), LAYERS, ids=lambda x: type(x).__name__)
def test_every_kind_of_layer_gets_its_deviation(layer: nn.Module, fan_ins: dict[str, float]) -> None:
    applied(layer, scale=1.7)
    for name, fan_in in fan_ins.items():
        module, _, attribute = name.rpartition(".")
        values = getattr(layer.get_submodule(module), attribute).detach()
        expected = 1.7 / math.sqrt(fan_in)
        assert values.mean().item() == pytest.approx(0, abs=4 * expected / math.sqrt(values.numel()))
        assert values.std().item() == pytest.approx(expected, rel=4 / math.sqrt(2 * values.numel()))


def test_bundled_networks_and_torch_ones_get_the_same_numbers() -> None:
    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.norm, self.b = nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 5)
            self.c = nn.Linear(5, 3)

    recipe = Recipe.parse({"model": "mlp", "width": 5, "bias_std": 0.3})
    bundled = initialized([Run(recipe, 0.7, 11)], Sizes(1, 1, 1, 3, 2, 2, 3))
    twin = Init.of(Run(recipe, 0.7, 11)).apply(Twin(), draw="fan-in")
    for layer, linear in zip(bundled.named_layers().values(), (twin.a, twin.b, twin.c), strict=True):
        assert torch.equal(layer.kernel, linear.weight)
        assert torch.equal(layer.bias, linear.bias)


def test_scales_are_paired_and_biases_do_not_scale() -> None:
    small, large = (applied(nn.Linear(7, 5), scale, seed=3) for scale in (0.5, 2.0))
    other = applied(nn.Linear(7, 5), 0.5, seed=4)
    assert torch.equal(4 * small.weight, large.weight)
    assert torch.equal(small.bias, large.bias)
    assert not torch.equal(small.weight, other.weight)
    expected = generator(3, "init").standard_normal((5, 7)) * 0.5 / math.sqrt(7)
    np.testing.assert_allclose(small.weight.detach().numpy(), expected, rtol=1e-6)


def test_the_precision_of_a_model_only_rounds() -> None:
    single, half = applied(nn.Linear(7, 5)), applied(nn.Linear(7, 5).bfloat16())
    assert torch.equal(single.weight.bfloat16(), half.weight)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_the_device_changes_nothing(device: str) -> None:
    with torch.device(device):
        model = nn.Linear(7, 5)
    assert torch.equal(applied(nn.Linear(7, 5)).weight, applied(model).weight.cpu())


def test_rescaling_keeps_the_shape_of_the_models_own_scheme() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), parametrizations.weight_norm(nn.Linear(4, 2)))
    before = [model[0].weight.detach().clone(), model[0].bias.detach().clone(), model[2].weight.detach()]
    applied(model, 2.5, draw="own")
    torch.testing.assert_close(model[0].weight.detach(), 2.5 * before[0])
    assert torch.equal(model[0].bias, before[1])
    assert torch.equal(model[1].weight, torch.ones(4))
    torch.testing.assert_close(model[2].weight.detach(), 2.5 * before[2])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(40, 16), nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight


def test_a_tied_weight_is_drawn_once_and_stays_tied() -> None:
    model = applied(Tied(), 2.0)
    assert model.head.weight is model.embedding.weight
    expected = generator(0, "init").standard_normal((40, 16)) * 2 / math.sqrt(16)
    np.testing.assert_allclose(model.head.weight.detach().numpy(), expected, rtol=1e-6)
    assert "tied to head.weight" in str(Init().describe(model))


def test_a_model_without_values_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Linear(4, 6)
    with pytest.raises(ModelError, match=r"weight is on the meta device .*to_empty"):
        applied(model)


def test_padding_stays_at_zero() -> None:
    assert not applied(nn.Embedding(5, 3, padding_idx=1)).weight[1].any()


class Mixed(nn.Module):
    """Layers that are known, a parameter of its own, and one that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.full((4, 9), 7.0))
        self.fc, self.norm, self.fixed = nn.Linear(9, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.fixed.requires_grad_(False)


def test_what_is_left_alone_is_said() -> None:
    model = Mixed()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(UntouchedWarning, match=r"left as they are: position \(4, 9\)"):
        applied(model)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"fc.weight", "fc.bias"}
    table = Init().describe(model)
    assert {row["parameter"]: row["role"] for row in table.rows()} == {
        "position": "other",
        "fc.weight": "kernel",
        "fc.bias": "bias",
        "norm.weight": "norm",
        "norm.bias": "norm",
        "fixed.weight": "frozen",
        "fixed.bias": "frozen",
    }
    rows = table.rows()
    for row, line in zip(rows, str(table).splitlines()[4 : 4 + len(rows)], strict=True):
        assert line.startswith(row["parameter"]) and f" {row['role']} " in line


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        (nn.Linear, {"fc.weight": 9.0, "fixed.weight": 4.0}),
        ("fc.*t", {"fc.weight": 9.0}),
        ({"posit*": 36, "fc.w*": 2.5}, {"position": 36.0, "fc.weight": 2.5}),
        (lambda name, value, module: 5 if value.ndim == 2 and "fixed" not in name else None,
         {"position": 5.0, "fc.weight": 5.0}),
        (lambda name, value, module: name == "fc.weight", {"fc.weight": 9.0}),
    ],
)  # fmt: skip
def test_which_parameters_are_kernels_can_be_told(kernels: object, expected: dict[str, float]) -> None:
    rows = Init(3.0).describe(Mixed(), draw="fan-in", kernels=kernels).rows()
    assert {row["parameter"]: row["fan_in"] for row in rows if row["role"] == "kernel"} == expected


@pytest.mark.parametrize(
    "kernels", ["posit*", ["position", nn.Linear], Mixed, lambda name, value, module: name == "position"]
)
def test_no_fan_in_is_guessed(kernels: object) -> None:
    """A shape of (4, 9) may be (out, in) or (in, out): only who wrote the layer knows."""
    with pytest.raises(
        ModelError, match=r"position: its fan-in is not known \(allowed: kernels=\{'position': "
    ):
        applied(Mixed(), kernels=kernels)
    model = Mixed()
    Init(2.0).apply(model, kernels=kernels)  # a multiple needs none
    assert (model.position == 14).all()


@pytest.mark.parametrize("fan_in", [0, -1, math.nan, "9"])
def test_an_impossible_fan_in_is_refused(fan_in: object) -> None:
    with pytest.raises(
        ModelError, match=r"kernels: 'position' has a fan-in of .* \(allowed: numbers above 0"
    ):
        applied(Mixed(), kernels={"position": fan_in})


class NormalizedLinear(nn.Linear):
    """A linear layer, whatever its name."""


class NormalizedMixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 3))


class MixingNorm(NormalizedMixing):
    """Not a norm layer either: it has a matrix."""


class RMSNorm(nn.Module):
    """One of user code."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))


class OwnBatch(nn.BatchNorm2d):
    """One of torch under another name."""


def test_norm_layers_are_what_they_are_not_what_they_are_called() -> None:
    model = nn.ModuleDict(
        {
            "linear": NormalizedLinear(3, 3),
            "mixing": NormalizedMixing(),
            "matrix": MixingNorm(),
            "rms": RMSNorm(),
            "batch": OwnBatch(3),
            "group": nn.GroupNorm(1, 3),
        }
    )
    roles = {row["parameter"]: row["role"] for row in Init().describe(model).rows()}
    assert roles == {
        "linear.weight": "kernel",
        "linear.bias": "bias",
        "mixing.weight": "other",
        "matrix.weight": "other",
        "rms.gain": "norm",
        "batch.weight": "norm",
        "batch.bias": "norm",
        "group.weight": "norm",
        "group.bias": "norm",
    }


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (parametrizations.spectral_norm(nn.Linear(5, 5)), "weight: its parametrization undoes what is set"),
        (parametrizations.orthogonal(nn.Linear(5, 5)), "weight: its parametrization"),
        (nn.LazyLinear(3), "weight has no shape yet"),
        (nn.Sequential(nn.BatchNorm1d(3)), "no kernel among its parameters (0.weight, 0.bias"),
        (nn.ReLU(), "no kernel among its parameters (it has none"),
        (7, "a int is no model of torch, Keras or JAX"),
    ],
)
def test_what_cannot_be_initialised_is_named(model: nn.Module, words: str) -> None:
    with pytest.raises(ModelError) as caught:
        applied(model, 2.0)
    assert words in str(caught.value)


def test_a_parametrization_that_cannot_be_set_is_named() -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    model = nn.Sequential(nn.Linear(3, 3))
    parametrize.register_parametrization(model[0], "weight", Doubled())
    with pytest.raises(ModelError, match=r"0\.weight: its parametrization cannot be set"):
        applied(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_an_old_weight_norm_is_named() -> None:
    with pytest.raises(ModelError, match=r"cannot initialize weight_g: .* old-style weight_norm"):
        applied(nn.utils.weight_norm(nn.Linear(3, 3)))


def test_mistakes_are_explained() -> None:
    with pytest.raises(ConfigError, match=r"draw = 'shrink' \(allowed: own, fan-in"):
        applied(nn.Linear(2, 2), draw="shrink")
    with pytest.raises(ModelError, match=r"no parameter is named 'head\.\*' .allowed: weight, bias"):
        applied(nn.Linear(2, 2), kernels="head.*")


def test_plain_arrays_follow_the_same_rule() -> None:
    small, large = Init(0.5, 9), Init(2.0, 9)
    first, second = small.kernel(4, 3, fan_in=4), small.kernel(4, 3, fan_in=4)
    assert not np.array_equal(first, second)
    np.testing.assert_allclose(4 * first, large.kernel(4, 3, fan_in=4))
    layer = applied(nn.Linear(3, 4).double(), 0.5, 9)
    fresh = Init(0.5, 9)
    np.testing.assert_array_equal(layer.weight.detach(), fresh.kernel(4, 3, fan_in=3))
    np.testing.assert_array_equal(layer.bias.detach(), fresh.bias(4))


def test_the_table_shows_the_models_own_sizes() -> None:
    model = nn.Embedding(50, 16)
    row = Init(2.0).describe(model, draw="fan-in").rows()[0]
    assert row["std"] == 2.0
    assert row["model_std"] == pytest.approx(float(model.weight.detach().std(correction=0)))


def test_the_table_and_apply_agree_about_what_cannot_be_set() -> None:
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 5)), nn.Linear(5, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rows = {row["parameter"]: row for row in Init(2.0).describe(model).rows()}
    assert rows["0.weight"]["role"] == "stuck" and rows["0.weight"]["std"] is None
    assert "undoes what is set" in rows["0.weight"]["note"]
    with pytest.raises(ModelError, match=r"0\.weight: its parametrization undoes what is set"):
        applied(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    weighted = nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 5)), nn.Linear(5, 2))
    assert {row["role"] for row in Init().describe(weighted).rows()} == {"kernel", "bias"}


class Dead(nn.Module):
    """The first weights never matter, and one kernel is parametrised."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 4)
        self.head = parametrizations.weight_norm(nn.Linear(4, 2))


@pytest.mark.parametrize("draw", ["own", "fan-in"])
def test_a_perturbed_replicate_differs_in_the_largest_weight_of_every_kernel(draw: str) -> None:
    recipe = PipelineRecipe.parse({"pipeline": "p"})
    models = []
    for perturbation in (1.0, 1.5):
        torch.manual_seed(0)
        models.append(Init.of(Run(recipe, 2.0, 0, (), perturbation)).apply(Dead(), draw=draw))
    for name in ("words", "fc", "head"):
        before, after = (getattr(model, name).weight.detach() for model in models)
        expected = before.clone()
        expected.view(-1)[before.abs().argmax()] *= 1.5
        torch.testing.assert_close(after, expected)
    assert torch.equal(models[0].fc.bias, models[1].fc.bias)
    plain, perturbed = (Init.of(Run(recipe, 2.0, 0, (), p)).kernel(3, 3, fan_in=3) for p in (1.0, 1.5))
    expected = np.where(np.abs(plain) == np.abs(plain).max(), 1.5 * plain, plain)
    np.testing.assert_allclose(perturbed, expected, rtol=1e-12)


# -- the model's own initialization ------------------------------------------------------------------------


def test_the_scale_multiplies_the_models_own_weights_and_scale_1_leaves_every_bit() -> None:
    head = parametrizations.weight_norm(nn.Linear(8, 3))
    model = nn.Sequential(nn.Linear(9, 8), nn.LayerNorm(8), nn.Embedding(5, 8), head)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert Init(1.0, 3).apply(model) is model
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    weight = head.weight.detach().clone()
    Init(0.5, 3).apply(model)
    torch.testing.assert_close(head.weight.detach(), 0.5 * weight)
    for name, value in model.state_dict().items():
        if "parametrizations" not in name:
            assert torch.equal(value, before[name] * (0.5 if name in ("0.weight", "2.weight") else 1.0))


def test_zero_kernels_stay_zero_and_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    nn.init.zeros_(model[1].weight)
    rows = {row["parameter"]: row["note"] for row in Init(2.0).describe(model).rows()}
    assert rows["1.weight"] == "all zero: no scale" and rows["0.weight"] == ""
    assert not Init(2.0).apply(model)[1].weight.any()
    with pytest.raises(ModelError, match=r"multiplies nothing but zeros: 1\.weight \(allowed: draw='fan-in'"):
        Init(2.0, scaled="output").apply(model)
    with pytest.raises(ModelError, match="multiplies nothing but zeros: weight "):
        Init(2.0).apply(nn.utils.skip_init(nn.Linear, 2, 2).requires_grad_().apply(_zero))


def _zero(module: nn.Module) -> None:
    nn.init.zeros_(module.weight)


@pytest.mark.parametrize("field", [{"bias_std": 0.2}, {"distribution": "normal"}])
def test_fields_for_drawn_weights_are_refused_without_them(field: dict[str, object]) -> None:
    (name,) = field
    with pytest.raises(ConfigError, match=rf"{name} = .*keeps its own .*allowed with .*draw='fan-in'"):
        Init(2.0, **field).apply(nn.Linear(2, 2))
    Init(2.0, **field).apply(nn.Linear(2, 2), draw="fan-in")


def test_a_bias_deviation_is_refused_for_the_models_own_weights() -> None:
    with pytest.raises(ConfigError, match=r"bias_std = 0\.0: the model keeps its own initialization"):
        Init(2.0).apply(nn.Linear(2, 2), bias_std=0.0)


def test_a_setting_that_init_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Init\(probe=...\) \(allowed: scale, seed, .*scaled"):
        Init(2.0, 0, probe="output")
