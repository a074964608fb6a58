"""What a training function is made of, so that a store never passes off old results as new ones.

A fingerprint maps names to short texts. It covers the function itself, the arguments of a partial, the object
of a bound method, defaults and closures, and recursively every global value, function and class of the same
project that the code refers to; installed packages count by their version:

    {"function mine.train": "9f2c...", "function mine.helper": "77ab...", "mine.EPOCHS": "20",
     "argument lr": "0.2", "package torch": "2.13.0"}

Code counts as parsed, so that comments and formatting do not matter. Values that the code itself changes
while it trains (a cache, a log, a counter) are its state, not settings, and do not count; of a global list
or dict that it changes, what the source says it begins with does.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib.metadata
import importlib.util
import inspect
import sys
import sysconfig
import types
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from initmem.pipeline.introspection import (
    attributes,
    content,
    defaults,
    is_generated,
    local_names,
    methods_reached,
    names_used,
)
from initmem.pipeline.source import (
    Definition,
    Writes,
    assigned_value,
    canonical,
    class_node,
    code_digest,
    digest,
    function_node,
    imported,
    parsed,
    without_docstring,
)
from initmem.pipeline.value_digest import CODE, ValueDigest, short_text

Fingerprint = dict[str, str]

CONTAINERS = (list, tuple, set, dict)
MOST_ENTRIES = 60  # of a mapping that is shown entry by entry
INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def fingerprint(train: object) -> Fingerprint:
    """What a training function is made of."""
    first = _Walk({})  # sees which globals are written, by whatever function
    first.callable(train)
    walk = _Walk(first.writes)
    walk.callable(train)
    return dict(sorted(walk.entries.items()))


class _Walk:
    """Follows references from a function, noting each thing once."""

    def __init__(self, known: dict[str, Writes]) -> None:
        self.entries: Fingerprint = {}
        self.writes: dict[str, Writes] = {}  # by module
        self._known = known
        self._seen: dict[int, object] = {}  # by id; what is kept alive cannot pass its id on
        self._files: set[str] = set()  # of modules that count as a whole

    def callable(self, thing: object) -> None:
        """Note what is called to train: a function, a partial, a bound method or an object."""
        if isinstance(thing, functools.partial):
            for index, value in enumerate(thing.args):
                self.value(f"argument {index + 1}", value)
            for name, value in thing.keywords.items():
                self.value(f"argument {name}", value)
            self.callable(thing.func)
        elif isinstance(thing, types.MethodType):
            self.entries["trained by"] = _qualified(thing)
            self._bound(thing.__self__, thing.__func__)
        elif isinstance(thing, types.FunctionType | type):
            self.entries["trained by"] = _qualified(thing)
            self.code(thing)
        else:
            self.entries["trained by"] = _qualified(type(thing))
            self._bound(thing, inspect.getattr_static(type(thing), "__call__", None))

    def _bound(self, owner: object, method: object) -> None:
        """A method and its object, attribute by attribute; what its methods write is state."""
        kind = owner if isinstance(owner, type) else type(owner)
        writes = Writes()
        for function in methods_reached(kind, method):
            node = function_node(function)
            if node is not None:
                writes.visit(node)
        for name, value in attributes(owner).items():
            if not writes.is_state(f"self.{name}", value):
                self.value(f"{kind.__name__}.{name}", writes.settings(f"self.{name}", value))
        self.code(kind)

    def code(self, thing: types.FunctionType | type) -> None:
        """Note a function or class, and what it refers to."""
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        module = _module_of(thing)
        if not self._is_project(module):
            self._package(module)
            if isinstance(thing, types.FunctionType):  # an installed decorator holds the project's function
                for inner in map(content, thing.__closure__ or ()):
                    if isinstance(inner, types.FunctionType | type) and self._is_project(_module_of(inner)):
                        self.code(inner)
        elif isinstance(thing, type):
            self._class(thing)
        else:
            self._function(thing)
        if isinstance(wrapped := vars(thing).get("__wrapped__"), types.FunctionType):
            self.code(wrapped)

    def _function(self, function: types.FunctionType) -> None:
        node = function_node(function)
        module = _module_of(function)
        qualified = function.__code__.co_qualname  # functools.wraps changes the other one
        name = f"{_short_module(module)}.{qualified.replace('.<locals>', '')}"
        text = code_digest(function.__code__) if node is None else digest(canonical(node))
        self._note(f"function {name}", text)
        writes = Writes()
        if node is not None:
            writes.visit(node)
            writes.forget(local_names(function.__code__))
        self.writes[module] = self.writes.get(module, Writes()).joined(writes)
        of_module = self._known.get(module, writes)
        for key, value in defaults(function).items():
            self.value(f"default {name}({key})", value)
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if (value := content(cell)) is not function and not writes.is_state(key, value):
                self.value(f"{name.rpartition('.')[0]}.{key}", writes.settings(key, value))
        loaded, taken = names_used(function.__code__)
        if node is not None:
            self._imports(node, str(function.__globals__.get("__package__") or ""), taken)
        for key in sorted(loaded & set(function.__globals__)):
            value = function.__globals__[key]
            if isinstance(value, types.ModuleType):
                self._module(value, taken)
            elif not of_module.is_state(key, value):
                self.value(f"{_short_module(module)}.{key}", of_module.settings(key, value))
            else:
                self._start(f"{_short_module(module)}.{key}", assigned_value(function, key))

    def _start(self, name: str, source: ast.expr | None) -> None:
        """What a list or dict begins with that the code goes on to change; nothing where that is empty."""
        inside = [] if source is None else list(ast.walk(source))[1:]
        if source is None or not any(isinstance(part, ast.Constant) for part in inside):
            return
        try:
            self.value(name, ast.literal_eval(source))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            self._note(name, f"#{digest(canonical(source))}")

    def _class(self, kind: type) -> None:
        """A class: each method for itself, then the rest of its body, its plain attributes and its bases."""
        name = f"{_short_module(kind.__module__)}.{kind.__qualname__.replace('.<locals>', '')}"
        for key, value in sorted(vars(kind).items()):
            inner = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
            own = isinstance(inner, types.FunctionType | type) and inner.__module__ == kind.__module__
            if own and not (isinstance(inner, types.FunctionType) and is_generated(inner)):
                self.code(inner)
            elif isinstance(value, (bool, int, float, str, *CONTAINERS)) and not key.startswith("__"):
                self.value(f"{name}.{key}", value)
        node = class_node(kind)
        if node is not None:
            body = [part for part in without_docstring(node.body) if not isinstance(part, Definition)]
            fields = [canonical(part) for part in (*body, *node.bases, *node.keywords, *node.decorator_list)]
            self._note(f"class {name}", digest("\n".join(fields)))
        for base in kind.__bases__:
            if base is not object:
                self.code(base)

    def _module(self, module: types.ModuleType, taken: set[str]) -> None:
        """Of a module of the project what some code may take from it; of an installed one the version."""
        if not self._is_project(module.__name__):
            self._package(module.__name__)
            return
        for name in sorted(taken & set(vars(module))):
            value = vars(module)[name]
            if not isinstance(value, types.ModuleType):
                self.value(f"{_short_module(module.__name__)}.{name}", value)
            elif id(value) not in self._seen:
                self._seen[id(value)] = value
                self._module(value, taken)

    def _imports(self, node: ast.AST, package: str, taken: set[str]) -> None:
        """What a function imports for itself; a module that is not loaded yet counts as a whole."""
        names = list(imported(node, package))
        wanted = taken | {name.rpartition(".")[2] for name in names}
        for name in names:
            module = sys.modules.get(name)
            if module is not None:
                self._module(module, wanted)
            else:
                self._whole(name, _origin(name))

    def _whole(self, name: str, file: str | None) -> None:
        if file is None or not file.endswith(".py") or not _in_project(file):
            self._package(name)
            return
        tree = parsed(Path(file).read_text("utf-8", "replace"))
        if tree is None or file in self._files:
            return
        self._files.add(file)
        self._note(f"module {_short_module(name)}", digest(canonical(tree)))
        package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
        for needed in imported(tree, package):
            loaded = getattr(sys.modules.get(needed), "__file__", None)
            self._whole(needed, loaded or _origin(needed))

    def value(self, name: str, value: Any) -> None:
        """Note a value: readable where it is small, by a digest where it is large."""
        if isinstance(value, functools.partial):
            self._note(name, "partial")
            given: dict[Any, Any] = {**dict(enumerate(value.args)), **value.keywords}
            for key, part in given.items():
                self.value(f"{name}({key})", part)
            self.value(name + ".func", value.func)
        elif isinstance(value, CODE):
            self._note(name, _qualified(value))
            self._reach(value)
        elif isinstance(value, types.ModuleType):
            self._module(value, set())
        elif isinstance(value, dict) and 0 < len(value) <= MOST_ENTRIES and all(map(_is_plain, value)):
            for key, part in value.items():
                self.value(f"{name}[{key!r}]", part)
        elif (text := short_text(value)) is not None:
            self._note(name, text)
        elif self._is_expandable(value):
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self.code(type(value))
                for key, part in attributes(value).items():
                    self.value(f"{name}.{key}", part)
        else:
            self._note(name, ValueDigest(self._reach).text(value))

    def _is_expandable(self, value: object) -> bool:
        """Objects of the project's classes, and plain holders such as argparse's Namespace."""
        kind = type(value)
        if isinstance(value, (np.ndarray, torch.Tensor, torch.nn.Module, *CONTAINERS)):
            return False
        holders = ("Namespace", "SimpleNamespace")
        return (self._is_project(kind.__module__) or kind.__name__ in holders) and bool(attributes(value))

    def _reach(self, thing: object) -> None:
        """Note code that was found within a value."""
        if isinstance(thing, types.MethodType):
            self.code(type(thing.__self__))
            thing = thing.__func__
        inner = (
            thing if isinstance(thing, types.FunctionType | type) else getattr(thing, "__wrapped__", thing)
        )
        if isinstance(inner, types.FunctionType | type):
            self.code(inner)
        else:
            self._package(str(getattr(thing, "__module__", None) or "builtins"))

    def _note(self, name: str, text: str) -> None:
        note(self.entries, name, text)

    def _package(self, module: str) -> None:
        top = module.partition(".")[0]
        version = _version(top)
        if version is not None:  # +cpu and +cu130 are builds of one version
            self.entries[f"package {top}"] = version.partition("+")[0]

    @staticmethod
    def _is_project(module: str) -> bool:
        """Whether a module is the user's own: neither installed nor built in, nor a part of initmem."""
        if module == "__main__" or module.partition(".")[0] == "initmem":
            return module == "__main__"
        loaded = sys.modules.get(module)
        file = getattr(loaded, "__file__", None)
        return loaded is None if file is None else _in_project(file)


