"""Train a pack of runs: epochs of updates, evaluation, early stopping, one test, one record per run."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from initmem.clocks import epoch_rates
from initmem.data.dataset import Dataset
from initmem.record import MOST_PREDICTIONS, RunRecord, finite, summarize
from initmem.study import Run
from initmem.train import native
from initmem.train.comparison import compared
from initmem.train.layers import MOVING_AVERAGE
from initmem.train.optimizers import times
from initmem.train.pack import PARENT, Batch, Checkpoint, Images, Pack

STATISTICS_BATCHES = 50  # training batches from which the statistics of batch norm are re-estimated
FEW_CLASSES = 15  # not enough to fill a vector: PyTorch then computes a loss number by number


def train_pack(
    runs: Sequence[Run],
    data: Dataset,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    resume: Sequence[Checkpoint] | None = None,
    on_epoch: Callable[[Pack], None] = lambda pack: None,
    pause: Callable[[], bool] = lambda: False,
    on_pause: Callable[[Pack], None] = lambda pack: None,
    on_parent: Callable[[Pack], None] = lambda parents: None,
) -> list[RunRecord]:
    """Train the runs of one recipe as a pack and return one record per run.

    Training resumes from the checkpoints in `resume`, if given. `on_epoch` is called after every epoch.
    `pause` is called between batches; if it returns true, `on_pause` is called, to save the pack. While the
    parents of runs that begin warm are trained, which is not saved, `on_parent` is called instead of both.
    All callbacks may raise to stop training.
    """
    started = time.perf_counter()
    # By default PyTorch lets a GPU compute convolutions in TF32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        if resume is None:
            parents = trained_parents(runs, data, device, dtype, pause, on_parent)
        else:
            parents = saved_parents(runs, resume)
        pack = Pack(runs, data, device=device, dtype=dtype, parents=parents)
        if resume is not None:
            pack.restore(resume)
        started -= pack.spent  # in earlier sessions
        while not pack.finished:
            completed = train_epoch(pack, pause)
            (on_epoch if completed else on_pause)(pack)
        return records(pack, time.perf_counter() - started)


def trained_parents(
    runs: Sequence[Run],
    data: Dataset,
    device: str,
    dtype: torch.dtype,
    pause: Callable[[], bool],
    on_parent: Callable[[Pack], None],
) -> dict[Run, Checkpoint]:
    """Train what warm runs begin from: the same runs on the first half of the examples, to the last epoch."""
    size = max(1, len(data.train) // 2)
    parents = {
        run: replace(run, recipe=run.recipe.network.replace(train_size=size), intervention="")
        for run in runs
        if run.is_warm
    }
    if not parents:
        return {}
    half = data.limited(size, None, None)
    pack = Pack(list(dict.fromkeys(parents.values())), half, device=device, dtype=dtype)
    while not pack.finished:
        train_epoch(pack, pause)
        on_parent(pack)
    ends = {}
    for run, status, rows, saved in zip(pack.runs, pack.status, pack.history, pack.checkpoint(), strict=True):
        weights = {name[4:]: tensor for name, tensor in saved.tensors.items() if name.startswith("now/")}
        known = {"run": run.id, "train_size": size, "epochs": len(rows["norm"]), "status": status}
        last = {name: rows[name][-1] for name in ("train_accuracy", "val_accuracy") if rows[name]}
        ends[run] = Checkpoint(weights, known | last)
    return {run: ends[parent] for run, parent in parents.items()}


def saved_parents(runs: Sequence[Run], resume: Sequence[Checkpoint]) -> dict[Run, Checkpoint]:
    """The parents of warm runs, from the checkpoints of the runs."""
    return {
        run: Checkpoint(
            {name.removeprefix(PARENT): t for name, t in saved.tensors.items() if name.startswith(PARENT)},
            saved.meta["parent"],
        )
        for run, saved in zip(runs, resume, strict=True)
        if run.is_warm
    }


def train_epoch(pack: Pack, pause: Callable[[], bool] = lambda: False) -> bool:
    """One pass over the training split, one validation, one row of history per replica.

    `pause` is called between batches. If it returns true, the epoch is interrupted and False is returned;
    the next call, on this pack or on one restored from its checkpoints, continues with the next batch.
    """
    started = time.perf_counter()
    recipe, epoch = pack.recipe, pack.epoch + 1
    rates = epoch_rates(recipe, len(pack.train), epoch)
    batches = pack.batches(epoch)
    first_update = pack.updates - pack.position + 1

    if pack.position == 0:
        pack.intervene()
    while pack.position < len(batches):
        i = pack.position
        if pack.in_lanes is not None and pack.in_lanes.rule is not None:
            now = slice(i, i + pack.in_lanes.at_once)
            x, y = pack.examples(batches[now])
            share = 1 - MOVING_AVERAGE if recipe.batch_statistics == "moving" else 0.0
            pack.in_lanes.train(x, y, rates[now], share, first_update + i, pack.running)
            pack.position = min(now.stop, len(batches))
        else:
            train_batch(pack, batches[i], float(rates[i]), first_update + i)
            pack.position = i + 1
        if pack.position < len(batches) and pause():
            pack.seconds += time.perf_counter() - started
            return False

    with evaluated_model(pack, batches):
        measured = _measure(pack)
        pack.seconds += time.perf_counter() - started
        improved = pack.append_rows(measured, rates)
        pack.keep_best(improved)
    pack.begin_epoch(epoch)
    return True


def train_batch(pack: Pack, batch: Batch, rate: float, k: int) -> None:
    """Update k, on one batch."""
    pack.set_training(True)
    x, y = pack.train.packed(*batch)
    pack.network.update = k
    logits = pack.logits(x)
    losses = cross_entropy(logits, y)  # (batch, replica)
    # The mean is over the batch alone, so that gradients do not depend on the number of replicas. A plain
    # module may have parameters that it does not use: their gradient is zero.
    gradients = torch.autograd.grad(
        losses.sum() / len(x), pack.parameters, materialize_grads=pack.recipe.is_module
    )
    with torch.no_grad():
        if pack.recipe.batch_statistics == "moving":
            pack.statistics.absorb()
        pack.running["angular"] += rate * pack.ratio / pack.kernel_squares()
        add_l2(pack, gradients)
        pack.optimizer.step(list(gradients), rate, k)
        pack.running["loss"] += losses.sum(0)
        pack.running["correct"] += correct(logits, y).sum(0)


def records(pack: Pack, seconds: float) -> list[RunRecord]:
    """Test the selected model of every replica, once, and return the records of the runs."""
    pack.load(pack.best)
    predicted: list[Tensor] = []
    loss, accuracy = evaluate(pack, pack.test, predicted)
    arrays = compared(pack, torch.cat(predicted))
    objective = loss + pack.l2 * pack.kernel_squares()
    provenance = {  # the engine adds the rest
        "device": str(pack.device),
        "native": native.ready(pack.device, pack.dtype),
        "layers": native.layers(pack.device, pack.dtype),
        "classes": pack.classes,
        "n_test": len(pack.test),
        "pack": pack.replicas,
        "seconds": round(seconds, 3),
    }
    made = []
    for r, run in enumerate(pack.runs):
        summary = summarize(
            pack.columns(r),
            norm_init=pack.norm_init[r],
            selects=pack.recipe.selecting_loss,
            test_accuracy=float(accuracy[r]),
            test_cross_entropy=float(loss[r]),
            test_objective=float(objective[r]),
        )
        sessions = pack.sessions(r)
        mixture = {"sessions": sessions} if len(sessions) > 1 else {}
        parent = {"parent": pack.parents[run].meta} if run in pack.parents else {}
        status = pack.status[r] or "completed"
        kept = arrays[r] if math.isfinite(loss[r]) else {}
        record = RunRecord(run, status, summary, pack.columns(r), provenance | mixture | parent, arrays=kept)
        made.append(finite(record))
    return made


@torch.no_grad()
def evaluate(pack: Pack, images: Images, predicted: list[Tensor] | None = None) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy and accuracy of every replica, each of shape (replica,).

    The classes of the first batches are appended to `predicted`, shape (example, replica, ...).
    """
    pack.set_training(False)
    loss = torch.zeros(pack.replicas, device=pack.device)
    hits = torch.zeros(pack.replicas, device=pack.device)
    for x, y in images.shared(pack.evaluated_at_once):
        logits = pack.logits(x)
        labels = y[:, None].expand(-1, pack.replicas, *y.shape[1:])
        loss += cross_entropy(logits, labels).sum(0)
        hits += correct(logits, labels).sum(0)
        if predicted is not None and sum(map(len, predicted)) < MOST_PREDICTIONS:
            predicted.append(logits.argmax(-1).int())
    return loss / len(images), hits / len(images)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every example, shape (batch, replica): of its label, or the mean over its tokens."""
    rows, of_rows = logits.flatten(0, -2), labels.flatten()
    if rows.shape[1] <= FEW_CLASSES:  # with rows in the vectors, the same losses in a fraction of the time
        rows, of_rows = rows.T.contiguous()[None], of_rows[None]
    losses = F.cross_entropy(rows, of_rows, reduction="none").view_as(labels)
    return losses if labels.ndim == 2 else losses.mean(2)


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether every example is classified correctly, shape (batch, replica); the share of its tokens."""
    hits = logits.argmax(-1) == labels
    return hits if labels.ndim == 2 else hits.to(logits.dtype).mean(2)


