"""The state of a pack: R replicas (scale, seed) of one recipe, trained as one network.

Replicas may have learning rates, L2 and weight decay of their own, where the optimizer allows it. The data is
on the device once; batches are gathered from it and may be augmented.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem import __version__
from initmem.clocks import CLOCKS, RateSums, updates_per_epoch
from initmem.data.dataset import Dataset, Examples, Sizes
from initmem.recipe import PER_REPLICA
from initmem.record import COLUMNS, Status
from initmem.seeds import generator
from initmem.study import Run
from initmem.train import compiled, native
from initmem.train.init import initialized, intervene, mup_factors, replica_tensors, start_warm
from initmem.train.lanes import LaneTraining
from initmem.train.layers import BatchNorm, MovingStatistics, by_replica
from initmem.train.networks import ResNet9, choose_layout
from initmem.train.optimizers import Optimizer, PerReplica, Rule, optimizer_for
from initmem.train.variables import is_norm

Array = NDArray[np.float64]
Rows = dict[str, list[float]]
Batch = tuple[Tensor, Tensor | None]  # indices (batch, replica), augmentation draws (batch, replica, 3)
Session = dict[str, Any]  # the conditions under which a run was trained, and until which update
OF_RUNS = ("history", "layers", "norm_init", "status")  # held for each run, also by its checkpoint
PARENT = "parent/"  # before the names of a parent's tensors in a checkpoint
RUNNING = ("loss", "correct", "angular")  # sums over the batches of an epoch
PAD = 4
# Pixels (images x height x width, over all replicas) per evaluation batch. On a CPU the activations should
# stay in the cache: with 1000 images of 32x32 per batch, an image takes twice as long as with 100.
EVALUATION_PIXELS = {"cpu": 100_000, "cuda": 4_000_000}
TOKEN_PIXELS = 8  # pixels that a token counts as: so much more of a network's activations belong to it


class Checkpoint(NamedTuple):
    """The state of one run between two batches: enough to resume it exactly."""

    tensors: dict[str, Tensor]
    meta: dict[str, Any]


class Pack:
    """The state of a pack. Epochs count from 1; `epoch` is the last completed one.

    `parents` holds, for each run that begins warm, the variables to begin from and what is known of them.
    """

    position: int  # batches of the present epoch that are done
    seconds: float  # spent on them
    running: dict[str, Tensor]  # sums over them, each of shape (replica,)

    def __init__(
        self,
        runs: Sequence[Run],
        data: Dataset,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        parents: Mapping[Run, Checkpoint] | None = None,
    ) -> None:
        self.runs, self.recipe = list(runs), runs[0].recipe.network
        self.recipes = [run.recipe.network for run in runs]
        if any(recipe.pack_key != self.recipe.pack_key for recipe in self.recipes):
            raise ValueError("the replicas of a pack must share one recipe, but for rates and penalties")
        self.replicas, self.classes = len(self.runs), data.classes
        self.device, self.dtype = torch.device(device), dtype
        self.train, self.val, self.test = (
            Images(split, device=self.device, dtype=dtype) for split in (data.train, data.val, data.test)
        )
        self.evaluated_at_once = evaluation_batch(data.sizes, self.replicas, self.device.type)

        self.network = initialized(self.runs, data.sizes, device=self.device, dtype=dtype)
        self.parents = {run: (parents or {})[run] for run in self.runs if run.is_warm}
        for r, run in enumerate(self.runs):
            if run in self.parents:
                start_warm(run, replica_tensors(self.network, r), self.parents[run].tensors)
        choose_layout(self.network, self.device, dtype)
        self.statistics = MovingStatistics([m for m in self.network.modules() if isinstance(m, BatchNorm)])
        self.kernels = native.Together([kernel.detach() for kernel in self.network.kernels()])
        trained = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.names, self.parameters = list(trained), list(trained.values())
        names = self.network.kernel_names()
        self.kernel_indices = [self.names.index(name) for name in names if name in trained]
        self.trained_kernels = native.Together([self.parameters[i].detach() for i in self.kernel_indices])

        self.ratio: float | Tensor = 1.0  # of the learning rates to the first one; (replica,) if they differ
        self.l2: float | Tensor = self.recipe.l2  # (replica,) if they differ
        self.optimizer = self._optimizer(data.sizes)
        self.in_lanes: LaneTraining | None = None  # trained in one call for many batches
        if isinstance(self.network, ResNet9) and self.network.lanes is not None:
            images = min(self.recipe.batch_size, len(self.train)), data.sizes.height, data.sizes.width
            self.in_lanes = LaneTraining(self.network, self.optimizer, self.kernel_indices, images)
            if self.replicas > 1:
                self.evaluated_at_once *= 8  # C divides them further, so that they stay in the cache
        self.initial, self.best = (
            {name: value.clone() for name, value in self.network.state_dict().items()} for _ in range(2)
        )
        # Per replica and epoch, from 0 on: norms of the kernels, and cosines to their initial values.
        self.layers: list[list[list[list[float]]]] = [[row] for row in self.layer_rows()]
        self.norm_init = self.kernel_squares().sqrt().tolist()

        self.history: list[Rows] = [{name: [] for name in COLUMNS} for _ in self.runs]
        self.status: list[Status | None] = [None] * self.replicas  # None: still training
        self.earlier: list[list[Session]] = [[] for _ in self.runs]  # sessions before this one
        self.begin_epoch(0)

    def _optimizer(self, sizes: Sizes) -> Optimizer:
        """The optimizer of the recipe, or the one for replicas, or layers, whose learning rates differ."""
        variables = [parameter.detach() for parameter in self.parameters]
        if all(recipe == self.recipe for recipe in self.recipes) and not self.recipe.mup_base:
            return optimizer_for(self.recipe, variables, self.replicas, self._decayed())
        of_each = {name: [getattr(recipe, name) for recipe in self.recipes] for name in PER_REPLICA}
        each = {name: torch.tensor(v, device=self.device, dtype=self.dtype) for name, v in of_each.items()}
        self.ratio, self.l2 = each["learning_rate"] / self.recipe.learning_rate, each["l2"]
        rule = optimizer_for(self.recipe, variables, self.replicas)
        assert isinstance(rule, Rule)
        factors = mup_factors(self.network, self.recipe, sizes) if self.recipe.mup_base else None
        return PerReplica(rule, self._decayed(), self.ratio, each["weight_decay"], factors)

    def _decayed(self) -> list[int]:
        """The indices of the parameters that weight decay acts on."""
        if self.recipe.decay_on == "kernels":
            return sorted(self.kernel_indices)
        spared: set[str] = set()
        if self.recipe.decay_on == "no-norm":
            for path, module in self.network.named_modules():
                if is_norm(module):
                    spared |= {f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)}
        return [i for i, name in enumerate(self.names) if name not in spared]

    def begin_epoch(self, completed: int) -> None:
        """Begin the epoch after the completed ones."""
        self.epoch, self.position, self.seconds = completed, 0, 0.0
        self.running = {name: torch.zeros(self.replicas, device=self.device) for name in RUNNING}

    def intervene(self) -> None:
        """Apply the interventions that are due after the last completed epoch, each to its own replica."""
        if not self.epoch or not any(run.intervention for run in self.runs):
            return
        moments = [tensor for tensor in self.optimizer.state(self.names).values() if tensor.ndim]
        for r, run in enumerate(self.runs):
            if run.intervention:
                tensors = replica_tensors(self.network, r)
                own = [self._of_replica(tensor, r) for tensor in moments]
                intervene(run, self.epoch, self.network.replica_variables(r), tensors, own)

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

    # -- what training reads -----------------------------------------------------------------------------

    def batches(self, epoch: int) -> list[Batch]:
        """The batches of an epoch: indices (batch, replica), and augmentation draws (batch, replica, 3)."""
        size = self.recipe.batch_size
        order: Sequence[Tensor] = self.order(epoch).split(size)
        if self.recipe.augment == "none":
            return [(index, None) for index in order]
        seeds = [run.seed_of("augment") for run in self.runs]
        draws = flip_crop_draws(seeds, epoch, len(self.train)).to(self.device).split(size)
        return list(zip(order, draws, strict=True))

    def examples(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """The examples of several batches, as `Images.packed` returns them."""
        indices, draws = zip(*batches, strict=True)
        return self.train.packed(torch.cat(indices), None if draws[0] is None else torch.cat(draws))

    def order(self, epoch: int) -> Tensor:
        """The order of the examples in one epoch, shape (example, replica)."""
        n = len(self.train)
        orders = [generator(run.seed_of("order"), "order", epoch).permutation(n) for run in self.runs]
        return torch.from_numpy(np.stack(orders, axis=1)).to(self.device)

    def set_training(self, training: bool) -> None:
        """Set the mode of the network, which visits all of its modules, only where it changes."""
        if self.network.training != training:
            self.network.train(training)

    def logits(self, x: Tensor) -> Tensor:
        """Logits of shape (batch, replica, class); (batch, replica, token, class) if tokens have labels."""
        logits: Tensor = self.network(x)
        return logits.to(self.dtype).view(len(x), self.replicas, *self.train.y.shape[1:], self.classes)

    @torch.no_grad()
    def kernel_squares(self) -> Tensor:
        """The squared Frobenius norm of all kernels of each replica, shape (replica,)."""
        if self.kernels.ready:
            return self.kernels.sum_of_squares(self.replicas)
        norms = [
            torch.linalg.vector_norm(by_replica(kernel, self.replicas), dim=tuple(range(1, kernel.ndim + 1)))
            for kernel in self.kernels.first
        ]
        return torch.stack(norms).square().sum(0)

    @torch.no_grad()
    def layer_rows(self) -> list[list[list[float]]]:
        """For every replica the norms of its kernels, then their cosines to the initial values."""
        sums = []
        for name in self.network.kernel_names():
            now, start = (
                by_replica(one, self.replicas).flatten(1)
                for one in (self.network.get_parameter(name), self.initial[name])
            )
            sums += [(now * now).sum(1), (start * start).sum(1), (now * start).sum(1)]
        squares, initial, products = torch.stack(sums, 1).unflatten(1, (-1, 3)).unbind(2)
        rows = torch.stack([squares.sqrt(), products / (squares * initial).sqrt()], 1)
        return rows.tolist()

    # -- what training leaves behind ---------------------------------------------------------------------

    def append_rows(self, measured: dict[str, list[float]], rates: Array) -> list[bool]:
        """Append a row to the history of every replica that is still training; which of them improved.

        A replica with a value that is not finite has diverged. One whose selecting loss has not improved for
        `patience` epochs has completed, as all have after the last epoch.
        """
        recipe, epoch = self.recipe, self.epoch + 1
        angles, eta, eta2 = self.running["angular"].tolist(), float(rates.sum()), float((rates**2).sum())
        improved, layers = [False] * self.replicas, self.layer_rows()
        for r, rows in enumerate(self.history):
            if self.status[r] is not None:
                continue
            row = {name: values[r] for name, values in measured.items()}
            if not np.isfinite([*row.values(), angles[r]]).all():
                self.status[r] = "diverged"
                continue
            losses = rows[recipe.selecting_loss]
            improved[r] = row[recipe.selecting_loss] < min(losses, default=math.inf)
            ratio = self.recipes[r].learning_rate / recipe.learning_rate
            sums = RateSums.of_recipe(self.recipes[r], eta * ratio, eta2 * ratio**2)
            ticks = sums.clocks(recipe.batch_size) | {"angular": angles[r]}
            for name in CLOCKS:
                clock = rows[f"clock_{name}"]
                row[f"clock_{name}"] = (clock[-1] if clock else 0.0) + ticks[name]
            row["learning_rate"] = float(rates[-1]) * ratio
            row["seconds"] = self.seconds / self.replicas
            for name, value in row.items():
                rows[name].append(value)
            self.layers[r].append(layers[r])
            out_of_patience = (
                recipe.patience is not None and len(losses) - 1 - int(np.argmin(losses)) >= recipe.patience
            )
            if epoch == recipe.epochs or out_of_patience:
                self.status[r] = "completed"
        return improved

    @torch.no_grad()
    def keep_best(self, improved: Sequence[bool]) -> None:
        """Copy the variables of the improved replicas into the selected models."""
        if not any(improved):
            return
        which = torch.tensor(improved, device=self.device).nonzero().flatten()
        for name, value in self.network.state_dict().items():
            now, best = by_replica(value, self.replicas), by_replica(self.best[name], self.replicas)
            best.index_copy_(0, which, now.index_select(0, which))

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Set the variables of the network: to `best`, the selected models, or to `initial`."""
        for name, value in self.network.state_dict().items():
            value.copy_(state[name])

    def columns(self, replica: int) -> dict[str, Array]:
        """The history of a replica."""
        return {name: np.array(self.history[replica][name]) for name in COLUMNS}

    # -- checkpoints -------------------------------------------------------------------------------------

    def checkpoint(self) -> list[Checkpoint]:
        """Split the state of the pack between two batches: one checkpoint per run."""
        tensors = self._state()
        saved = [
            Checkpoint(
                {name: self._of_replica(t, r).contiguous() for name, t in tensors.items()},
                {
                    "epoch": self.epoch,
                    "position": self.position,
                    "seconds": self.seconds / self.replicas,
                    **{name: getattr(self, name)[r] for name in OF_RUNS},
                    "sessions": self.sessions(r),
                },
            )
            for r in range(self.replicas)
        ]
        for run, one in zip(self.runs, saved, strict=True):
            if run in self.parents:
                parent = self.parents[run]
                one.tensors.update({PARENT + name: tensor for name, tensor in parent.tensors.items()})
                one.meta["parent"] = parent.meta
        return saved

    @torch.no_grad()
    def restore(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Continue from checkpoints of the same update, one per run. Nothing is broadcast or converted."""
        metas = [saved.meta for saved in checkpoints]
        if len({(meta["epoch"], meta["position"]) for meta in metas}) != 1:
            raise ValueError("the checkpoints of a pack are of different updates")
        self.epoch, self.position = metas[0]["epoch"], metas[0]["position"]
        if self.updates:  # some optimizers allocate their state in the first step; all of it is overwritten
            self.optimizer.step([torch.zeros_like(p) for p in self.parameters], self.recipe.learning_rate, 1)
        for r, saved in enumerate(checkpoints):
            state = {name: self._of_replica(tensor, r) for name, tensor in self._state().items()}
            own = {name: t for name, t in saved.tensors.items() if not name.startswith(PARENT)}
            if _layout(state) != _layout(own):
                raise ValueError(
                    f"run {self.runs[r].id}: its checkpoint holds other tensors than the network"
                )
            for name, tensor in state.items():
                tensor.copy_(saved.tensors[name])
        self.earlier = [list(meta["sessions"]) for meta in metas]
        for name in OF_RUNS:
            setattr(self, name, [deepcopy(meta[name]) for meta in metas])
        self.seconds = sum(meta["seconds"] for meta in metas)

    def sessions(self, replica: int) -> list[Session]:
        """Under which conditions a run was trained, and until which update; like sessions count as one."""
        ready = native.ready(self.device, self.dtype)
        now = {
            "initmem": __version__,
            "torch": torch.__version__,
            "device": str(self.device),
            "native": compiled.library().build if ready else "",
            "pack": self.replicas,
        }
        before = self.earlier[replica]
        if before and {**before[-1], "updates": 0} == {**now, "updates": 0}:
            before = before[:-1]
        return [*before, {"updates": self.updates, **now}]

    def _state(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by name."""
        state = {f"now/{name}": value for name, value in self.network.state_dict().items()}
        state |= {f"best/{name}": value for name, value in self.best.items()}
        if self.position:
            state |= {f"running/{name}": value for name, value in self.running.items()}
        return state | self.optimizer.state(self.names)

    def _of_replica(self, tensor: Tensor, replica: int) -> Tensor:
        """One replica's part of a state; what has no axes is common to all replicas."""
        return by_replica(tensor, self.replicas)[replica] if tensor.ndim else tensor


def _layout(tensors: dict[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


# -- batches ----------------------------------------------------------------------------------------------


def evaluation_batch(sizes: Sizes, replicas: int, device: str) -> int:
    """How many examples to evaluate at a time."""
    pixels = sizes.height * sizes.width * (TOKEN_PIXELS if sizes.vocabulary else 1)
    at_once = EVALUATION_PIXELS.get(device, EVALUATION_PIXELS["cuda"])
    return max(1, at_once // (pixels * replicas))


class Images:
    """One split of a dataset on a device. Bytes stay bytes until a batch is made."""

    def __init__(self, examples: Examples, *, device: torch.device, dtype: torch.dtype) -> None:
        self.x = torch.from_numpy(examples.x).to(device)  # (example, height, width, channel)
        self.y = torch.from_numpy(examples.y).to(device)  # (example,) or (example, token)
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.y)

    def packed(self, index: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gather the examples at `index`, of shape (batch, replica).

        Inputs have shape (batch, replica * channel, h, w), labels (batch, replica), or
        (batch, replica, token) where every token has one. With `draws`, of shape (batch, replica, 3), the
        inputs are augmented.
        """
        batch, replicas = index.shape
        flat = index.flatten()
        x = self.x.index_select(0, flat)
        x = self._scale(x if draws is None else flip_crop(x, draws.flatten(0, 1)))
        _, height, width, channels = x.shape
        x = x.view(batch, replicas, height, width, channels).permute(0, 1, 4, 2, 3)
        # For a single replica this is a view, already in channels-last layout.
        x = x[:, 0] if replicas == 1 else x.reshape(batch, replicas * channels, height, width)
        return x, self.y.index_select(0, flat).view(batch, replicas, *self.y.shape[1:])

    def shared(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the split in order: inputs (batch, channel, h, w), labels (batch,)."""
        for start in range(0, len(self), size):
            x = self._scale(self.x[start : start + size])
            yield x.permute(0, 3, 1, 2), self.y[start : start + size]

    def _scale(self, x: Tensor) -> Tensor:
        if x.dtype == torch.int64:  # tokens
            return x
        return x.to(self.dtype) / 255 if x.dtype == torch.uint8 else x.to(self.dtype)


def flip_crop_draws(seeds: Sequence[int], epoch: int, n: int) -> Tensor:
    """The flip, top and left of every example of an epoch, in training order: shape (example, replica, 3)."""
    draws = []
    for seed in seeds:
        rng = generator(seed, "augment", epoch)
        draws.append(np.column_stack([rng.integers(0, 2, n), rng.integers(0, 2 * PAD + 1, (n, 2))]))
    return torch.from_numpy(np.stack(draws, axis=1))


def flip_crop(x: Tensor, draws: Tensor) -> Tensor:
    """Flip horizontally, pad by reflection, crop: x (image, h, w, channel), draws (image, 3).

    Nothing is actually padded or flipped: every output pixel is gathered from where it comes from.
    """
    n, height, width, _ = x.shape
    flip, top, left = draws[:, :, None].unbind(1)
    rows = _reflect(top + torch.arange(height, device=x.device) - PAD, height)
    columns = _reflect(left + torch.arange(width, device=x.device) - PAD, width)
    columns = torch.where(flip == 1, width - 1 - columns, columns)
    index = torch.arange(n, device=x.device)[:, None, None]
    return x[index, rows[:, :, None], columns[:, None, :]]


def _reflect(position: Tensor, side: int) -> Tensor:
    """Reflect positions outside the image back inside, without repeating the edge."""
    position = position.abs()
    return torch.where(position >= side, 2 * (side - 1) - position, position)
