"""Tells those who hold locks that this process is a fork. Owns the list of them; what they do about it is their own."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    def forked(self) -> None: ...  # in the new process, which has this thread only


_known: WeakSet[Forkable] = WeakSet()  # of this process


def tell(worker: Forkable) -> None:
    """worker.forked() is called in every process that forks off while the worker lives."""
    _known.add(worker)


def _forked() -> None:
    for worker in list(_known):
        worker.forked()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
