"""CUDA graphs without a GPU: a stand-in on the CPU records operations and repeats them on the same memory.

Like a graph, it repeats nothing of what Python did, and what it returned stays where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from initmem.data.sources import load
from initmem.engines.engine import Settings
from initmem.errors import ConfigError, ModelError
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.study import Run
from initmem.train import graphs, layers, native
from initmem.train.loop import train_pack
from initmem.train.models import BUILDERS, Grouped, build
from initmem.train.pack import Pack
from initmem.train.requirements import LEAST_SIDE


class Tape(TorchDispatchMode):
    """Stands in for `CudaGraph`."""

    made: list[Tape]

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0
        self.made.append(self)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, outputs))
        return outputs

    def capture(self, function: Callable[[], Any]) -> Any:
        for _ in range(graphs.WARM_UPS):
            function()
        with self:
            outputs = function()
        for tensor in tree_leaves(outputs):
            tensor.fill_(torch.nan)  # recording computes nothing
        return outputs

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for function, args, kwargs, outputs in self.operations:
                for old, new in zip(
                    tree_leaves(outputs), tree_leaves(function(*args, **kwargs)), strict=True
                ):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """The graphs that are made, which are none; as on a GPU, PyTorch computes the layers."""
    monkeypatch.setattr(native, "library", lambda: None)
    monkeypatch.setattr(Tape, "made", [], raising=False)
    monkeypatch.setattr(graphs, "CudaGraph", Tape)
    return Tape.made


BASE = {"dataset": "synthetic:100x1x8x8", "width": 2, "batch_size": 16, "epochs": 3, "learning_rate": 0.01}
KINDS = [
    {"optimizer": "sgd", "l2": 1e-3},
    {"optimizer": "momentum", "norm": "layer"},
    {"optimizer": "adamw", "weight_decay": 1e-2, "augment": "flip-crop"},
    {"optimizer": "muon-conv"},
    {"optimizer": "schedule-free-adamw"},
    {"optimizer": "torch:Rprop"},
    {"optimizer": "sgd", "model": "resnet56", "dataset": "synthetic:40x1x4x4", "batch_size": 10, "epochs": 2},
    {"optimizer": "adam", "model": "mlp"},
]


def trained(fields: dict[str, Any], **how: Any) -> list[RunRecord]:
    recipe = Recipe.parse(BASE | fields)
    scales = (1.0,) if recipe.optimizer.startswith("torch:") else (0.5, 2.0)
    return train_pack([Run(recipe, scale, 0) for scale in scales], load(recipe), **how)


def same(one: list[RunRecord], other: list[RunRecord]) -> bool:
    return all(a.same_result(b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("fields", KINDS, ids=lambda f: "-".join(map(str, f.values())))
def test_graphs_give_the_records_of_eager_training(fields: dict[str, Any], tapes: list[Tape]) -> None:
    eager, graphed = trained(fields), trained(fields, compile="graphs")
    assert same(eager, graphed)
    (tape,) = tapes  # captured once
    recipe = Recipe.parse(BASE | fields)
    n = len(load(recipe).train)
    assert n % recipe.batch_size  # the last batch of an epoch is smaller, and bypasses the graph
    assert tape.replays == recipe.epochs * (n // recipe.batch_size)
    assert {record.provenance["compile"] for record in eager} == {"none"}
    assert {record.provenance["compile"] for record in graphed} == {"graphs"}


def test_mixed_precision_can_be_recorded(tapes: list[Tape]) -> None:
    assert same(trained({}, precision="amp"), trained({}, precision="amp", compile="graphs"))


@pytest.mark.parametrize("name", ["_x", "_y"])
def test_an_input_that_is_not_copied_would_be_seen(
    name: str, tapes: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgets(graphs.Graphed):
        def __call__(self, function: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
            if self._graph is not None and len(x) == self._size:
                x, y = (self._x, y) if name == "_x" else (x, self._y)
            return super().__call__(function, x, y)

    eager = trained({})
    monkeypatch.setattr(graphs, "Graphed", Forgets)
    assert not same(eager, trained({}, compile="graphs"))


def test_a_count_that_only_python_knows_would_be_seen(
    tapes: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variances that are corrected outside the graph: by the count of the smaller batch before."""
    eager = trained({"epochs": 2})
    statistics = layers.MovingStatistics
    correct, absorb = statistics.correct, statistics.absorb

    def late(self: Any, *rate: float | None) -> None:
        correct(self)
        absorb(self, *rate)

    monkeypatch.setattr(statistics, "correct", lambda self: None)
    monkeypatch.setattr(statistics, "absorb", late)
    assert same(eager, trained({"epochs": 2}))
    assert not same(eager, trained({"epochs": 2}, compile="graphs"))


