"""What all tests share: fixtures, and one line for whoever starts them where pyedge was not built."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("pyedge", deadline=None)  # other programs may be at work: tests of time have their own limits
settings.load_profile("pyedge")


def pytest_configure() -> None:
    """`python -m pytest` imports the checkout, built or not; `pytest` imports what is installed."""
    try:
        from pyedge import _core  # noqa: F401
    except ImportError as e:
        raise pytest.UsageError(f'{e} (the README\'s way is: pip install ".[test]" && pytest)') from None


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file, fetched if it is not in the user's cache. For tests marked slow."""
    from pyedge import store

    return store.resolve(store.DEFAULT_MODEL, pull=True)


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3's file, likewise."""
    from pyedge import store

    return store.resolve("gemma3:270m", pull=True)
