"""Writes GGUF files byte by byte, sound ones and broken ones.

Owns the layout of the format as tests need it: every number that a reader relies on can be overridden, which the `gguf`
package rightly does not allow. Does not know any model: callers give metadata and tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any


class Type(IntEnum):
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


class Raw(bytes):
    """In place of a value: the bytes that follow its type number, whatever they are."""


CODES = {
    Type.U8: "B", Type.I8: "b", Type.U16: "H", Type.I16: "h", Type.U32: "I", Type.I32: "i", Type.F32: "f",
    Type.BOOL: "?", Type.U64: "Q", Type.I64: "q", Type.F64: "d",
}  # fmt: skip

Kv = tuple[str | bytes, int, Any]  # key, type, value; an array's value is (element type, elements)
Tensor = tuple[str | bytes, Sequence[int], int, bytes]  # name, ne (columns first), type number, data


def pack_string(text: str | bytes, length: int | None = None, order: str = "<") -> bytes:
    """A length and the bytes; `length` claims another one."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(order + "Q", len(raw) if length is None else length) + raw


def pack_array(element: int, items: Sequence[Any], count: int | None = None, order: str = "<") -> bytes:
    """An array's value: element type, count, elements; `count` claims another one."""
    head = struct.pack(order + "IQ", element, len(items) if count is None else count)
    if element == Type.STRING:
        return head + b"".join(pack_string(s, order=order) for s in items)
    return head + struct.pack(f"{order}{len(items)}{CODES[Type(element)]}", *items)


def pack_value(kind: int, value: Any, order: str = "<") -> bytes:
    if isinstance(value, Raw):
        return bytes(value)
    if kind == Type.STRING:
        return pack_string(value, order=order)
    if kind == Type.ARRAY:
        element, items = value
        return pack_array(element, items, order=order)
    return struct.pack(order + CODES[Type(kind)], value)


def gguf_bytes(
    kv: Iterable[Kv] = (),
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_kv: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
    order: str = "<",
    infos: Mapping[int, Mapping[str, int]] | None = None,
    keep: int | None = None,
) -> bytes:
    """A whole file. What is left alone is right.

    `n_kv`, `n_tensors`: what the header claims. `alignment`: how data are laid out (whether the metadata say so is the
    caller's affair). `infos`: by tensor number, any of `n_dims`, `type`, `offset`, `name_length` to write in place of
    the true ones. `keep`: cut the file to that many bytes (negative: from the end).
    """
    entries = [pack_string(k, order=order) + struct.pack(order + "I", t) + pack_value(t, v, order) for k, t, v in kv]
    claimed = (
        len(tensors) if n_tensors is None else n_tensors,
        len(entries) if n_kv is None else n_kv,
    )
    out = bytearray(magic + struct.pack(order + "IQQ", version, *claimed))
    out += b"".join(entries)

    offset = 0
    for i, (name, ne, kind, data) in enumerate(tensors):
        claim = {"n_dims": len(ne), "type": kind, "offset": offset, **((infos or {}).get(i, {}))}
        out += pack_string(name, claim.get("name_length"), order)
        out += struct.pack(f"{order}I{len(ne)}Q", claim["n_dims"], *ne)
        out += struct.pack(order + "IQ", claim["type"], claim["offset"])
        offset += len(data) + -len(data) % alignment
    if tensors:
        out += bytes(-len(out) % alignment)
    for _, _, _, data in tensors:
        out += data + bytes(-len(data) % alignment)
    return bytes(out if keep is None else out[:keep])


def write_gguf(path: Path | str, kv: Iterable[Kv], tensors: Sequence[Tensor] = (), **overrides: Any) -> Path:
    """Writes `gguf_bytes(kv, tensors, **overrides)` to `path`."""
    path = Path(path)
    path.write_bytes(gguf_bytes(kv, tensors, **overrides))
    return path
