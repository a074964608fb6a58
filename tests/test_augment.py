from __future__ import annotations

import numpy as np
import torch

from initmem.data.sources import load
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.loop import train_pack
from initmem.train.pack import Pack, flip_crop, flip_crop_draws


def by_hand(image: np.ndarray, flip: int, top: int, left: int) -> np.ndarray:
    """The plain way, image (h, w, channel): flip, pad, cut."""
    height, width, _ = image.shape
    image = image[:, ::-1] if flip else image
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    return padded[top : top + height, left : left + width]


def test_flip_crop_is_flip_then_pad_then_crop() -> None:
    rng = np.random.default_rng(0)
    for shape in ((40, 32, 32, 3), (40, 8, 6, 1)):
        x = rng.integers(0, 256, shape, dtype=np.uint8)
        draws = flip_crop_draws([5], 1, 40)[:, 0]
        found = flip_crop(torch.from_numpy(x), draws).numpy()
        expected = np.stack([by_hand(x[i], *draws[i].tolist()) for i in range(40)])
        assert np.array_equal(found, expected)


def test_draws_cover_their_range_evenly_and_belong_to_seed_and_epoch() -> None:
    draws = flip_crop_draws([0, 1], 1, 9000)
    assert draws.shape == (9000, 2, 3)
    assert abs(draws[:, 0, 0].double().mean() - 0.5) < 0.02
    for axis in (1, 2):
        counts = torch.bincount(draws[:, 0, axis], minlength=9)
        assert len(counts) == 9
        assert (counts - 1000).abs().max() < 150
    assert not torch.equal(draws[:, 0], draws[:, 1])
    assert torch.equal(draws[:, :1], flip_crop_draws([0], 1, 9000))
    assert not torch.equal(draws[:, :1], flip_crop_draws([0], 2, 9000))


def test_augmentation_has_its_own_seed_and_is_reproducible(tiny: Recipe) -> None:
    recipe = tiny.model_copy(update={"augment": "flip-crop"})
    data = load(recipe)
    first, again, other = (
        train_pack([Run(recipe, 1.0, 0, pins)], data)[0] for pins in ((), (), (("augment", 1),))
    )
    assert first.same_result(again)
    assert not np.array_equal(first.history["train_cross_entropy"], other.history["train_cross_entropy"])
    packs = [Pack([Run(recipe, 1.0, 0, pins)], data) for pins in ((), (("augment", 1),))]
    assert torch.equal(packs[0].order(1), packs[1].order(1))
    assert torch.equal(packs[0].parameters[0], packs[1].parameters[0])


def test_augmentation_touches_training_batches_only(tiny: Recipe) -> None:
    recipe = tiny.model_copy(update={"augment": "flip-crop", "learning_rate": 1e-12, "epochs": 1})
    plain = recipe.model_copy(update={"augment": "none"})
    moved, still = (train_pack([Run(r, 1.0, 0)], load(r), dtype=torch.float64)[0] for r in (recipe, plain))
    assert moved.history["train_cross_entropy"] != still.history["train_cross_entropy"]
    data = load(recipe)
    pack = Pack([Run(recipe, 1.0, 0)], data)
    x, _ = next(iter(pack.val.shared(4)))
    assert np.allclose(x.permute(0, 2, 3, 1).numpy(), data.val.x[:4])
