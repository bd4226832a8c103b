"""Pulls that are killed, interrupted and run at once: the store stays whole."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from wheelhouse import NAME, assert_whole, child, files_in_store

from pyedge import store

KILLED = f"""
call, at = sys.argv[1], int(sys.argv[2])
original, count = getattr(os, call), 0
def dies(*args, **kwargs):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(os, call, dies)
store.resolve({NAME!r}, pull=True)
print("not killed")
"""


@pytest.mark.parametrize("point", [*(f"fsync {i}" for i in range(1, 8)), *(f"replace {i}" for i in range(1, 4))])
def test_a_killed_pull_leaves_the_store_whole(point: str) -> None:
    process = child(KILLED, *point.split())
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, out + err
    assert store.installed(NAME) is None or point == "fsync 7"  # there all is done but the folder's own sync
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


def test_leftovers_of_other_names_go_unless_they_are_in_use() -> None:
    scratch, locks = store.home() / "scratch", store.home() / "locks"
    for name in ("dead@1b", "alive@1b"):
        (scratch / name / "x").mkdir(parents=True)
    locks.mkdir()
    with open(locks / "alive@1b", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        store.resolve(NAME, pull=True)
    assert [p.name for p in scratch.iterdir()] == ["alive@1b"]


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
