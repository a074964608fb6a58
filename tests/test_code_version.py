"""Stale results: every edit that changes the training is noticed, and none that does not raises an alarm."""

from __future__ import annotations

import functools
import importlib
import json
import linecache
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import initmem
from initmem.engines.provenance import differences
from initmem.errors import ConfigError
from initmem.pipeline.code_version import fingerprint, unhashed_note
from initmem.pipeline.command import command_fingerprint, study_of
from initmem.pipeline.source import Fingerprint
from initmem.store.store import Store

pytestmark = pytest.mark.usefixtures("empty_folder")

PROJECT = {
    "mine.py": '''
"""A pipeline of two models."""

import functools
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn

import helpers
import shapes.wide
from helpers import evaluate as score, scheduled

EPOCHS = 20
CONFIG = {"lr": 0.1, "betas": [0.9, 0.99]}
LAYERS = [16, 32]
DATA = torch.arange(6.0)
ARGS = SimpleNamespace(batch=32)
NAMES = {f"class {i}": i for i in range(100)}
LOSSES = {"plain": nn.functional.mse_loss, "own": helpers.loss}
CACHE = {}
HALVE = lambda x: x / 2  # of a rate
SET_HERE = {"lr": 0.0, "warmup": 5}
GROWS = [1, 2]
TOLD = dict(lr=0.0, batch=16)


class Base:
    def prepare(self, x):
        return x + 1


class Net(Base, nn.Module):
    """Two layers."""

    width = 8

    def __init__(self, depth=2):
        super().__init__()
        self.fc = nn.Linear(2, self.width)

    def forward(self, x):
        return torch.tanh(self.fc(self.prepare(x)))

    @torch.no_grad()
    def shrink(self, by=0.9):
        self.fc.weight.mul_(by**2)


@torch.no_grad()
def reset(net):
    net.fc.bias.fill_(0.5)


@dataclass
class Options:
    dropout: float = 0.1
    tied: bool = False


OPTIONS = Options()


def clip(norm=1.0):
    return norm


@helpers.timed
def configure(init):
    SET_HERE["lr"] = init.recipe["lr"]
    TOLD.update(lr=SET_HERE["lr"])
    GROWS.append(SET_HERE["warmup"])


def train(init, tracker, rate=helpers.RATE):
    """Train a network."""
    from late import augmented

    configure(init)
    # the data
    x = CACHE.setdefault("x", augmented(DATA))
    net, loss = Net(), LOSSES["own"]
    reset(net), net.shrink()
    for epoch in range(EPOCHS):
        step = HALVE(CONFIG["lr"]) * scheduled(epoch) * rate * clip()
        if OPTIONS.dropout and ARGS.batch and LAYERS and NAMES:
            step = step * shapes.wide.factor(2) + helpers.MOMENTUM
        loss(net, x)
    tracker.end_epoch(loss=score(net))


def unrelated():
    return 1


class Fitter:
    def __init__(self, rate, model=None):
        self.rate, self.model, self.history = rate, model, []

    def fit(self, init, tracker):
        self.history.append(self.rate)
        self.model = Net()
        return self.inner()

    def inner(self):
        return {"loss": self.rate}

    def plot(self):
        return 3


def curried(a, init, tracker, b=1):
    return {"loss": a + b}


def made(power):
    def inner(init, tracker):
        return {"loss": power}

    return inner
''',
    "helpers.py": """
from functools import lru_cache, wraps

RATE = 0.5
MOMENTUM = 0.9
UNUSED = 3


def evaluate(net):
    return deeper(net)


def deeper(net):
    return 2 * len(str(net))


@lru_cache
def scheduled(epoch):
    return 0.9**epoch


def loss(net, x):
    return 0.0


def timed(function):
    @wraps(function)
    def twice(*given):
        return [function(*given) for _ in range(2)]

    return twice


def plot():
    return "a picture"
""",
    "late.py": "import later\nSHIFT = 1\n\n\ndef augmented(x):\n    return x + SHIFT + later.NOISE\n",
    "later.py": "NOISE = 1\n",
    "shapes/__init__.py": "",
    "shapes/wide.py": "def factor(n):\n    return n * SIZE\n\n\nSIZE = 3\n",
}

