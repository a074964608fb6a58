"""As with the Trainer of Hugging Face: nobody sets its seed, which is 42."""

import torch
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from initmem.pipeline.transformers import TransformersTracker

X = torch.linspace(-1, 1, 96).reshape(48, 2)
DATA = [{"x": x, "labels": torch.tensor(int(x.sum() > 0))} for x in X]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x, labels):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train(init, tracker):
    arguments = TrainingArguments(
        "out", num_train_epochs=2, learning_rate=0.01, eval_strategy="epoch", logging_strategy="epoch",
        save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        seed=init.seed if init.recipe["own_seed"] else 42,
    )  # fmt: skip
    trainer = Trainer(
        init.apply(Classifier()),
        arguments,
        train_dataset=DATA,
        eval_dataset=DATA,
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
        callbacks=[TransformersTracker(tracker)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
