"""The oracle: a plan interpreted in numpy float64, one whole sequence at once, with weights decoded by `gguf`.

Owns what every op of core/src/ops.def means, written as plainly as possible. Shares no code with the core: it has no
pages, no batch and no panels. With precision="fast" the activations of quantized weights are rounded to 8 bits in
blocks of 32 as the core does, and kv_type="f16" rounds keys and values, so that both can be compared closely.
"""

from __future__ import annotations

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

    def product(self, x: Array, i: int) -> Array:
        """x W^T + b for weights i (the matrix) and i + 1 (its bias, which may be absent)."""
        found = self.weights[i]
        assert found is not None
        values, type_name = found
        if self.precision == "fast" and type_name not in FLOAT_TYPES:
            x = _rounded(x)
        bias = self.weights[i + 1]
        return x @ values.T + (0.0 if bias is None else bias[0])


def _rounded(x: Array) -> Array:
    """To +-127 in blocks of 32, with a float32 scale; what is left of a block that stands out is rounded once more."""
    width = x.shape[-1]
    blocks = np.pad(x, ((0, 0), (0, -width % 32))).reshape(x.shape[0], -1, 32)
    first, scale = _steps(blocks)
    stands_out = scale > 2.0 * scale.mean(axis=1, keepdims=True)
    both = first + np.where(stands_out, _steps(blocks - first)[0], 0.0)
    return both.reshape(x.shape[0], -1)[:, :width]


def _steps(blocks: Array) -> tuple[Array, Array]:
    scale = (np.abs(blocks).max(axis=-1, keepdims=True) / 127.0).astype(np.float32).astype(np.float64)
    return np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0)) * scale, scale


def _embed(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [c.weight(0)[c.tokens]]


def _rms_norm(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    (x,) = inputs
    return [x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + p["eps"]) * c.weight(0)]


def _linear(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [c.product(inputs[0], 2 * i) for i in range(int(p["n_weights"]))]


def _rope_table(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    """Here all cosines, then all sines; how the core lays them out is its own affair."""
    n = int(p["n_rot"]) // 2
    factors = np.ones(n) if c.weights[0] is None else c.weight(0)
    frequencies = float(p["base"]) ** (-np.arange(n) / n) / (p["scale"] * factors)
    angles = np.arange(len(c.tokens))[:, None] * frequencies
    return [np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)]


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


def _attention(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    n_heads, n_kv, head_dim = int(p["n_heads"]), int(p["n_kv_heads"]), int(p["head_dim"])
    q, k, v = inputs
    if c.kv_type == "f16":
        k, v = k.astype(np.float16).astype(np.float64), v.astype(np.float16).astype(np.float64)
    q = q.reshape(len(q), n_heads, head_dim)
    k, v = (np.repeat(x.reshape(len(x), n_kv, head_dim), n_heads // n_kv, axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) * p["scale"]
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = np.einsum("hij,jhd->ihd", scores / scores.sum(axis=-1, keepdims=True), v)
    return [out.reshape(len(q), -1)]


def _silu_mul(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    gate, up = inputs
    return [gate / (1.0 + np.exp(-gate)) * up]


def _add(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [inputs[0] + inputs[1]]


def _logits(c: Context, inputs: list[Array], p: Numbers) -> list[Array]:
    return [c.product(inputs[0], 0)]


OPS: dict[str, Callable[[Context, list[Array], Numbers], list[Array]]] = {
    "embed": _embed,
    "rms_norm": _rms_norm,
    "linear": _linear,
    "rope_table": _rope_table,
    "rope": _rope,
    "attention": _attention,
    "silu_mul": _silu_mul,
    "add": _add,
    "logits": _logits,
}


@dataclass(frozen=True)
class Reference:
    logits: Array  # [T, n_vocab]
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
