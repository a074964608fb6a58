"""A callback for the Trainer of Hugging Face transformers.

    from transformers import Trainer, TrainingArguments
    from initmem.pipeline.transformers import TransformersTracker

    def train(init, tracker):
        model = init.apply(AutoModelForSequenceClassification.from_config(config))
        arguments = TrainingArguments(
            "out", eval_strategy="epoch", logging_strategy="epoch", num_train_epochs=3, report_to="none",
            seed=init.seed, data_seed=init.run.seed_of("order"),
        )
        trainer = Trainer(model, arguments, ..., callbacks=[TransformersTracker(tracker)])
        trainer.train()
        trainer.evaluate(test_dataset, metric_key_prefix="test")

Every evaluation while training ends an epoch of the tracker; `eval_accuracy` counts as `val_accuracy`. The
training loss joins it as `train_loss` if it is logged as often: `logging_strategy="epoch"`. What is evaluated
or predicted with the prefix `test` after training is that of the returned model. Without evaluation, an epoch
ends with every logged training loss. The Trainer seeds itself: without its two seeds, all runs have the same
order of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from initmem.metric import metric_names
from initmem.pipeline.tracker import Tracker

SKIP = ("_runtime", "_per_second", "_preparation_time")


class TransformersTracker(TrainerCallback):
    """A callback of the Trainer that records a `train`: metrics of every evaluation, norm, clocks.

    Args:
        tracker: the tracker that `initmem.run` passes to `train`.
        l2: the coefficient of a term l2 * sum(W^2) that your loss contains.
    """

    def __init__(self, tracker: Tracker, *, l2: float = 0.0) -> None:
        self.tracker, self.l2 = tracker, l2
        self._training = False
        self._loss: float | None = None  # logged since the last evaluation

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Watch the model and its optimizer."""
        self._training = True
        self.tracker.attach(
            kwargs["model"],
            kwargs["optimizer"],
            args.train_batch_size * args.world_size,
            accumulation=args.gradient_accumulation_steps,
            l2=self.l2,
        )

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End an epoch; after training, take the metrics of a test."""
        if self._training:
            losses = {} if self._loss is None else {"train_loss": self._loss}
            self._loss = None
            self._end(control, kwargs["metrics"] | losses)
        else:
            self._finish(kwargs["metrics"])

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any,
        **kwargs: Any,
    ) -> None:
        """Take the metrics of a test."""
        self._finish(metrics)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the training loss for the evaluation to come; without evaluation it is all there is."""
        if not self._training or "loss" not in kwargs["logs"]:
            return
        if args.eval_strategy == "no":
            self._end(control, {"train_loss": kwargs["logs"]["loss"]})
            return
        # Only where a loss is logged before every evaluation, so that all epochs have one.
        alike = args.logging_strategy == args.eval_strategy and not args.eval_on_start
        if alike and (args.eval_strategy == "epoch" or args.logging_steps == args.eval_steps):
            self._loss = float(kwargs["logs"]["loss"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let go of the optimizer."""
        self._training = False
        self.tracker.detach()

    def _end(self, control: TrainerControl, metrics: Mapping[str, Any]) -> None:
        self.tracker.end_epoch(**metric_names(metrics, skip=SKIP))
        control.should_training_stop = control.should_training_stop or self.tracker.diverged

    def _finish(self, metrics: Mapping[str, Any]) -> None:
        named = metric_names(metrics, skip=SKIP)
        self.tracker.finish(**{name: value for name, value in named.items() if name.startswith("test_")})
