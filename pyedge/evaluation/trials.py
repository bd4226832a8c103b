"""Whole choices of formats, tried: what a model's predictions lose with all of its matrices in them.

Owns putting formats into a model in memory, all at once or those of one role, and taking them out again. Does not own
which choices are tried (target.py). It is the weights that are rounded here, and not what they are multiplied with,
whose share is about the same whatever is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyedge import _core
from pyedge.evaluation.imatrix import places
from pyedge.evaluation.matrix import Matrix, role
from pyedge.evaluation.original import Original

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyedge.evaluation.reader import Reader
    from pyedge.tools.imatrix_file import Imatrix
    from pyedge.tools.mixes import Choice


class Trials:
    """On some windows. The model is what it was after each call, though not when one raises."""

    def __init__(
        self,
        reader: Reader,
        gguf: _core.Gguf,
        windows: Sequence[Sequence[int]],
        imatrix: Imatrix | None,
        threads: int = 0,
    ) -> None:
        """reader: has `gguf` in memory."""
        self._reader, self._gguf, self._imatrix, self._threads = reader, gguf, imatrix, threads
        self._slots = {name: (op, slot) for name, op, slot in places(reader, ("embed", "linear", "moe", "logits"))}
        self._original = Original(reader, windows)

    def divergence(self, choices: Sequence[Choice]) -> float:
        """Of the model with all of these, in nats per token. ModelError for values that no format can hold."""
        changed = [c for c in choices if c.type != c.source and c.name in self._slots]
        for c in changed:
            matrix = self._matrix(c)
            self._put(c, matrix, matrix.degraded(c.type)[0])
        found = self._original.divergence(self._reader)
        for c in changed:
            matrix = self._matrix(c)
            self._put(c, matrix, matrix.original())
        return max(found, 0.0)

    def by_role(self, choices: Sequence[Choice]) -> dict[str, float]:
        """Of the model with those of one role at a time."""
        roles = dict.fromkeys(role(c.name) for c in choices if c.type != c.source and c.name in self._slots)
        return {name: self.divergence([c for c in choices if role(c.name) == name]) for name in roles}

    def _matrix(self, choice: Choice) -> Matrix:
        return Matrix(
            self._gguf, self._gguf.tensors[self._gguf.tensor_index(choice.name)], self._imatrix, self._threads
        )

    def _put(self, choice: Choice, matrix: Matrix, rows: npt.NDArray[np.uint8]) -> None:
        self._reader.model.replace(*self._slots[choice.name], matrix.type, rows, threads=self._threads)
