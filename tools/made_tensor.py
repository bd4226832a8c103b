"""A tensor of a file that is made of a checkpoint's: which ones, and what is done to them on the way.

Owns the order of rows and values, and how a value is rounded. A tensor comes in pieces, so that the memory it takes
does not depend on its size. What goes where is said by the families' tables (pyedge/models/checkpoint.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pyedge import _core
from pyedge.errors import ModelError
from pyedge.models.checkpoint import To
from pyedge.tools.checkpoint import Stored
from pyedge.tools.gguf_writer import Tensor

_PIECE = 1 << 21  # values at once


@dataclass(frozen=True)
class Made:
    """A tensor of the file, and what it is made of."""

    tensor: Tensor
    to: To
    sources: tuple[Stored, ...]  # stacked, if they are several
    scales: Stored | None = None  # of MXFP4
    head_dim: int = 0  # of heads whose halves are to be neighbours
    values: np.ndarray | None = None  # known already: there are no sources

    def pieces(self) -> Iterator[np.ndarray]:
        """Its bytes, part by part."""
        if self.values is not None:
            yield self.values
        elif self.scales is not None:
            for source in self.sources:
                yield from _mxfp4(source, self.scales, self.to)
        else:
            for source in self.sources:
                for values in self._values(source):
                    yield self._encoded(values + np.float32(self.to.plus) if self.to.plus else values)

    def _values(self, source: Stored) -> Iterator[np.ndarray]:
        (first, step), columns = self.to.rows, source.columns
        if self.to.transposed:
            n = source.shape[-2]
            for i in range(0, source.n_rows, n):
                yield np.ascontiguousarray(source.values(i, n).T[first::step])
            return
        vectors = self.tensor.name.endswith(".bias")  # their rows are what a matrix has as columns
        whole = self.head_dim if self.head_dim and len(source.shape) > 1 else step
        left_out = first if step == 1 and not vectors else 0  # once, and not of every piece
        taken = slice(first - left_out, None, step)
        for i, n in _runs(source.n_rows - left_out, max(1, _PIECE // columns // whole) * whole):
            values = source.values(left_out + i, n)
            if self.head_dim:  # of a bias, one row has all heads
                by_heads = values.reshape(-1, 2, self.head_dim // 2, columns if len(source.shape) > 1 else 1)
                values = by_heads.swapaxes(1, 2).reshape(values.shape)
            yield np.ascontiguousarray(values[:, taken] if vectors else values[taken])

    def _encoded(self, values: np.ndarray) -> np.ndarray:
        kind = self.tensor.type
        if kind == "F32":
            return values
        if kind == "F16":
            with np.errstate(over="ignore"):
                halves = values.astype(np.float16)
            return self._finite(halves, np.isfinite(halves), values)
        if kind != "BF16":
            return _core.quantize(values, kind)
        bits = values.view(np.uint32)  # of finite numbers, rounded to the nearest, ties to even
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return self._finite(rounded, (rounded & 0x7F80) != 0x7F80, values)

    def _finite(self, encoded: np.ndarray, finite: np.ndarray, values: np.ndarray) -> np.ndarray:
        if not finite.all():
            largest, others = float(np.abs(values).max()), "bf16 or f32" if self.tensor.type == "F16" else "f32"
            name = self.sources[0].name
            raise ModelError(f"{name}: {largest:g} is more than {self.tensor.type} can hold; give --type {others}")
        return encoded


def _runs(n: int, most: int) -> Iterator[tuple[int, int]]:
    """The first and the number of rows of each piece."""
    for i in range(0, n, most):
        yield i, min(most, n - i)


def _mxfp4(blocks: Stored, scales: Stored, to: To) -> Iterator[np.ndarray]:
    """Blocks of 32 values as the file has them: the scale, then bytes of the value i and of i + 16. A checkpoint has
    neighbours in a byte, the first one low."""
    first, step = to.rows
    rows, n = math.prod(blocks.shape[:-2]), blocks.shape[-2]
    for i, count in _runs(rows, max(1, _PIECE // 32 // n // step) * step):
        pairs = blocks.raw(i * n, count * n).reshape(count, n, 16)[first::step]
        values = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(-1, n, 32)
        codes = values[..., :16] | (values[..., 16:] << 4)
        own = scales.raw(i, count).reshape(count, n, 1)[first::step]
        yield np.concatenate((own, codes), axis=-1)
