"""Parsed Python: code without comments, docstrings and formatting, what it uses, and its files."""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import sys
import sysconfig
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from initmem.content import DEFINITIONS, content_digest, parsed
from initmem.errors import ConfigError

Fingerprint = dict[str, str]
Uses = dict[str, set[str]]  # how code uses a name such as `cache` or `self.history`

MUTATORS = (
    *("append", "appendleft", "extend", "insert", "add", "setdefault", "sort", "reverse"),
    *("pop", "popleft", "popitem", "clear", "remove", "discard"),
)
INSTALLED = tuple(
    str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def note(entries: Fingerprint, name: str, text: str) -> None:
    """Enter a text under a name; a second thing of the same name gets a number."""
    free, n = name, 2
    while free in entries and entries[free] != text:
        free, n = f"{name} ({n})", n + 1
    entries[free] = text


def digest(text: str) -> str:
    """A short digest, long enough to tell versions of one thing apart."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


# -- functions and classes ------------------------------------------------------------------------------


def definition(thing: types.CodeType | type) -> ast.AST | None:
    """The parsed source of a function or class; None for a lambda, and where there is no source."""
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError, IndexError):
        return None
    tree = parsed(f"if True:\n{text}" if text[:1].isspace() else text)  # methods are indented
    nodes = [node for node in ast.walk(tree) if isinstance(node, DEFINITIONS)] if tree else []
    name = thing.co_name if isinstance(thing, types.CodeType) else thing.__name__
    return nodes[0] if nodes and nodes[0].name == name else None


def code_digest(thing: types.CodeType | type) -> str:
    """A function or class by its source; where there is none, by its compiled code or its bases."""
    if (node := definition(thing)) is not None:
        return digest(ast.unparse(node))
    if isinstance(thing, type):
        return ", ".join(map(qualified_name, thing.__bases__))
    # Without line numbers and file names.
    constants = [code_digest(c) if isinstance(c, types.CodeType) else repr(c) for c in thing.co_consts]
    if thing.co_consts and isinstance(thing.co_consts[0], str) and thing.co_name != "<lambda>":
        constants[0] = ""  # the docstring
    return digest(repr((thing.co_code, constants, thing.co_names, thing.co_varnames, thing.co_freevars)))


def names_used(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Names that code loads from its globals, and the attributes that it takes of anything."""
    loaded, attributes = set(), set()
    waiting = [code]
    while waiting:
        code = waiting.pop()
        waiting += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                loaded.add(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                attributes.add(step.argval)
    return loaded, attributes


# -- state ----------------------------------------------------------------------------------------------


def uses_of(node: ast.AST | None, roots: set[str]) -> Uses:
    """How code reads and changes what it did not create: names that begin with one of `roots`."""
    uses: Uses = defaultdict(set)
    for part in ast.walk(node) if node else ():
        match part:
            case ast.Call(func=ast.Attribute(value=target, attr="update"), keywords=keywords):
                hows = ["updated", *(f"key {keyword.arg}" for keyword in keywords)]
            case ast.Call(func=ast.Attribute(value=target, attr=method)) if method in MUTATORS:
                hows = ["changed"]
            case ast.Subscript(value=target, slice=ast.Constant(value=str(key)), ctx=ast.Store() | ast.Del()):
                hows = [f"key {key}"]
            case ast.Subscript(value=target, ctx=ast.Store() | ast.Del()):
                hows = ["changed"]
            case ast.AugAssign(target=target):
                hows = ["counted"]
            case ast.Name(ctx=context) | ast.Attribute(ctx=context):
                target, hows = part, ["read" if isinstance(context, ast.Load) else "assigned"]
            case _:
                continue
        name = ast.unparse(target)
        if name.partition(".")[0] in roots:
            uses[name].update(hows)
    return uses


def is_state(value: object, hows: set[str]) -> bool:
    """Whether a value is what the code keeps for itself (a log, a cache, a counter), not a setting."""
    is_log = "changed" in hows and isinstance(value, list | dict | set | bytearray | deque)
    is_growing_set = "updated" in hows and isinstance(value, set)
    is_filled_later = "assigned" in hows and not isinstance(value, bool | int | float | str)
    is_counter = "counted" in hows and "read" not in hows
    return is_log or is_growing_set or is_filled_later or is_counter


# -- files ----------------------------------------------------------------------------------------------


def note_files(entries: Fingerprint, paths: Iterable[str | Path], seen: set[Path]) -> None:
    """Enter files by their content, and with a file of Python the modules of the project that it imports.

    Those that were `seen` are left out.
    """
    for path in map(Path, paths):
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            note(entries, f"file {path.name}", content_digest(path, whole=True))
            tree = parsed(path.read_bytes().decode("utf-8", "replace")) if path.suffix == ".py" else None
        except OSError as error:
            raise ConfigError(f"--watch {path}: cannot be read ({error.strerror})") from None
        for module in imported(tree) if tree else ():
            note_files(entries, module_files(module, path.parent), seen)


def imported(node: ast.AST) -> Iterator[str]:
    """Names of the modules that some code imports; relative ones without their dots."""
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            yield from (alias.name for alias in part.names)
        elif isinstance(part, ast.ImportFrom):
            prefix = [part.module] if part.module else []
            yield from prefix
            yield from (".".join([*prefix, alias.name]) for alias in part.names)


def module_files(name: str, folder: Path) -> list[Path]:
    """The project's file of a module: in a folder, around its package, in the current one or on the path."""
    roots = [folder.resolve()]
    while (roots[-1] / "__init__.py").is_file() and roots[-1].parent != roots[-1]:
        roots.append(roots[-1].parent)
    for root in (*roots, Path.cwd(), *map(Path, sys.path)):
        stem = root.joinpath(*name.split("."))
        paths = [path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file()]
        if paths:
            return [path for path in paths if in_project(path)]
    return []


# -- modules --------------------------------------------------------------------------------------------


def is_project(module: str) -> bool:
    """Whether a module is the user's own: neither installed nor built in, nor a part of initmem."""
    if module == "__main__" or module.partition(".")[0] == "initmem":
        return module == "__main__"
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    return loaded is None if file is None else in_project(file)


def in_project(file: str | Path) -> bool:
    """Not below the folders of Python itself; a project may well keep its environment in its own folder."""
    path = str(Path(file).resolve())
    installed = "site-packages" in path or "dist-packages" in path
    return not installed and not path.startswith(INSTALLED)


def module_of(thing: types.FunctionType | type) -> str:
    """The module that some code is written in; functools.wraps gives a wrapper the name of another."""
    written = thing.__globals__.get("__name__") if isinstance(thing, types.FunctionType) else None
    return str(written or thing.__module__ or "__main__")


def short_name(module: str) -> str:
    """The last part of a module's name; a script counts by its file, as when it is imported."""
    if module == "__main__":
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        return Path(file).stem if file else "notebook"
    return module.rpartition(".")[2]


def qualified_name(thing: Any) -> str:
    """The name of some code with the short name of its module."""
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"{short_name(str(getattr(thing, '__module__', '')))}.{name}".replace(".<locals>", "")
