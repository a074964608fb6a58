"""Values as short texts: readable where they are small, by a digest of their content where they are large."""

from __future__ import annotations

import enum
import functools
import hashlib
import math
import random
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

LONGEST = 80  # characters of a value that is shown as it is
MOST_VALUES = 200_000  # looked at within one value
MOST_BYTES = 1 << 28  # of an array; of a larger one evenly spaced values count

CODE = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    type,
    functools._lru_cache_wrapper,
)
# What is used up or filled while a program runs says nothing about what is trained.
RUNNING = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    torch.Generator,
    types.GeneratorType,
)


def short_text(value: object) -> str | None:
    """A small plain value as Python writes it; None for anything else."""
    if not _is_plain(value):
        return None
    text = repr(sorted(value, key=repr)) if isinstance(value, set | frozenset) else repr(value)
    return text if len(text) <= LONGEST else None


def _is_plain(value: object, depth: int = 0) -> bool:
    if isinstance(value, bool | int | float | complex | str | bytes | PurePath | enum.Enum | None):
        return True
    if isinstance(value, np.generic | torch.dtype | torch.device | range | slice):
        return True
    if depth > 3 or not isinstance(value, list | tuple | set | frozenset | dict) or len(value) > LONGEST:
        return False
    inside = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(item, depth + 1) for item in inside)


class ValueDigest:
    """A digest of everything within a value. Code that is found there is handed to `reach`."""

    def __init__(self, reach: Callable[[object], None]) -> None:
        self._reach = reach
        self._hash = hashlib.sha256()
        self._seen: dict[int, object] = {}
        self._left = MOST_VALUES

    def text(self, value: object) -> str:
        """The kind of a value, and the digest of what is in it."""
        self._add(value)
        size = f" of {len(value)}" if isinstance(value, list | tuple | dict | set | str | bytes) else ""
        shape = f" {tuple(value.shape)}" if isinstance(value, np.ndarray | torch.Tensor) else ""
        return f"{type(value).__name__}{size}{shape} #{self._hash.hexdigest()[:16]}"

    def _say(self, *parts: object) -> None:
        self._hash.update(repr(parts).encode("utf-8", "surrogatepass"))

    def _add(self, value: Any) -> None:
        self._left -= 1
        if self._left < 0:
            return
        if isinstance(value, bool | int | float | complex | str | bytes | PurePath | enum.Enum | None):
            self._say(value)
        elif isinstance(value, CODE):
            self._say("code", getattr(value, "__qualname__", ""))
            self._reach(value)
            self._add(getattr(value, "__self__", None) if isinstance(value, types.MethodType) else None)
        elif isinstance(value, functools.partial):
            self._add((value.func, value.args, value.keywords))
        elif isinstance(value, (*RUNNING, types.ModuleType)):
            self._say(type(value).__name__)
        elif id(value) in self._seen:
            self._say("seen")
        else:
            self._seen[id(value)] = value
            self._add_inside(value)

    def _add_inside(self, value: Any) -> None:
        kind = type(value)
        self._say(kind.__name__)
        if isinstance(value, torch.Tensor):
            self._add_array(_numpy(value))
        elif isinstance(value, np.ndarray | np.generic) or _is_jax(kind):
            self._add_array(np.asarray(value))
        elif isinstance(value, Mapping):
            for key, part in value.items():
                self._add(key)
                self._add(part)
        elif isinstance(value, set | frozenset):
            for text in sorted(map(repr, value)):
                self._say(text)
        elif isinstance(value, list | tuple):
            for part in value:
                self._add(part)
        else:
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        """An object by its attributes, or by what pickle would take of it."""
        self._reach(type(value))
        held = getattr(value, "__dict__", None)
        if held is None:
            try:
                held = value.__reduce_ex__(2)[1:3]
            except Exception:  # whatever a class raises that cannot be pickled
                return
        self._add(dict(held) if isinstance(held, Mapping) else held)

    def _add_array(self, array: np.ndarray[Any, Any]) -> None:
        self._say(array.dtype.str, array.shape)
        if array.dtype == object:
            for part in array.reshape(-1).tolist():
                self._add(part)
            return
        step = math.ceil(array.nbytes / MOST_BYTES) if array.nbytes else 1
        self._hash.update(np.ascontiguousarray(array.reshape(-1)[::step]).tobytes())


def _numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.is_meta or tensor.layout != torch.strided:
        return np.array(tensor.shape)
    plain = tensor.detach().cpu()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _is_jax(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("jax", "jaxlib")