def note(entries: Fingerprint, name: str, text: str) -> None:
    """Note a text under a name; a second thing of the same name gets a number."""
    free, n = name, 2
    while free in entries and entries[free] != text:
        free, n = f"{name} ({n})", n + 1
    entries[free] = text


def _module_of(thing: types.FunctionType | type) -> str:
    """The module that some code is written in; functools.wraps gives a wrapper the name of another."""
    written = thing.__globals__.get("__name__") if isinstance(thing, types.FunctionType) else None
    return str(written or thing.__module__ or "__main__")


def _in_project(file: str) -> bool:
    """Not below the folders of Python itself; a project may well keep its environment in its own folder."""
    path = str(Path(file).resolve())
    installed = "site-packages" in path or "dist-packages" in path
    return not installed and not any(path.startswith(folder) for folder in INSTALLED)


@functools.lru_cache(maxsize=512)
def _version(package: str) -> str | None:
    """The version of what provides a top-level module; None for Python's own modules and for initmem."""
    if package in sys.stdlib_module_names or package in ("initmem", "builtins", "__main__"):
        return None
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        pass
    provided = importlib.metadata.packages_distributions().get(package, [])
    return importlib.metadata.version(provided[0]) if provided else None


def _origin(name: str) -> str | None:
    """The file of a module that is not loaded, found without running anything."""
    if "." in name and name.rpartition(".")[0] not in sys.modules:
        return None  # to find it, its parent would have to be loaded
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    return spec.origin if spec is not None else None


def _short_module(name: str) -> str:
    """The last part of a module's name; a script counts by its file, as when it is imported."""
    if name == "__main__":
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        return Path(file).stem if file else "notebook"
    return name.rpartition(".")[2]


def _qualified(thing: Any) -> str:
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{_short_module(str(getattr(thing, '__module__', '')))}.{name}".replace(".<locals>", "")


def _is_plain(key: object) -> bool:
    return isinstance(key, str | int | enum.Enum | PurePath)
