"""What is timed: networks, data and batch sizes of the bundled studies, cut to a few epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from initmem.data.dataset import Sizes, split_three
from initmem.data.sources import sizes
from initmem.recipe import Recipe
from initmem.study import Study

WARM_UP = 1  # epochs before the clock of an epoch counts: building, tracing, compiling


@dataclass(frozen=True, slots=True)
class Workload:
    """Runs of one recipe. `epochs` is what a study would train, `timed` what is trained here."""

    name: str
    recipe: Recipe
    runs: int
    timed: int

    @property
    def sizes(self) -> Sizes:
        """The numbers of images and their shape."""
        return sizes(self.recipe)

    @property
    def epochs(self) -> int:
        """The length of a whole run."""
        return self.recipe.epochs

    def study(self, runs: int) -> Study:
        """As many of its runs as a measurement needs, shortened."""
        recipe = self.recipe.model_copy(update={"epochs": WARM_UP + self.timed})
        seeds = tuple(range(runs))
        return Study("bench", "", "bench", "", recipes=(recipe,), scales=(1.0,), seeds=seeds)

    def spec(self) -> dict[str, Any]:
        """What a peer must know, for its process."""
        recipe = self.recipe.settings()  # with the options of its network
        return {"recipe": recipe, "epochs": WARM_UP + self.timed, "sizes": self.sizes._asdict()}


def _workload(name: str, runs: int, timed: int, **fields: Any) -> Workload:
    return Workload(f"{name} {fields['optimizer']}", Recipe.model_validate(fields), runs, timed)


def _cifar_size(
    model: str, width: int, batch: int, optimizer: str, images: int, norm: str = "batch"
) -> Workload:
    """Eight epochs of 40,000 images of CIFAR-10 are as many updates as `epochs` of these fewer images."""
    epochs = round(8 * 40_000 / split_three(images)[0])
    name = f"{model} w{width} b{batch}" + (f" {norm} norm" if norm != "batch" else "")
    return _workload(
        name, runs=4, timed=2, epochs=epochs, dataset=f"synthetic:{images}x3x32x32", model=model,
        width=width, batch_size=batch, optimizer=optimizer, norm=norm,
    )  # fmt: skip


def _quickstart(optimizer: str) -> Workload:
    """A recipe of the demo: 5 scales x 6 seeds."""
    return _workload(
        "quickstart", runs=30, timed=12, epochs=250, dataset="digits", train_size=200, test_unused=True,
        width=4, batch_size=16, optimizer=optimizer, learning_rate=1e-2, batch_statistics="re-estimated",
    )  # fmt: skip


def _transformer(model: str, **fields: Any) -> Workload:
    """The networks of the study `transformers` at its preset `mini`, on fewer examples."""
    return _workload(
        f"{model} w32 b32", runs=16, timed=4, epochs=15, model=model, width=32, depth=2, batch_size=32,
        optimizer="adam", **fields,
    )  # fmt: skip


WORKLOADS = {
    workload.name: workload
    for workload in (
        _quickstart("sgd"),
        _cifar_size("resnet9", 8, 16, "sgd", 2400),
        _cifar_size("resnet9", 16, 128, "sgd", 2560),
        _quickstart("adam"),
        _quickstart("muon"),
        _cifar_size("resnet9", 8, 16, "adam", 2400),
        _cifar_size("resnet9", 8, 16, "muon", 2400),
        _cifar_size("resnet9", 8, 128, "sgd", 2560),
        _cifar_size("resnet9", 16, 16, "sgd", 1200),
        _cifar_size("resnet9", 16, 128, "adam", 2560),
        _cifar_size("resnet9", 16, 128, "muon", 2560),
        _cifar_size("resnet56", 16, 128, "sgd", 640),
        _cifar_size("resnet9", 8, 16, "sgd", 2400, norm="layer"),
        _cifar_size("resnet9", 64, 16, "sgd", 160),
        _transformer("vit", dataset="synthetic:2000x1x28x28", patch=7),
        _transformer("gpt", dataset="text:32", train_size=1200, val_size=400, test_size=400),
    )
}
CORE = tuple(WORKLOADS)[:3]  # what is timed unless told otherwise