# Decorators with arguments, inheritance over modules, callables, enums, sets, and what cannot be hashed.
MORE = {
    "mine.py": """
import enum
import functools
import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

import pkg.models as models
from pkg import *
from pkg import data
from pkg.models import Net, build


class Mode(enum.Enum):
    FAST = 1


MODE = Mode.FAST
LOCK = threading.Lock()
RANDOM = np.random.default_rng(0)
RULES = {nn.Linear: 1, nn.ReLU: 2, None: 3}
TAGS = {"a", "b", "c"}
NAMES = frozenset(f"n{i}" for i in range(200))
STEPS = [lambda x: x + 1, lambda x: x * 2]
MODEL = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
torch.nn.init.constant_(MODEL[0].weight, 0.5), torch.nn.init.zeros_(MODEL[0].bias)
PART = functools.partial(build, 3, act="relu")


def scaled(by):
    def decorator(function):
        @functools.wraps(function)
        def inner(*given):
            return function(*given) * by

        return inner

    return decorator


@scaled(by=2)
def loss(x):
    return x + 10


def tagged(kind):
    kind.tag = 7
    return kind


@tagged
@dataclass
class Config:
    sizes: list = field(default_factory=lambda: [8, 8])

    @functools.cached_property
    def double(self):
        return self.sizes * 2

    @staticmethod
    def helper():
        return 5


class Augment:
    __slots__ = ("p",)

    def __init__(self):
        self.p = 0.5

    def __call__(self, x):
        return x * self.p


class Callback:
    def __init__(self):
        self.every = 3

    def fire(self):
        return self.every


AUGMENT, FIRE, CONFIG = Augment(), Callback().fire, Config()


def outer():
    width = 4

    def helper():
        return width + 100

    def unused():
        return 77

    def train(init, tracker):
        return {"loss": helper()}

    return train


def train(init, tracker):
    x = loss(3) + data.prepare(RULES[nn.Linear])
    for step in STEPS if MODE is Mode.FAST else ():
        x = step(x) + RANDOM.random()
    with LOCK:
        AUGMENT(x), FIRE(), PART(), MODEL(x), TAGS, NAMES, CONFIG.double
    Net(), models.build(1), star()


class Loop:
    def __init__(self, lr):
        self.lr, self.log, self.calls, self.options = lr, [], 0, {"a": 1}

    def __call__(self, init, tracker):
        return self.go()

    def go(self):
        self.calls += 1
        self.log.append(1)
        return self.lr


def main():
    print("started")
""",
    "pkg/__init__.py": "def star():\n    return 31\n",
    "pkg/models.py": """
from .base import Base


def build(n, act="relu"):
    return n + 20


class Net(Base):
    def forward(self, x):
        return self.step(x)


def unrelated():
    return 0
""",
    "pkg/base.py": "class Base:\n    def step(self, x):\n        return x * 6\n",
    "pkg/data.py": "LIMIT = 5\n\n\ndef prepare(x):\n    return x + LIMIT\n\n\ndef plot():\n    return 1\n",
}

MODULES = (
    *("mine", "helpers", "late", "later", "shapes", "shapes.wide"),
    *("pkg", "pkg.models", "pkg.base", "pkg.data"),
)

