"""The coordinate check of muP: how far a few updates move activations, against the width.

    python benchmarks/mup.py [PICTURE]

Under muP (`mup_base`) the sizes do not depend on the width. In the usual parametrization those of the
output grow with it, so that a learning rate that is right for a narrow network is too large for a wide one.
"""

from __future__ import annotations

import math
import sys

import matplotlib.pyplot as plt
import numpy as np
import torch

from initmem.data.sources import load
from initmem.plots.styles import COLORS
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.loop import train_epoch
from initmem.train.pack import Pack

WIDTHS = (64, 128, 256, 512, 1024)
RATES = {"sgd": 0.1, "adam": 0.003}
UPDATES = 4
LAYERS = ("hidden1", "hidden2", "head")


def moved(optimizer: str, width: int, mup_base: int | None, *, seeds: int = 4) -> dict[str, float]:
    """Root mean square of the change of every layer's output in a few updates, over examples and seeds."""
    recipe = Recipe.parse(
        {"dataset": "digits", "model": "mlp", "norm": "layer", "width": width, "mup_base": mup_base}
        | {"optimizer": optimizer, "learning_rate": RATES[optimizer], "schedule": "constant"}
        | {"train_size": 64 * UPDATES, "batch_size": 64, "epochs": 1}
    )
    pack = Pack([Run(recipe, 1.0, seed) for seed in range(seeds)], load(recipe))
    before = outputs(pack)
    train_epoch(pack)
    after = outputs(pack)
    return {name: float((after[name] - before[name]).square().mean().sqrt()) for name in LAYERS}


@torch.no_grad()
def outputs(pack: Pack) -> dict[str, torch.Tensor]:
    """What every layer makes of some validation images, (batch, replica * feature)."""
    found: dict[str, torch.Tensor] = {}
    hooks = [
        pack.network.get_submodule(name).register_forward_hook(
            lambda layer, inputs, output, name=name: found.update({name: output.clone()})
        )
        for name in LAYERS
    ]
    pack.logits(next(pack.val.shared(100))[0])
    for hook in hooks:
        hook.remove()
    return found


def slope(sizes: dict[int, float]) -> float:
    """The power of the width that sizes grow with."""
    return float(np.polyfit([math.log(width) for width in sizes], np.log([*sizes.values()]), 1)[0])


def draw(sizes: dict[tuple[str, int | None, str], dict[int, float]], path: str) -> None:
    """A panel per optimizer: solid under muP, dashed in the usual parametrization."""
    figure, panels = plt.subplots(1, len(RATES), figsize=(9.6, 3.2), layout="constrained", sharey=True)
    for panel, optimizer in zip(panels, RATES, strict=True):
        for name, color in zip(LAYERS, COLORS, strict=False):
            for base, style in ((WIDTHS[0], "-"), (None, "--")):
                row = sizes[optimizer, base, name]
                label = f"{name}, {'muP' if base else 'usual'}"
                panel.plot(list(row), list(row.values()), style, color=color, marker="o", ms=4, label=label)
        panel.set(title=optimizer, xlabel="width", xscale="log", yscale="log")
        panel.set_xticks(WIDTHS, WIDTHS)
        panel.set_xticks([], minor=True)
    panels[0].set_ylabel(f"change of outputs in {UPDATES} updates")
    panels[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path)


def main() -> None:
    """Print a table, and draw it."""
    print("optimizer  mup_base  layer   ", *(f"{width:>8}" for width in WIDTHS), "   power of the width")
    found = {}
    for optimizer in RATES:
        for base in (None, WIDTHS[0]):
            rows = {width: moved(optimizer, width, base) for width in WIDTHS}
            for name in LAYERS:
                sizes = found[optimizer, base, name] = {width: row[name] for width, row in rows.items()}
                cells = " ".join(f"{size:8.4f}" for size in sizes.values())
                print(f"{optimizer:9}  {base or '-':>8}  {name:8} {cells}  {slope(sizes):+8.2f}")
    if sys.argv[1:]:
        draw(found, sys.argv[1])


if __name__ == "__main__":
    main()
