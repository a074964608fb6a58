"""How near training comes to the rate of a matrix product on one core: what `initmem studies` assumes.

    python benchmarks/efficiency.py

Processor time is counted, so that the load of others matters little.
"""

from __future__ import annotations

from initmem.data.sources import sizes
from initmem.engines.packs import pack_size
from initmem.engines.plan import efficiency, matmul_rate, pack_seconds, run_flops
from initmem.recipe import Recipe
from initmem.train.requirements import flops_per_image

CIFAR = "synthetic:4000x3x32x32"
KINDS = (
    {"dataset": "digits", "width": 4, "batch_size": 16},
    {"dataset": "digits", "width": 4, "batch_size": 16, "norm": "layer"},
    {"dataset": CIFAR, "width": 4, "batch_size": 16},
    {"dataset": CIFAR, "width": 8, "batch_size": 16},
    {"dataset": CIFAR, "width": 8, "batch_size": 16, "norm": "layer"},
    {"dataset": CIFAR, "width": 8, "batch_size": 128},
    {"dataset": CIFAR, "width": 16, "batch_size": 128},
    {"dataset": CIFAR, "width": 64, "batch_size": 16},
    {"dataset": CIFAR, "width": 16, "batch_size": 128, "model": "resnet56"},
    {"dataset": "synthetic:4000x1x28x28", "width": 32, "batch_size": 32, "model": "vit"},
    {"dataset": "text:32", "width": 32, "batch_size": 32, "model": "gpt"},
)


def main() -> None:
    """Print a line per kind of network."""
    rate = matmul_rate()
    print(f"matrix product: {rate / 1e9:.0f} GFLOP/s on one core")
    for fields in KINDS:
        recipe = Recipe.parse(fields)
        shape = sizes(recipe)
        pack = pack_size(recipe, shape)
        seconds = pack_seconds(recipe, shape, pack)
        measured = pack * run_flops(recipe, shape) / seconds / rate
        forward = flops_per_image(recipe, shape).forward
        words = (
            f"{recipe.model} w{recipe.width} b{recipe.batch_size} {recipe.norm} {recipe.dataset} pack {pack}"
        )
        print(
            f"{words}: {forward:.1e} operations per image, {measured:.3f}, assumed {efficiency(recipe):.3f}"
        )


if __name__ == "__main__":
    main()