# What is trained, and then (file, before, after, what the message says).
TRAIN = "mine.train"
CHANGES = [
    (TRAIN, "mine.py", "EPOCHS = 20", "EPOCHS = 1", "mine.EPOCHS 20 -> 1"),
    (TRAIN, "mine.py", '"lr": 0.1', '"lr": 0.2', "mine.CONFIG changed"),
    (TRAIN, "mine.py", "[0.9, 0.99]", "[0.9, 0.999]", "mine.CONFIG changed"),
    (TRAIN, "mine.py", "[16, 32]", "[16, 64]", "mine.LAYERS changed"),
    (TRAIN, "mine.py", "arange(6.0)", "arange(6.0) * 2", "mine.DATA changed"),
    (TRAIN, "mine.py", "batch=32", "batch=64", "mine.ARGS changed"),
    (TRAIN, "mine.py", "range(100)", "range(99)", "mine.NAMES changed"),
    (TRAIN, "mine.py", "x: x / 2", "x: x / 3", "module mine was edited"),
    (TRAIN, "mine.py", "width = 8", "width = 16", "mine.Net.width 8 -> 16"),
    (TRAIN, "mine.py", "torch.tanh", "torch.relu", "module mine was edited"),
    (TRAIN, "mine.py", "by**2", "by**3", "module mine was edited"),
    (TRAIN, "mine.py", "fill_(0.5)", "fill_(0.25)", "module mine was edited"),
    (TRAIN, "mine.py", "depth=2", "depth=3", "default mine.Net.__init__(depth) 2 -> 3"),
    (TRAIN, "mine.py", "x + 1", "x + 2", "module mine was edited"),
    (TRAIN, "mine.py", "dropout: float = 0.1", "dropout: float = 0.2", "mine.OPTIONS changed"),
    (TRAIN, "mine.py", "S = Options()", "S = Options(tied=True)", "mine.OPTIONS changed"),
    (TRAIN, "mine.py", "norm=1.0", "norm=2.0", "default mine.clip(norm) 1.0 -> 2.0"),
    (TRAIN, "mine.py", "* clip()", "+ clip()", "module mine was edited"),
    (TRAIN, "mine.py", "rate=helpers.RATE", "rate=2 * helpers.RATE", "default mine.train(rate) 0.5 -> 1.0"),
    (TRAIN, "helpers.py", "RATE = 0.5", "RATE = 0.1", "default mine.train(rate) 0.5 -> 0.1"),
    (TRAIN, "helpers.py", "MOMENTUM = 0.9", "MOMENTUM = 0.5", "helpers.MOMENTUM 0.9 -> 0.5"),
    (TRAIN, "helpers.py", "2 * len", "3 * len", "module helpers was edited"),
    (TRAIN, "helpers.py", "return deeper", "return -deeper", "module helpers was edited"),
    (TRAIN, "helpers.py", "0.9**epoch", "0.8**epoch", "module helpers was edited"),
    (TRAIN, "helpers.py", "return 0.0", "return 1.0", "module helpers was edited"),
    (TRAIN, "late.py", "x + SHIFT", "x - SHIFT", "file late.py was edited"),
    (TRAIN, "late.py", "SHIFT = 1", "SHIFT = 2", "file late.py was edited"),
    (TRAIN, "later.py", "NOISE = 1", "NOISE = 2", "file later.py was edited"),
    (TRAIN, "helpers.py", "range(2)", "range(3)", "module helpers was edited"),
    (TRAIN, "mine.py", '"warmup": 5', '"warmup": 6', "mine.SET_HERE changed"),
    (TRAIN, "mine.py", "batch=16", "batch=17", "mine.TOLD changed"),
    (TRAIN, "mine.py", "GROWS = [1, 2]", "GROWS = [1, 3]", "mine.GROWS '[1, 2]' -> '[1, 3]'"),
    (TRAIN, "shapes/wide.py", "n * SIZE", "n + SIZE", "module wide was edited"),
    (TRAIN, "shapes/wide.py", "SIZE = 3", "SIZE = 4", "wide.SIZE 3 -> 4"),
    ("mine.Fitter(0.1).fit", "", "(0.1)", "(5.0)", "Fitter.rate 0.1 -> 5.0"),
    ("mine.Fitter(0.1).fit", "mine.py", '{"loss": self.rate', '{"loss": 2', "module mine was edited"),
    ("functools.partial(mine.curried, 3, b=0.2)", "", "b=0.2", "b=5.0", "argument b 0.2 -> 5.0"),
    ("functools.partial(mine.curried, 3, b=0.2)", "", "3,", "4,", "argument 1 3 -> 4"),
    ("functools.partial(mine.curried, 3)", "mine.py", "a + b", "a * b", "module mine was edited"),
    ("mine.made(2)", "", "(2)", "(3)", "power 2 -> 3"),
]  # fmt: skip

