"""Parsed code of functions and classes: a digest that no comment, docstring or reformatting changes."""

from __future__ import annotations

import ast
import functools
import hashlib
import linecache
import sys
import types
from collections.abc import Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# Methods by which a list, dict, set or deque is changed in place.
MUTATORS = frozenset(
    [
        "append",
        "appendleft",
        "extend",
        "insert",
        "add",
        "setdefault",
        "pop",
        "popleft",
        "popitem",
        "clear",
        "remove",
        "discard",
        "sort",
        "reverse",
    ]
)


def digest(text: str | bytes) -> str:
    """A short digest, long enough to tell versions of one thing apart."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:16]


def canonical(node: ast.AST) -> str:
    """Parsed code as text, without positions, docstrings, annotations of variables and empty fields.

    Empty fields are left out because each version of Python adds some.
    """
    parts = []
    for name, value in ast.iter_fields(node):
        if name in ("type_comment", "kind", "ctx"):
            continue
        if name == "body" and isinstance(value, list):
            value = without_docstring(value)
        items = value if isinstance(value, list) else [value]
        texts = [canonical(item) if isinstance(item, ast.AST) else repr(item) for item in items]
        if value is not None and value != []:
            parts.append(f"{name}=[{','.join(texts)}]")
    return f"{type(node).__name__}({' '.join(parts)})"


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body but for a text at its beginning."""
    first = body[0] if body else None
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return body[1:] if is_text and isinstance(first.value.value, str) else body  # type: ignore[union-attr]


@functools.lru_cache(maxsize=256)
def parsed(text: str) -> ast.Module | None:
    """A whole file, parsed; None where it is not Python."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def function_node(function: types.FunctionType) -> Function | None:
    """The parsed code of a function; None where its source is not there or no longer fits."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    tree = _tree(code.co_filename, function.__globals__)
    if tree is None:
        return None
    wanted = (ast.Lambda,) if code.co_name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, wanted)
        and _first_line(node) == code.co_firstlineno
        and getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(found) > 1:  # several lambdas in one line
        found = [node for node in found if _holds(node, code)]
    return found[0] if len(found) == 1 else None


def assigned_value(function: types.FunctionType, name: str) -> ast.expr | None:
    """What the file of a function assigns to a global; None where it does so nowhere, or more than once."""
    tree = _tree(function.__code__.co_filename, function.__globals__)
    found = []
    for node in tree.body if tree is not None else ():
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in map(_dotted, targets):
            found.append(node.value)
    return found[0] if len(found) == 1 else None


def _first_line(node: Function) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min([node.lineno, *(each.lineno for each in decorators)])


def _holds(node: Function, code: types.CodeType) -> bool:
    """Whether the first instruction of some code lies in the body of a lambda."""
    body = node.body
    if not isinstance(body, ast.expr):
        return False
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    return bool(places) and all(start <= place <= end for place in places[1:])


def class_node(kind: type) -> ast.ClassDef | None:
    """The parsed code of a class; None where its source is not there."""
    methods = [value for value in vars(kind).values() if isinstance(value, types.FunctionType)]
    files = [method.__code__.co_filename for method in methods if method.__module__ == kind.__module__]
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None) or next((name for name in files if name[:1] != "<"), None)
    tree = _tree(file, vars(module) if module is not None else {})
    path = kind.__qualname__.replace(".<locals>", "").split(".")
    nodes: list[ast.AST] = [tree] if tree is not None else []
    for name in path:
        nodes = [inner for node in nodes for inner in _defined(node) if inner.name == name]
    return nodes[0] if len(nodes) == 1 and isinstance(nodes[0], ast.ClassDef) else None


