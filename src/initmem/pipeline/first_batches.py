"""What the first training batches of a torch model tell: the order of the data, and the number of classes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

WATCHED = 2  # batches
MOST_CLASSES = 100_000


class FirstBatches:
    """A forward hook for two training batches; it then removes itself."""

    def __init__(self) -> None:
        self.order: list[str] = []  # a digest of each batch
        self.classes: int | None = None  # None: the outputs do not tell
        self._handle: Any = None

    def watch(self, model: Any) -> None:
        """Look at the first batches of a torch module; other models are left alone."""
        self.remove()
        if isinstance(model, nn.Module) and len(self.order) < WATCHED:
            self._handle = model.register_forward_hook(self, with_kwargs=True)

    def remove(self) -> None:
        """Take the hook off the model."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __call__(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Passes without gradients, or in evaluation mode, are not training."""
        if torch.compiler.is_compiling() or not (model.training and torch.is_grad_enabled()):
            return
        try:
            self._add([args, kwargs])
        except (RuntimeError, TypeError, ValueError):  # tensors without values, as under vmap
            self.order = []
            self.remove()
        self.classes = _classes(output)
        if len(self.order) >= WATCHED:
            self.remove()

    def _add(self, inputs: Any) -> None:
        digest = hashlib.blake2b(digest_size=8)
        for tensor in _tensors(inputs):
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        self.order.append(digest.hexdigest())

    def about(self) -> dict[str, Any]:
        """What joins the provenance of a run."""
        seen = {"order": self.order, "classes": self.classes}
        return {name: value for name, value in seen.items() if value}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for one in value:
            yield from _tensors(one)


def _classes(output: Any) -> int | None:
    """The width of the logits of a classifier, (example, class)."""
    logits = getattr(output, "logits", output)
    if isinstance(logits, Tensor) and logits.ndim == 2 and 2 <= logits.shape[1] <= MOST_CLASSES:
        return int(logits.shape[1])
    return None
