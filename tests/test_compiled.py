"""The compiled library: built once, kept in private, and never loaded unless it is what this user built."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from initmem.train import compiled

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of the user's, and a compiler in a hurry."""
    monkeypatch.setattr(compiled, "FLAGS", ("-O0", "-w", "-shared", "-fPIC", "-lm"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "data"))
    return tmp_path / "cache" / "initmem-native"


@pytest.fixture
def filled(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache directory as an earlier process left it; compiled once for all tests."""
    earlier = tmp_path_factory.getbasetemp() / "compiled"
    if not earlier.exists():
        begin()
        shutil.copytree(cache, earlier)
    else:
        shutil.copytree(earlier, cache)
    return cache


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    """A library that leaves a mark as soon as it is loaded."""
    place = tmp_path_factory.mktemp("hostile")
    mark = place / "loaded"
    code = f'#include <stdio.h>\n__attribute__((constructor)) void f(void) {{ fopen("{mark}", "w"); }}\n'
    (place / "evil.c").write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", "evil.c", "-o", "evil.so"], cwd=place, check=True)
    compiled.interface().dlopen(str(place / "evil.so"))
    assert mark.exists()  # it would be noticed
    mark.unlink()
    return (place / "evil.so").read_bytes(), mark


def begin() -> compiled.Library:
    """What a process that begins now has."""
    return compiled.library.__wrapped__()


def kept(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def test_it_is_compiled_once_and_kept_in_private(cache, monkeypatch):
    first = begin()
    path = kept(cache)
    assert cache.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o077 == 0
    assert path.name == f"{first.build}.{hashlib.sha256(path.read_bytes()).hexdigest()}.so"
    monkeypatch.setenv("PATH", "/nowhere")  # no compiler needed any more
    assert begin().build == first.build
    assert str(begin()) == f"C ({first.build}, vectors of 8)"  # this fixture asks for no more


def test_another_compiler_other_flags_or_another_processor_is_another_build(cache, tmp_path, monkeypatch):
    builds = {begin().build}
    wrapper = tmp_path / "cc"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo other && exit\nexec {shutil.which("cc")} "$@"\n'
    )
    wrapper.chmod(0o755)
    with monkeypatch.context() as changed:
        changed.setenv("CC", str(wrapper))
        builds.add(begin().build)
    with monkeypatch.context() as changed:
        changed.setattr(compiled, "FLAGS", (*compiled.FLAGS, "-g"))
        builds.add(begin().build)
    monkeypatch.setattr(compiled, "processor_lines", lambda *names: ["flags : sse"])
    builds.add(begin().build)
    assert len(builds) == 4
    assert len(list(cache.iterdir())) == 4


def planted(cache: Path, content: bytes, *, digest: str | None = None) -> Path:
    """Put another file in the place of the one that was kept."""
    path = kept(cache)
    path.unlink()
    build = path.name.partition(".")[0]
    other = cache / f"{build}.{digest or hashlib.sha256(content).hexdigest()}.so"
    other.write_bytes(content)
    other.chmod(0o700)
    return other


def is_rebuilt(cache: Path, mark: Path, caplog: pytest.LogCaptureFixture, why: str) -> None:
    """A process that begins now says why, loads nothing foreign, and leaves a sound file."""
    with caplog.at_level(logging.WARNING):
        assert begin().code is not None
    assert not mark.exists()
    assert why in caplog.text
    caplog.clear()
    assert begin().code is not None
    assert not caplog.records  # sound again
    kept(cache)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_never_loaded(filled, hostile, caplog):
    os.chown(planted(filled, hostile[0]), 65534, -1)
    is_rebuilt(filled, hostile[1], caplog, "belongs to another user")


def test_a_file_that_others_can_write_is_never_loaded(filled, hostile, caplog):
    planted(filled, hostile[0]).chmod(0o777)
    is_rebuilt(filled, hostile[1], caplog, "other users can write")


def test_a_link_is_never_followed(filled, hostile, caplog, tmp_path):
    (tmp_path / "evil.so").write_bytes(hostile[0])
    path = planted(filled, hostile[0])
    path.unlink()
    path.symlink_to(tmp_path / "evil.so")
    is_rebuilt(filled, hostile[1], caplog, "it is not loaded")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "replaced"])
def test_a_damaged_file_is_never_loaded(filled, hostile, caplog, damage):
    whole = kept(filled).read_bytes()
    middle = len(whole) // 2
    content = {
        "truncated": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "replaced": hostile[0],
    }[damage]
    planted(filled, content, digest=hashlib.sha256(whole).hexdigest())
    is_rebuilt(filled, hostile[1], caplog, "damaged")


@pytest.mark.parametrize("how", ["open to others", "of another user", "a link"])
def test_a_folder_that_is_not_private_is_not_used(filled, hostile, caplog, tmp_path, how):
    build = begin().build
    planted(filled, hostile[0])
    if how == "open to others":
        filled.chmod(0o777)
    elif how == "a link":
        filled.rename(tmp_path / "elsewhere")
        filled.symlink_to(tmp_path / "elsewhere")
    elif os.geteuid() == 0:
        os.chown(filled, 65534, -1)
    else:
        pytest.skip("only root can give folders away")
    with caplog.at_level(logging.WARNING):
        assert begin().build == build  # compiled for this process only
    assert not hostile[1].exists()
    assert "with mode 0700" in caplog.text


def test_nothing_is_loaded_from_the_folder_of_the_datasets(cache, hostile, tmp_path):
    build = begin().build
    (tmp_path / "data").mkdir(mode=0o777)
    digest = hashlib.sha256(hostile[0]).hexdigest()
    for name in (f"native-{build.partition('-')[0]}.so", f"{build}.{digest}.so"):
        (tmp_path / "data" / name).write_bytes(hostile[0])
    shutil.rmtree(cache)
    assert begin().code is not None
    assert not hostile[1].exists()


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


def test_it_is_prepared_without_torch():
    script = (
        "import sys; from initmem.train.compiled import library; library(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_run_says_what_computes_its_layers(command, tmp_path, monkeypatch):
    from initmem.store.store import Store

    study = tmp_path / "tiny.toml"
    study.write_text(
        'name = "tiny"\ntitle = "tiny"\nscales = [1.0]\nseeds = [0]\n'
        '[recipe]\ndataset = "synthetic:100x1x8x8"\nwidth = 2\nepochs = 1\n'
    )
    monkeypatch.setenv("INITMEM_NATIVE", "0")
    compiled.library.cache_clear()
    try:
        code, _, said = command("run", study, "--store", tmp_path / "store", "--workers", 1)
    finally:
        compiled.library.cache_clear()
    assert code == 0
    assert said.count("layers: PyTorch (INITMEM_NATIVE=0)") == 1
    (record,) = Store.create(tmp_path / "store").records()
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
    flags = [flag for flag in compiled.FLAGS if flag not in ("-shared", "-march=native")]
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
    assert done.stdout.count("e-") == 9