MORE_CHANGES = [
    (TRAIN, "mine.py", "by=2", "by=3", "mine.scaled.decorator.by 2 -> 3"),
    (TRAIN, "mine.py", "x + 10", "x + 11", "module mine was edited"),
    (TRAIN, "mine.py", "* by", "+ by", "module mine was edited"),
    (TRAIN, "mine.py", "FAST = 1", "FAST = 3", "mine.MODE changed"),
    (TRAIN, "mine.py", "nn.ReLU: 2", "nn.ReLU: 4", "mine.RULES changed"),
    (TRAIN, "mine.py", '{"a", "b", "c"}', '{"a", "b"}', "mine.TAGS changed"),
    (TRAIN, "mine.py", "range(200)", "range(201)", "mine.NAMES changed"),
    (TRAIN, "mine.py", "lambda x: x * 2", "lambda x: x * 3", "module mine was edited"),
    (TRAIN, "mine.py", "weight, 0.5", "weight, 0.25", "mine.MODEL changed"),
    (TRAIN, "mine.py", "nn.ReLU())", "nn.Tanh())", "mine.MODEL changed"),
    (TRAIN, "mine.py", '3, act="relu")', '3, act="tanh")', "mine.PART changed"),
    (TRAIN, "mine.py", "kind.tag = 7", "kind.tag = 8", "mine.Config.tag 7 -> 8"),
    (TRAIN, "mine.py", "[8, 8]", "[8, 9]", "mine.CONFIG changed"),
    (TRAIN, "mine.py", "self.sizes * 2", "self.sizes * 3", "module mine was edited"),
    (TRAIN, "mine.py", "return 5", "return 6", "module mine was edited"),
    (TRAIN, "mine.py", "self.p = 0.5", "self.p = 0.6", "mine.AUGMENT changed"),
    (TRAIN, "mine.py", "self.every = 3", "self.every = 4", "mine.FIRE changed"),
    (TRAIN, "pkg/__init__.py", "31", "32", "module pkg was edited"),
    (TRAIN, "pkg/models.py", "n + 20", "n + 21", "module models was edited"),
    (TRAIN, "pkg/base.py", "x * 6", "x * 7", "module base was edited"),
    (TRAIN, "pkg/data.py", "LIMIT = 5", "LIMIT = 6", "data.LIMIT 5 -> 6"),
    ("mine.outer()", "mine.py", "width = 4", "width = 5", "mine.outer.width 4 -> 5"),
    ("mine.outer()", "mine.py", "width + 100", "width + 101", "module mine was edited"),
    ("mine.Loop(0.1)", "", "(0.1)", "(0.2)", "Loop.lr 0.1 -> 0.2"),
]  # fmt: skip

SAME = [
    (TRAIN, "mine.py", "# the data", "# the data, augmented once"),
    (TRAIN, "mine.py", '"""Train a network."""', '"""Train a network on six numbers."""'),
    (TRAIN, "mine.py", '"""Two layers."""', '"""One layer."""'),
    (TRAIN, "mine.py", "net, loss = Net(), LOSSES[\"own\"]", "(net,\n     loss) = Net(), LOSSES['own']"),
    (TRAIN, "mine.py", "EPOCHS = 20", "\n\n\nEPOCHS = 2 * 10"),
    (TRAIN, "mine.py", "def unrelated():\n    return 1", "def unrelated():\n    return 2"),
    (TRAIN, "mine.py", "self.history.append(self.rate)", "self.history.append(2 * self.rate)"),
    (TRAIN, "helpers.py", "a picture", "another picture"),
    (TRAIN, "helpers.py", "UNUSED = 3", "UNUSED = 4"),
    (TRAIN, "mine.py", "CACHE = {}", "CACHE = dict()"),
    (TRAIN, "mine.py", '\nclass Fitter:', '\nEXTRA = [1, 2]\n\n\nclass Fitter:'),
    ("mine.Fitter(0.1).fit", "mine.py", "dropout: float = 0.1", "dropout: float = 0.9"),
    ("mine.made(2)", "mine.py", "return {\"loss\": power}", "return {'loss': power}  # as it is"),
]  # fmt: skip

MORE_SAME = [
    (TRAIN, "mine.py", "started", "ended"),
    (TRAIN, "mine.py", "loss(x):", "loss(x: float) -> float:"),
    (TRAIN, "mine.py", '{"a", "b", "c"}', '{"c", "b", "a"}'),
    (TRAIN, "pkg/models.py", "return 0", "return 2"),
    (TRAIN, "pkg/data.py", "return 1", "return 2"),
    ("mine.outer()", "mine.py", "return 77", "return 78"),
    ("mine.Loop(0.1)", "mine.py", "lambda x: x * 2", "lambda x: x * 3"),
]


@pytest.fixture
def fresh_modules() -> Iterator[None]:
    """Leave no module of the project behind."""
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def load(folder: Path, files: dict[str, str]) -> ModuleType:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module("mine")
    finally:
        sys.path.remove(str(folder))


def taken(folder: Path, what: str, files: dict[str, str]) -> Fingerprint:
    mine = load(folder, files)
    sys.path.insert(0, str(folder))
    try:
        return fingerprint(eval(what, {"mine": mine, "functools": functools}))
    finally:
        sys.path.remove(str(folder))


def edited(files: dict[str, str], name: str, before: str, after: str) -> dict[str, str]:
    assert files[name].count(before) == 1, (name, before)
    return files | {name: files[name].replace(before, after)}


