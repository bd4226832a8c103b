"""Writes GGUF files, version 3, a piece of a tensor at a time.

Owns the layout of the file: metadata, the table of tensors, alignment. Does not own how a file appears whole
(output_file.py), nor what keys and tensors mean. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

The gguf package's writer makes Python objects of every string of a vocabulary, refuses arrays of no elements and puts
the architecture first. A tool that changes weights keeps metadata as they are, to the byte and in order: so values are
packed here, and those of a file at hand are copied packed (`_core.Gguf.packed`).
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from types import TracebackType
from typing import Any

from pyedge import _core
from pyedge.tools.output_file import OutputFile

ALIGNMENT = 32  # bytes, of tensors; the format's default
MAX_NAME = 64  # bytes of a tensor's name; the format's own


class Kind(IntEnum):
    """Types of metadata values, by the file's own numbers."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


_CODES = {
    Kind.U8: "B", Kind.I8: "b", Kind.U16: "H", Kind.I16: "h", Kind.U32: "I", Kind.I32: "i", Kind.F32: "f",
    Kind.BOOL: "?", Kind.U64: "Q", Kind.I64: "q", Kind.F64: "d",
}  # fmt: skip

Metadata = Mapping[str, bytes]  # by key, in order, each value packed


def packed(value: Any, kind: Kind | None = None) -> bytes:
    """A value, or a list of values of one kind, as the file has it, its type in front. Strings may be str or bytes.

    Without a kind: bool, float and str are BOOL, F32 and STRING; an int is a U32, or in a list I32, as other writers
    have it. An empty list needs a kind. ValueError for what does not fit.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        kind = _kind_of(value, Kind.U32) if kind is None else kind
        return struct.pack("<I", kind) + _bare([value], kind)
    values = list(value)
    if kind is None:
        if not values:
            raise ValueError("a list of nothing needs a kind")
        kind = _kind_of(values[0], Kind.I32)
    return struct.pack("<IIQ", Kind.ARRAY, kind, len(values)) + _bare(values, kind)


def copied(gguf: _core.Gguf) -> dict[str, bytes]:
    """The metadata of a file, to the byte."""
    return {key: gguf.packed(key) for key in gguf.keys()}  # noqa: SIM118  (a Gguf is no dict)


def _kind_of(value: Any, integer: Kind) -> Kind:
    if isinstance(value, bool):
        return Kind.BOOL
    if isinstance(value, (str, bytes)):
        return Kind.STRING
    return Kind.F32 if isinstance(value, float) else integer


def _bare(values: Sequence[Any], kind: Kind) -> bytes:
    if kind is Kind.STRING:
        return b"".join(_string(v) for v in values)
    try:
        return struct.pack(f"<{len(values)}{_CODES[kind]}", *values)
    except (struct.error, OverflowError) as e:
        raise ValueError(f"a metadata value does not fit into {kind.name.lower()}: {e}") from e


def _string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


@dataclass(frozen=True)
class Tensor:
    """What the table says of one tensor."""

    name: str
    type: str  # "Q4_0"
    shape: tuple[int, ...]  # the file's order: columns first

    @cached_property
    def n_bytes(self) -> int:
        return math.prod(self.shape[1:]) * row_bytes(self.type, self.shape[0])


def row_bytes(type_name: str, columns: int) -> int:
    """Bytes of a row in a format. ValueError where it is no whole number of blocks."""
    info = _FORMATS[type_name]
    if columns % info.block_values:
        raise ValueError(f"a row of {columns} values has no whole number of blocks of {type_name}")
    return columns // info.block_values * info.block_bytes


_FORMATS = {info.name: info for info in _core.formats()}


class GgufWriter:
    """A context in which a file is written; see OutputFile for what that promises. `tensors` are in the order in which
    their data will come.

        with GgufWriter(path, {"general.architecture": packed("llama")}, [Tensor("a.weight", "F32", (64, 9))]) as w:
            w.write("a.weight", array)  # all of it, or piece by piece

    ValueError for a name that is too long or there twice. Raises OSError that names `path`.
    """

    def __init__(self, path: str | os.PathLike[str], metadata: Metadata, tensors: Sequence[Tensor]) -> None:
        self._alignment = alignment_of(metadata)
        head, offset = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))], 0
        head += [_string(key) + value for key, value in metadata.items()]
        if len({t.name for t in tensors}) != len(tensors):
            raise ValueError("two tensors have the same name")
        for t in tensors:
            if len(t.name.encode()) > MAX_NAME:
                raise ValueError(f"tensor '{t.name}': its name is longer than {MAX_NAME} bytes")
            shape = struct.pack(f"<I{len(t.shape)}Q", len(t.shape), *t.shape)
            head.append(_string(t.name) + shape + struct.pack("<IQ", _FORMATS[t.type].type, offset))
            offset += t.n_bytes + self._padding(t.n_bytes)
        self._head = b"".join(head)
        self._head += bytes(self._padding(len(self._head)))
        self.file_size = len(self._head) + offset  # bytes
        self._left = [(t.name, t.n_bytes) for t in reversed(tensors) if t.n_bytes]  # to come, the next one last
        self._file = OutputFile(path, self.file_size)

    def __enter__(self) -> GgufWriter:
        self._file.__enter__()
        self._present, self._missing = "", 0  # the tensor that is being written, and how many bytes it lacks
        self._file.write(self._head)
        return self

    def write(self, name: str, data: Any) -> None:
        """The next bytes of a tensor: a contiguous buffer, a numpy array for one."""
        n = memoryview(data).nbytes
        if not self._missing and self._left:
            self._present, self._missing = self._left.pop()
            self._padding_due = self._padding(self._missing)
        if name != self._present or n > self._missing:
            raise RuntimeError(f"{n} bytes of {name} are not what comes next: {self._missing} of {self._present}")
        self._file.write(data)
        self._missing -= n
        if not self._missing:
            self._file.write(bytes(self._padding_due))

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None and (self._missing or self._left):
            unfinished = RuntimeError(f"{self._present if self._missing else self._left[-1][0]} was not written")
            self._file.__exit__(RuntimeError, unfinished, None)
            raise unfinished
        self._file.__exit__(kind, e, trace)

    def _padding(self, n: int) -> int:
        return -n % self._alignment


def alignment_of(metadata: Metadata) -> int:
    """Bytes, of tensors."""
    value = metadata.get("general.alignment")
    return ALIGNMENT if value is None else int(struct.unpack("<II", value)[1])
