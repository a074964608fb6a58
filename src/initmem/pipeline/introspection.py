"""What functions, methods and objects refer to and hold."""

from __future__ import annotations

import dis
import inspect
import types
from collections.abc import Iterator
from typing import Any


def names_used(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Names that code loads from its globals, and the attributes that it takes of anything."""
    loaded, taken = set(), set()
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            taken.add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = names_used(inner)
            loaded |= more[0]
            taken |= more[1]
    return loaded, taken


def local_names(code: types.CodeType) -> set[str]:
    """Names of the variables of some code, and of functions within it."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return {*code.co_varnames, *code.co_cellvars}.union(*map(local_names, inner))


def methods_reached(kind: type, method: object) -> Iterator[types.FunctionType]:
    """A method, and those of the same class that it may call."""
    waiting, seen = [method], set()
    while waiting:
        function = waiting.pop()
        if isinstance(function, types.FunctionType) and function not in seen:
            seen.add(function)
            yield function
            called = names_used(function.__code__)[1]
            waiting += [inspect.getattr_static(kind, name, None) for name in sorted(called)]


def attributes(owner: object) -> dict[str, Any]:
    """What an object holds, in its `__dict__` and its slots."""
    if isinstance(owner, type):
        return {}
    slots = [name for kind in type(owner).__mro__ for name in _slots(kind)]
    slotted = {name: getattr(owner, name) for name in slots if hasattr(owner, name)}
    return dict(sorted((slotted | dict(getattr(owner, "__dict__", {}))).items()))


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if not name.startswith("__"))


def defaults(function: types.FunctionType) -> dict[str, Any]:
    """The values of arguments that need not be given."""
    values = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return dict(zip(names[len(names) - len(values) :], values, strict=True)) | (function.__kwdefaults__ or {})


def content(cell: types.CellType) -> object:
    """What a variable of an enclosing function holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not bound yet


def is_generated(function: types.FunctionType) -> bool:
    """Methods that dataclasses write follow from the fields."""
    return function.__code__.co_filename.startswith("<string")
