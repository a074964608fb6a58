"""What a command is made of: its arguments, and the files that it names.

Python files count as parsed, part by part, together with the modules beside them that they import; JSON and
TOML files by their values; every other file by its bytes.
"""

from __future__ import annotations

import ast
import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from initmem.errors import ConfigError
from initmem.pipeline.fingerprint import Fingerprint, note
from initmem.pipeline.source import canonical, digest, imported, parsed

LARGEST_PARSED = 1 << 22  # bytes of a file that is read by its content
LARGEST = 1 << 30  # bytes of a file; of a larger one its size and its two ends count


def command_fingerprint(parts: Sequence[str], watched: Iterable[str | Path] = ()) -> Fingerprint:
    """The arguments of a command, and the files named in it or `watched`."""
    found = dict(_arguments(parts))
    for path in dict.fromkeys([*_named_files(parts), *map(Path, watched)]):
        for name, text in file_fingerprint(path).items():
            note(found, name, text)
    return dict(sorted(found.items()))


def settings_fingerprint(settings: Mapping[str, Any]) -> Fingerprint:
    """The files that declared settings name, such as config = "small.toml"."""
    found: Fingerprint = {}
    for value in settings.values():
        if isinstance(value, str) and _is_file(value):
            for name, text in file_fingerprint(Path(value)).items():
                note(found, name, text)
    return found


def file_fingerprint(path: Path) -> Fingerprint:
    """What is in a file."""
    try:
        if path.stat().st_size <= LARGEST_PARSED:
            return _parsed_file(path) or {f"file {path.name}": digest(path.read_bytes())}
        return {f"file {path.name}": _large(path)}
    except OSError as error:
        raise ConfigError(f"--watch {path}: cannot be read ({error.strerror})") from None


def _arguments(parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Arguments by name where they have one: `--lr 0.1`, `--lr=0.1` and `lr=0.1`."""
    option = None
    for index, part in enumerate(parts):
        name, sign, value = part.partition("=")
        if sign and name:
            yield f"argument {name}", value
        elif option is not None and not part.startswith("--"):
            yield f"argument {option}", part
        elif index:
            yield f"argument {index}", part
        option = part if part.startswith("-") and not sign else None


def _named_files(parts: Sequence[str]) -> Iterator[Path]:
    for before, part in zip(("", *parts), parts, strict=False):
        module = Path(*part.split("."))
        candidates = [part, part.partition("=")[2]]
        if before == "-m":
            candidates += [f"{module}.py", str(module / "__main__.py")]
        yield from (Path(name) for name in candidates if name and _is_file(name))


def _is_file(name: str) -> bool:
    try:
        return len(name) < 4096 and Path(name).is_file()
    except (OSError, ValueError):
        return False


def _parsed_file(path: Path) -> Fingerprint:
    """The parts of a file in a known language; nothing where it is in none."""
    text = path.read_bytes().decode("utf-8", "replace")
    try:
        match path.suffix:
            case ".py":
                found: Fingerprint = {}
                for name, part in _python(path, text, set()):
                    note(found, name, part)
                return found
            case ".json":
                return dict(_flat(path.name, json.loads(text)))
            case ".toml":
                return dict(_flat(path.name, tomllib.loads(text)))
    except (ValueError, RecursionError):
        pass
    return {}


def _python(path: Path, text: str, seen: set[Path]) -> Iterator[tuple[str, str]]:
    """Functions, classes and constants of a script by name, the rest as one; then the modules beside it."""
    seen.add(path.resolve())
    tree = parsed(text)
    if tree is None:
        yield f"file {path.name}", digest(text)
        return
    rest = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"function {path.stem}.{node.name}", digest(canonical(node))
        elif isinstance(node, ast.ClassDef):
            yield f"class {path.stem}.{node.name}", digest(canonical(node))
        elif (constant := _constant(node)) is not None:
            yield f"{path.stem}.{constant[0]}", constant[1]
        else:
            rest.append(canonical(ast.Module([node], [])))
    yield f"file {path.name}", digest("\n".join(rest))
    for name in imported(tree, ""):
        for beside in _module_files(path, name):
            if beside.resolve() not in seen:
                yield from _python(beside, beside.read_bytes().decode("utf-8", "replace"), seen)


def _module_files(path: Path, name: str) -> list[Path]:
    """The file of a module that a script imports: beside it, around its package, or in this folder."""
    roots = [path.resolve().parent]
    while (roots[-1] / "__init__.py").is_file() and roots[-1].parent != roots[-1]:
        roots.append(roots[-1].parent)
    for root in (*roots, Path.cwd()):
        place = root.joinpath(*name.split("."))
        found = [each for each in (place.with_suffix(".py"), place / "__init__.py") if _is_file(str(each))]
        if name and found:
            return found
    return []


def _constant(node: ast.stmt) -> tuple[str, str] | None:
    """The name and value of `EPOCHS = 20`."""
    if not (
        isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    ):
        return None
    try:
        text = repr(ast.literal_eval(node.value))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return (node.targets[0].id, text) if len(text) <= 80 else None


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _flat(f"{name}: {key}" if name.endswith((".json", ".toml")) else f"{name}.{key}", part)
    else:
        text = json.dumps(value, default=str)
        yield name, text if len(text) <= 80 else f"#{digest(text)}"


def _large(path: Path) -> str:
    size = path.stat().st_size
    with path.open("rb") as stream:
        if size <= LARGEST:
            return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
        head = stream.read(LARGEST // 64)
        stream.seek(-(LARGEST // 64), 2)
        return digest(head + stream.read() + str(size).encode())
