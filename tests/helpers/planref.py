"""The oracle: a plan interpreted in numpy float64, one whole sequence at once, with weights decoded by `gguf`.

Owns what every op of core/src/ops.def means, written as plainly as possible. Shares no code with the core: it has no
pages, no batch and no panels. With precision="fast" the activations of quantized weights are rounded to 8 bits in
blocks of 32 as the core does, and kv_type rounds keys and values, so that both can be compared closely.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from pyedge import _core
from pyedge.models import Plan
from pyedge.models.plan import Op

Array = np.ndarray  # float64
Numbers = dict[str, int | float]

FLOAT_TYPES = {"F32", "F16", "BF16"}


STANDS_OUT = 1.25  # PE_FINE_ABOVE of core/src/kernels.h


@dataclass(frozen=True)
class Context:
    tokens: Array  # [T]
    precision: str
    kv_type: str
    weights: list[tuple[Array, str] | None]  # of the op at hand: values, type

    def weight(self, i: int) -> Array:
        found = self.weights[i]
        assert found is not None
        return found[0]

    def product(self, x: Array, i: int, expert: int | None = None, above: float = STANDS_OUT) -> Array:
        """x W^T + b for weights i (the matrix, or an expert's) and i + 1 (its bias, which may be absent). above: times
        the mean scale of a row, which makes a block stand out."""
        found, bias = self.weights[i], self.weights[i + 1]
        assert found is not None
        values, type_name = found
        if self.precision == "fast" and type_name not in FLOAT_TYPES:
            x = _rounded(x, above)
        added = 0.0 if bias is None else bias[0]
        if expert is not None:
            values, added = values[expert], added if bias is None else bias[0][expert]
        return x @ values.T + added


def _rounded(x: Array, above: float) -> Array:
    """To +-127 in blocks of 32, with a float32 scale; what is left of a block that stands out is rounded once more."""
    width = x.shape[-1]
    blocks = np.pad(x, ((0, 0), (0, -width % 32))).reshape(x.shape[0], -1, 32)
    first, scale = _steps(blocks)
    stands_out = scale > above * scale.mean(axis=1, keepdims=True)
    both = first + np.where(stands_out, _steps(blocks - first)[0], 0.0)
    return both.reshape(x.shape[0], -1)[:, :width]


def _steps(blocks: Array) -> tuple[Array, Array]:
    scale = (np.abs(blocks).max(axis=-1, keepdims=True) / 127.0).astype(np.float32).astype(np.float64)
    return np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)) * scale, scale


def _embed(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    rows = {0: c.tokens, 1: np.arange(len(c.tokens)), 2: np.zeros_like(c.tokens)}[int(p["by"])]
    return [c.weight(0)[rows]]


def _by_groups(x: Array, weight: Array, group: int) -> tuple[Array, Array]:
    """x as [T, groups, group], and the weight as it multiplies that."""
    return x.reshape(len(x), -1, group), weight.reshape(-1, group)


def _rms_norm(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    x, weight = _by_groups(inputs[0], c.weight(0), int(p["group"]))
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + p["eps"]) * weight
    return [y.reshape(inputs[0].shape)]


def _layer_norm(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    x, weight = _by_groups(inputs[0], c.weight(0), int(p["group"]))
    centred = x - x.mean(axis=-1, keepdims=True)
    y = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + p["eps"]) * weight
    if c.weights[1] is not None:
        y = y + c.weight(1).reshape(-1, y.shape[-1])
    return [y.reshape(inputs[0].shape)]


def _linear(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [c.product(inputs[0], 2 * i) for i in range(int(p["n_weights"]))]


def _split(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    widths = [int(p[k]) for k in ("first", "second", "third") if p[k]]
    return np.split(inputs[0], np.cumsum(widths)[:-1], axis=1)


def _rope_table(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    """Here all cosines, then all sines; how the core lays them out is its own affair."""
    n = int(p["n_rot"]) // 2
    factors = np.ones(n) if c.weights[0] is None else c.weight(0)
    frequencies = float(p["base"]) ** (-np.arange(n) / n) / factors
    low, high = p["ramp_low"], p["ramp_high"]
    above = np.clip((np.arange(n) - low) / (high - low), 0, 1) if low < high else np.ones(n)
    frequencies = frequencies / p["scale"] * above + frequencies * (1 - above)
    angles = np.arange(len(c.tokens))[:, None] * frequencies
    return [p["magnitude"] * np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)]


def _rope(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    x, table = inputs
    n_rot = int(p["n_rot"])
    cos, sin = (t[:, None, :] for t in np.split(table, 2, axis=-1))
    heads = x.reshape(len(x), int(p["n_heads"]), int(p["head_dim"])).copy()
    if p["pairing"] == 0:
        first, second = slice(0, n_rot, 2), slice(1, n_rot, 2)
    else:
        first, second = slice(0, n_rot // 2), slice(n_rot // 2, n_rot)
    a, b = heads[..., first].copy(), heads[..., second].copy()
    heads[..., first], heads[..., second] = a * cos - b * sin, a * sin + b * cos
    return [heads.reshape(x.shape)]


def _cached_q8(x: Array) -> Array:
    """To +-127 of a float16 scale in blocks of 32 of a head, the last of which may be shorter."""
    scale = _per_block(x, lambda block: np.abs(block).max(axis=-1) / 127)
    return np.clip(np.rint(_over(x, scale)), -127, 127) * scale


def _cached_q4(x: Array) -> Array:
    """To -8 to 7 of a float16 scale, whose sign makes the largest number -8."""
    scale = _per_block(x, lambda b: np.take_along_axis(b, np.abs(b).argmax(axis=-1, keepdims=True), -1)[..., 0] / -8)
    return np.clip(np.rint(_over(x, scale) + 8) - 8, -8, 7) * scale


def _per_block(x: Array, scale: Callable[[Array], Array]) -> Array:
    parts = np.split(x, range(32, x.shape[-1], 32), axis=-1)
    scales = [np.repeat(scale(p)[..., None].astype(np.float16), p.shape[-1], axis=-1) for p in parts]
    return np.concatenate(scales, axis=-1).astype(np.float64)


def _over(x: Array, scale: Array) -> Array:
    return np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)


CACHED: dict[str, Callable[[Array], Array]] = {  # by cache type: what is left of keys and values [T, heads, head_dim]
    "f32": lambda x: x,
    "f16": lambda x: x.astype(np.float16).astype(np.float64),
    "q8_0": _cached_q8,
    "q4_0": _cached_q4,
}


def _attention(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    n_heads, n_kv, head_dim = int(p["n_heads"]), int(p["n_kv_heads"]), int(p["head_dim"])
    q, k, v = inputs
    k, v = (CACHED[c.kv_type](x.reshape(len(x), n_kv, head_dim)) for x in (k, v))
    q = q.reshape(len(q), n_heads, head_dim)
    k, v = (np.repeat(x, n_heads // n_kv, axis=1) for x in (k, v))
    scores = _softcap(np.einsum("ihd,jhd->hij", q, k) * p["scale"], p["softcap"])
    ahead = np.arange(len(q))[None, :] - np.arange(len(q))[:, None]  # of key j before query i
    seen = ahead <= 0 if p["causal"] else np.ones_like(ahead, dtype=bool)
    if p["window"]:
        seen &= np.abs(ahead) < p["window"]
    scores = np.where(seen, scores, -np.inf)
    sinks = np.full(n_heads, -np.inf) if c.weights[0] is None else c.weight(0)
    top = np.maximum(scores.max(axis=-1), sinks[:, None])[..., None]
    scores = np.exp(scores - top)
    total = scores.sum(axis=-1, keepdims=True) + np.exp(sinks[:, None, None] - top)
    out = np.einsum("hij,jhd->ihd", scores / total, v)
    return [out.reshape(len(q), -1)]


def _softcap(x: Array, cap: float) -> Array:
    return cap * np.tanh(x / cap) if cap else x


def _sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


_erf = np.vectorize(math.erf)
FUNCTIONS: list[Callable[[Array], Array]] = [  # by number; the last, which has a second input, is below
    lambda x: x * _sigmoid(x),
    lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    lambda x: x / 2 * (1 + _erf(x / np.sqrt(2))),
    lambda x: np.maximum(x, 0),
]


def _apply(function: int, x: Array, up: Array | None = None) -> Array:
    if function < len(FUNCTIONS):
        return FUNCTIONS[function](x) * (1.0 if up is None else up)
    assert up is not None
    gate, up = np.minimum(x, 7), np.clip(up, -7, 7)
    return gate * _sigmoid(1.702 * gate) * (up + 1)


def _activation(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [_apply(int(p["function"]), *inputs)]


def _add(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [inputs[0] + p["factor"] * inputs[1]]


def _scale(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [p["factor"] * inputs[0]]


def _moe(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    (x,) = inputs
    scores = c.product(x, 0)
    y = np.zeros_like(x)
    for t, row in enumerate(x):
        best = np.argsort(-scores[t], kind="stable")[: int(p["n_used"])]
        weights = np.exp(scores[t] - scores[t].max())
        weights = weights / (weights[best] if p["chosen"] else weights).sum()
        for e in best:
            gate, up = c.product(row[None], 2, int(e)), c.product(row[None], 4, int(e))
            y[t] += weights[e] * c.product(_apply(int(p["function"]), gate, up), 6, int(e))[0]
    return [y]


def _logits(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [_softcap(c.product(inputs[0], 0, above=0.0) * p["scale"], p["softcap"])]


def _pool(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    """Of the whole sequence, once for each of its rows: as the core does when all rows are asked for."""
    (x,) = inputs
    one = [x.mean(axis=0), x[0], None][int(p["pooling"])]
    return [x if one is None else np.tile(one, (len(x), 1))]


OPS: dict[str, Callable[[Context, list[Array], Numbers], list[Array]]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "split": _split,
    "rope_table": _rope_table,
    "rope": _rope,
    "attention": _attention,
    "activation": _activation,
    "add": _add,
    "scale": _scale,
    "moe": _moe,
    "logits": _logits,
    "pool": _pool,
}


@dataclass(frozen=True)
class Reference:
    logits: Array  # [T, n_vocab]; of a plan that pools, [T, width]
    outputs: dict[str, list[Array]]  # of every op, by its name: [T, width] each


class Oracle:
    """A plan with its weights decoded once; call it with token ids."""

    def __init__(self, plan: Plan, path: str | Path) -> None:
        self._plan = plan
        read = {w for op in plan.ops for w in op.weights if w >= 0}
        self._weights = {
            i: (gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64), t.tensor_type.name)
            for i, t in enumerate(gguf.GGUFReader(path).tensors)
            if i in read
        }

    def __call__(self, tokens: Sequence[int], precision: str = "f32", kv_type: str = "f32") -> Reference:
        values: dict[int, Array] = {}
        outputs: dict[str, list[Array]] = {}
        for op in self._plan.ops:
            made = self.apply(op, [values[i] for i in op.inputs], tokens, precision, kv_type)
            values.update(zip(op.outputs, made, strict=True))
            outputs[op.name] = made
        return Reference(made[0], outputs)

    def apply(
        self, op: Op, inputs: list[Array], tokens: Sequence[int], precision: str = "f32", kv_type: str = "f32"
    ) -> list[Array]:
        """What one op makes of its inputs, [T, width] each."""
        info = _core.ops()[op.kind]
        names = [p.partition(":")[2] for p in info.parameters.split()]
        weights = [self._weights[w] if w >= 0 else None for w in op.weights]
        context = Context(np.asarray(tokens), precision, kv_type, weights)
        return OPS[info.name](context, inputs, dict(zip(names, op.parameters, strict=True)))