@pytest.mark.usefixtures("fresh_modules")
@pytest.mark.parametrize(("files", "table"), [(PROJECT, CHANGES), (MORE, MORE_CHANGES)])
def test_every_edit_that_changes_the_training_is_noticed_and_named(tmp_path: Path, files, table) -> None:
    missed, unnamed = [], []
    old = {what: taken(tmp_path / "old", what, files) for what in {row[0] for row in table}}
    for index, (what, name, before, after, words) in enumerate(table):
        later = edited(files, name, before, after) if name else files
        now = taken(tmp_path / str(index), what if name else what.replace(before, after), later)
        changes = differences(old[what], now)
        if not changes:
            missed.append((name, before, after))
        elif not any(words in line for line in changes):
            unnamed.append((words, changes))
    assert missed == []
    assert unnamed == []


@pytest.mark.usefixtures("fresh_modules")
@pytest.mark.parametrize(("files", "table"), [(PROJECT, SAME), (MORE, MORE_SAME)])
def test_no_edit_that_leaves_the_training_alone_raises_an_alarm(tmp_path: Path, files, table) -> None:
    alarms = []
    old = {what: taken(tmp_path / "old", what, files) for what in {row[0] for row in table}}
    for index, (what, name, before, after) in enumerate(table):
        later = taken(tmp_path / str(index), what, edited(files, name, before, after))
        if changes := differences(old[what], later):
            alarms.append((name, before, changes))
    assert alarms == []


@pytest.mark.usefixtures("fresh_modules")
def test_what_code_keeps_for_itself_is_not_a_setting(tmp_path: Path) -> None:
    mine = load(tmp_path, PROJECT)
    fitter, before = mine.Fitter(0.1), fingerprint(mine.Fitter(0.1).fit)
    fitter.fit(None, None)
    assert fitter.history and fitter.model is not None
    assert fingerprint(fitter.fit) == before
    before = fingerprint(mine.train)
    mine.CACHE["x"] = 3
    mine.SET_HERE["lr"] = 0.3
    mine.GROWS.append(5)
    assert fingerprint(mine.train) == before
    loop = load(tmp_path / "more", MORE).Loop(0.1)
    before = fingerprint(loop)
    loop(None, None)
    assert loop.calls == 1 and fingerprint(loop) == before


@pytest.mark.usefixtures("fresh_modules")
def test_a_module_that_is_imported_late_counts_the_same_once_it_is_loaded(
    tmp_path: Path, monkeypatch
) -> None:
    mine = load(tmp_path, PROJECT)
    monkeypatch.syspath_prepend(tmp_path)
    before = fingerprint(mine.train)
    importlib.import_module("late")
    assert fingerprint(mine.train) == before


@pytest.mark.usefixtures("fresh_modules")
def test_what_cannot_be_hashed_is_reported(tmp_path: Path) -> None:
    version = taken(tmp_path, TRAIN, MORE)
    words = "cannot be hashed, so that a change to it goes unnoticed: mine.LOCK"
    assert unhashed_note(version) == words
    assert unhashed_note(taken(tmp_path, TRAIN, PROJECT)) == ""
    lines = (line for line in "ab")  # or an open file

    def train(init, tracker):
        return {"loss": init.scale * len(next(lines))}

    (note,) = run(train, [1.0], [0], tmp_path / "store").notes
    assert note.startswith(words.rpartition(": ")[0]) and note.endswith("is_reported.lines")


VALUES = {  # two versions of a global that a training function uses
    "frame": ("pandas.DataFrame({'a': [1, 2]})", "pandas.DataFrame({'a': [1, 3]})"),
    "polars": ("polars.DataFrame({'a': [1, 2]})", "polars.DataFrame({'a': [1, 3]})"),
    "generator": ("np.random.default_rng(1)", "np.random.default_rng(2)"),
    "torch generator": ("torch.Generator().manual_seed(1)", "torch.Generator().manual_seed(2)"),
    "random": ("random.Random(1)", "random.Random(2)"),
    "sparse": ("torch.eye(3).to_sparse()", "(2 * torch.eye(3)).to_sparse()"),
    "deque": ("deque([1, 2])", "deque([1, 3])"),
    "bytes": ("io.BytesIO(b'a')", "io.BytesIO(b'b')"),
    "pattern": ("re.compile('a')", "re.compile('b')"),
    "dict order": ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}"),
    "dispatch": ("dispatched(lambda v: v + 1)", "dispatched(lambda v: v + 2)"),
    "metaclass": ("type('M', (type,), {'f': f1})('K', (), {})", "type('M', (type,), {'f': f2})('K', (), {})"),
    "lambdas": ("[lambda v: v + 1, lambda v: 2 * v]", "[lambda v: 2 * v, lambda v: v + 1]"),
    "object with a lock": ("Locked(1)", "Locked(2)"),
    "default dtype": ("1", "torch.set_default_dtype(torch.float64) or 1"),
}
IMPORTS = """
import ctypes, io, random, re, threading
from collections import deque
from functools import singledispatch
import numpy as np, polars, torch
try:
    import pandas
except ImportError:
    pass
def f1(cls): return 1
def f2(cls): return 2
class Locked:
    def __init__(self, rate): self.rate, self.lock = rate, threading.Lock()
def dispatched(function):
    generic = singledispatch(lambda v: 0)
    generic.register(int, function)
    return generic
"""


