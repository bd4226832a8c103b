"""Who may be at work on a model: one thread at a time, never from within its own step, and none in a process that was
forked while it worked.

Owns the lock and the two flags that tell. When a turn begins and ends is the worker's: what Ctrl-C may break off
differs.
"""

from __future__ import annotations

import os
import threading
from weakref import WeakSet


class Worker:
    """Takes turns by `with self._lock: self._check_turn()`, and sets `_inside` for as long as it works."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside = False  # someone has the lock and is at work
        self._lost = False  # the thread that was at work stayed behind in the process that forked
        _known.add(self)

    def _check_turn(self) -> None:
        if self._lost:
            raise RuntimeError(
                "this process was forked while the model was at work in the parent; load the model again"
            )
        if self._inside:
            raise RuntimeError("the model was called from within its own step; call it when that is over")

    def forked(self) -> None:
        """In a new process, which has this thread only."""
        self._lost = self._lost or self._inside
        self._lock = threading.RLock()


_known: WeakSet[Worker] = WeakSet()  # of this process


def _forked() -> None:
    for worker in list(_known):
        worker.forked()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
