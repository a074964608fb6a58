"""The same networks and training in Keras 3, the stack of the original experiments: the oracle of parity.

Written from Keras' own layers, optimizers and schedules; nothing here comes from initmem but the weights.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"  # needs no second framework

from collections.abc import Iterator

import keras
import keras.src.backend
import numpy as np

from initmem.recipe import Recipe
from initmem.train.layers import BatchNorm, LayerNorm
from initmem.train.pack import Pack

_promote = keras.src.backend.result_type


def _promote_to_double(*dtypes: object) -> object:
    """Keras lets float32 win over float64: its norms and matrix products would stay in float32."""
    return "float64" if any("float64" in str(dtype) for dtype in dtypes) else _promote(*dtypes)


keras.src.backend.result_type = _promote_to_double
keras.src.backend.common.dtypes.result_type = _promote_to_double


class Peer:
    """A Keras model with its weighted layers in initmem's order."""

    def __init__(self, recipe: Recipe, shape: tuple[int, int, int], updates: int, dtype: str) -> None:
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        self.recipe = recipe
        self.weighted: list[keras.Layer] = []
        self.norms: list[keras.Layer] = []
        channels, height, width = shape
        inputs = keras.Input((height, width, channels))
        blocks = {"resnet9": self._resnet9, "resnet9-avgpool": self._resnet9, "mlp": self._mlp}
        outputs = blocks.get(recipe.model, self._deep)(inputs)
        self.model = keras.Model(inputs, outputs)
        self.model.compile(
            optimizer=self._optimizer(updates),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )

    def _conv(self, x, outputs: int, size: int = 3, stride: int = 1):
        layer = keras.layers.Conv2D(
            outputs, size, strides=stride, padding="same", kernel_regularizer=self._penalty()
        )
        self.weighted.append(layer)
        return layer(x)

    def _dense(self, x, outputs: int):
        layer = keras.layers.Dense(outputs, kernel_regularizer=self._penalty())
        self.weighted.append(layer)
        return layer(x)

    def _norm(self, x):
        kind = (
            keras.layers.BatchNormalization
            if self.recipe.norm == "batch"
            else keras.layers.LayerNormalization
        )
        layer = kind()
        self.norms.append(layer)
        return layer(x)

    def _penalty(self):
        return keras.regularizers.L2(self.recipe.l2) if self.recipe.l2 else None

    def _block(self, x, outputs: int):
        return keras.layers.ReLU()(self._norm(self._conv(x, outputs)))

    def _resnet9(self, x):
        w, pool = self.recipe.width, keras.layers.MaxPooling2D(2)
        x = self._block(x, w)
        x = pool(self._block(x, 2 * w))
        x = keras.layers.Add()([x, self._block(self._block(x, 2 * w), 2 * w)])
        x = keras.layers.MaxPooling2D(2)(self._block(x, 4 * w))
        x = keras.layers.MaxPooling2D(2)(self._block(x, 8 * w))
        x = keras.layers.Add()([x, self._block(self._block(x, 8 * w), 8 * w)])
        if self.recipe.model == "resnet9":
            x = keras.layers.GlobalMaxPooling2D()(x)
        else:
            x = keras.layers.GlobalAveragePooling2D()(x)
        return self._dense(x, 10)

    def _deep(self, x):
        w = self.recipe.width
        n = {"resnet56": 9, "resnet110": 18}[self.recipe.model]
        x = self._block(x, w)
        for stage in range(3):
            for i in range(n):
                stride = 2 if stage > 0 and i == 0 else 1
                y = keras.layers.ReLU()(self._norm(self._conv(x, w * 2**stage, stride=stride)))
                y = self._norm(self._conv(y, w * 2**stage))
                if stride == 2:
                    x = self._conv(x, w * 2**stage, size=1, stride=2)
                x = keras.layers.ReLU()(keras.layers.Add()([y, x]))
        return self._dense(keras.layers.GlobalAveragePooling2D()(x), 10)

    def _mlp(self, x):
        x = keras.layers.Flatten()(x)
        for _ in range(2):
            x = keras.layers.ReLU()(self._norm(self._dense(x, self.recipe.width)))
        return self._dense(x, 10)

    def _optimizer(self, updates: int):
        r = self.recipe
        rate = keras.optimizers.schedules.CosineDecay(r.learning_rate, updates, alpha=r.lr_floor)
        if r.schedule == "constant":
            rate = r.learning_rate
        decay = r.weight_decay or None
        adam = {"beta_1": r.beta1, "beta_2": r.beta2, "epsilon": r.epsilon}
        match r.optimizer:
            case "sgd":
                return keras.optimizers.SGD(rate, weight_decay=decay)
            case "momentum":
                return keras.optimizers.SGD(rate, momentum=r.momentum, weight_decay=decay)
            case "adam":
                return keras.optimizers.Adam(rate, weight_decay=decay, **adam)
            case "adamw":
                return keras.optimizers.AdamW(rate, weight_decay=r.weight_decay, **adam)
        return keras.optimizers.Muon(
            rate, weight_decay=decay, adam_weight_decay=decay, momentum=r.momentum, epsilon=r.epsilon
        )

    def take_weights(self, pack: Pack) -> None:
        """Start from the pack's weights."""
        for layer, ours in zip(self.weighted, pack.network.named_layers().values(), strict=True):
            kernel = ours.kernel.detach().numpy()
            axes = (2, 3, 1, 0) if kernel.ndim == 4 else (1, 0)
            layer.set_weights([kernel.transpose(axes), ours.bias.detach().numpy()])

    def variables(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every variable in the layout of initmem, in the order of `pack_variables`."""
        for layer in self.weighted:
            kernel, bias = layer.get_weights()
            yield "kernel", kernel.transpose((3, 2, 0, 1) if kernel.ndim == 4 else (1, 0))
            yield "bias", bias
        for layer in self.norms:
            yield from zip(("gamma", "beta", "mean", "variance"), layer.get_weights(), strict=False)


def pack_variables(pack: Pack) -> Iterator[np.ndarray]:
    """Every variable of a pack of one, weighted layers first, then norms."""
    for layer in pack.network.named_layers().values():
        yield layer.kernel.detach().numpy()
        yield layer.bias.detach().numpy()
    for module in pack.network.modules():
        if isinstance(module, BatchNorm | LayerNorm):
            yield module.gamma.detach().numpy()
            yield module.beta.detach().numpy()
            if isinstance(module, BatchNorm):
                yield module.moving_mean.numpy()
                yield module.moving_variance.numpy()
