"""What a model says as it is, of some tokens of a text, so that what it says when it was changed can be held against.

Owns the log-probabilities that are kept, and the divergence from them. perplexity.py compares two models side by side,
with nothing kept, and says more of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pyedge.evaluation.reader import Reader

_KEPT = 1 << 25  # log-probabilities: 128 MB


class Original:
    """Of tokens spread over the windows, each `every`-th or, where a vocabulary is large, fewer."""

    def __init__(self, reader: Reader, windows: Sequence[Sequence[int]], every: int = 1) -> None:
        self._windows = windows
        self._first = len(windows[0]) // 8  # what stands before gives a prediction something to go by
        scored = sum(len(window) - self._first for window in windows)
        self._every = min(max(every, -(-scored * reader.n_vocab // _KEPT)), len(windows[0]))
        self._log = list(self._read(reader))  # [rows, n_vocab] each

    def divergences(self, reader: Reader) -> npt.NDArray[np.float64]:
        """After each token: of what the model says now from what it said, in nats."""
        found = []
        for log, now in zip(self._log, self._read(reader), strict=True):
            np.subtract(log, now, out=now)
            now *= np.exp(log)
            found.append(now.sum(axis=1, dtype=np.float64))
        return np.concatenate(found)

    def divergence(self, reader: Reader) -> float:
        """The mean."""
        return float(self.divergences(reader).mean())

    def _read(self, reader: Reader) -> Iterator[npt.NDArray[np.float32]]:
        for window in self._windows:
            for logits in reader.logits(window, self._first, every=self._every):
                logits -= logits.max(axis=1, keepdims=True)
                logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
                yield logits
