"""The version of the code that trains, so that a store never passes off old results as new ones.

A fingerprint maps names to short texts:

    {"trained by": "mine.train", "module mine": "9f2c...", "module helpers": "77ab...",
     "mine.EPOCHS": "20", "mine.CONFIG": "dict #41c0...", "argument lr": "0.2", "package torch": "2.13.0"}

It starts from the training function and follows every name that the code uses to functions, classes and
values of the same project. Of each module, the parsed source of what is reached counts. Values count as they
are now: closures, defaults, globals, the arguments of a partial, the attributes of an object. They are
compared by `joblib.hash`, short plain ones as they are. Installed packages count by their version. A module
that is imported within a function counts as a whole file.

What the code itself changes while it trains (a cache, a log, a counter) is state, not a setting. Of a global
list or dict that it changes, the initial value in the source counts. A value that cannot be hashed has an
entry to that effect, and the result of a run repeats it.
"""

from __future__ import annotations

import ast
import ctypes
import functools
import importlib.metadata
import inspect
import random
import sys
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from joblib.hashing import NumpyHasher, Pickler

from initmem import register
from initmem.content import content_digest, parsed
from initmem.data.sources import load
from initmem.pipeline import source
from initmem.pipeline.init import is_keras
from initmem.pipeline.source import Fingerprint, Uses
from initmem.recipe import SPLIT_SIZES, Recipe

UNHASHABLE = "cannot be hashed"
LONGEST = 80  # characters of a value that is shown as it is
SCALARS = (bool, int, float, complex, str, bytes, types.NoneType)
COLLECTIONS = (list, tuple, dict, set, frozenset)
CODE = (types.FunctionType, types.BuiltinFunctionType, type)
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)


def fingerprint(*functions: object, watch: Iterable[str | Path] = ()) -> Fingerprint:
    """The version of everything that training functions use, and of files that count as a part of them."""
    walk = _Walk()
    for function in functions:
        walk.callable(function)
    walk.read_globals()
    for module, parts in sorted(walk.parts.items()):
        version = source.digest("\n".join(dict.fromkeys(parts)))
        source.note(walk.entries, f"module {source.short_name(module)}", version)
    source.note_files(walk.entries, watch, walk.files)
    if (dtype := torch.get_default_dtype()) != torch.float32:
        walk.entries["default dtype of torch"] = str(dtype)
    return dict(sorted(walk.entries.items()))


def plugin_fingerprints(recipes: Sequence[Recipe]) -> dict[str, Fingerprint]:
    """The versions of the registered networks, optimizers and datasets that recipes name, by that name.

    The arrays of a dataset count as well: its function may read a file or draw random numbers.
    """
    versions: dict[str, Fingerprint] = {}
    for recipe in recipes:
        if (model := register.models.find(recipe.model)) is not None:
            versions[recipe.model] = fingerprint(model.build)
        if (optimizer := register.optimizers.find(recipe.optimizer)) is not None:
            versions[recipe.optimizer] = fingerprint(optimizer.build)
        dataset = register.datasets.find(recipe.dataset)
        if dataset is not None and recipe.dataset not in versions:  # loading it may take a while
            data = load(recipe.replace(**dict.fromkeys(SPLIT_SIZES)))
            content = joblib.hash([(part.x, part.y) for part in (data.train, data.val, data.test)])[:16]
            versions[recipe.dataset] = fingerprint(dataset) | {f"data {recipe.dataset}": f"#{content}"}
    for name, version in versions.items():
        if unhashed := unhashed_note(version):
            print(f"initmem: {name}: {unhashed}", file=sys.stderr)
    return versions


def unhashed_note(version: Fingerprint) -> str:
    """What a fingerprint cannot cover, as one sentence; empty where it covers everything."""
    names = [name for name, text in version.items() if text.startswith(UNHASHABLE)]
    return f"{UNHASHABLE}, so that a change to it goes unnoticed: {', '.join(names)}" if names else ""


