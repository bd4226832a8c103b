"""Importance matrices as files: GGUF as llama-imatrix writes and reads it, and the .dat of its older versions, read.

Owns the format: of every matrix the sums of squares of what it was multiplied with, column by column (`NAME.in_sum2`),
and of how many rows (`NAME.counts`), for each expert where there are several. Does not own how they are collected
(pyedge/evaluation/imatrix.py), nor what a quantizer makes of them.
"""

from __future__ import annotations

import os
import struct
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
    path: str = ""  # of the file

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
    """Raises ModelError for what is no importance matrix, OSError for what cannot be read."""
    with open(path, "rb") as f:
        magic = f.read(4)
    found = _read_gguf(path) if magic == b"GGUF" else _read_dat(path)
    found.path = os.fspath(path)
    return found


def _read_gguf(path: str | os.PathLike[str]) -> Imatrix:
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


def _read_dat(path: str | os.PathLike[str]) -> Imatrix:
    """Little-endian: how many entries; of each the name, how many calls were summed, and means times calls; then, in
    most files, how many windows were read and the text's name. A length stands before what it is of."""
    with open(path, "rb") as f:
        raw = f.read()
    at = 0

    def take(n: int) -> bytes:
        nonlocal at
        if n < 0 or n > len(raw) - at:
            raise ModelError(
                f"{os.fspath(path)}: is no importance matrix, or is cut short; give a file that imatrix wrote"
            )
        at += n
        return raw[at - n : at]

    def integer() -> int:
        return int(struct.unpack("<i", take(4))[0])

    found = Imatrix()
    for _ in range(integer()):
        name = take(integer()).decode("utf-8", "replace")
        calls, n = max(integer(), 1), integer()
        values = np.frombuffer(take(4 * n), "<f4").astype(np.float64)
        if not n or not np.isfinite(values).all() or (values < 0).any():
            raise ModelError(
                f"{os.fspath(path)}: {name}: has values that are not possible; give a file that imatrix wrote"
            )
        found.sums[name], found.counts[name] = values.reshape(1, -1), np.array([calls])
    if not found.sums:
        raise ModelError(f"{os.fspath(path)}: holds no sums; give a file that imatrix wrote")
    if at < len(raw):
        found.n_windows = integer()
    if at < len(raw):
        found.texts = [take(integer()).decode("utf-8", "replace")]
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
