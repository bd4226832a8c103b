"""How far a pull is, told to whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]  # (bytes fetched, bytes in all or 0 where that is not known)


class Tally:
    """Adds up what comes in pieces."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def now(self, n: int) -> None:
        """So many bytes of the present piece are there."""
        if self._progress is not None:
            done = self._done + n
            self._progress(min(done, self._total) if self._total else done, self._total)

    def add(self, n: int) -> None:
        """A piece of so many bytes is whole."""
        self._done += n
        self.now(0)

    def finish(self) -> None:
        if self._progress is not None:
            total = self._total or self._done
            self._progress(total, total)
