"""One integer seed, three independent streams of randomness.

A stream is addressed by (seed, role, index), never advanced by anything else: the order of epoch 17 is the
same whether the run got there in one go or was continued from a checkpoint, and changing the seed of one
role never moves another role's stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import numpy as np

Role = Literal["init", "order", "augment"]
ROLES: tuple[Role, ...] = get_args(Role)


def generator(seed: int, role: Role, index: int = 0) -> np.random.Generator:
    """Return the generator of one role of one seed; `index` is the epoch for per-epoch draws."""
    import numpy as np

    # spawn_key keeps (role, index) apart from the entropy, so no two addresses share a stream.
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(ROLES.index(role), index)))
