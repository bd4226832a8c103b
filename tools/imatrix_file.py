"""Importance matrices as files: GGUF as llama-imatrix writes and reads it.

Owns the format: of every matrix the sums of squares of what it was multiplied with, column by column (`NAME.in_sum2`),
and of how many rows (`NAME.counts`), for each expert where there are several. Does not own how they are collected
(pyedge/evaluation/imatrix.py), nor what a quantizer makes of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyedge import _core
from pyedge.errors import ModelError
from pyedge.tools.gguf_writer import GgufWriter, Kind, Tensor, packed

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MOST = 1 << 30  # windows


@dataclass
class Imatrix:
    sums: dict[str, np.ndarray] = field(default_factory=dict)  # by the tensor's name: [n experts or 1, columns]
    counts: dict[str, np.ndarray] = field(default_factory=dict)  # [n]: rows
    texts: list[str] = field(default_factory=list)  # names of what was read
    n_ctx: int = 512  # tokens of a window
    n_windows: int = 0  # in all
    last: tuple[str, int] = ("", 0)  # the text that was read last, by its sha256, and how many of its windows

    def put(self, name: str, sums: np.ndarray, counts: np.ndarray) -> None:
        """What a tensor has seen besides. ModelError if it is not that of this model."""
        before = self.sums.get(name)
        if before is not None and before.shape != sums.shape:
            raise ModelError(f"{name}: {before.shape} and {sums.shape} sums are of two models; give files of one")
        self.sums[name] = sums if before is None else before + sums
        self.counts[name] = counts if before is None else self.counts[name] + counts

    def add(self, other: Imatrix) -> None:
        """What both have seen."""
        for name, sums in other.sums.items():
            self.put(name, sums, other.counts[name])
        self.texts += [text for text in other.texts if text not in self.texts]
        self.n_windows += other.n_windows
        self.last = other.last

    def importance(self, name: str) -> np.ndarray | None:
        """The mean squares [n, columns] of a tensor's inputs; an expert that saw nothing has ones. None: not there."""
        if name not in self.sums:
            return None
        counts = self.counts[name][:, None]
        return np.where(counts > 0, self.sums[name] / np.maximum(counts, 1), 1.0)

    def unseen(self) -> int:
        """Experts' matrices that nothing went through."""
        return int(sum((counts == 0).sum() for counts in self.counts.values()))


def read(path: str | os.PathLike[str]) -> Imatrix:
    """Raises ModelError for what is no importance matrix."""
    with _core.Gguf(path) as gguf:

        def fail(what: str) -> ModelError:
            return ModelError(f"{gguf.path}: {what}; give a file that imatrix wrote")

        if gguf.get("general.type") != "imatrix":
            raise fail("is no importance matrix")
        shapes = {t.name: t for t in gguf.tensors}
        found = Imatrix()
        for name, tensor in shapes.items():
            if not name.endswith(_SUMS):
                continue
            own = name.removesuffix(_SUMS)
            counts = shapes.get(own + _COUNTS)
            rows = [int(np.prod(t.shape[1:])) for t in (tensor, counts) if t is not None]
            if counts is None or tensor.type != "F32" or counts.type != "F32" or len(set(rows)) != 1:
                raise fail(f"{name}: has no counts that fit it")
            sums = gguf.dequantize(name).astype(np.float64).reshape(rows[0], -1)
            seen = gguf.dequantize(own + _COUNTS).astype(np.float64).reshape(-1)
            if len(seen) != rows[0] or not (np.isfinite(sums).all() and np.isfinite(seen).all() and (sums >= 0).all()):
                raise fail(f"{name}: has values that are not possible")
            found.sums[own], found.counts[own] = sums, np.maximum(seen, 0).astype(np.int64)
        if not found.sums:
            raise fail("holds no sums")
        texts: Any = gguf.get("imatrix.datasets")
        found.texts = [str(text) for text in texts] if isinstance(texts, list) else []
        found.n_windows = _number(gguf, "imatrix.chunk_count")
        found.n_ctx = _number(gguf, "imatrix.chunk_size") or found.n_ctx
        found.last = (str(gguf.get("pyedge.imatrix.text") or ""), _number(gguf, "pyedge.imatrix.windows"))
    return found


def _number(gguf: _core.Gguf, key: str) -> int:
    value = gguf.get(key)
    return value if isinstance(value, int) and 0 <= value < _MOST else 0


def write(path: str | os.PathLike[str], imatrix: Imatrix) -> None:
    """The file appears whole or not at all."""
    arrays: dict[str, np.ndarray] = {}
    for name in sorted(imatrix.sums):
        arrays[name + _SUMS] = imatrix.sums[name].astype(np.float32)
        arrays[name + _COUNTS] = imatrix.counts[name].astype(np.float32)[:, None]
    sha256, windows = imatrix.last
    keys = {
        "general.type": packed("imatrix"),
        "imatrix.datasets": packed(imatrix.texts, Kind.STRING),
        "imatrix.chunk_count": packed(imatrix.n_windows),
        "imatrix.chunk_size": packed(imatrix.n_ctx),
        "pyedge.imatrix.text": packed(sha256),
        "pyedge.imatrix.windows": packed(windows),
    }
    tensors = [Tensor(name, "F32", (array.shape[1], array.shape[0])) for name, array in arrays.items()]
    with GgufWriter(path, keys, tensors) as writer:
        for name, array in arrays.items():
            writer.write(name, array)


def merged(paths: Iterable[str | os.PathLike[str]]) -> Imatrix:
    """All of these files as one."""
    found: Imatrix | None = None
    for path in paths:
        one = read(path)
        if found is None:
            found = one
            continue
        try:
            found.add(one)
        except ModelError as e:
            raise ModelError(f"{os.fspath(path)}: {e}") from None
    return found if found is not None else Imatrix()
