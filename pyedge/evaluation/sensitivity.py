"""What each format costs in each matrix of a model: by how much its predictions move, measured by running it.

Owns the measurement; what is made of it is tools/allocation.py's, and how formats fit tensors tools/mixes.py's.

The divergence of a quantized model from its original is, for errors as small as those of quantizing, about a sum over
its matrices: of each the error of what it puts out, times how much the predictions depend on that. The first factor is
the squared error of the rounded weights, each column weighted by the mean square of what goes into it, relative to the
same sum over the weights themselves: it needs no run, and is taken of each format on some rows of each matrix. The
second is measured once for each matrix, with the model in memory and that matrix alone made coarse: the
Kullback-Leibler divergence of its predictions on a calibration text, over the matrix's error at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyedge import _core
from pyedge.evaluation.imatrix import places
from pyedge.tools.gguf_writer import row_bytes

if TYPE_CHECKING:
    from pyedge.evaluation.reader import Reader
    from pyedge.tools.imatrix_file import Imatrix

Progress = Callable[[int, int], None]  # matrices measured, and in all

_ROWS, _RUNS = 256, 8  # of a matrix that a format's error is taken of, and in how many places
_VALUES_AT_ONCE = 1 << 22
_KEPT = 1 << 24  # log-probabilities of the original: 64 MB, and as much for what they are the logarithms of
_PROBE_ERROR = 0.015  # about that of Q3_K
_FLOOR = 1e-9  # what rounding in float32 leaves of a divergence


@dataclass(frozen=True)
class Cost:
    """One matrix."""

    sensitivity: float  # divergence, in nats per token, for an error of 1
    errors: Mapping[str, float]  # by format: relative, squared, weighted

    def of(self, format_name: str) -> float:
        """The divergence that the format would add."""
        return self.sensitivity * self.errors[format_name]


def measure(
    reader: Reader,
    gguf: _core.Gguf,
    formats: Mapping[str, Sequence[str]],
    windows: Sequence[Sequence[int]],
    imatrix: Imatrix | None,
    progress: Progress | None = None,
    *,
    threads: int = 0,
) -> dict[str, Cost]:
    """What the formats cost in each tensor of `formats`. reader: has `gguf` in memory, and has it again unchanged when
    this returns, though not when it raises. A tensor that the model does not use gets the median of sensitivities.
    ModelError for values that no format can hold."""
    slots = {name: (op, slot) for name, op, slot in places(reader, ("embed", "linear", "moe", "logits"))}
    original = _Original(reader, windows)
    errors: dict[str, dict[str, float]] = {}
    sensitivities: dict[str, float] = {}
    for i, (name, candidates) in enumerate(formats.items()):
        matrix = _Matrix(gguf, gguf.tensors[gguf.tensor_index(name)], imatrix, threads)
        errors[name] = matrix.errors(candidates)
        probe = _probe(errors[name])
        if name in slots and probe is not None:
            packed, error = matrix.degraded(probe)
            reader.model.replace(*slots[name], matrix.type, packed, threads=threads)
            if error > 0:
                sensitivities[name] = max(original.divergence(reader), _FLOOR) / error
            reader.model.replace(*slots[name], matrix.type, matrix.original(), threads=threads)
        if progress is not None:
            progress(i + 1, len(formats))
    median = float(np.median(list(sensitivities.values()))) if sensitivities else 1.0
    return {name: Cost(sensitivities.get(name, median), errors[name]) for name in formats}


def _probe(errors: Mapping[str, float]) -> str | None:
    """The format that a matrix is made coarse with: of an error that stands out and is not so large that what follows
    no longer grows with it."""
    some = [name for name, error in errors.items() if error > 0]
    return min(some, key=lambda name: abs(math.log(errors[name] / _PROBE_ERROR))) if some else None


class _Matrix:
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
        columns = np.einsum("ij,ij->j", values, values, dtype=np.float64)
        if len(self._weights) == 1:
            return float(columns @ self._weights[0])
        total, at = 0.0, 0
        while at < len(values):
            matrix = (first + at) // self._rows_per_matrix
            end = min(len(values), (matrix + 1) * self._rows_per_matrix - first)
            columns = np.einsum("ij,ij->j", values[at:end], values[at:end], dtype=np.float64)
            total += float(columns @ self._weights[matrix])
            at = end
        return total


class _Original:
    """What the model says as it is, of tokens spread over the windows: log-probabilities [rows, n_vocab]."""

    def __init__(self, reader: Reader, windows: Sequence[Sequence[int]]) -> None:
        self._windows = windows
        self._first = len(windows[0]) // 8  # what stands before gives a prediction something to go by
        scored = sum(len(window) - self._first for window in windows)
        self._every = min(-(-scored * reader.n_vocab // _KEPT), len(windows[0]))
        self._log = list(self._read(reader))
        self._p = [np.exp(log) for log in self._log]
        self._tokens = sum(len(log) for log in self._log)

    def _read(self, reader: Reader) -> Iterator[npt.NDArray[np.float32]]:
        for window in self._windows:
            for logits in reader.logits(window, self._first, every=self._every):
                logits -= logits.max(axis=1, keepdims=True)
                logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
                yield logits

    def divergence(self, reader: Reader) -> float:
        """Mean of what the model says now from what it said, in nats."""
        total = 0.0
        for log, p, now in zip(self._log, self._p, self._read(reader), strict=True):
            np.subtract(log, now, out=now)
            now *= p
            total += float(now.sum(dtype=np.float64))
        return total / self._tokens