@contextmanager
def evaluated_model(pack: Pack, batches: Sequence[Batch]) -> Iterator[None]:
    """A context in which the network is the model to evaluate after an epoch of these batches.

    It is the average, if the optimizer has one.
    """
    variables = [parameter.detach() for parameter in pack.parameters]
    iterates = list(torch._foreach_clone(variables)) if pack.optimizer.average else []
    if iterates:
        torch._foreach_copy_(variables, list(pack.optimizer.average))
    if iterates or pack.recipe.batch_statistics == "re-estimated":
        estimate_statistics(pack, batches[:STATISTICS_BATCHES])
    try:
        yield
    finally:
        if iterates:
            torch._foreach_copy_(variables, iterates)


@torch.no_grad()
def estimate_statistics(pack: Pack, batches: Sequence[Batch]) -> None:
    """Set the statistics of batch norm to means over these training batches.

    They replace the moving averages, which training itself never reads.
    """
    if not pack.statistics.norms:
        return
    seen = itertools.accumulate(len(index) for index, _ in batches)
    shares = [len(index) / up_to for (index, _), up_to in zip(batches, seen, strict=True)]
    if pack.in_lanes is not None:
        pack.in_lanes.estimate_statistics(pack.examples(batches)[0], shares)
        return
    pack.set_training(True)
    for batch, share in zip(batches, shares, strict=True):
        pack.logits(pack.train.packed(*batch)[0])
        pack.statistics.absorb(share)


