# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "keras", "scikit-learn", "torch"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""A Keras 3 model, here on its torch backend, with a checkpoint of the best epoch: initmem adds two lines.

python examples/keras_model.py [--quick]
"""

import os
import sys

os.environ.setdefault("KERAS_BACKEND", "torch")  # any backend that is installed will do

import keras
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

import initmem
from initmem.pipeline.keras import KerasTracker

BATCH = 16


def train(init, tracker):
    x, y = load_iris(return_X_y=True)
    x, x_test, y, y_test = train_test_split(StandardScaler().fit_transform(x), y, random_state=0, stratify=y)
    keras.utils.set_random_seed(init.seed)
    layers = [keras.Input((4,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(3)]
    model = init.apply(keras.Sequential(layers))  # the first line
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, metrics=["accuracy"])
    best = keras.callbacks.ModelCheckpoint("best_model.keras", save_best_only=True)
    watch = KerasTracker(tracker, BATCH)  # the second
    epochs = init.recipe["epochs"]
    model.fit(x, y, BATCH, epochs, validation_split=0.25, verbose=0, callbacks=[best, watch])
    model = keras.models.load_model("best_model.keras")
    return {"test_accuracy": model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]}


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.1, 2.5] if quick else [0.1, 0.5, 1.0, 1.8, 2.5],
        seeds=range(2 if quick else 5),
        name="keras_model",
        recipe={"optimizer": "sgd", "epochs": 2 if quick else 20},
    )
    print(result)
