"""What is published: the wheel holds everything, and its first page works outside the repository."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import initmem

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    here = {str(path.relative_to(source)) for path in source.glob("initmem/**/*") if path.is_file()}
    here = {name for name in here if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == here
    assert {Path(name).suffix for name in packed} >= {
        ".py",
        ".c",
        ".h",
        ".toml",
        ".j2",
        ".css",
        ".js",
        ".mplstyle",
    }


def test_the_readme_on_a_package_index_has_no_relative_link(metadata: Message) -> None:
    text = metadata.get_payload()
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) > 15
    assert all(target.startswith("https://") for target in targets)
    repository = PROJECT["urls"]["Repository"]
    for target in targets:
        if target.startswith(repository):
            path = re.sub(rf"^{re.escape(repository)}/(blob|raw)/HEAD/", "", target.partition("#")[0])
            assert (ROOT / path).exists(), target
    assert f"]({repository}/raw/HEAD/docs/images/quickstart-scale.png)" in text


def test_version_authors_and_address_are_the_same_everywhere(metadata: Message) -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert metadata["Version"] == initmem.__version__ == str(cited["version"])
    assert metadata["Author"] == cited["authors"][0]["name"]
    assert cited["repository-code"] == PROJECT["urls"]["Repository"]
    assert cited["preferred-citation"]["title"].startswith("Do Deep Networks Forget Initialization?")
    assert f"git clone {PROJECT['urls']['Repository']} " in (ROOT / "README.md").read_text("utf-8")
    others = ("mkdocs.yml", ".github/workflows/ci.yml", "CONTRIBUTING.md")
    assert not [path for path in others if PROJECT["urls"]["Repository"] in (ROOT / path).read_text("utf-8")]


def test_every_extra_is_checked_and_every_hook_has_the_pinned_version() -> None:
    (extras,) = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)
    assert set(extras.split(",")) == set(PROJECT["optional-dependencies"])
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.M))
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (ruff,) = [hook["rev"] for hook in hooks if hook["repo"].endswith("ruff-pre-commit")]
    assert ruff == f"v{pinned['ruff']}"
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    assert set(re.findall(r"make (\w+)$", workflow, flags=re.M)) <= targets


OWN = ROOT / "docs" / "own-pipeline.md"


def test_the_first_page_works_as_written_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """Outside the repository, block by block, and the user code of the second page; only smaller."""
    installed, here = tmp_path / "installed", tmp_path / "empty"
    here.mkdir()
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*words, str(installed), str(wheel)], check=True)
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    long, short = "initmem run quickstart --store demo", "initmem run quickstart --preset smoke --store demo"
    assert page.count(long) == 1
    folders = [str(installed / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    around = os.environ | {"PYTHONPATH": str(installed), "PATH": os.pathsep.join(folders)}

    def said(*words: str) -> str:
        done = subprocess.run(words, cwd=here, env=around, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert str(installed) in said("python", "-c", "import initmem; print(initmem.__file__)")
    printed = []
    for language, text in re.findall(
        r"^```(python|sh)\n(.*?)^```", page.replace(long, short), flags=re.M | re.S
    ):
        if language == "sh":
            printed += [said(*shlex.split(line)) for line in text.splitlines()]
        else:
            printed.append(said("python", "-c", text))
    first, *_, code = printed
    assert "12 runs trained" in first and len(re.findall("inconclusive|fit unknown|untrained", first)) == 3
    assert code.startswith("12 runs\nsgd lr=0.01 ")
    own = re.search(r"^```python\n(# mine\.py\n.*?)^```", OWN.read_text("utf-8"), flags=re.M | re.S)
    (here / "mine.py").write_text(own[1].replace("EPOCHS = 20", "EPOCHS = 1").replace("range(5)", "range(2)"))
    assert re.search(
        r"^mine lr=0.01: test_accuracy .* \(5 scales x 2 seeds\)$", said("python", "mine.py"), re.M
    )
    assert {"demo/report.html", "scale.png"} <= {str(path.relative_to(here)) for path in here.rglob("*.*")}


def test_what_the_first_page_says_it_prints_is_what_the_published_archive_says(capsys) -> None:
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(import initmem\n\nresults.*?)^```", page, flags=re.M | re.S)
    published = ROOT / "docs/results/quickstart.initmem"
    exec(code.replace('"demo"', repr(str(published))), {})
    assert f"```text\n{capsys.readouterr().out}```" in page
    made = {
        (record.provenance["hardware"], record.provenance["initmem"])
        for record in initmem.open_results(published).records()
    }
    assert made == {("AMD EPYC", "0.2.0")}
    assert "two cores of an AMD EPYC with version 0.2.0." in page
