"""What is in a file, by a digest that changes with its meaning: comments and formatting do not count."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import tomllib
from contextlib import suppress
from pathlib import Path

LARGE = 64 * 2**20  # bytes of a file that is compared by its size alone
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def content_digest(path: Path, *, whole: bool = False) -> str:
    """Python as parsed, JSON and TOML by value, other files by bytes; unless `whole`, large ones by size."""
    status = path.stat()
    if status.st_size > LARGE and not whole:
        return f"{status.st_size} bytes"
    return _content_digest(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _content_digest(path: Path, size: int, changed: int) -> str:
    content = path.read_bytes()
    with suppress(ValueError):  # not valid: its bytes count
        if path.suffix == ".py" and (tree := parsed(content.decode())) is not None:
            content = ast.dump(tree).encode("utf-8", "surrogatepass")
        elif path.suffix == ".json":
            content = repr(json.loads(content)).encode("utf-8", "surrogatepass")
        elif path.suffix == ".toml":
            content = repr(tomllib.loads(content.decode())).encode()
    return hashlib.sha256(content).hexdigest()[:16]


@functools.lru_cache(maxsize=512)
def parsed(text: str) -> ast.Module | None:
    """Source without docstrings and the annotations of functions; None where it is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    return tree