class _Walk:
    """Follows references from a function, entering each thing once."""

    def __init__(self) -> None:
        self.entries: Fingerprint = {}
        self.parts: dict[str, list[str]] = defaultdict(list)  # versions of functions and classes, by module
        self._seen: dict[int, object] = {}  # by id; what is kept alive cannot pass its id on
        self.files: set[Path] = set()
        self._uses: dict[tuple[str, str], set[str]] = defaultdict(set)  # of globals, by module and name
        self._globals: list[tuple[types.FunctionType, str]] = []  # to read once all uses are known

    def callable(self, thing: object) -> None:
        """Enter what is called to train: a function, a partial, a bound method or an object."""
        if isinstance(thing, functools.partial):
            for key, value in (*enumerate(thing.args, start=1), *thing.keywords.items()):
                self.value(f"argument {key}", value)
            self.callable(thing.func)
            return
        source.note(self.entries, "trained by", source.qualified_name(thing))
        if isinstance(thing, types.FunctionType | type):
            self.code(thing)
            return
        # An object counts attribute by attribute, except for state that its methods keep.
        owner, method = thing, inspect.getattr_static(type(thing), "__call__", None)
        if isinstance(thing, types.MethodType):
            owner, method = thing.__self__, thing.__func__
        kind = owner if isinstance(owner, type) else type(owner)
        uses: Uses = defaultdict(set)
        waiting, reached = [method], set()
        while waiting:  # the method, and those of the same class that it may call
            function = waiting.pop()
            if isinstance(function, types.FunctionType) and function not in reached:
                reached.add(function)
                for name, hows in source.uses_of(source.definition(function.__code__), {"self"}).items():
                    uses[name] |= hows
                called = source.names_used(function.__code__)[1]
                waiting += [inspect.getattr_static(kind, name, None) for name in called]
        for name, value in _attributes(owner).items():
            self._setting(f"{kind.__name__}.{name}", value, uses[f"self.{name}"])
        self.code(kind)

    # -- code

    def code(self, thing: types.FunctionType | type) -> None:
        """Enter a function or class and what it refers to; an installed one by the version of its package."""
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        module = source.module_of(thing)
        if not source.is_project(module):
            self._package(module)
            if isinstance(thing, types.FunctionType):  # an installed decorator holds the project's function
                for inner in map(_content, thing.__closure__ or ()):
                    if isinstance(inner, types.FunctionType | type):
                        self.code(inner)
        elif isinstance(thing, type):
            self._class(thing)
        else:
            self._function(thing)
        self._reach(vars(thing).get("__wrapped__"))
        registered = vars(thing).get("registry")  # of functools.singledispatch
        for inner in registered.values() if isinstance(registered, types.MappingProxyType) else ():
            self._reach(inner)

    def _function(self, function: types.FunctionType) -> None:
        code, module = function.__code__, source.module_of(function)
        label = source.short_name(module)
        name = f"{label}.{code.co_qualname.replace('.<locals>', '')}"  # functools.wraps changes __qualname__
        self.parts[module].append(f"{name} {source.code_digest(code)}")
        node = source.definition(code)
        loaded, attributes = source.names_used(code)
        uses = source.uses_of(node, {*loaded, *code.co_freevars})
        for key, hows in uses.items():
            self._uses[module, key] |= hows
        for parameter in inspect.signature(function, follow_wrapped=False).parameters.values():
            if parameter.default is not parameter.empty:
                self.value(f"default {name}({parameter.name})", parameter.default)
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if (value := _content(cell)) is not function:
                self._setting(f"{name.rpartition('.')[0]}.{key}", value, uses[key])
        for imported in source.imported(node) if node else ():
            # By its file: the same whether it is loaded yet or not.
            if paths := source.module_files(imported, Path(code.co_filename).parent):
                source.note_files(self.entries, paths, self.files)
            else:
                self._package(imported)
        for key in sorted(loaded & function.__globals__.keys()):
            value = function.__globals__[key]
            if isinstance(value, types.ModuleType):
                self._module(value, attributes)
            elif _is_code(value):
                self.value(f"{label}.{key}", value)
            else:
                self._globals.append((function, key))

    def _class(self, kind: type) -> None:
        """A class with its bases, what its methods refer to, and plain attributes as they are now."""
        name = source.qualified_name(kind)
        self.parts[kind.__module__].append(f"{name} {source.code_digest(kind)}")
        for key, value in sorted(vars(kind).items()):
            inner = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
            if isinstance(inner, types.FunctionType | type) and inner.__module__ == kind.__module__:
                # What dataclasses generate follows from the fields.
                if isinstance(inner, type) or not inner.__code__.co_filename.startswith("<string"):
                    self.code(inner)
            elif isinstance(value, (bool, int, float, str, *COLLECTIONS)) and not key.startswith("__"):
                self.value(f"{name}.{key}", value)
        for base in (*kind.__bases__, type(kind)):
            self.code(base)

    def _module(self, module: types.ModuleType, attributes: set[str]) -> None:
        """Of a module of the project what some code may take from it; of an installed one the version."""
        if not source.is_project(module.__name__):
            self._package(module.__name__)
            return
        for name in sorted(attributes & vars(module).keys()):
            value = vars(module)[name]
            if not isinstance(value, types.ModuleType):
                self.value(f"{source.short_name(module.__name__)}.{name}", value)
            elif id(value) not in self._seen:
                self._seen[id(value)] = value
                self._module(value, attributes)

    def _package(self, module: str) -> None:
        top = module.partition(".")[0]
        if (version := _version(top)) is not None:  # +cpu and +cu130 are builds of one version
            self.entries[f"package {top}"] = version.partition("+")[0]

    # -- values

    def read_globals(self) -> None:
        """Enter the global values that functions use, and what they lead to in turn."""
        for function, key in self._globals:  # grows on the way
            module, value = source.module_of(function), function.__globals__[key]
            name, hows = f"{source.short_name(module)}.{key}", self._uses[module, key]
            if not source.is_state(value, hows) and not isinstance(value, GENERATORS):
                self._setting(name, value, hows)
                continue
            try:
                tree = parsed(inspect.getsource(sys.modules[module]))
            except (OSError, TypeError, KeyError):
                continue  # a notebook has no such source
            for statement in tree.body if tree else ():
                match statement:  # what it begins with; nothing where that is empty
                    case ast.Assign(targets=[ast.Name(id=target)], value=initial) if target == key:
                        if any(isinstance(part, ast.Constant) for part in ast.walk(initial)):
                            self.value(name, ast.unparse(initial))

    def _setting(self, name: str, value: object, hows: set[str]) -> None:
        """A value that is not state, without entries that the code writes, as in CONFIG["lr"] = rate."""
        if source.is_state(value, hows):
            return
        if isinstance(value, dict):
            value = {key: part for key, part in value.items() if f"key {key}" not in hows}
        self.value(name, value)

    def value(self, name: str, value: Any) -> None:
        """Enter a value: as Python writes it where it is short and plain, else by its hash."""
        if isinstance(value, types.ModuleType):
            self._module(value, set())
            return
        if _is_code(value):
            text = source.qualified_name(value)
            self._reach(value)
        elif isinstance(value, SCALARS) and len(repr(value)) <= LONGEST:
            text = repr(value)
        else:
            text = self._hash(name, value)
        if text:
            source.note(self.entries, name, text)

    def _hash(self, name: str, value: object) -> str:
        """The hash of a value; of an object of the project that has none, enter what it holds."""
        try:
            return f"{type(value).__name__} #{_Hasher(self._reach).hash(value)[:16]}"
        except Exception:  # whatever an object raises that cannot be pickled
            if not source.is_project(type(value).__module__):
                return UNHASHABLE
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            self.code(type(value))
            for key, part in _attributes(value).items():
                self.value(f"{name}.{key}", part)
        return ""

    def _reach(self, thing: object) -> None:
        """Enter code that is part of a value."""
        if isinstance(thing, types.MethodType):
            self.value(f"{source.qualified_name(thing)}.__self__", thing.__self__)
            thing = thing.__func__
        inner = thing if isinstance(thing, types.FunctionType | type) else getattr(thing, "__wrapped__", None)
        if isinstance(inner, types.FunctionType | type):
            self.code(inner)
        elif thing is not None:
            self._package(str(getattr(thing, "__module__", None) or "builtins"))