def test_a_checkpoint_says_whether_there_were_graphs(tapes: list[Tape]) -> None:
    recipe = Recipe.parse(BASE)
    runs, data = [Run(recipe, 1.0, 0)], load(recipe)
    pack = Pack(runs, data, compile="graphs")
    pack.train_epoch()
    saved = pack.checkpoint()
    whole = train_pack(runs, data)
    assert same(whole, train_pack(runs, data, resume=saved, compile="graphs"))
    (mixed,) = train_pack(runs, data, resume=saved)
    assert [session["compile"] for session in mixed.provenance["sessions"]] == ["graphs", "none"]
    (plain,) = half = Pack(runs, data).checkpoint()
    del plain.meta["sessions"][0]["compile"]  # as checkpoints were before
    (resumed,) = train_pack(runs, data, resume=half)
    assert "sessions" not in resumed.provenance


def test_networks_that_can_be_recorded_have_nothing_to_begin() -> None:
    assert set(BUILDERS) == set(LEAST_SIDE)
    for name in BUILDERS:
        with torch.device("meta"):
            network = build(name, replicas=2, shape=(1, 8, 8), classes=2, width=2, norm="batch")
        assert type(network).begin_update is Grouped.begin_update


@pytest.mark.parametrize("fields", [{"model": "vit"}, {"optimizer": "own"}])
def test_what_changes_in_python_is_refused(fields: dict[str, str], tapes: list[Tape]) -> None:
    from initmem import register

    register.optimizer("own")(lambda params, lr: torch.optim.SGD(params, lr))
    with pytest.raises(ModelError, match=r"^compile = 'graphs' with \w+ = '\w+' \(allowed: none; "):
        trained(fields, compile="graphs")


def test_what_cuda_cannot_record_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fails(graphs.CudaGraph):
        def __init__(self, device: torch.device) -> None:
            pass

        def capture(self, function: Callable[[], Any]) -> Any:
            raise error

    monkeypatch.setattr(graphs, "CudaGraph", Fails)
    error: Exception = RuntimeError(
        "operation not permitted when stream is capturing\nCUDA kernel errors ..."
    )
    with pytest.raises(ConfigError, match=r"^compile = 'graphs': .* capturing; allowed: none\)$"):
        trained({}, compile="graphs")
    error = torch.OutOfMemoryError("CUDA out of memory")  # is met by smaller packs
    with pytest.raises(torch.OutOfMemoryError):
        trained({}, compile="graphs")


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it can")
def test_without_cuda_nothing_is_recorded() -> None:
    with pytest.raises(ConfigError, match=r"^compile = 'graphs': .*allowed: none\)$"):
        trained({}, compile="graphs")


PROGRAM = "python train.py {scale} {seed} {history}"


@pytest.mark.parametrize("words", [(), ("--device", "mps"), ("--command", PROGRAM)])
def test_graphs_without_cuda_are_one_line_with_what_is_allowed(words, tmp_path, command) -> None:
    study = () if "--command" in words else ("quickstart",)
    (tmp_path / "train.py").write_text("")
    words = tuple(word.replace("train.py", str(tmp_path / "train.py")) for word in words)
    code, out, said = command("run", *study, *words, "--compile", "graphs", "--store", tmp_path / "store")
    assert (code, out) == (2, "")
    assert said.count("\n") == 1 and "compile = 'graphs' with" in said and "allowed: none" in said
    assert not (tmp_path / "store").exists()


def test_the_api_names_what_is_allowed() -> None:
    assert Settings(device="cuda:1", compile="graphs").compile == "graphs"
    with pytest.raises(ConfigError, match=r"compile = 'inductor' \(allowed: none, graphs\)"):
        Settings(compile="inductor")  # type: ignore[arg-type]
