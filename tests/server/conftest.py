"""One server for all tests that need no special one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server, serving
from tinymodel import write_tiny_llama


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("server") / "tiny.gguf")


@pytest.fixture(scope="session")
def shared_server(tiny_path: Path) -> Iterator[Server]:
    with serving(tiny_path, settings={"max_queue": 8}) as server:
        yield server


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """It must be at rest after each test, and answer."""
    yield shared_server
    shared_server.check()
