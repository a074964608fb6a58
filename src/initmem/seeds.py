"""One integer seed, three independent random streams.

A stream is addressed by (seed, role, index) and depends on nothing else: the data order of epoch 17 is the
same whether the run got there without interruption or was resumed from a checkpoint, and changing the seed of
one role never changes the stream of another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import numpy as np

Role = Literal["init", "order", "augment"]
ROLES: tuple[Role, ...] = get_args(Role)


def generator(seed: int, role: Role, index: int = 0) -> np.random.Generator:
    """Return the random generator for one role of a seed; `index` is the epoch for per-epoch draws."""
    import numpy as np

    # spawn_key keeps (role, index) separate from the entropy, so no two addresses share a stream.
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(ROLES.index(role), index)))
