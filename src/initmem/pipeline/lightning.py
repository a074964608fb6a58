"""A callback for PyTorch Lightning.

    from lightning.pytorch import Trainer
    from initmem.pipeline.lightning import LightningTracker

    def train(init, tracker):
        module = init.apply(MyModule())
        trainer = Trainer(max_epochs=10, callbacks=[LightningTracker(tracker)])
        trainer.fit(module, train_loader, val_loader)
        trainer.test(module, test_loader)

What the module logs for an epoch is recorded; `val/acc` counts as `val_accuracy`. Metrics of `trainer.test`
belong to the returned model. Epochs without validation are joined to the next one with it.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from initmem.errors import ConfigError
from initmem.metric import metric_names
from initmem.pipeline.tracker import Tracker


class LightningTracker(Callback):
    """A Lightning callback that records a `fit`: metrics of every epoch, norm of the weights, clocks.

    Args:
        tracker: the tracker that `initmem.run` passes to `train`.
        batch_size: examples per batch and device, where the data loader has no `batch_size`.
        l2: the coefficient of a term l2 * sum(W^2) that your loss contains.
    """

    def __init__(self, tracker: Tracker, batch_size: int | None = None, *, l2: float = 0.0) -> None:
        self.tracker, self.batch_size, self.l2 = tracker, batch_size, l2
        self._trainer: Trainer | None = None
        self._validated = self._pending = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Watch the module and its optimizers."""
        self._trainer = trainer
        size = self.batch_size or getattr(trainer.train_dataloader, "batch_size", None)
        if size is None:
            raise ConfigError("batch_size: the data loader does not tell (allowed: a batch_size of your own)")
        batch, passes = size * trainer.world_size, trainer.accumulate_grad_batches
        self.tracker.attach(pl_module, trainer.optimizers, batch, accumulation=passes, l2=self.l2)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that this epoch has metrics of validation."""
        self._validated = self._validated or not trainer.sanity_checking

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch is over, but the module's own hook may have something to log yet."""
        self._pending = self._validated or not trainer.enable_validation

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the epoch before."""
        self._close()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the last epoch."""
        self._close()
        self.tracker.detach()

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Metrics of the returned model."""
        metrics = metric_names(trainer.callback_metrics, skip=("_step",))
        self.tracker.finish(**{name: value for name, value in metrics.items() if name.startswith("test_")})

    def state_dict(self) -> dict[str, Any]:
        """Goes into Lightning's checkpoints."""
        self._close()
        return self.tracker.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Comes out of Lightning's checkpoints."""
        self.tracker.load_state_dict(state_dict)

    def _close(self) -> None:
        if self._pending and self._trainer is not None:
            logged = self._trainer.callback_metrics
            several = tuple(name for name in logged if name.endswith("_epoch"))  # logged by step as well
            self._pending = self._validated = False
            self.tracker.end_epoch(**metric_names(logged, skip=("_step", *several)))
            self._trainer.should_stop = self._trainer.should_stop or self.tracker.diverged
