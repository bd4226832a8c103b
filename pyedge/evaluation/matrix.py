"""A tensor of a file as other formats would have it, and what that does to what the matrix puts out.

Owns errors weighted by importances, and no run of a model. Relative: over the same sum of the values themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyedge import _core
from pyedge.tools.gguf_writer import row_bytes

if TYPE_CHECKING:
    from pyedge.tools.imatrix_file import Imatrix

_ROWS, _RUNS = 256, 8  # of a matrix that a format's error is taken of, and in how many places
_VALUES_AT_ONCE = 1 << 22


def role(name: str) -> str:
    """What a matrix is in its layer."""
    return re.sub(r"^blk\.\d+\.", "", name)


class Matrix:
    """A tensor of the file, and which of its errors matter."""

    def __init__(self, gguf: _core.Gguf, tensor: _core.TensorInfo, imatrix: Imatrix | None, threads: int) -> None:
        self._gguf, self._name, self._threads = gguf, tensor.name, threads
        self.type = tensor.type
        self._columns, self._rows = tensor.shape[0], math.prod(tensor.shape[1:])
        self._rows_per_matrix = tensor.shape[1]
        means = None if imatrix is None else imatrix.importance(self._name)
        self._importance = None if means is None else means.reshape(-1).astype(np.float32)
        self._weights = np.ones((1, self._columns)) if means is None else means.reshape(-1, self._columns)

    def errors(self, formats: Sequence[str]) -> dict[str, float]:
        """Of each format, on rows from all over the tensor."""
        n = min(self._rows, _ROWS // _RUNS)
        firsts = {i * (self._rows - n) // (_RUNS - 1) for i in range(_RUNS)}
        whole, sums = 0.0, dict.fromkeys(formats, 0.0)
        for first in sorted(firsts):
            x = self._gguf.dequantize(self._name, first, n)
            whole += self._weighted(x, first)
            for name in formats:
                if name != self.type:
                    got = self._coarse(name, first, n)
                    got -= x
                    sums[name] += self._weighted(got, first)
        return {name: error / whole if whole > 0 else 0.0 for name, error in sums.items()}

    def degraded(self, name: str) -> tuple[npt.NDArray[np.uint8], float]:
        """The whole tensor, as the file would have it, after it was in a format; and the error of that."""
        packed = np.empty((self._rows, row_bytes(self.type, self._columns)), np.uint8)
        error, whole = 0.0, 0.0
        step = max(1, _VALUES_AT_ONCE // self._columns)
        for first in range(0, self._rows, step):
            n = min(step, self._rows - first)
            got = self._coarse(name, first, n)
            part = packed[first : first + n] = _core.quantize(got, self.type, threads=self._threads)
            x = self._gguf.dequantize(self._name, first, n)
            whole += self._weighted(x, first)
            x -= _core.dequantize(part, self.type, threads=self._threads)
            error += self._weighted(x, first)
        return packed, error / whole if whole > 0 else 0.0

    def original(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self._gguf.read(self._name), np.uint8)

    def _coarse(self, name: str, first: int, n: int) -> npt.NDArray[np.float32]:
        blocks = self._gguf.quantize(self._name, name, first, n, importance=self._importance, threads=self._threads)
        return _core.dequantize(blocks, name, threads=self._threads)

    def _weighted(self, values: npt.NDArray[np.float32], first: int) -> float:
        """Sum of weight times squared value of rows from `first` on."""
        if len(self._weights) == 1:
            return float(np.einsum("ij,ij->j", values, values, dtype=np.float64) @ self._weights[0])
        total, at = 0.0, 0
        while at < len(values):
            matrix = (first + at) // self._rows_per_matrix
            end = min(len(values), (matrix + 1) * self._rows_per_matrix - first)
            columns = np.einsum("ij,ij->j", values[at:end], values[at:end], dtype=np.float64)
            total += float(columns @ self._weights[matrix])
            at = end
        return total
