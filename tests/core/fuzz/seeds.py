"""The fuzzers' first inputs, made and not kept: small files that reach every branch of the loader, plans for them, and
the words of the format.

Owns what is in them. What a fuzzer finds goes into a test of its own, in words.
"""

from __future__ import annotations

import math
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "helpers"))
from ggufbytes import Kv, Tensor, Type, gguf_bytes
from tinymodel import write_tiny_llama

# Numbers that readers trip over, and the names that the loader itself looks for.
WORDS = [
    b"GGUF", b"general.alignment", b"general.architecture", b"general.name", b"split.no", b"split.count",
    b"split.tensors.count", b"llama", b"blk.0.attn_q.weight",
    *(struct.pack("<I", n) for n in (*range(13), 16, 32, 64, 2**16, 2**31, 2**32 - 1)),
    *(struct.pack("<Q", n) for n in (0, 1, 2, 3, 8, 32, 64, 65, 2**16, 2**31, 2**32, 2**62, 2**63, 2**64 - 1)),
]  # fmt: skip

SCALARS: list[Kv] = [
    ("general.architecture", Type.STRING, "llama"),
    ("u8", Type.U8, 255),
    ("i16", Type.I16, -32768),
    ("f64", Type.F64, math.pi),
    ("yes", Type.BOOL, True),
    ("text", Type.STRING, "ä\n\0🦙"),
]
ARRAYS: list[Kv] = [
    ("tokens", Type.ARRAY, (Type.STRING, ["a", "", "▁é", b"\xff\xfe"])),
    ("scores", Type.ARRAY, (Type.F32, [0.0, -1.5, 2.0])),
    ("flags", Type.ARRAY, (Type.BOOL, [True, False])),
    ("none", Type.ARRAY, (Type.STRING, [])),
]


def tensor(name: str, ne: Sequence[int], kind: int) -> Tensor:
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    return name, ne, kind, bytes(i % 251 for i in range(math.prod(ne) // values * size))


FLOATS = [tensor("a", (4, 2), 0), tensor("b.weight", (5,), 1), tensor("c", (2, 1, 1, 3), 30)]


def whole() -> dict[str, bytes]:
    aligned: list[Kv] = [*SCALARS, ("general.alignment", Type.U32, 8)]
    seeds = {
        "empty": gguf_bytes(),
        "version2": gguf_bytes(SCALARS, FLOATS, version=2),
        "scalars": gguf_bytes(SCALARS),
        "arrays": gguf_bytes(ARRAYS),
        "floats": gguf_bytes(aligned, FLOATS, alignment=8),
        "one": gguf_bytes([], FLOATS[:1], keep=-1),
        "endian": gguf_bytes(SCALARS, order=">"),
        "zip": b"PK\3\4" + bytes(60),
        "split": gguf_bytes([("split.no", Type.U16, 1), ("split.count", Type.U16, 3)]),
    }
    for kind in gguf.GGMLQuantizationType:
        if kind != gguf.GGMLQuantizationType.Q8_1:  # the package's table still has an older size
            block = gguf.GGML_QUANT_SIZES[kind][0]
            seeds[kind.name] = gguf_bytes([], [tensor("x", (block, 1), kind)])
    return seeds


def split() -> dict[str, bytes]:
    def part(number: int, count: int, tensors: Sequence[Tensor], kind: Type = Type.U16, *more: Kv) -> bytes:
        kv: list[Kv] = [("split.no", kind, number), ("split.count", kind, count)]
        return gguf_bytes([*kv, ("split.tensors.count", Type.I32, 3), *more], tensors)

    name: Kv = ("general.architecture", Type.STRING, "llama")
    return {
        "two": part(0, 2, FLOATS[:2], Type.U16, name) + part(1, 2, FLOATS[2:]),
        "three": part(0, 3, [], Type.U64, name) + part(1, 3, FLOATS[:2], Type.U8, name) + part(2, 3, FLOATS[2:]),
        "one": part(0, 1, FLOATS, Type.I32),
    }


def plan() -> dict[str, bytes]:
    """Needs pyedge, built."""
    from pyedge._core import Gguf
    from pyedge.models import build_plan

    def numbers(values: Sequence[int]) -> bytes:
        return struct.pack(f"<B{len(values)}h", len(values), *values)

    def encode(path: Path) -> bytes:
        out = b""
        for op in build_plan(Gguf(path)).ops:
            parameters = [struct.pack("<Bi", 0, p) if isinstance(p, int) else struct.pack("<Bf", 1, p) for p in op[5]]
            head = struct.pack("B", op[0]) + numbers(op[2]) + numbers(op[3]) + numbers(op[4])
            out += head + struct.pack("B", len(parameters)) + b"".join(parameters)
        return struct.pack("<H", len(out)) + out + path.read_bytes()

    shape = {"n_embd": 32, "n_head": 2, "n_layer": 1, "n_ff": 32, "n_vocab": 32, "tokenizer": False}
    seeds = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("F32", "F16", "Q4_0", "Q8_0"):
            path = write_tiny_llama(Path(folder) / kind, types=kind, bias=True, rope_factors=True, **shape)
            seeds[kind] = encode(path)
    return seeds


KINDS = {"whole": whole, "split": split, "plan": plan}


def dictionary() -> str:
    """In libFuzzer's form."""
    return "".join('"' + "".join(f"\\x{b:02x}" for b in word) + '"\n' for word in WORDS)
