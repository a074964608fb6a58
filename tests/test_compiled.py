"""The compiled library: built once and kept in a folder of the user."""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from initmem.data.sources import load
from initmem.study import Run
from initmem.train import compiled
from initmem.train.loop import train_pack

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the user, and a compiler in a hurry."""
    monkeypatch.setattr(compiled, "FLAGS", ("-O0", "-w", "-shared", "-fPIC", "-lm"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "initmem-native"


def begin() -> compiled.Library:
    """What a process that begins now has."""
    return compiled.library.__wrapped__()


def test_it_is_compiled_once_and_kept_in_private(cache, tmp_path, monkeypatch, caplog):
    first = begin()
    (path,) = cache.iterdir()
    assert path.name == f"{first.build}.so"
    assert cache.stat().st_mode & 0o777 == path.stat().st_mode & 0o777 == 0o700
    before = path.stat().st_mtime_ns
    with monkeypatch.context() as changed:
        changed.setenv("PATH", "/nowhere")  # no compiler needed any more
        assert str(begin()) == f"C ({first.build}, vectors of 8)"  # this fixture asks for no more
    assert path.stat().st_mtime_ns == before
    monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-g"))
    damaged = cache / f"{compiled._source_key()}-{compiled._compiler_key('cc')}.so"
    damaged.write_bytes(b"no library")
    assert begin().build == damaged.stem
    assert "is compiled again" in caplog.text and damaged.read_bytes().startswith(b"\x7fELF")
    # Where others can write, nothing is loaded or kept.
    monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-g0"))
    cache.chmod(0o777)
    assert begin().code is not None
    assert f"for this process only: others can write to {cache}" in caplog.text
    assert set(cache.iterdir()) == {path, damaged}


def test_another_compiler_other_flags_or_another_processor_is_another_build(tmp_path, monkeypatch):
    def build() -> str:
        return f"{compiled._source_key()}-{compiled._compiler_key(compiler)}"

    compiler = "cc"
    builds = {build()}
    compiler = str(tmp_path / "cc")
    Path(compiler).write_text("#!/bin/sh\necho other\n")
    Path(compiler).chmod(0o755)
    builds.add(build())
    monkeypatch.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-g"))
    builds.add(build())
    monkeypatch.setattr(compiled, "processor_lines", lambda *names: ["flags : sse"])
    builds.add(build())
    assert len(builds) == 4


def test_a_home_that_cannot_be_written_is_no_obstacle(cache, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.WARNING):
        assert begin().code is not None
    assert "for this process only: Not a directory" in caplog.text


def test_without_a_compiler_pytorch_does_the_work_and_says_why(cache, monkeypatch, caplog):
    with monkeypatch.context() as changed, caplog.at_level(logging.INFO):
        changed.setenv("PATH", "/nowhere")
        assert str(begin()) == "PyTorch (no C compiler)"
        assert "no C compiler" in caplog.text
    monkeypatch.setenv("INITMEM_NATIVE", "0")
    assert str(begin()) == "PyTorch (INITMEM_NATIVE=0)"
    assert not list(cache.parent.glob("*/*"))


def test_a_compiler_that_fails_is_quoted(cache, tmp_path, monkeypatch):
    broken = tmp_path / "cc"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && exit\necho no such flag >&2\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    assert str(begin()) == f"PyTorch ({broken} failed: no such flag)"


def test_a_record_says_what_computed_its_layers(tiny, monkeypatch):
    monkeypatch.setattr(compiled, "library", lambda: compiled.Library(None, reason="INITMEM_NATIVE=0"))
    (record,) = train_pack([Run(tiny, 1.0, 0)], load(tiny))
    assert record.provenance["layers"] == "PyTorch (INITMEM_NATIVE=0)"
    assert record.provenance["native"] is False


@pytest.mark.parametrize(
    ("compiler", "runner"),
    [("cc", []), ("aarch64-linux-gnu-gcc", ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"])],
    ids=["here", "NEON"],
)
def test_the_layers_agree_with_plain_loops(compiler, runner, tmp_path):
    """Also on ARM, emulated: there, PyTorch is not at hand to compare with."""
    if any(shutil.which(program) is None for program in (compiler, *runner[:1])):
        pytest.skip(f"no {compiler} or no emulator")
    sources = [
        Path(__file__).parent / "native_check.c",
        *(compiled.SOURCE / name for name in compiled.SOURCES),
    ]
    flags = ["-O1", *(flag for flag in compiled.FLAGS if flag not in ("-shared", "-march=native", "-O3"))]
    command = [
        compiler,
        *map(str, sources),
        *flags,
        "-Wall",
        "-Werror=implicit",
        f"-I{compiled.SOURCE}",
        "-o",
        str(tmp_path / "check"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([*runner, str(tmp_path / "check")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("e-") == 11
