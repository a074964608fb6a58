"""A package index shows the README outside the repository: its relative links become absolute ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(?P<picture>!?)(?P<text>\[[^\]]*\])\((?!https?:|#)(?P<target>[^)]+)\)")


def absolute(text: str, repository: str) -> str:
    """The text with every relative link as an address in the repository; pictures as raw files."""

    def link(found: re.Match[str]) -> str:
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}{found['text']}({repository}/{kind}/HEAD/{found['target']})"

    return RELATIVE.sub(link, text)


class AbsoluteLinks(MetadataHookInterface):
    """Sets `readme` when metadata is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatchling."""
        text = (Path(self.root) / "README.md").read_text("utf-8")
        text = absolute(text, metadata["urls"]["Repository"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