@pytest.mark.usefixtures("fresh_modules")
@pytest.mark.parametrize("name", VALUES)
def test_a_changed_value_is_noticed(tmp_path: Path, name: str) -> None:
    if name == "frame":
        pytest.importorskip("pandas")
    train = "\n\ndef train(init, tracker):\n    return X\n"
    versions = []
    try:
        for text in VALUES[name]:
            mine = load(tmp_path / str(len(versions)), {"mine.py": f"{IMPORTS}\nX = {text}{train}"})
            versions.append(fingerprint(mine.train))
            assert fingerprint(mine.train) == versions[-1]
    finally:
        torch.set_default_dtype(torch.float32)
    assert differences(*versions) != []


@pytest.mark.usefixtures("fresh_modules")
def test_a_loaded_library_is_the_same_in_every_process(tmp_path: Path) -> None:
    code = "import ctypes\nX = ctypes.CDLL(None)\ndef train(init, tracker):\n    return X\n"
    mine = load(tmp_path, {"mine.py": code})
    before = fingerprint(mine.train)
    mine.X._handle += 4096  # as in another process
    assert fingerprint(mine.train) == before and "#" in before["mine.X"]


CELLS = {
    "<cell 1>": "from torch import nn\nLR = 0.1\nLOG = []\nmodel = 3\n",
    "<cell 2>": "class Net(nn.Module):\n    width = 8\n    def forward(self, x):\n        return x * 2\n",
    "<cell 3>": "def train(init, t):\n    'Doc.'\n    LOG.append(1)\n    model = Net()\n    return LR\n",
}
CELL_EDITS = [
    ("LR = 0.1", "LR = 0.2", ["notebook.LR 0.1 -> 0.2"]),
    ("width = 8", "width = 9", ["notebook.Net.width 8 -> 9"]),
    ("x * 2", "x * 3", ["module notebook was edited"]),
    ("nn.Module", "nn.Linear", ["module notebook was edited"]),
    ("return LR", "return -LR", ["module notebook was edited"]),
    ("model = 3", "model = 4", []),  # another variable than that of the function
    ("Doc.", "Text.", []),
    ("LOG = []", "LOG = [1]", []),
]


@pytest.mark.parametrize("has_source", [True, False])
def test_cells_of_a_notebook_and_lines_of_a_console_are_followed(monkeypatch, has_source: bool) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def after(before: str, now: str) -> Fingerprint:
        vars(main).clear()
        vars(main)["__name__"] = "__main__"
        for name, text in CELLS.items():
            cell = text.replace(before, now)
            if has_source:
                lines = cell.splitlines(keepends=True)
                monkeypatch.setitem(linecache.cache, name, (len(cell), None, lines, name))
            exec(compile(cell, name if has_source else "<stdin>", "exec"), vars(main))
        return fingerprint(vars(main)["train"])

    original = after("", "")
    for before, now, changes in CELL_EDITS:
        if has_source or changes or before != "LOG = []":  # state is read off the source
            assert differences(original, after(before, now)) == changes


DATA: object = None
OPTIONS = {"lr": 0.1}
COUNT = 0


def loaded() -> None:
    global DATA, COUNT
    COUNT += 1
    if DATA is None:
        DATA = [1.0, 2.0]
    OPTIONS = {}
    OPTIONS["lr"] = 3  # a variable of its own


def uses_what_another_function_loads(init: initmem.Init, tracker: initmem.Tracker) -> dict[str, float]:
    loaded()
    return {"loss": sum(DATA) * OPTIONS["lr"]}


def test_a_global_that_another_function_fills_is_state_but_a_variable_of_the_same_name_is_not(
    monkeypatch,
) -> None:
    before = fingerprint(uses_what_another_function_loads)
    loaded()
    assert DATA is not None and COUNT == 1
    assert fingerprint(uses_what_another_function_loads) == before
    monkeypatch.setitem(OPTIONS, "lr", 0.5)
    changes = differences(before, fingerprint(uses_what_another_function_loads))
    assert changes == ["test_code_version.OPTIONS changed"]