def _defined(node: ast.AST) -> Iterator[Definition]:
    """What is defined in a module, class or function, also under an `if` or `with`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _defined(child)


def _tree(file: str | None, scope: dict[str, object]) -> ast.Module | None:
    """A file that code comes from, or a cell of a notebook; read as Python itself does for a traceback."""
    lines = linecache.getlines(file, scope) if file else []
    return parsed("".join(lines)) if lines else None


def code_digest(code: types.CodeType) -> str:
    """Compiled code where there is no source: without line numbers, names of files and the docstring."""
    constants = [code_digest(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    text = code.co_consts[0] if code.co_consts else None
    if isinstance(text, str) and code.co_name != "<lambda>":
        constants[0] = ""
    shown = (code.co_code.hex(), constants, code.co_names, code.co_varnames, code.co_freevars)
    return digest(repr(shown))


def imported(node: ast.AST, package: str) -> Iterator[str]:
    """Names of the modules that some code imports; `package` is what relative names start from."""
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - each.level + 1] if each.level else []
            name = ".".join([*parents, *([each.module] if each.module else [])])
            yield name
            yield from (f"{name}.{alias.name}" for alias in each.names)


class Writes(ast.NodeVisitor):
    """What code changes outside of itself, by names such as `cache` and `self.history`."""

    def __init__(self) -> None:
        self.mutated: set[str] = set()  # changed in place
        self.updated: set[str] = set()  # by `update`, which tells settings as often as it keeps results
        self.entries: set[tuple[str, str]] = set()  # of a dict, by a key that the code spells out
        self.assigned: set[str] = set()  # given another value
        self.counted: set[str] = set()  # by `+=` and the like
        self.read: set[str] = set()
        self._outer: set[str] = set()

    def visit_Global(self, node: ast.Global) -> None:  # noqa: D102
        self._outer |= set(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:  # noqa: D102
        self._outer |= set(node.names)

    def visit_Call(self, node: ast.Call) -> None:  # noqa: D102
        method = node.func
        if isinstance(method, ast.Attribute) and method.attr == "update":
            self.updated.add(_dotted(method.value))
        elif isinstance(method, ast.Attribute) and method.attr in MUTATORS:
            self.mutated.add(_dotted(method.value))
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:  # noqa: D102
        if isinstance(node.ctx, ast.Load):
            pass
        elif isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            self.entries.add((_dotted(node.value), node.slice.value))
        else:
            self.mutated.add(_dotted(node.value))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: D102
        name = _dotted(node.target)
        if isinstance(node.target, ast.Attribute) or name in self._outer:
            self.counted.add(name)
        self.visit(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:  # noqa: D102
        (self.read if isinstance(node.ctx, ast.Load) else self.assigned).add(_dotted(node))
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:  # noqa: D102
        if isinstance(node.ctx, ast.Load):
            self.read.add(node.id)
        elif node.id in self._outer:
            self.assigned.add(node.id)

    def forget(self, names: set[str]) -> None:
        """Leave out variables of the code itself, and what they hold."""
        for group in (self.mutated, self.updated, self.assigned, self.counted, self.read):
            group -= {name for name in group if name.partition(".")[0] in names}
        self.entries = {entry for entry in self.entries if entry[0].partition(".")[0] not in names}

    def joined(self, other: Writes) -> Writes:
        """What two pieces of code change."""
        both = Writes()
        both.mutated, both.assigned = self.mutated | other.mutated, self.assigned | other.assigned
        both.counted, both.read = self.counted | other.counted, self.read | other.read
        both.updated, both.entries = self.updated | other.updated, self.entries | other.entries
        return both

    def is_state(self, name: str, value: object) -> bool:
        """Whether a value is what the code keeps for itself (a log, a cache, a counter), not a setting."""
        if name in self.mutated and isinstance(value, list | dict | set | bytearray):
            return True
        if name in self.updated and isinstance(value, set):
            return True
        if name in self.assigned and not isinstance(value, bool | int | float | str):
            return True
        return name in self.counted and name not in self.read

    def settings(self, name: str, value: object) -> object:
        """A value without the entries that the code writes for itself: those of CONFIG["lr"] = rate."""
        own = {key for owner, key in self.entries if owner == name}
        return {k: v for k, v in value.items() if k not in own} if own and isinstance(value, dict) else value


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"
