"""As in the tutorials of JAX: parameters are a list of (w, b), and the update is written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

X, Y = load_digits(return_X_y=True)
X, TARGETS = (X / 16).astype(np.float32), np.eye(10, dtype=np.float32)[Y]
SIZES, RATE, BATCH = (64, 32, 10), 0.1, 32


def random_layer(key, inputs, outputs):
    w_key, b_key = jax.random.split(key)
    return 0.1 * jax.random.normal(w_key, (inputs, outputs)), 0.01 * jax.random.normal(b_key, (outputs,))


def make_params(seed):
    keys = jax.random.split(jax.random.key(seed), len(SIZES))
    return [random_layer(key, m, n) for key, m, n in zip(keys, SIZES[:-1], SIZES[1:], strict=False)]


def predict(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return jax.nn.log_softmax(x @ w + b)


@jax.jit
def loss(params, x, targets):
    return -jnp.mean(jnp.sum(predict(params, x) * targets, axis=1))


@jax.jit
def update(params, x, targets):
    grads = jax.grad(loss)(params, x, targets)
    return [(w - RATE * dw, b - RATE * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]


def accuracy(params, part):
    return float((predict(params, X[part]).argmax(1) == Y[part]).mean())


def train(init, tracker):
    params = init.apply(make_params(init.seed))
    tracker.attach(params, batch_size=BATCH)
    for epoch in range(3):
        order = init.generator("order", epoch).permutation(512)
        for index in order.reshape(-1, BATCH) if epoch else ():  # it is evaluated before the first update
            params = update(params, X[index], TARGETS[index])
            tracker.step(RATE, model=params)
        tracker.end_epoch(
            train_loss=loss(params, X[:512], TARGETS[:512]), val_acc=accuracy(params, slice(512, 1000))
        )