@pytest.mark.usefixtures("fresh_modules")
def test_installed_packages_count_by_their_version(tmp_path: Path) -> None:
    entries = taken(tmp_path, TRAIN, PROJECT)
    assert entries["package torch"] == torch.__version__.partition("+")[0]
    assert not [name for name in entries if "torch.nn" in name or "initmem" in name]


@pytest.mark.usefixtures("fresh_modules")
def test_processes_agree_and_a_script_counts_as_when_it_is_imported(tmp_path: Path) -> None:
    """`python mine.py`, and `from mine import train` in this process, where strings hash differently."""
    (tmp_path / "mine.py").write_text(
        "import json\nfrom torch import nn\nfrom initmem.pipeline.code_version import fingerprint\nN = 3\n"
        "RULES = {nn.Linear: frozenset('abc'), None: 2}\nTAGS = {f'tag {i}' for i in range(100)}\n"
        "def helper():\n    return N, RULES, TAGS\n"
        "def train(init, tracker):\n    return {'loss': helper()}\n"
        "if __name__ == '__main__':\n    print(json.dumps(fingerprint(train)))\n"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = os.environ | {"PYTHONPATH": str(Path(initmem.__file__).parents[1]), "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, check=True, env=environment
    )
    version = taken(tmp_path, TRAIN, {})
    assert json.loads(done.stdout) == version
    assert version["mine.N"] == "3" and "#" in version["mine.RULES"]


# -- commands -------------------------------------------------------------------------------------------

SCRIPT = '''
"""A program."""
import sys
import model, json
from model import Net
EPOCHS = 20
# the loop
def loop():
    return EPOCHS
class Data:
    size = 3
for epoch in range(EPOCHS):
    print(loop())
'''
FILES = {
    "train.py": SCRIPT,
    "model.py": "import parts\n\n\nclass Net:\n    depth = parts.DEPTH\n",
    "parts.py": "DEPTH = 2\n",
    "run.toml": 'lr = 0.1\n[data]\npath = "x"\n',
    "run.json": '{"lr": 0.1, "betas": [0.9, 0.99]}',
    "run.yaml": "lr: 0.1\n",
    "tokens.bin": "abc",
}
COMMAND = (
    "python train.py run.json --config=run.toml --yaml run.yaml --lr 0.1 --scale {scale} --out {history}"
)
COMMAND_CHANGES = [
    ("train.py", "EPOCHS = 20", "EPOCHS = 1", "file train.py was edited"),
    ("train.py", "size = 3", "size = 4", "file train.py was edited"),
    ("model.py", "depth = parts.DEPTH", "depth = -parts.DEPTH", "file model.py was edited"),
    ("parts.py", "DEPTH = 2", "DEPTH = 3", "file parts.py was edited"),
    ("run.toml", "lr = 0.1", "lr = 0.2", "file run.toml was edited"),
    ("run.json", "0.99", "0.999", "file run.json was edited"),
    ("run.yaml", "lr: 0.1", "lr: 0.2", "file run.yaml was edited"),
    ("tokens.bin", "abc", "abd", "file tokens.bin was edited"),
    ("", "--lr 0.1", "--lr 0.5", "argument --lr 0.1 -> 0.5"),
]
COMMAND_SAME = [
    ("train.py", "# the loop", "# the loop itself"),
    ("train.py", '"""A program."""', '"""A good program."""'),
    ("train.py", "    return EPOCHS", "    return (EPOCHS)"),
    ("run.toml", "lr = 0.1", "lr    = 0.1  # found by a search"),
    ("run.json", '{"lr": 0.1,', '{"lr":0.1,\n'),
]


def command_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], command: str
) -> Fingerprint:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return command_fingerprint(command.split(), [Path("tokens.bin")])


def test_commands_are_known_by_their_arguments_and_files(tmp_path: Path, monkeypatch) -> None:
    old = command_taken(tmp_path / "old", monkeypatch, FILES, COMMAND)
    for index, (name, before, after, words) in enumerate(COMMAND_CHANGES):
        files = FILES | ({name: FILES[name].replace(before, after)} if name else {})
        command = COMMAND if name else COMMAND.replace(before, after)
        changes = differences(old, command_taken(tmp_path / str(index), monkeypatch, files, command))
        assert words in changes
    for index, (name, before, after) in enumerate(COMMAND_SAME):
        files = FILES | {name: FILES[name].replace(before, after)}
        assert files[name] != FILES[name]
        assert differences(old, command_taken(tmp_path / f"same{index}", monkeypatch, files, COMMAND)) == []


