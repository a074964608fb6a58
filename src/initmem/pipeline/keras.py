"""A callback for Keras 3, on any of its backends.

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

from typing import Any

import keras

from initmem.clocks import decay_rate
from initmem.metric import metric_names
from initmem.pipeline.tracker import Tracker


class KerasTracker(keras.callbacks.Callback):  # type: ignore[misc]
    """Tracks a `fit`: metrics of every epoch, kernel norm, and the clocks of every update."""

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
