# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "torch", "transformers[torch]"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""Hugging Face's Trainer on a small BERT that starts from random weights: nothing is downloaded.

The sentences are made up: a string of brackets of two kinds, and the question whether all of them are closed.

    python examples/transformers_trainer.py [--quick]
"""

import random
import sys
import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

import initmem
from initmem.pipeline.transformers import TransformersTracker

CODES = {"(": 1, ")": 2, "[": 3, "]": 4}
LENGTH = 8


def sentence(rng):
    """Brackets that are closed, in half of the cases with one of them exchanged for another."""
    text = ""
    while len(text) < LENGTH:
        start, pair = rng.randrange(len(text) + 1), rng.choice(["()", "[]"])
        text = text[:start] + pair + text[start:]
    closed = rng.random() < 0.5
    if not closed:
        place = rng.randrange(LENGTH)
        text = text[:place] + rng.choice([c for c in CODES if c != text[place]]) + text[place + 1 :]
    return {"input_ids": torch.tensor([CODES[letter] for letter in text]), "labels": int(closed)}


RNG = random.Random(42)
DATA = [sentence(RNG) for _ in range(768)]
TRAIN, VALIDATION, TEST = DATA[:512], DATA[512:640], DATA[640:]


def train(init, tracker):
    logging.set_verbosity_error()
    config = BertConfig(
        vocab_size=5, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=init.recipe["epochs"], learning_rate=2e-3,
            per_device_train_batch_size=32, eval_strategy="epoch", save_strategy="no",
            logging_strategy="epoch", report_to="none", disable_tqdm=True, use_cpu=True, seed=init.seed,
            data_seed=init.run.seed_of("order"),
        )  # fmt: skip
        trainer = Trainer(
            init.apply(BertForSequenceClassification(config)),
            arguments,
            train_dataset=TRAIN,
            eval_dataset=VALIDATION,
            compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(1) == p.label_ids).mean())},
            callbacks=[TransformersTracker(tracker)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        trainer.evaluate(TEST, metric_key_prefix="test")


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.5, 2.0] if quick else [0.25, 0.5, 1.0, 2.0],
        seeds=range(2 if quick else 4),
        name="transformers_trainer",
        recipe={"optimizer": "adamw", "epochs": 2 if quick else 15},
    )
    print(result)
