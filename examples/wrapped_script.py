# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "numpy", "torch"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""A GPT in one file, in the manner of public training scripts: --key=value overrides a setting.

    python examples/wrapped_script.py --max_iters=40 --batch_size=8

It reads its data from a memory map, evaluates before the first update, accumulates gradients, decays the
learning rate by a cosine, and keeps the best checkpoint in out/ckpt.pt.
"""

import math
import sys
from ast import literal_eval
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

import initmem

# -----------------------------------------------------------------------------
# settings
scale, history = 1.0, "history.jsonl"
out_dir = "out"
seed = 1337
eval_interval = 10
eval_iters = 4
batch_size = 8
gradient_accumulation_steps = 2
block_size = 16
n_layer = 2
n_head = 2
n_embd = 16
learning_rate = 1e-2
min_lr = 1e-3
warmup_iters = 5
max_iters = 40
weight_decay = 1e-1
text = "to measure is to know, and to know is to measure; what is not measured is not known. " * 40
for argument in sys.argv[1:]:
    key, _, value = argument.removeprefix("--").partition("=")
    assert key in globals(), f"unknown setting {key}"
    globals()[key] = type(globals()[key])(value) if isinstance(globals()[key], str) else literal_eval(value)
# -----------------------------------------------------------------------------
torch.manual_seed(seed)
Path(out_dir).mkdir(exist_ok=True)
alphabet = sorted(set(text))
codes = np.array([alphabet.index(letter) for letter in text], dtype=np.uint16)
codes[: len(codes) * 9 // 10].tofile(f"{out_dir}/train.bin")
codes[len(codes) * 9 // 10 :].tofile(f"{out_dir}/val.bin")


def get_batch(split):
    data = np.memmap(f"{out_dir}/{split}.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in starts])
    return x, y


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.c_fc, self.mlp_proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, n_head, c // n_head).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(c, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(alphabet), n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, len(alphabet), bias=False)
        self.wte.weight = self.lm_head.weight  # tied
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * n_layer) if "proj" in name else 0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            h = block(h)
        return F.cross_entropy(self.lm_head(self.ln_f(h)).flatten(0, 1), y.flatten())


model = GPT()
initmem.Init(scale, seed).apply(model)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))
tracker = initmem.Tracker(out=history)
tracker.attach(model, optimizer, batch_size, accumulation=gradient_accumulation_steps)


@torch.no_grad()
def estimate_loss():
    return {
        split: torch.stack([model(*get_batch(split)) for _ in range(eval_iters)]).mean()
        for split in ("train", "val")
    }


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * min(ratio, 1))) * (learning_rate - min_lr)


iter_num, best_val_loss = 0, math.inf
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        tracker.end_epoch(train_loss=losses["train"], val_loss=losses["val"])
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            torch.save({"model": model.state_dict(), "iter_num": iter_num}, f"{out_dir}/ckpt.pt")
    if iter_num >= max_iters:
        break
    for _ in range(gradient_accumulation_steps):
        loss = model(*get_batch("train")) / gradient_accumulation_steps
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
