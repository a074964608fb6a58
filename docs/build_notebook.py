"""Run examples/first_look.ipynb in an empty folder and keep what its cells show.

python docs/build_notebook.py      # from the root of the project; about a minute
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples" / "first_look.ipynb"


def executed(folder: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in `folder`, whose path is left out of them."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    metadata = dict(notebook.metadata)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=1200, record_timing=False, resources=resources).execute()
    notebook.metadata = metadata  # without the version of this machine's Python
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if {"text/html", "image/png"} & set(output.get("data", {})):
                output["data"].pop("text/plain", None)  # a repr that nobody reads
    text = nbformat.writes(notebook).replace(json.dumps(f"{folder.resolve()}/")[1:-1], "")
    return nbformat.reads(text, as_version=4)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(Path(folder))
    nbformat.write(notebook, NOTEBOOK)
