"""Keras 3 on TensorFlow: `model.fit` with validation and a callback that keeps the best weights."""

from __future__ import annotations

import math
import os
from typing import Any

from .peer import Laps, examples, start, task

TASK = task()
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras  # noqa: E402, after the threads and the backend are set


class Positions(keras.layers.Layer):  # type: ignore[misc]
    """Adds a learned vector to every position."""

    def build(self, shape: Any) -> None:
        """Make the vectors."""
        self.vectors = self.add_weight(shape=shape[1:], initializer="random_normal")

    def call(self, x: Any) -> Any:
        """Map (batch, position, feature) to the same shape."""
        return x + self.vectors


def transformer(recipe: dict[str, Any], sizes: dict[str, int]) -> Any:
    """A pre-norm transformer of patches, or a causal one of tokens."""
    layers, w = keras.layers, recipe["width"]
    causal, heads = recipe["model"] == "gpt", recipe["heads"]
    if causal:
        inputs = keras.Input((sizes["width"],), dtype="int64")
        x = layers.Embedding(sizes["vocabulary"], w)(inputs)
    else:
        inputs = keras.Input((sizes["height"], sizes["width"], sizes["channels"]))
        patch = recipe["patch"]
        x = layers.Reshape((-1, w))(layers.Conv2D(w, patch, patch)(inputs))
    x = Positions()(x)
    for _ in range(recipe["depth"]):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(heads, w // heads)(y, y, use_causal_mask=causal)])
        y = layers.Dense(4 * w, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(w)(y)])
    x = layers.LayerNormalization()(x)
    x = x if causal else layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(sizes["classes"], use_bias=not causal)(x))


def network(recipe: dict[str, Any], sizes: dict[str, int]) -> Any:
    """The recipe's network, from Keras' own layers."""
    if recipe["model"] in ("vit", "gpt"):
        return transformer(recipe, sizes)
    layers = keras.layers
    w = recipe["width"]
    norm = layers.LayerNormalization if recipe["norm"] == "layer" else layers.BatchNormalization

    def conv_norm(x: Any, outputs: int, stride: int = 1) -> Any:
        return norm()(layers.Conv2D(outputs, 3, stride, padding="same")(x))

    def block(x: Any, outputs: int, stride: int = 1) -> Any:
        return layers.ReLU()(conv_norm(x, outputs, stride))

    inputs = keras.Input((sizes["height"], sizes["width"], sizes["channels"]))
    x = block(inputs, w)
    if recipe["model"] == "resnet9":
        x = layers.MaxPooling2D()(block(x, 2 * w))
        x = layers.Add()([x, block(block(x, 2 * w), 2 * w)])
        x = layers.MaxPooling2D()(block(x, 4 * w))
        x = layers.MaxPooling2D()(block(x, 8 * w))
        x = layers.Add()([x, block(block(x, 8 * w), 8 * w)])
        x = layers.GlobalMaxPooling2D()(x)
    else:
        for stage in range(3):
            for i in range(9):
                stride = 2 if stage > 0 and i == 0 else 1
                y = conv_norm(block(x, w * 2**stage, stride), w * 2**stage)
                skip = layers.Conv2D(w * 2**stage, 1, 2, padding="same")(x) if stride == 2 else x
                x = layers.ReLU()(layers.Add()([y, skip]))
        x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(sizes["classes"])(x))


def optimizer(recipe: dict[str, Any], updates: int) -> Any:
    """Keras' own rule of the recipe's name, with its cosine schedule."""
    rate = keras.optimizers.schedules.CosineDecay(recipe["learning_rate"], updates)
    match recipe["optimizer"]:
        case "adam":
            return keras.optimizers.Adam(rate)
        case "muon":
            return keras.optimizers.Muon(rate)
        case _:
            return keras.optimizers.SGD(rate)


class Best(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps the weights of the least validation loss, in memory, and counts the laps."""

    def __init__(self, laps: Laps) -> None:
        super().__init__()
        self.laps, self.best, self.kept = laps, math.inf, None

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """An epoch and its validation have ended."""
        loss = (logs or {})["val_loss"]
        if loss < self.best:
            self.best, self.kept = loss, self.model.get_weights()
        self.laps.lap()


def main() -> None:
    """Train one run and tell the times of its epochs."""
    recipe, sizes = TASK["recipe"], TASK["sizes"]
    train, val, test = examples(sizes)
    start()
    laps = Laps()
    model = network(recipe, sizes)
    updates = recipe["epochs"] * math.ceil(sizes["n_train"] / recipe["batch_size"])
    model.compile(
        optimizer=optimizer(recipe, updates),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True if TASK["compile"] else "auto",
    )
    best = Best(laps)
    model.fit(
        *train, batch_size=recipe["batch_size"], epochs=TASK["epochs"], verbose=0,
        validation_data=val, validation_batch_size=256, callbacks=[best],
    )  # fmt: skip
    model.set_weights(best.kept)
    laps.tell(lambda: model.evaluate(*test, batch_size=256, verbose=0))


if __name__ == "__main__":
    main()