def test_modules_of_a_package_count_and_files_of_one_name_are_told_apart(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "pkg/__init__.py": "",
        "pkg/train.py": "import pkg.model\nfrom .parts import DEPTH\nfrom pkg.deep import tail\n",
        "pkg/model.py": "WIDTH = 8\n",
        "pkg/parts.py": "DEPTH = 2\n",
        "pkg/deep/__init__.py": "",
        "pkg/deep/tail.py": "from ..parts import DEPTH\nfrom ..model import WIDTH\nTAIL = 1\n",
        "a/run.toml": "lr = 0.1\n",
        "b/run.toml": "lr = 0.1\n",
    }
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)

    def now() -> Fingerprint:
        return command_fingerprint(["python", "-m", "pkg.train", "a/run.toml", "--then=b/run.toml"])

    old = now()
    for name, before, after in (
        ("pkg/model.py", "8", "9"),
        ("pkg/parts.py", "2", "3"),
        ("pkg/deep/tail.py", "1", "2"),
        ("a/run.toml", "0.1", "0.2"),
        ("b/run.toml", "0.1", "0.2"),
    ):
        Path(name).write_text(files[name].replace(before, after))
        assert differences(old, now()), name
        Path(name).write_text(files[name])
    assert now() == old


def test_files_that_settings_name_count_for_their_recipe_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text("lr = 0.1")
    Path("b.toml").write_text("lr = 0.2")
    Path("grid.toml").write_text('scales = [1.0]\n[[grid]]\nconfig = ["a.toml", "b.toml"]\n')
    study, code, _ = study_of("echo {config} {scale} {history}", "mine", "grid.toml", None, ())
    first, second = (code[recipe.id] for recipe in study.recipes)
    assert "file a.toml" in first and "file b.toml" in second
    assert "file b.toml" not in first and "file a.toml" not in second


def test_a_watched_file_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--watch \S+: cannot be read \(No such file"):
        command_fingerprint(["echo"], [tmp_path / "nothing.bin"])


# -- what a store makes of it ---------------------------------------------------------------------------

run = functools.partial(initmem.run, engine="inline", progress=False)


def slope(init: initmem.Init, tracker: initmem.Tracker, *, lr: float) -> None:
    tracker.end_epoch(test_accuracy=0.5 - 0.01 * lr * init.scale)


class Trainer:
    def __init__(self, lr: float) -> None:
        self.lr = lr

    def fit(self, init: initmem.Init, tracker: initmem.Tracker) -> None:
        slope(init, tracker, lr=self.lr)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda lr: functools.partial(slope, lr=lr), "argument lr 0.2 -> 5.0"),
        (lambda lr: Trainer(lr).fit, "Trainer.lr 0.2 -> 5.0"),
    ],
)
def test_old_numbers_are_never_returned_as_new_ones(tmp_path: Path, make, words: str) -> None:
    first = run(make(0.2), [1.0, 2.0], [0, 1], tmp_path, name="mine")
    assert first.records[0].provenance["fingerprint"] == fingerprint(make(0.2))
    with pytest.raises(ConfigError) as caught:
        run(make(5.0), [1.0, 2.0], [0, 1], tmp_path, name="mine")
    assert f"{tmp_path}: 4 of 4 runs were trained before this changed: {words} (keep_old=True" in str(
        caught.value
    )
    kept = run(make(5.0), [1.0, 2.0], [0, 1], tmp_path, name="mine", keep_old=True)
    assert f"4 of 4 runs were trained before this changed: {words}" in str(kept)
    anew = run(make(5.0), [1.0, 2.0], [0, 1], tmp_path, name="other")
    assert anew.memory().memory == pytest.approx(5.0) and not anew.notes
    assert first.memory().memory == pytest.approx(0.2)
    assert run(make(0.2), [1.0, 2.0], [0, 1], tmp_path, name="mine").notes == []


def test_failed_runs_are_tried_again_when_the_code_is_fixed(tmp_path: Path) -> None:
    def train(init, tracker, divisor):
        return {"test_accuracy": 0.5 / divisor}

    broken = run(functools.partial(train, divisor=0), [1.0, 2.0], [0], tmp_path, name="mine")
    assert len(broken.crashes) == 2
    written = [path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/record.json")]
    run(functools.partial(train, divisor=0), [1.0, 2.0], [0], tmp_path, name="mine")
    assert [path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/record.json")] == written
    fixed = run(functools.partial(train, divisor=1), [1.0, 2.0], [0], tmp_path, name="mine")
    assert not fixed.crashes and len(Store(tmp_path).records()) == 2
