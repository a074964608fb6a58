"""What the documents show really works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import fake_record
from initmem.cli import app
from initmem.store import Store
from initmem.study import Study, load_study

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.M | re.S)


def test_the_readme_code_runs(tmp_path: Path, tiny_study: Study, monkeypatch, capsys) -> None:
    store = Store.create(tmp_path / "demo-store")
    store.commit([fake_record(r, 0.9 - 0.1 * r.scale + 0.01 * r.seed) for r in tiny_study.all_runs()])
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {})
    assert "15 pp [" in capsys.readouterr().out


def test_the_notebook_code_runs(tmp_path: Path, tiny_study: Study, monkeypatch) -> None:
    store = Store.create(tmp_path / "demo-store")
    store.commit([fake_record(r, 0.9 - 0.1 * r.scale + 0.01 * r.seed) for r in tiny_study.all_runs()])
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(ROOT / "docs" / "report.md", "python")
    names: dict[str, str] = {}
    exec(compile(code, "report.md", "exec"), names)
    assert "15 pp [" in names["shown"]


def test_the_readme_study_loads(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "README.md", "toml")
    path = tmp_path / "my-study.toml"
    path.write_text(text)
    assert len(load_study(str(path)).all_runs()) == 4 * 3 * 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_in_the_documents_exists(page: Path) -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    said = re.findall(r"(?:^|`)initmem ([a-z]+)", page.read_text(), flags=re.M)
    assert set(said) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_picture_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
