"""Writes the vectors that kernel_check.c reads: inputs, and what numpy in float64 says of them.

    kernel_check formats | python make_vectors.py vectors.bin

Owns the cases and their oracles; weights are quantized and decoded by the `gguf` package. Does not own what must hold
between two runs of a kernel (bits that depend on nothing but a row's own input): the program checks that by itself.

Layout: `PEKV0001`, the number of cases, then each case: op [24], name [72], number of fields, and each field: name
[15], type character [1], count, values. Little-endian; numbers are uint64; text is padded with zeros.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from tinymodel import encode

Array = np.ndarray[Any, Any]
Fields = dict[str, Any]
Case = tuple[str, str, Fields]  # op, name, fields: arrays of uint8, float32 or float64, or numbers

# Where the float16 scales of a block are, and where its integer scales (slices of the block's bytes).
SCALES: dict[str, tuple[tuple[int, ...], slice]] = {
    "Q4_0": ((0,), slice(0)),
    "Q4_1": ((0, 2), slice(0)),
    "Q8_0": ((0,), slice(0)),
    "Q6_K": ((208,), slice(192, 208)),
    "Q5_0": ((0,), slice(0)),
    "Q5_1": ((0, 2), slice(0)),
    "Q2_K": ((80, 82), slice(0, 16)),
    "Q3_K": ((108,), slice(96, 108)),
    "Q4_K": ((0, 2), slice(4, 16)),
    "Q5_K": ((0, 2), slice(4, 16)),
    "IQ4_NL": ((0,), slice(0)),
    "IQ4_XS": ((0,), slice(2, 8)),
    "MXFP4": ((), slice(0, 1)),
}
FLOATS = ("F32", "F16", "BF16")
UNIT = 2.0**-24  # half a unit in the last place of 1.0f: the largest relative error of one float operation


def pack(cases: list[Case]) -> bytes:
    out = bytearray(b"PEKV0001" + struct.pack("<Q", len(cases)))
    for op, name, fields in cases:
        assert len(name) < 72, name
        out += struct.pack("<24s72sQ", op.encode(), name.encode(), len(fields))
        for key, value in fields.items():
            if isinstance(value, int):
                value = np.array([value], np.int64)
            elif isinstance(value, float):
                value = np.array([value], np.float64)
            code = {"float32": "f", "float64": "d", "int64": "i", "uint8": "b"}[value.dtype.name]
            out += struct.pack("<15scQ", key.encode(), code.encode(), value.size) + value.tobytes()
    return bytes(out)


# ---- weights ---------------------------------------------------------------------------------------------------------


def decode(raw: Array, format_name: str) -> Array:
    """float32 [rows, columns], by the gguf package."""
    if format_name == "F32":
        return raw.view(np.float32)
    return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[format_name]))


def raw_bytes(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8).reshape(values.shape[0], -1)


def block_of(format_name: str) -> tuple[int, int]:
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format_name]]
    return int(values), int(size)


def extreme_weights(format_name: str, n_blocks: int, rng: np.random.Generator) -> Array:
    """Rows whose integers all lie at an end of their range, under scales that are small, large and subnormal."""
    f16_at, sub = SCALES[format_name]
    _, size = block_of(format_name)
    rows = []
    for lanes in (0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0, None):
        for subs in (0x80, 0x7F, 0x01) if sub.stop else (0,):
            for d in (0.0123, -0.0123, 2.0**-24, 1000.0):
                block = rng.choice(np.array([0, 255, 128, 127], np.uint8), (n_blocks, size))
                if lanes is not None:
                    block[:] = lanes
                block[:, sub] = subs
                for i, at in enumerate(f16_at):
                    block[:, at : at + 2] = np.array([d * (1 + 2 * i)], np.float16).view(np.uint8)
                rows.append(block.reshape(-1))
    return np.stack(rows)


# ---- activations -----------------------------------------------------------------------------------------------------


def exact_activations(t: int, k: int, rng: np.random.Generator) -> Array:
    """float32 [t, k] that quantization holds exactly, so that both paths have one expectation: each block of 32 is a
    power of two times integers, the largest of them 127. Some blocks are zero; rows 1 to 4 are zero, huge, tiny and
    subnormal. Every other row that follows has, if it is long enough, blocks far above its mean (PE_FINE_ABOVE), which
    are held by two terms: their values are in steps of 1/256 of their scale.
    """
    q = rng.integers(-127, 128, (t, -(-k // 32), 32)).astype(np.float64)
    q[rng.random(q.shape) < 0.1] = 0
    q[:, :, 5 % min(k, 32)] = rng.choice([-127.0, 127.0], q.shape[:2])
    q[rng.random(q.shape[:2]) < 0.1] = 0
    scale = 2.0 ** rng.integers(-9, -4, q.shape[:2])
    if q.shape[1] >= 8:
        for row in range(5, t, 2):
            for at in rng.choice(q.shape[1], 1 + q.shape[1] // 16, replace=False):
                scale[row, at] = 0.5
                q[row, at] = rng.integers(-126, 127, 32) + rng.integers(-127, 128, 32) / 256
                q[row, at, :2] = 127, 5 + 127 / 256
    for row, power in ((2, 90.0), (3, -96.0), (4, -140.0)):
        if row < t:
            scale[row] = 2.0**power
    if t > 1:
        scale[1] = 0
    return (q * scale[:, :, None]).reshape(t, -1)[:, :k].astype(np.float32)


def linear(name: str, format_name: str, kind: int, raw: Array, x: Array, bias: Array | None) -> Case:
    w = decode(raw, format_name).astype(np.float64)
    rows, k = w.shape
    x64 = x.astype(np.float64)
    want = x64 @ w.T
    # What rounding is relative to: the largest weight of each block (a minimum may cancel a scale) times |x|.
    padding = ((0, 0), (0, -k % 32))
    magnitude = np.abs(np.pad(w, padding)).reshape(rows, -1, 32).max(axis=2)
    scale = np.abs(np.pad(x64, padding)).reshape(len(x), -1, 32).sum(axis=2) @ magnitude.T
    if bias is not None:
        want += bias
        scale += np.abs(bias)
    fields = {"type": kind, "rows": rows, "cols": k, "data": raw, "x": x, "want": want, "scale": scale}
    # Each operation on the way rounds once: three per term of a block of 32, which may have two, or one per value.
    by_value = (k + 4) * UNIT
    fields |= {"tolerance": by_value if format_name in FLOATS else (6 * (-(-k // 32)) + 4) * UNIT}
    fields |= {"tolerance_f32": by_value}
    return "linear", name, fields | ({} if bias is None else {"bias": bias})


def decoding(name: str, format_name: str, kind: int, raw: Array) -> Case:
    want = decode(raw, format_name)
    fields = {"type": kind, "rows": len(raw), "cols": want.shape[1], "data": raw, "want": want}
    return "format", f"{format_name} {name}", fields


def format_cases(formats: list[tuple[str, int]]) -> Iterator[Case]:
    for name, kind in formats:
        rng = np.random.default_rng(kind)
        block, size = block_of(name)
        for rows in (1, 8, 37):
            raw = raw_bytes(encode(rng.standard_normal((rows, 3 * block)), name, rng))
            yield decoding(f"{rows} rows", name, kind, raw)
        if name in FLOATS:
            yield decoding("any bits", name, kind, rng.integers(0, 256, (9, 64 * size), dtype=np.uint8))
        else:
            yield decoding("extremes", name, kind, extreme_weights(name, 2, rng))


def linear_cases(formats: list[tuple[str, int]]) -> Iterator[Case]:
    for name, kind in formats:
        rng = np.random.default_rng(100 + kind)
        block, _ = block_of(name)
        # 37 and 70 rows end inside a panel; 70 are four panels at once, four more and one alone.
        shapes = [(8, block, 130), (37, max(288, block), 130), (70, max(96, block), 33), (1, 2048, 9), (9, 2304, 9)]
        shapes += [(20, 640, 40)]  # more than one slice of 16 blocks of 32, and tile of 16 tokens
        if name == "Q4_0":
            shapes += [(417, 32, 130)]  # more panels than are multiplied at once
        if name in FLOATS:
            shapes += [(9, 1, 9), (37, 7, 33), (12, 101, 9)]
        for i, (rows, k, t) in enumerate(shapes):
            k = -(-k // block) * block
            raw = raw_bytes(encode(rng.standard_normal((rows, k)) / np.sqrt(k), name, rng))
            bias = rng.standard_normal(rows).astype(np.float32) if i % 2 else None
            yield linear(f"{name} {rows}x{k}, {t} tokens", name, kind, raw, exact_activations(t, k, rng), bias)
        if name in FLOATS:
            continue
        raw = extreme_weights(name, 3, rng)
        signs = [np.ones(32), -np.ones(32), np.tile([1, -1], 16), np.repeat([1, -1], 16), rng.choice([-1, 1], 32)]
        x = np.stack([np.tile(127.0 * s, 3 * block // 32) for s in signs]).astype(np.float32)
        yield linear(f"{name} extremes", name, kind, raw, x, None)


# ---- the other ops ---------------------------------------------------------------------------------------------------

SPECIAL = np.array([0, -0.0, 1e-40, -1e-45, 1e-30, 3e38, -3e38, 1, -1], np.float32)


def quantize_cases() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal(64 * 32).astype(np.float32) * np.repeat(10.0 ** rng.integers(-28, 34, 64), 32)
    yield "quantize", "64 blocks of any size", {"x": x.astype(np.float32)}
    halves = np.repeat(np.arange(-127, 128), 2)[:480] + 0.5  # ties, and the largest value in every block
    blocks = np.concatenate([halves.reshape(-1, 16), np.full((30, 16), 127.0)], axis=1)
    yield "quantize", "ties", {"x": np.ascontiguousarray(blocks.reshape(-1), np.float32)}
    yield "quantize", "special values", {"x": np.resize(SPECIAL, 9 * 32)}
    yield "quantize", "subnormal and zero", {"x": np.resize(np.array([0, 1e-40, -1e-41, 0, 1e-45], np.float32), 160)}


def rms_norm_cases() -> Iterator[Case]:
    rng = np.random.default_rng(2)
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 64, 100, 576, 2048, 4099):
        for size in (1.0, 1e-4, 1e15):
            x = (rng.standard_normal(n) * size + size / 2).astype(np.float32)
            weight = rng.standard_normal(n).astype(np.float32)
            x64 = x.astype(np.float64)
            eps = float(np.float32(1e-5))
            want = x64 / np.sqrt(np.mean(x64**2) + eps) * weight
            yield "rms_norm", f"{n} of {size:g}", {"x": x, "weight": weight, "eps": eps, "want": want}


def layer_norm_cases() -> Iterator[Case]:
    rng = np.random.default_rng(5)
    for n in (2, 7, 8, 17, 64, 100, 384, 2049):
        for size, offset in ((1.0, 0.0), (1e-3, 0.0), (1.0, 30.0)):
            x = (rng.standard_normal(n) * size + offset).astype(np.float32)
            weight, bias = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
            centred = x.astype(np.float64) - x.astype(np.float64).mean()
            eps = float(np.float32(1e-5))
            scale = 1 / np.sqrt(np.mean(centred**2) + eps)
            # The mean is a sum of n terms of the size of x, and its rounding is amplified as everything is.
            fields: Fields = {"x": x, "weight": weight, "eps": eps}
            fields["absolute"] = float((n / 8 + 8) * UNIT * np.abs(x).max() * scale * np.abs(weight).max())
            if n % 2:
                fields["bias"] = bias
            want = centred * scale * weight + (bias if n % 2 else 0)
            yield "layer_norm", f"{n} of {size:g} about {offset:g}", fields | {"want": want}


def rope_cases() -> Iterator[Case]:
    rng = np.random.default_rng(3)
    shapes = ((1, 2, 2), (3, 64, 64), (9, 64, 32), (2, 80, 20), (4, 128, 128), (2, 256, 64), (3, 10, 6))
    for heads, dim, n_rot in shapes:
        for pairing in (0, 1):
            x = rng.standard_normal((heads, dim)).astype(np.float32)
            angles = rng.uniform(-100, 100, n_rot // 2)
            table = np.concatenate([np.cos(angles), np.sin(angles)]).astype(np.float32)
            cos, sin = table.astype(np.float64).reshape(2, -1)
            first = np.arange(n_rot // 2) * (1 if pairing else 2)
            second = first + (n_rot // 2 if pairing else 1)
            want = x.astype(np.float64)
            a, b = want[:, first].copy(), want[:, second].copy()
            want[:, first], want[:, second] = a * cos - b * sin, a * sin + b * cos
            fields = {"x": x, "table": table, "want": want}
            fields |= {"heads": heads, "dim": dim, "n_rot": n_rot, "pairing": pairing}
            yield "rope", f"{heads}x{dim}, {n_rot} rotated, pairing {pairing}", fields


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def clamped(x: Array, up: Array) -> Array:
    gate = np.minimum(x, 7)
    return gate * sigmoid(1.702 * gate) * (np.clip(up, -7, 7) + 1)


erf = np.vectorize(math.erf)
# By number: of one input, with the error that is allowed relative to the result and to x.
FUNCTIONS: list[tuple[str, Callable[[Array], Array], float, float]] = [
    ("silu", lambda x: x * sigmoid(x), 1e-6, 1e-34),
    # Far below zero a rounding of the exponent is a large part of what is left: of next to nothing.
    ("gelu_tanh", lambda x: x * sigmoid(np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)), 4e-6, 1e-7),
    ("gelu", lambda x: x / 2 * (1 + erf(x / np.sqrt(2))), 1e-6, 8e-7),  # erf to 1.5e-7, times x / 2 <= 5
    ("relu", lambda x: np.maximum(x, 0), UNIT, 1e-44),
]


def activation_cases() -> Iterator[Case]:
    rng = np.random.default_rng(4)
    far = [-1e4, -1e10, 1e10, 0, -0.0, 1e-40]
    sweep = np.concatenate([np.linspace(-130, 130, 4001), np.linspace(-9, 9, 997), far]).astype(np.float32)
    inputs = {str(n): rng.standard_normal(n).astype(np.float32) * 8 for n in (1, 7, 8, 61, 1000)} | {"sweep": sweep}
    for number, (name, function, relative, absolute) in enumerate(FUNCTIONS):
        for title, a in inputs.items():
            b = rng.standard_normal(a.size).astype(np.float32) * 8
            for gated in (0, 1):
                want = function(a.astype(np.float64)) * (b.astype(np.float64) if gated else 1.0)
                fields = {"a": a, "b": b, "want": want, "function": number, "gated": gated}
                most = float(np.abs(b).max()) if gated else 1.0
                fields |= {"relative": relative, "absolute": absolute * most}
                yield "activation", f"{name}{' gated' if gated else ''} {title}", fields
    for title, a in inputs.items():
        b = rng.standard_normal(a.size).astype(np.float32) * 8
        want = clamped(a.astype(np.float64), b.astype(np.float64))
        fields = {"a": a, "b": b, "want": want, "function": len(FUNCTIONS), "gated": 1}
        yield "activation", f"swiglu_clamped {title}", fields | {"relative": 2e-6, "absolute": 2e-6}


def elementwise_cases() -> Iterator[Case]:
    rng = np.random.default_rng(6)
    for n in (1, 7, 8, 61, 1000):
        a, b = (rng.standard_normal(n).astype(np.float32) * 8 for _ in range(2))
        a64, b64 = a.astype(np.float64), b.astype(np.float64)
        for factor in (1.0, 0.25, -3.5):
            # A sum may cancel; without fused operations the product is rounded, too.
            absolute = 0.0 if factor == 1 else float(2 * UNIT * np.abs(factor * b64).max())
            fields = {"a": a, "b": b, "factor": factor, "relative": 2 * UNIT, "absolute": absolute}
            yield "add", f"{n} by {factor}", fields | {"want": a64 + factor * b64}
            yield "scale", f"{n} by {factor}", fields | {"want": a64 * factor}
        for cap in (5.0, 30.0):
            fields = {"a": a * 4, "b": b, "factor": cap, "relative": 1e-6, "absolute": 4e-7 * cap}
            yield "softcap", f"{n} to {cap}", fields | {"want": cap * np.tanh(a64 * 4 / cap)}
    far = np.array([-1e30, 1e30, -400, 400, 0, 1e-20], np.float32)
    fields = {"a": far, "b": far, "factor": 30.0, "relative": 1e-6, "absolute": 1.2e-5}
    yield "softcap", "far", fields | {"want": 30.0 * np.tanh(far.astype(np.float64) / 30)}


def attention_case(
    dim: int,
    group: int,
    n_kv: int,
    start: int,
    t: int,
    *,
    sharp: float = 1.0,
    window: int = 0,
    softcap: float = 0.0,
    sinks: bool = False,
    causal: bool = True,
) -> Case:
    """Keys and values are float16 numbers, so that one expectation holds for both cache types."""
    rng = np.random.default_rng([dim, group, start])
    length = start + t
    q = (sharp * rng.standard_normal((t, n_kv * group, dim))).astype(np.float32)
    k, v = (rng.standard_normal((length, n_kv, dim)).astype(np.float16).astype(np.float32) for _ in range(2))
    scale = float(np.float32(1 / np.sqrt(dim)))
    q64, k64 = q.astype(np.float64).reshape(t, n_kv, group, dim), k.astype(np.float64)
    scores = scale * np.einsum("tngd,jnd->tngj", q64, k64)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    ahead = np.arange(length) - (start + np.arange(t)[:, None, None, None])
    seen = ahead <= 0 if causal else np.ones_like(ahead, bool)
    if window:
        seen &= np.abs(ahead) < window
    scores = np.where(seen, scores, -np.inf)
    sink = rng.standard_normal(n_kv * group).astype(np.float32) if sinks else np.full(n_kv * group, -np.inf)
    by_head = sink.astype(np.float64).reshape(n_kv, group, 1)
    top = np.maximum(scores.max(axis=-1, keepdims=True), by_head)
    weights = np.exp(scores - top)
    weights /= weights.sum(axis=-1, keepdims=True) + np.exp(by_head - top)
    want = np.einsum("tngj,jnd->tngd", weights, v.astype(np.float64))
    fields = {"q": q, "k": k, "v": v, "heads": n_kv * group, "kv_heads": n_kv, "dim": dim, "start": start, "tokens": t}
    fields |= {"window": window, "softcap": softcap, "causal": int(causal)} | ({"sinks": sink} if sinks else {})
    # A score is wrong by at most dim roundings of |q| |k|, and its exponential by as much, relatively.
    tolerance = (dim + 64) * UNIT * max(1.0, float(np.abs(scores[np.isfinite(scores)]).max())) * float(np.abs(v).max())
    kinds = [("sharp", sharp > 1), (f"window {window}", window), (f"cap {softcap:g}", softcap), ("sinks", sinks)]
    kinds += [("both ways", not causal)]
    name = f"{n_kv * group} of {dim} over {n_kv}, {t} at {start}" + "".join(f", {kind}" for kind, it in kinds if it)
    return "attention", name, fields | {"scale": scale, "want": want, "tolerance": tolerance}


def attention_cases() -> Iterator[Case]:
    for shape in (
        (8, 1, 2, 0, 1), (8, 3, 3, 63, 3), (16, 40, 2, 64, 3), (32, 8, 1, 200, 2), (40, 1, 1, 65, 7), (64, 3, 3, 0, 70),
        (64, 3, 1, 62, 5), (80, 8, 2, 65, 2), (96, 1, 2, 200, 3), (128, 8, 1, 126, 4), (256, 3, 1, 63, 2),
        (64, 5, 1, 200, 9), (48, 2, 2, 511, 2), (16, 34, 1, 200, 1), (248, 2, 1, 63, 3),
    ):  # fmt: skip
        yield attention_case(*shape)
    yield attention_case(64, 3, 1, 130, 3, sharp=30.0)
    for window in (1, 7, 63, 64, 65, 130):
        yield attention_case(16, 3, 1, 0, 150, window=window)
        yield attention_case(32, 2, 2, 193, 9, window=window, softcap=20.0)
    yield attention_case(64, 3, 2, 66, 5, softcap=3.0)
    yield attention_case(64, 3, 2, 66, 5, sinks=True)
    yield attention_case(16, 8, 1, 250, 7, sinks=True, window=70)
    for t, window in ((1, 0), (9, 0), (70, 0), (140, 0), (9, 4), (140, 1), (140, 40), (140, 64), (140, 100)):
        yield attention_case(32, 1, 3, 0, t, causal=False, window=window)


def main(out: str, lines: Iterable[str]) -> None:
    formats = [(name, int(kind)) for name, kind in (line.split() for line in lines)]
    missing = [name for name, _ in formats if name not in SCALES and name not in FLOATS]
    if missing:
        raise SystemExit(f"error: make_vectors.py: no row in SCALES for {', '.join(missing)}; add where its scales are")
    makers: list[Callable[[], Iterator[Case]]] = [
        lambda: format_cases(formats), lambda: linear_cases(formats), quantize_cases, rms_norm_cases, layer_norm_cases,
        rope_cases, activation_cases, elementwise_cases, attention_cases,
    ]  # fmt: skip
    Path(out).write_bytes(pack([case for make in makers for case in make()]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: kernel_check formats | python make_vectors.py OUT")
    main(sys.argv[1], sys.stdin)
