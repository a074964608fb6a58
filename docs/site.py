"""What the site holds beyond docs/*.md: the command line reference and the examples, made when it is built.

MkDocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from initmem.cli import app

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SPELLED = {"gpt": "GPT", "vit": "ViT", "jax": "JAX", "mlp": "MLP", "numpy": "NumPy"}
EXAMPLE_LINK = re.compile(r"\]\(\.\./examples/(\w+)\.(?:py|ipynb)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the examples into the navigation, before the reference."""
    examples = [{_title(path): f"examples/{path.stem}.md"} for path in _examples()]
    place = next(i for i, part in enumerate(config.nav or []) if "Reference" in part)
    config.nav.insert(place, {"Examples": examples})  # type: ignore[union-attr]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file in docs/ holds."""
    pages = {"cli.md": command_line()}
    pages |= {f"examples/{path.stem}.md": _example(path) for path in _examples()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to examples lead to their pages here; in the repository they lead to the files."""
    return EXAMPLE_LINK.sub(r"](examples/\1.md)", markdown)


def command_line() -> str:
    """Every command with its arguments and options, from the program itself."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    parts = [
        "# Command line",
        "Generated from the program; `initmem COMMAND --help` prints the same. `--json` has "
        "[one shape](json.md) for all commands.",
        "| exit code | meaning |\n|---|---|\n"
        "| 0 | all the work that was asked for is done |\n"
        "| 1 | some runs crashed or are missing, or files are damaged |\n"
        "| 2 | a mistake in the input, explained in one line |\n"
        "| 130 | interrupted by Ctrl-C or SIGTERM; the same command resumes |",
    ]
    return "\n\n".join([*parts, *_sections(group, "initmem")]) + "\n"


def _sections(group: TyperGroup, name: str) -> list[str]:
    sections: list[str] = []
    for child, command in group.commands.items():
        if isinstance(command, TyperGroup):
            sections += _sections(command, f"{name} {child}")
        elif isinstance(command, TyperCommand):
            sections.append(_section(command, f"{name} {child}"))
    return sections


def _section(command: TyperCommand, name: str) -> str:
    arguments = [p for p in command.params if isinstance(p, TyperArgument)]
    options = [p for p in command.params if isinstance(p, TyperOption) and p.name != "help"]
    usage = [name, *(_argument(p) for p in arguments), *(["[OPTIONS]"] if options else [])]
    rows = [f"| `{_argument(p)}` | {_cell(p.help)} | |" for p in arguments]
    rows += [f"| `{_flag(p)}` | {_cell(p.help)} | {_default(p)} |" for p in options]
    table = "\n".join(["| name | what it does | default |", "|---|---|---|", *rows]) if rows else ""
    said = (command.help or "").strip()
    return "\n\n".join(
        part for part in (f"## {name}", f"```text\n{' '.join(usage)}\n```", said, table) if part
    )


def _argument(parameter: TyperArgument) -> str:
    word = parameter.metavar or (parameter.name or "").upper()
    return word if parameter.required else f"[{word}]"


def _flag(parameter: TyperOption) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'TEXT'}"


def _default(parameter: TyperOption) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):  # in words
        return parameter.show_default
    value = parameter.default
    return "" if value is None or isinstance(value, bool) or callable(value) else f"`{value}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _examples() -> list[Path]:
    return sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.ipynb")], key=lambda path: path.stem)


def _title(path: Path) -> str:
    words = [SPELLED.get(word, word) for word in path.stem.split("_")]
    return " ".join([words[0][:1].upper() + words[0][1:], *words[1:]])


def _example(path: Path) -> str:
    """A page of one example: what it is, how to start it, the whole file."""
    heading = f"# {_title(path)}\n\n`examples/{path.name}`\n\n"
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text("utf-8"))["cells"]
        return heading + "\n\n".join(map(_notebook_cell, cells))
    return f"{heading}```python\n{path.read_text('utf-8')}```\n"


def _notebook_cell(cell: dict[str, Any]) -> str:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return re.sub(r"\A# .*\n+", "", text)  # the page has a title
    return "\n\n".join([f"```python\n{text}\n```", *map(_output, cell["outputs"])])


def _output(output: dict[str, Any]) -> str:
    """What a cell shows: text, a table or a picture."""
    if output["output_type"] == "stream":
        return f"```text\n{''.join(output['text'])}```"
    if "image/png" in output["data"]:
        png = "".join(output["data"]["image/png"]).replace("\n", "")
        return f'<img alt="output of the cell" src="data:image/png;base64,{png}">'
    lines = "".join(output["data"]["text/html"]).splitlines()
    return f'<div class="output">{" ".join(line.strip() for line in lines)}</div>'
