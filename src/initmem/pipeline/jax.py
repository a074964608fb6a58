"""For training loops in JAX with optax.

    def train(init, tracker):
        params = init.apply(make_params())               # a new pytree, for this scale and seed
        optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
        state = optimizer.init(params)
        tracker.attach(params, batch_size=32)
        for epoch in range(10):
            for batch in batches:
                params, state = update(params, state, batch)
                tracker.step(learning_rate(state), model=params)
            tracker.end_epoch(val_loss=...)

`tracker.step` also takes an array of rates, for updates that were made within `jax.lax.scan`.
"""

from __future__ import annotations

from typing import Any

import jax

from initmem.errors import ConfigError


def learning_rate(state: Any) -> float:
    """The learning rate of the last update, from the state of an `optax.inject_hyperparams` optimizer."""
    rate = _find(state)
    if rate is None:
        raise ConfigError("state: no learning rate in it (allowed: optax.inject_hyperparams(optimizer)(...))")
    return float(rate)


def _find(state: Any) -> Any:
    hyperparams = getattr(state, "hyperparams", None)
    if isinstance(hyperparams, dict) and "learning_rate" in hyperparams:
        return hyperparams["learning_rate"]
    if not isinstance(state, tuple | list) or isinstance(state, jax.Array):
        return None
    return next((rate for part in state if (rate := _find(part)) is not None), None)
