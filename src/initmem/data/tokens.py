"""Token data: sums modulo a number, and the characters of a text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from initmem.data.cache import load_corpus
from initmem.data.dataset import Dataset, Examples, Sizes, hold_out, read_file
from initmem.errors import DataError

MODULUS, FRACTION = 97, 0.5
LARGEST_MODULUS = 1000
LENGTH = 64  # characters of an example
LARGEST_TEXT = 1 << 28  # bytes
CORPUS_LENGTH, CORPUS_VOCABULARY = 5_057_239, 84  # characters of the bundled corpus, and how many differ
HELD_OUT = 0.1  # of a text, for validation, and as much for testing


def modular_addition(name: str) -> Dataset:
    """All pairs a, b: tokens `a b =`, label (a + b) mod p. A fixed random fraction is for training."""
    p, _ = _modulus(name)
    a, b = np.divmod(np.arange(p * p), p)
    x = np.stack([a, b, np.full_like(a, p)], axis=1)[:, None, :, None]
    whole = Examples(x, (a + b) % p)
    sizes = modular_sizes(name)
    rest, train = hold_out(p * p, sizes.n_train)
    val, test = rest[: sizes.n_val], rest[sizes.n_val :]
    return Dataset(name, whole.take(train), whole.take(val), whole.take(test), p, p + 1)


def modular_sizes(name: str) -> Sizes:
    """The sizes of `modular-addition[:MODULUS[:FRACTION]]`."""
    p, fraction = _modulus(name)
    n_train = round(fraction * p * p)
    n_val = (p * p - n_train) // 2
    return Sizes(n_train, n_val, p * p - n_train - n_val, 1, 1, 3, p, p + 1)


def _modulus(name: str) -> tuple[int, float]:
    options = name.split(":")[1:]
    try:
        p = int(options[0]) if options else MODULUS
        fraction = float(options[1]) if len(options) > 1 else FRACTION
    except ValueError:
        p = 0
    if len(options) > 2 or not 3 <= p <= LARGEST_MODULUS or not 0 < fraction < 1:
        raise DataError(
            f"dataset = {name!r} (allowed: modular-addition:MODULUS:FRACTION, as in modular-addition:97:0.5; "
            f"modulus 3 to {LARGEST_MODULUS}, fraction of the pairs for training between 0 and 1)"
        )
    return p, fraction


def characters(name: str, sha256: str | None = None) -> Dataset:
    """Windows of a text, side by side; the label of a character is the one that follows it.

    The last tenth is for testing and the tenth before it for validation, so that no two parts overlap.
    """
    length, path = _text_source(name)
    text = load_corpus() if path is None else _read_text(path, sha256)
    alphabet, tokens = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
    windows = (len(tokens) - 1) // length
    if windows < 20:
        raise DataError(f"dataset = {name!r}: {len(text):,} characters (allowed: at least {20 * length + 1})")
    x, y = (tokens[at : at + windows * length].astype(np.int64).reshape(-1, length) for at in (0, 1))
    whole = Examples(x[:, None, :, None], y)
    out = round(HELD_OUT * windows)
    ends = (slice(windows - 2 * out), slice(windows - 2 * out, windows - out), slice(windows - out, None))
    train, val, test = (whole.take(part) for part in ends)
    return Dataset(name, train, val, test, classes=len(alphabet), vocabulary=len(alphabet))


def text_sizes(name: str) -> Sizes | None:
    """The sizes of `text[:LENGTH]`; None where the user's file has to be read for them."""
    length, path = _text_source(name)
    windows = (CORPUS_LENGTH - 1) // length
    out = round(HELD_OUT * windows)
    sizes = Sizes(windows - 2 * out, out, out, 1, 1, length, CORPUS_VOCABULARY, CORPUS_VOCABULARY, length)
    return sizes if path is None else None


def _text_source(name: str) -> tuple[int, Path | None]:
    """Parse `text[:LENGTH[:FILE]]`: characters per example, and the file; None: the bundled corpus."""
    options = name.split(":", 2)[1:]
    length = options[0] if options else str(LENGTH)
    if not length.isdecimal() or not 2 <= int(length) <= 4096:
        raise DataError(f"dataset = {name!r} (allowed: text:LENGTH or text:LENGTH:FILE, length 2 to 4096)")
    return int(length), Path(options[1]) if len(options) > 1 else None


def _read_text(path: Path, sha256: str | None) -> str:
    """The user's text file, which must have this digest unless it is None."""
    try:
        return read_file(path, LARGEST_TEXT, sha256).decode("utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as UTF-8 text ({error})") from None