def add_l2(pack: Pack, gradients: Sequence[Tensor]) -> None:
    """Add the gradient of l2 * sum(W^2), which is 2 * l2 * W, for the kernels that are trained."""
    if not any(recipe.l2 for recipe in pack.recipes):
        return
    of_kernels = [gradients[i] for i in pack.kernel_indices]
    kernels = pack.trained_kernels.first
    if isinstance(pack.l2, Tensor):  # one for each replica
        for gradient, kernel in zip(of_kernels, kernels, strict=True):
            gradient.add_(times(kernel, 2 * pack.l2))
    elif not pack.trained_kernels.add_to(of_kernels, 2 * pack.l2):
        torch._foreach_add_(of_kernels, kernels, alpha=2 * pack.l2)


def _measure(pack: Pack) -> dict[str, list[float]]:
    """What evaluation adds to the history: columns with one value per replica."""
    val_loss, val_accuracy = evaluate(pack, pack.val)
    if pack.recipe.train_eval:
        train_loss, train_accuracy = evaluate(pack, pack.train)
    else:
        n = len(pack.train)
        train_loss, train_accuracy = pack.running["loss"] / n, pack.running["correct"] / n
    squares = pack.kernel_squares()
    penalty = pack.l2 * squares
    measured = {
        "train_cross_entropy": train_loss,
        "train_objective": train_loss + penalty,
        "train_accuracy": train_accuracy,
        "val_cross_entropy": val_loss,
        "val_objective": val_loss + penalty,
        "val_accuracy": val_accuracy,
        "norm": squares.sqrt(),
    }
    return {name: values.tolist() for name, values in measured.items()}
