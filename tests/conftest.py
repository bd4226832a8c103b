"""Fixtures that several folders of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file, fetched if it is not in the user's cache. For tests marked slow."""
    from pyedge import store

    return store.resolve(store.DEFAULT_MODEL, pull=True)
