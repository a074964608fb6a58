# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "torch"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""A character-level GPT on the language reference that ships with Python.

The model has its own initialization (small embeddings, and even smaller residual projections), and the
scale multiplies that. The metric is a loss, in nats per character; how large a difference matters is for you
to decide, so a tolerance is given.

    python examples/char_gpt.py [--quick]
"""

import sys
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import initmem

CONTEXT, WIDTH, LAYERS, BATCH, STEPS = 32, 32, 2, 16, 20  # updates per epoch
TEXT = topics["compound"]  # the chapter on compound statements, some 50,000 letters
ALPHABET = sorted(set(TEXT))
CODES = torch.tensor([ALPHABET.index(letter) for letter in TEXT])
CUT = len(CODES) * 8 // 10
TRAIN, VALIDATION, TEST = CODES[:CUT], *CODES[CUT:].chunk(2)


class GPT(nn.Module):
    """Letters and places in, the next letter out; no letter sees those after it."""

    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(ALPHABET), bias=False)
        for name, values in self.named_parameters():
            if values.ndim == 2:
                before_sum = name.endswith(("out_proj.weight", "linear2.weight"))
                nn.init.normal_(values, std=0.1 / (2 * LAYERS) ** 0.5 if before_sum else 0.1)

    def forward(self, codes):
        mask = nn.Transformer.generate_square_subsequent_mask(codes.shape[1])
        inner = self.letters(codes) + self.places.weight[: codes.shape[1]]
        return self.head(self.body(inner, mask=mask, is_causal=True))


def loss_of(model, text, starts):
    windows = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def held_out(model, text):
    with torch.no_grad():
        return float(loss_of(model, text, range(0, len(text) - CONTEXT - 1, CONTEXT)))


def train(init, tracker):
    model = init.apply(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tracker.attach(model, optimizer, BATCH)
    for _ in range(init.recipe["epochs"]):
        losses = []
        for _ in range(STEPS):
            loss = loss_of(model, TRAIN, torch.randint(len(TRAIN) - CONTEXT, (BATCH,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        tracker.end_epoch(
            train_loss=sum(losses) / STEPS,
            val_loss=held_out(model, VALIDATION),
            test_loss=held_out(model, TEST),
        )


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.5, 2.0] if quick else [0.25, 0.5, 1.0, 2.0, 4.0],
        seeds=range(2 if quick else 4),
        name="char_gpt",
        recipe={"optimizer": "adamw", "epochs": 2 if quick else 20},
    )
    print(result.explain("test_loss", tolerance=0.05))
