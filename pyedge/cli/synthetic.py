"""Models of real shapes with random weights, made in memory: for measurements of speed where no file is at hand.

Owns the shapes, which tensor has which format, and the file that they make. What such a model writes means nothing. Its
activations have fewer outliers than a trained model's, so it may run a few percent faster.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

import click

from pyedge.cli.options import locate


@dataclass(frozen=True)
class Shape:
    architecture: str
    d_model: int
    d_ff: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_vocab: int
    tied: bool  # the embedding is the output's matrix too


SHAPES = {
    "smollm2-135m": Shape("llama", 576, 1536, 30, 9, 3, 64, 49152, True),
    "smollm2-360m": Shape("llama", 960, 2560, 32, 15, 5, 64, 49152, True),
    "smollm2-1.7b": Shape("llama", 2048, 8192, 24, 32, 32, 64, 49152, True),
    "llama-1b": Shape("llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    "llama-3b": Shape("llama", 3072, 8192, 28, 24, 8, 128, 128256, True),
    "llama-8b": Shape("llama", 4096, 14336, 32, 32, 8, 128, 128256, False),
    "mistral-7b": Shape("llama", 4096, 14336, 32, 32, 8, 128, 32000, False),
    "qwen3-0.6b": Shape("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "qwen3-1.7b": Shape("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "qwen3-4b": Shape("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "qwen3-8b": Shape("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, False),
}
CONTEXT = 8192

# For random bytes to be sound numbers around zero: where each block's float16 fields are, in what ratio to the scale,
# and the root mean square of the block's values for a scale of 1. A minimum cancels the mean.
_BLOCKS: dict[str, tuple[dict[int, float], float]] = {
    "Q4_0": ({0: 1}, 4.64),
    "Q4_1": ({0: 1, 2: -7.5}, 4.61),
    "Q5_0": ({0: 1}, 9.25),
    "Q5_1": ({0: 1, 2: -15.5}, 9.23),
    "Q8_0": ({0: 1}, 73.9),
    "Q2_K": ({80: 1, 82: 1.5}, 10.5),
    "Q3_K": ({108: 1}, 43.5),
    "Q4_K": ({0: 1, 2: 7.5}, 178.0),
    "Q5_K": ({0: 1, 2: 15.5}, 356.0),
    "Q6_K": ({208: 1}, 1369.0),
    "IQ4_NL": ({0: 1}, 67.3),
    "IQ4_XS": ({0: 1}, 1258.0),
    "MXFP4": ({}, 5.85),
}
_FLOATS = ("F32", "F16", "BF16")
TYPES = (*_FLOATS, *_BLOCKS)
_POOL_BYTES = 1 << 22  # of random blocks, which a tensor repeats: weights differ in memory, and are made fast

# A K-quant's blocks are 256 wide: a matrix whose rows they do not divide has the format beside it.
_NARROW = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}

# Of a mix: its format, and for some tensors another one in all layers, in the first eighth, or in about half of them:
# the first and the last eighth and every third layer between.
MIXES: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "Q3_K_S": ("Q3_K", {}),
    "Q3_K_M": ("Q3_K", {"attn_v": ("all", "Q4_K"), "attn_output": ("all", "Q4_K"), "ffn_down": ("all", "Q4_K")}),
    "Q4_K_S": ("Q4_K", {"attn_v": ("eighth", "Q5_K"), "ffn_down": ("eighth", "Q5_K")}),
    "Q4_K_M": ("Q4_K", {"attn_v": ("half", "Q6_K"), "ffn_down": ("half", "Q6_K")}),
    "Q5_K_S": ("Q5_K", {}),
    "Q5_K_M": ("Q5_K", {"attn_v": ("half", "Q6_K"), "ffn_down": ("half", "Q6_K")}),
}


option = click.option(
    "--synthetic",
    metavar="SHAPE:TYPE",
    help="In place of MODEL: random weights of that shape and format, such as llama-1b:Q4_0.",
)


@contextmanager
def file_of(model: str | None, spec: str | None) -> Iterator[tuple[str, Path]]:
    """What a command was given, MODEL or --synthetic: what to call it, and its file."""
    if (model is None) == (spec is None):
        raise click.UsageError("give a MODEL, or --synthetic SHAPE:TYPE in its place")
    if spec is None:
        assert model is not None
        yield model, locate(model)
        return
    try:
        parse(spec)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--synthetic") from e
    with made(spec) as path:
        yield spec, path


def parse(spec: str) -> tuple[Shape, str]:
    """SHAPE:TYPE. ValueError names what there is."""
    name, colon, kind = spec.partition(":")
    if name not in SHAPES:
        raise ValueError(f"{name!r} is no shape that is known; choose from {', '.join(SHAPES)}")
    types = {t.upper(): t for t in (*TYPES, *MIXES)}
    if not colon or kind.upper() not in types:
        said = f"{kind!r} is no format that is made here" if colon else "a format is missing, as in llama-1b:Q4_0"
        raise ValueError(f"{said}; choose from {', '.join(types.values())}")
    return SHAPES[name], types[kind.upper()]


@contextmanager
def made(spec: str) -> Iterator[Path]:
    """A GGUF file of that SHAPE:TYPE, gone at the end: in memory on Linux, elsewhere a temporary one."""
    from pyedge import _core

    shape, kind = parse(spec)
    tensors = _tensors(shape, kind)
    wanted = 2.3 * sum(_n_bytes(t, rows * columns) for _, rows, columns, t in tensors)  # the file, and weights packed
    free = _core.machine()["memory_available"]
    if wanted > free:
        raise MemoryError(
            f"{spec} takes {wanted / 1e9:.1f} GB while it loads, {free / 1e9:.1f} GB are free; "
            "choose a smaller shape or format"
        )
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("pyedge-synthetic"), "wb") as memory:
            _write(memory, shape, tensors)
            memory.flush()
            yield Path(f"/proc/self/fd/{memory.fileno()}")
    else:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            _write(file, shape, tensors)
            file.flush()
            yield Path(file.name)


# ---- tensors ---------------------------------------------------------------------------------------------------------

_Tensor = tuple[str, int, int, str]  # name, rows, columns, format


def _tensors(s: Shape, kind: str) -> list[_Tensor]:
    base, others = MIXES.get(kind, (kind, {}))

    def matrix(name: str, rows: int, columns: int, layer: int = 0) -> _Tensor:
        own = name.split(".")[-2]
        chosen = base
        if own in others:
            where, better = others[own]
            eighth = s.n_layers // 8
            first, last = layer < eighth, layer >= 7 * s.n_layers // 8
            half = first or last or (layer - eighth) % 3 == 2
            chosen = better if {"all": True, "eighth": first, "half": half}[where] else base
        if own == ("token_embd" if s.tied else "output") and base not in (*_FLOATS, "Q8_0"):
            chosen = "Q6_K"
        if columns % 256:
            chosen = _NARROW.get(chosen, chosen)
        return name, rows, columns, chosen

    def norm(name: str, width: int = s.d_model) -> _Tensor:
        return name, 1, width, "F32"

    q, kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    found = [matrix("token_embd.weight", s.n_vocab, s.d_model), norm("output_norm.weight")]
    if not s.tied:
        found.append(matrix("output.weight", s.n_vocab, s.d_model))
    for i in range(s.n_layers):
        b = f"blk.{i}"
        found += [norm(f"{b}.attn_norm.weight"), norm(f"{b}.ffn_norm.weight")]
        if s.architecture == "qwen3":
            found += [norm(f"{b}.attn_{x}_norm.weight", s.head_dim) for x in "qk"]
        for name, rows, columns in (
            ("attn_q", q, s.d_model),
            ("attn_k", kv, s.d_model),
            ("attn_v", kv, s.d_model),
            ("attn_output", s.d_model, q),
            ("ffn_gate", s.d_ff, s.d_model),
            ("ffn_up", s.d_ff, s.d_model),
            ("ffn_down", s.d_model, s.d_ff),
        ):
            found.append(matrix(f"{b}.{name}.weight", rows, columns, i))
    return found


@cache
def _formats() -> dict[str, tuple[int, int, int]]:
    """Number in a file, values per block, bytes per block."""
    from pyedge import _core

    return {f.name: (f.type, f.block_values, f.block_bytes) for f in _core.formats()}


def _n_bytes(kind: str, n: int) -> int:
    _, values, size = _formats()[kind]
    return n // values * size


def _pool(kind: str, std: float) -> bytes:
    """Random blocks whose values have that standard deviation, as bytes."""
    import numpy as np

    rng = np.random.default_rng(0)
    size = _formats()[kind][2]
    n = _POOL_BYTES // size
    if kind in _FLOATS:
        drawn = rng.standard_normal(n, dtype=np.float32) * np.float32(std)
        upper = (drawn.view(np.uint32) >> 16).astype(np.uint16)  # BF16
        floats: bytes = {"F32": drawn, "F16": drawn.astype(np.float16), "BF16": upper}[kind].tobytes()
        return floats
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    fields, rms = _BLOCKS[kind]
    scale = std / rms
    if kind == "MXFP4":
        raw[:, 0] = 128 + round(float(np.log2(scale)))
    elif kind == "Q2_K":  # each part's minimum equal to its scale, so that its values have no mean
        raw[:, :16] = (raw[:, :16] & 15) * 17
    elif kind in ("Q4_K", "Q5_K"):
        raw[:, 8:12] = raw[:, 4:8]
        raw[:, 12:16] = (raw[:, 12:16] & 15) * 17
    for at, ratio in fields.items():
        raw[:, at : at + 2] = np.full(n, scale * ratio, np.float16)[:, None].view(np.uint8)
    return raw.tobytes()


# ---- the file --------------------------------------------------------------------------------------------------------

_ALIGNMENT = 32
_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5  # numbers of types in a GGUF file


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    of_text = isinstance(value[0], str)
    parts = map(_string, value) if of_text else (struct.pack("<i", v) for v in value)
    return struct.pack("<IIQ", _ARRAY, _STRING if of_text else _I32, len(value)) + b"".join(parts)


def _metadata(s: Shape) -> dict[str, Any]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    tokens = [chr(b if b in printable else next(others)) for b in range(256)]  # a token for each byte, and no more:
    tokens += ["ab", "<|end|>"]  # rows of the embedding behind them have no text
    a = s.architecture
    return {
        "general.architecture": a,
        f"{a}.context_length": CONTEXT,
        f"{a}.embedding_length": s.d_model,
        f"{a}.block_count": s.n_layers,
        f"{a}.feed_forward_length": s.d_ff,
        f"{a}.attention.head_count": s.n_heads,
        f"{a}.attention.head_count_kv": s.n_kv_heads,
        f"{a}.attention.key_length": s.head_dim,
        f"{a}.attention.value_length": s.head_dim,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{a}.rope.dimension_count": s.head_dim,
        f"{a}.rope.freq_base": 500000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [3],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.add_bos_token": False,
    }


def _write(file: IO[bytes], s: Shape, tensors: list[_Tensor]) -> None:
    import numpy as np

    metadata = _metadata(s)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    offset = 0
    for name, rows, columns, kind in tensors:
        shape = (columns,) if rows == 1 else (columns, rows)
        head += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, _formats()[kind][0], offset)
        offset += -(-_n_bytes(kind, rows * columns) // _ALIGNMENT) * _ALIGNMENT
    file.write(head + bytes(-len(head) % _ALIGNMENT))
    pools: dict[tuple[str, int], bytes] = {}
    for _, rows, columns, kind in tensors:
        n = _n_bytes(kind, rows * columns)
        left = n
        if rows == 1:
            file.write(np.ones(columns, np.float32).tobytes())
            left = 0
        elif (kind, columns) not in pools:
            pools[kind, columns] = _pool(kind, columns**-0.5)
        while left:
            left -= file.write(memoryview(pools[kind, columns])[:left])
        file.write(bytes(-n % _ALIGNMENT))