class _Hasher(NumpyHasher):  # type: ignore[misc]
    """`joblib.hash` for values with tensors and code in them; code is handed to `reach`."""

    def __init__(self, reach: Callable[[object], None]) -> None:
        super().__init__()
        self._reach = reach

    def save(self, obj: Any) -> None:
        """Hash one part of a value."""
        if _is_code(obj):
            self._reach(obj)
            obj = ("code", source.qualified_name(obj))
        elif isinstance(obj, GENERATORS):  # their state moves while a program runs
            obj = type(obj).__name__
        elif isinstance(obj, types.ModuleType):
            obj = ("module", obj.__name__)
        elif isinstance(obj, ctypes.CDLL):  # its handle differs between processes
            path = Path(str(obj._name))
            obj = ("library", path.name, content_digest(path) if path.is_file() else "")
        elif isinstance(obj, torch.Tensor):
            plain = obj.detach().cpu().to_dense()
            values = plain.float() if plain.dtype == torch.bfloat16 else plain
            obj = ("tensor", str(obj.dtype), values.numpy())
        elif is_keras(obj):  # the pickle of a model has a date in it
            obj = (type(obj), obj.get_config(), obj.get_weights())
        elif isinstance(obj, set | frozenset):  # in an order that does not depend on the process
            obj = (type(obj).__name__, sorted(map(repr, obj)))
        super().save(obj)

    def _batch_setitems(self, items: Any, *args: Any) -> None:
        # As they are: joblib orders keys that cannot be compared by `hash`, which differs between processes.
        Pickler._batch_setitems(self, items, *args)


def _is_code(thing: object) -> bool:
    """Functions and classes, also under a wrapper such as those of `functools.cache` and `jax.jit`."""
    if isinstance(thing, types.MethodType):  # is hashed with its object
        return False
    return isinstance(thing, CODE) or isinstance(getattr(thing, "__wrapped__", None), types.FunctionType)


def _attributes(owner: object) -> dict[str, Any]:
    """What an object holds, in its `__dict__` and its slots."""
    state: Any = {} if isinstance(owner, type) else object.__getstate__(owner)
    parts = state if isinstance(state, tuple) else (state,)
    return dict(sorted(item for part in parts if part for item in part.items()))


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not bound yet


@functools.cache
def _version(package: str) -> str | None:
    """The version of what provides a top-level module; None for Python's own modules and for initmem."""
    if package in sys.stdlib_module_names or package in ("initmem", "__main__"):
        return None
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):  # scikit-learn provides sklearn
        names = importlib.metadata.packages_distributions().get(package)  # takes half a second
        return importlib.metadata.version(names[0]) if names else None
