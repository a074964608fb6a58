# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "jax", "numpy", "optax", "scikit-learn"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""JAX with optax: parameters are a pytree, here a plain dict; those of flax and equinox work the same way.

A grid of two recipes: with SGD test accuracy depends on the scale of the initialization, because not all
scales are fitted after 30 epochs; with AdamW the scale is forgotten.

    python examples/jax_optax.py [--quick]
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import initmem
from initmem.pipeline.jax import learning_rate

BATCH = 32
OPTIMIZERS = {"sgd": optax.sgd, "adamw": optax.adamw}
X, Y = load_digits(return_X_y=True)
ORDER = np.random.default_rng(42).permutation(len(Y))
TRAIN, VALIDATION, TEST = ((X[part] / 16, Y[part]) for part in np.split(ORDER, [1078, 1437]))


def logits(params, x):
    hidden = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


@jax.jit
def loss_of(params, x, y):
    """The loss, and with it the accuracy."""
    out = logits(params, x)
    return optax.softmax_cross_entropy_with_integer_labels(out, y).mean(), (out.argmax(1) == y).mean()


def layer(key, inputs, outputs):
    return {"w": jax.nn.initializers.lecun_normal()(key, (inputs, outputs)), "b": jnp.zeros(outputs)}


def train(init, tracker):
    epochs = init.recipe["epochs"]
    updates = epochs * (len(TRAIN[0]) // BATCH)
    schedule = optax.cosine_decay_schedule(init.recipe["learning_rate"], updates)
    optimizer = optax.inject_hyperparams(OPTIMIZERS[init.recipe["optimizer"]])(learning_rate=schedule)
    first, last = jax.random.split(jax.random.key(init.seed))
    params = init.apply({"hidden": layer(first, 64, 64), "out": layer(last, 64, 10)})  # a new pytree
    state = optimizer.init(params)
    tracker.attach(params, batch_size=BATCH)

    @jax.jit
    def update(params, state, x, y):
        grads, accuracy = jax.grad(loss_of, has_aux=True)(params, x, y)
        changes, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, changes), state, accuracy

    for epoch in range(epochs):
        order = init.generator("order", epoch).permutation(len(TRAIN[0]))
        accuracies = []
        for index in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
            params, state, accuracy = update(params, state, TRAIN[0][index], TRAIN[1][index])
            tracker.step(learning_rate(state), model=params)
            accuracies.append(float(accuracy))
        val_loss, val_accuracy = loss_of(params, *VALIDATION)
        tracker.end_epoch(
            train_accuracy=np.mean(accuracies),
            val_loss=val_loss,
            val_accuracy=val_accuracy,
            test_accuracy=loss_of(params, *TEST)[1],
        )


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.1, 1.0] if quick else [0.1, 0.5, 1.0, 1.8, 2.5],
        seeds=range(2 if quick else 5),
        name="jax_optax",
        recipe={"learning_rate": 0.01, "epochs": 3 if quick else 30},
        grid={"optimizer": ["sgd", "adamw"]},
    )
    print(result)
