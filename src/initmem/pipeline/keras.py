"""Keras 3, on any of its backends: a callback, and the parameters of a model.

    from initmem.pipeline.keras import KerasTracker

    def train(init, tracker):
        keras.utils.set_random_seed(init.seed)
        model = init.apply(make_model())
        model.compile(optimizer, loss, metrics=["accuracy"])
        model.fit(x, y, batch_size=32, validation_data=..., callbacks=[KerasTracker(tracker, batch_size=32)])
        return {"test_accuracy": model.evaluate(x_test, y_test, return_dict=True)["accuracy"]}

Every epoch's logs are recorded: `accuracy` and `loss` as `train_accuracy` and `train_loss`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.clocks import decay_rate
from initmem.errors import ModelError
from initmem.metric import metric_names
from initmem.pipeline.tracker import Tracker
from initmem.train.variables import Kernels, Parameter, Place, Variable, classified, looks_like_norm

DEPTHWISE = (keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D)
TRANSPOSED = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose)

NORMS = (keras.layers.BatchNormalization, keras.layers.GroupNormalization, keras.layers.LayerNormalization)


class KerasTracker(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback that records a `fit`: metrics of every epoch, norm of the weights, clocks.

    Args:
        tracker: the tracker that `initmem.run` passes to `train`.
        batch_size: as for `fit`.
        l2: the coefficient of a term l2 * sum(W^2) that your loss contains.
    """

    def __init__(self, tracker: Tracker, batch_size: int, *, l2: float = 0.0) -> None:
        super().__init__()
        self.tracker, self.batch_size, self.l2 = tracker, batch_size, l2
        self._seen = 0  # batches that the optimizer has taken in
        self._rate = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """Watch the model."""
        optimizer = self.model.optimizer
        passes = optimizer.gradient_accumulation_steps or 1
        penalty = decay_rate(self.l2, optimizer.weight_decay or 0.0)
        self.tracker.attach(self.model, None, self.batch_size, accumulation=passes, l2=penalty)
        self._seen = int(optimizer._iterations)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the rate of the update to come."""
        self._rate = float(self.model.optimizer.learning_rate)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count what was updated: with `steps_per_execution` that is more than one batch."""
        optimizer = self.model.optimizer
        passes = optimizer.gradient_accumulation_steps or 1
        schedule, now = optimizer._learning_rate, int(optimizer._iterations)
        scheduled = isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule)
        for k in range(self._seen, now):
            if (k + 1) % passes == 0:
                rate = float(schedule(k)) if scheduled and now > self._seen + 1 else self._rate
                self.tracker.step(rate, momentum=float(getattr(optimizer, "momentum", 0.0) or 0.0))
        self._seen = now

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the epoch with its logs."""
        self.tracker.end_epoch(**metric_names(logs or {}, bare="train_"))
        if self.tracker.diverged:
            self.model.stop_training = True


@dataclass(frozen=True, slots=True)
class KerasPlace(Place):
    """A variable of Keras."""

    variable: Any

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The variable itself."""
        return (self.variable,)

    def value(self) -> Tensor:
        """Its values, copied from wherever the backend keeps them."""
        values = keras.ops.convert_to_numpy(keras.ops.cast(self.variable, "float32"))
        return torch.from_numpy(np.array(values))

    def set(self, values: NDArray[np.float64]) -> None:
        """Redraw it."""
        self.variable.assign(values)

    def rescale(self, factor: float | NDArray[np.float64]) -> None:
        """Multiply it."""
        self.variable.assign(self.variable * keras.ops.cast(factor, self.variable.dtype))


def keras_variables(model: Any, kernels: Kernels = None) -> list[Variable]:
    """Every trained variable of a Keras model once; names have dots where Keras has slashes."""
    if not model.built:
        raise ModelError(f"{model.name} has no variables yet (allowed: build it, or call it on one batch)")
    # Without the name of the model, which Keras counts up from one to the next.
    prefix = f"{model.name}."
    parameters = [
        Parameter(
            str(variable.path).replace("/", ".").removeprefix(prefix),
            variable,
            layer=layer,
            label=f"{type(layer).__name__}.{variable.name}",
            is_norm=isinstance(layer, NORMS)
            or looks_like_norm(type(layer), [tuple(v.shape) for v in layer._trainable_variables]),
            is_bias="bias" in variable.name,
            is_frozen=not (variable.trainable and layer.trainable),
            place=KerasPlace(variable),
        )
        for layer in model._flatten_layers()
        for variable in layer._trainable_variables
    ]
    return classified(parameters, kernels, _usual_fan_in)


def _usual_fan_in(name: str, variable: Any, layer: Any) -> float | None:
    """How many inputs feed one output through a kernel; None: this is no kernel of a known layer."""
    shape = tuple(variable.shape)
    match variable.name:
        case "embeddings":
            return 1.0  # one row is looked up, not a sum over rows
        case "recurrent_kernel":
            return float(shape[0])
        case "kernel" if isinstance(layer, keras.layers.EinsumDense):
            inputs, output = layer.equation.split("->")
            axes = zip(inputs.split(",")[1].strip(), shape, strict=True)
            return float(math.prod(n for letter, n in axes if letter not in output))  # what is summed over
        case "kernel" if isinstance(layer, TRANSPOSED):  # (..., out, in): a stride spreads the inputs thinner
            return float(shape[-1] * max(math.prod(shape[:-2]) / math.prod(layer.strides), 1.0))
        case "kernel" if isinstance(layer, DEPTHWISE):
            return float(math.prod(shape[:-2]))
        case "depthwise_kernel":
            return float(math.prod(shape[:-2]))
        case "pointwise_kernel" | "kernel":
            return float(math.prod(shape[:-1]))
    return None
