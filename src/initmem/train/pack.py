"""A pack in training: R replicas (scale, seed) of one recipe, trained as one network.

Replicas may have learning rates and penalties of their own, where the optimizer allows it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from initmem import __version__
from initmem.clocks import CLOCKS, RateSums, epoch_rates, updates_per_epoch
from initmem.data.dataset import Dataset
from initmem.recipe import PER_REPLICA, network_of
from initmem.record import COLUMNS, SHARPNESS, RunRecord, Status, finite, summarize
from initmem.seeds import generator
from initmem.study import Run
from initmem.train import compiled, native
from initmem.train.batches import Images, evaluation_batch, flip_crop_draws
from initmem.train.init import initialized
from initmem.train.layers import BatchNorm, MovingStatistics, Norm, by_replica
from initmem.train.models import ResNet9
from initmem.train.optimizers import PerReplica, optimizer_for, times
from initmem.train.requirements import Precision

STATISTICS_BATCHES = 50  # training batches from which the statistics of batch norm are re-estimated

Rows = dict[str, list[float]]
Session = dict[str, Any]  # the conditions under which a run was trained, and until which update
RUNNING = ("loss", "correct", "angular")  # sums over the batches of an epoch


class Step(NamedTuple):
    """What an update needs of a batch."""

    logits: Tensor  # (batch, replica, class), or (batch, replica, token, class)
    losses: Tensor  # (batch, replica)
    gradients: list[Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of one run between two batches: enough to resume it exactly."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class Pack:
    """The state of a pack. Epochs count from 1; `epoch` is the last completed one."""

    def __init__(
        self,
        runs: Sequence[Run],
        data: Dataset,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: Precision = "float32",
    ) -> None:
        self.runs, self.recipe = list(runs), network_of(runs[0].recipe)
        self.recipes = [network_of(run.recipe) for run in runs]
        if any(recipe.pack_key != self.recipe.pack_key for recipe in self.recipes):
            raise ValueError("the replicas of a pack must share one recipe, but for rates and penalties")
        self.replicas, self.classes = len(self.runs), data.classes
        self.device, self.precision = torch.device(device), precision
        self.train, self.val, self.test = (
            Images(split, device=self.device, dtype=dtype) for split in (data.train, data.val, data.test)
        )
        self.evaluated = evaluation_batch(data.sizes, self.replicas, self.device.type)  # examples at a time
        self.network = initialized(self.runs, data.sizes, device=self.device, dtype=dtype)
        if self.recipe.is_module:
            pass  # what suits the convolutions of a plugin only its author knows
        elif self.replicas == 1:  # grouped convolutions are faster in the default layout
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        elif isinstance(self.network, ResNet9) and self.network.fits_lanes and self._has_lanes(dtype):
            self.network.use_lanes(native.lanes_for(self.replicas))
        self.kernels = self.network.kernels()
        self.all_kernels = native.Together([kernel.detach() for kernel in self.kernels])
        self.statistics = MovingStatistics([m for m in self.network.modules() if isinstance(m, BatchNorm)])
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(trained), list(trained.values())
        variables = [p.detach() for p in self.parameters]
        self.optimizer = optimizer_for(self.recipe, variables, self.replicas, self._decayed())
        # What replicas have of their own, shape (replica,); plain numbers where all have the same.
        self.ratio: float | Tensor = 1.0  # of the learning rate to that of the first replica
        self.l2: float | Tensor = self.recipe.l2
        if any(recipe != self.recipe for recipe in self.recipes):
            of_each = {name: [getattr(r, name) for r in self.recipes] for name in PER_REPLICA}
            each = {name: torch.tensor(v, device=self.device, dtype=dtype) for name, v in of_each.items()}
            self.ratio, self.l2 = each["learning_rate"] / self.recipe.learning_rate, each["l2"]
            rule = optimizer_for(self.recipe.replace(weight_decay=0.0), variables, self.replicas)
            chosen = [variables[i] for i in self._decayed()]
            self.optimizer = PerReplica(rule, variables, chosen, self.ratio, each["weight_decay"])
        self.best = {name: value.clone() for name, value in self._variables().items()}
        self.epoch = 0
        self.norm_init = self._kernel_squares().sqrt().tolist()
        self.columns = COLUMNS + (SHARPNESS if self.recipe.sharpness_every else ())
        self.history: list[Rows] = [{name: [] for name in self.columns} for _ in self.runs]
        self.status: list[Status | None] = [None] * self.replicas  # None: still training
        self.earlier: list[list[Session]] = [[] for _ in self.runs]  # what checkpoints say of each run
        self.position: int  # batches of the present epoch that are done
        self.seconds: float  # spent on them
        self._begin_epoch()

    @property
    def finished(self) -> bool:
        """Whether every replica has completed or diverged."""
        return all(status is not None for status in self.status)

    @property
    def updates(self) -> int:
        """The number of updates so far."""
        return self.epoch * updates_per_epoch(self.recipe, len(self.train)) + self.position

    @property
    def spent(self) -> float:
        """Seconds that the runs have taken so far, in all sessions."""
        return self.seconds + sum(sum(rows["seconds"]) for rows in self.history)

    def train_epoch(self, pause: Callable[[], bool] = lambda: False) -> bool:
        """One pass over the training split, one validation, one row of history per replica.

        `pause` is called between batches. If it returns true, the epoch is interrupted and False is returned;
        the next call, on this pack or on one restored from its checkpoints, continues with the next batch.
        """
        started = time.perf_counter()
        epoch, recipe = self.epoch + 1, self.recipe
        rates = epoch_rates(recipe, len(self.train), epoch)
        batches, draws = self._order(epoch).split(recipe.batch_size), self._draws(epoch)
        first_update = self.updates - self.position + 1

        self.network.train()
        for i in range(self.position, len(batches)):
            x, y = self.train.packed(batches[i], draws[i])
            self.network.begin_update(first_update + i)
            step = self._step(x, y)
            with torch.no_grad():
                if recipe.batch_statistics == "moving":
                    self.statistics.absorb()
                self.running["angular"] += rates[i] * self.ratio / self._kernel_squares()
                self._update(step.gradients, float(rates[i]), first_update + i)
                self.running["loss"] += step.losses.sum(0)
                self.running["correct"] += _correct(step.logits, y).sum(0)
            self.position = i + 1
            if self.position < len(batches) and pause():
                self.seconds += time.perf_counter() - started
                return False

        sharpness = self._sharpness(epoch)
        with self._predictor(epoch):
            self.seconds += time.perf_counter() - started
            self._end_epoch(epoch, rates, sharpness)
        return True

    def _step(self, x: Tensor, y: Tensor) -> Step:
        """What the network makes of a batch."""
        logits = self._logits(x)
        # (batch, replica): the mean is over the batch only, so gradients do not depend on R.
        losses = _cross_entropy(logits, y)
        # A plain module may have parameters that it does not use: their gradient is zero.
        gradients = torch.autograd.grad(
            losses.sum() / len(x), self.parameters, materialize_grads=self.recipe.is_module
        )
        self.statistics.correct()
        return Step(logits.detach(), losses.detach(), list(gradients))

    def _begin_epoch(self) -> None:
        """Reset the sums over the batches of an epoch, each of shape (replica,)."""
        self.running = {name: torch.zeros(self.replicas, device=self.device) for name in RUNNING}
        self.position, self.seconds = 0, 0.0

    def records(self, provenance: dict[str, Any]) -> list[RunRecord]:
        """Test the selected predictor of every replica, once, and return the records of the runs."""
        for name, value in self._variables().items():
            value.copy_(self.best[name])
        loss, accuracy = self.evaluate(self.test)
        objective = loss + self.l2 * self._kernel_squares()
        return [
            finite(
                RunRecord(
                    run=run,
                    status=self.status[r] or "completed",
                    summary=summarize(
                        self._columns(r),
                        norm_init=self.norm_init[r],
                        selects=self.recipe.selecting_loss,
                        test_accuracy=float(accuracy[r]),
                        test_cross_entropy=float(loss[r]),
                        test_objective=float(objective[r]),
                    ),
                    history=self._columns(r),
                    provenance=provenance | self._mixture(r),
                )
            )
            for r, run in enumerate(self.runs)
        ]

    def checkpoint(self) -> list[Checkpoint]:
        """Split the state of the pack between two batches: one checkpoint per run."""
        tensors = self._state()
        return [
            Checkpoint(
                {name: self._of_replica(t, r).contiguous() for name, t in tensors.items()},
                {
                    "epoch": self.epoch,
                    "position": self.position,
                    "seconds": self.seconds / self.replicas,
                    "history": self.history[r],
                    "norm_init": self.norm_init[r],
                    "status": self.status[r],
                    "sessions": self._sessions(r),
                },
            )
            for r in range(self.replicas)
        ]

    @torch.no_grad()
    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Continue from checkpoints of the same update, one per run. Nothing is broadcast or converted."""
        metas = [saved.meta for saved in checkpoints]
        if len({(meta["epoch"], meta["position"]) for meta in metas}) != 1:
            raise ValueError("the checkpoints of a pack are of different updates")
        self.epoch = metas[0]["epoch"]
        self.position = metas[0]["position"]
        if self.updates:  # some optimizers allocate their state in the first step; all of it is overwritten
            self.optimizer.step([torch.zeros_like(p) for p in self.parameters], self.recipe.learning_rate, 1)
        for r, saved in enumerate(checkpoints):
            mine = {name: self._of_replica(tensor, r) for name, tensor in self._state().items()}
            if _layout(mine) != _layout(saved.tensors):
                raise ValueError(
                    f"run {self.runs[r].id}: its checkpoint holds other tensors than the network"
                )
            for name, tensor in mine.items():
                tensor.copy_(saved.tensors[name])
        self.earlier = [list(meta["sessions"]) for meta in metas]
        from initmem.store.old_names import present_rows  # of checkpoints from before columns were renamed

        histories = [present_rows(m["history"], r.l2) for m, r in zip(metas, self.recipes, strict=True)]
        self.history = [{name: list(rows[name]) for name in self.columns} for rows in histories]
        self.norm_init = [meta["norm_init"] for meta in metas]
        self.status = [meta["status"] for meta in metas]
        self.seconds = sum(meta.get("seconds", 0.0) for meta in metas)  # older checkpoints do not say

    def _sessions(self, replica: int) -> list[Session]:
        """Under which conditions a run was trained, and until which update; like sessions count as one."""
        ready = native.ready(self.device, self.parameters[0].dtype)
        now = {
            "initmem": __version__,
            "torch": torch.__version__,
            "device": str(self.device),
            "precision": self.precision,
            "native": compiled.library().build if ready else "",
            "pack": self.replicas,
        }
        before = self.earlier[replica]
        if before and {**before[-1], "updates": 0} == {**now, "updates": 0}:
            before = before[:-1]
        return [*before, {"updates": self.updates, **now}]

    def _mixture(self, replica: int) -> dict[str, Any]:
        """For the provenance: the sessions of a run, if they were not all alike."""
        sessions = self._sessions(replica)
        return {"sessions": sessions} if len(sessions) > 1 else {}

    def _has_lanes(self, dtype: torch.dtype) -> bool:
        """Whether replicas can be trained in SIMD lanes and would fill at least half of them."""
        return (
            native.ready(self.device, dtype)
            and self.precision != "amp"
            and 2 * self.replicas >= native.lanes_for(self.replicas).lanes
        )

    def _logits(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, replica, class); (batch, replica, token, class) if tokens have labels.

        Losses and updates are always in full precision.
        """
        with self._autocast():
            logits: Tensor = self.network(x)
        return logits.to(self.parameters[0].dtype).view(
            len(x), self.replicas, *self.train.y.shape[1:], self.classes
        )

    def _autocast(self) -> AbstractContextManager[Any]:
        """The context in which layers compute in the precision that was asked for."""
        if self.precision != "amp":
            return nullcontext()  # entering a context that changes nothing takes 20 microseconds
        return torch.autocast(self.device.type, torch.bfloat16)

    def _order(self, epoch: int) -> Tensor:
        """The order of the examples in one epoch, shape (example, replica)."""
        n = len(self.train)
        orders = [generator(run.seed_of("order"), "order", epoch).permutation(n) for run in self.runs]
        return torch.from_numpy(np.stack(orders, axis=1)).to(self.device)

    def _draws(self, epoch: int) -> Sequence[Tensor | None]:
        """The augmentation draws of every batch of one epoch, each of shape (batch, replica, 3)."""
        n, batch = len(self.train), self.recipe.batch_size
        if self.recipe.augment == "none":
            return [None] * updates_per_epoch(self.recipe, n)
        seeds = [run.seed_of("augment") for run in self.runs]
        draws: Sequence[Tensor] = flip_crop_draws(seeds, epoch, n).to(self.device).split(batch)
        return draws

    def _update(self, gradients: list[Tensor], rate: float, k: int) -> None:
        if any(recipe.l2 for recipe in self.recipes):
            of = dict(zip(map(id, self.parameters), gradients, strict=True))
            kernel_gradients = [of[id(kernel)] for kernel in self.kernels]
            if isinstance(self.l2, float):
                if not self.all_kernels.add_to(kernel_gradients, 2 * self.l2):
                    torch._foreach_add_(kernel_gradients, list[Tensor](self.kernels), alpha=2 * self.l2)
            else:
                for gradient, kernel in zip(kernel_gradients, self.kernels, strict=True):
                    gradient.add_(times(kernel, 2 * self.l2))
        self.optimizer.step(gradients, rate, k)

    def _decayed(self) -> list[int]:
        """The indices of the parameters that weight decay acts on."""
        chosen = {id(p) for p in (self.kernels if self.recipe.decay_on == "kernels" else self.parameters)}
        if self.recipe.decay_on == "no-norm":
            norms = (module for module in self.network.modules() if isinstance(module, Norm))
            chosen -= {id(p) for norm in norms for p in norm.parameters()}
        return [i for i, p in enumerate(self.parameters) if id(p) in chosen]

    @contextmanager
    def _predictor(self, epoch: int) -> Iterator[None]:
        """A context in which the network is the model to evaluate: the average, if the optimizer has one."""
        averaged = bool(self.optimizer.average)
        if averaged:
            iterates = [p.detach().clone() for p in self.parameters]
            torch._foreach_copy_([p.detach() for p in self.parameters], list(self.optimizer.average))
        if averaged or self.recipe.batch_statistics == "re-estimated":
            self._estimate_statistics(epoch)
        try:
            yield
        finally:
            if averaged:
                torch._foreach_copy_([p.detach() for p in self.parameters], iterates)

    @torch.no_grad()
    def _estimate_statistics(self, epoch: int) -> None:
        """Set the statistics of batch norm to means over the first training batches of the epoch.

        They take the place of the moving averages, which training itself never reads.
        """
        if not self.statistics.norms:
            return
        batches, draws = self._order(epoch).split(self.recipe.batch_size), self._draws(epoch)
        self.network.train()
        seen = 0
        for batch, draw in zip(batches[:STATISTICS_BATCHES], draws, strict=False):
            self._logits(self.train.packed(batch, draw)[0])
            seen += len(batch)
            self.statistics.correct()
            self.statistics.absorb(len(batch) / seen)

    def _sharpness(self, epoch: int) -> list[float]:
        """The sharpness of every replica where gradients are taken; NaN: not after this epoch."""
        every = self.recipe.sharpness_every
        if not every or (epoch > 1 and epoch % every):
            return [math.nan] * self.replicas
        from initmem.train.sharpness import sharpness

        values: list[float] = sharpness(self.network, self.train, self.recipe.l2).tolist()
        return values

    def _end_epoch(
        self, epoch: int, rates: np.ndarray[Any, np.dtype[np.float64]], sharpness: Sequence[float]
    ) -> None:
        """Validate, then append a row to the history of every replica that is still training."""
        started, n = time.perf_counter(), len(self.train)
        cross_entropy, accuracy = self.evaluate(self.val)
        fitted, correct = self.running["loss"] / n, self.running["correct"] / n
        if self.recipe.train_eval:
            fitted, correct = self.evaluate(self.train)
        squares = self._kernel_squares()
        penalty = self.l2 * squares
        recipe = self.recipe
        ratios = [each.learning_rate / recipe.learning_rate for each in self.recipes]
        eta, eta2 = float(rates.sum()), float((rates**2).sum())
        ticks = [
            RateSums.of_recipe(each, eta * ratio, eta2 * ratio**2).clocks(recipe.batch_size)
            for each, ratio in zip(self.recipes, ratios, strict=True)
        ]
        seconds = (self.seconds + time.perf_counter() - started) / self.replicas
        measured = {
            "train_cross_entropy": fitted.tolist(),
            "train_objective": (fitted + penalty).tolist(),
            "train_accuracy": correct.tolist(),
            "val_cross_entropy": cross_entropy.tolist(),
            "val_objective": (cross_entropy + penalty).tolist(),
            "val_accuracy": accuracy.tolist(),
            "norm": squares.sqrt().tolist(),
        }
        angles = self.running["angular"].tolist()
        improved = [False] * self.replicas
        for r, rows in enumerate(self.history):
            if self.status[r] is not None:
                continue
            values = {name: column[r] for name, column in measured.items()}
            if not np.isfinite([*values.values(), angles[r]]).all():
                self.status[r] = "diverged"
                continue
            loss = recipe.selecting_loss
            improved[r] = values[loss] < min(rows[loss], default=float("inf"))
            for name in CLOCKS:
                tick = angles[r] if name == "angular" else ticks[r][name]
                column = rows[f"clock_{name}"]
                column.append((column[-1] if column else 0.0) + tick)
            for name, value in values.items():
                rows[name].append(value)
            rows["learning_rate"].append(float(rates[-1]) * ratios[r])
            rows["seconds"].append(seconds)
            if recipe.sharpness_every:
                _add_sharpness(rows, epoch, sharpness[r])
            if epoch == recipe.epochs or self._out_of_patience(rows):
                self.status[r] = "completed"
        self._keep_best(improved)
        self.epoch = epoch
        self._begin_epoch()

    def _out_of_patience(self, rows: Rows) -> bool:
        losses, patience = rows[self.recipe.selecting_loss], self.recipe.patience
        return patience is not None and len(losses) - 1 - int(np.argmin(losses)) >= patience

    @torch.no_grad()
    def _keep_best(self, improved: Sequence[bool]) -> None:
        """Copy the variables of the improved replicas into the selected predictors."""
        which = torch.tensor(improved, device=self.device).nonzero().flatten()
        for name, value in self._variables().items():
            now, best = by_replica(value, self.replicas), by_replica(self.best[name], self.replicas)
            best.index_copy_(0, which, now.index_select(0, which))

    @torch.no_grad()
    def evaluate(self, images: Images) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy and accuracy of every replica, each of shape (replica,)."""
        self.network.eval()
        loss = torch.zeros(self.replicas, device=self.device)
        correct = torch.zeros(self.replicas, device=self.device)
        for x, y in images.shared(self.evaluated):
            logits = self._logits(x)
            labels = y[:, None].expand(-1, self.replicas, *y.shape[1:])
            loss += _cross_entropy(logits, labels).sum(0)
            correct += _correct(logits, labels).sum(0)
        return loss / len(images), correct / len(images)

    @torch.no_grad()
    def _kernel_squares(self) -> Tensor:
        """The squared Frobenius norm of all kernels of each replica, shape (replica,)."""
        if self.all_kernels.ready:
            return self.all_kernels.sum_of_squares(self.replicas)
        norms = [
            torch.linalg.vector_norm(by_replica(kernel, self.replicas), dim=tuple(range(1, kernel.ndim + 1)))
            for kernel in self.kernels
        ]
        return torch.stack(norms).square().sum(0)

    def _variables(self) -> dict[str, Tensor]:
        """Parameters and moving statistics: together they define the predictor."""
        return self.network.state_dict()

    def _state(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by name."""
        state = {f"now/{name}": value for name, value in self._variables().items()}
        state |= {f"best/{name}": value for name, value in self.best.items()}
        if self.position:
            state |= {f"running/{name}": value for name, value in self.running.items()}
        return state | self.optimizer.state(self.names)

    def _of_replica(self, tensor: Tensor, replica: int) -> Tensor:
        """One replica's part of a state; what has no axes is common to all replicas."""
        return by_replica(tensor, self.replicas)[replica] if tensor.ndim else tensor

    def _columns(self, replica: int) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        return {name: np.array(values) for name, values in self.history[replica].items()}


def _add_sharpness(rows: Rows, epoch: int, value: float) -> None:
    """Append a value and its epoch; where it was not measured, those of the latest measurement."""
    latest = [rows[name][-1] if rows[name] else 0.0 for name in SHARPNESS]
    for name, entry in zip(SHARPNESS, [value, float(epoch)] if math.isfinite(value) else latest, strict=True):
        rows[name].append(entry)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of every example, shape (batch, replica): of its label, or the mean over its tokens."""
    losses = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view_as(labels)
    return losses if labels.ndim == 2 else losses.mean(2)


def _correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether every example is classified correctly, shape (batch, replica); the share of its tokens."""
    correct = logits.argmax(-1) == labels
    return correct if labels.ndim == 2 else correct.to(logits.dtype).mean(2)


def _layout(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
