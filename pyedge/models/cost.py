"""What a step costs: the bytes that each op of a Plan must read from memory, and its multiply-adds.

Owns the counting, for benches and profiles, which hold it against the machine's limits. Does not own time. What is
counted is what no program can avoid: each weight read once in a step, keys and values once for each piece. Values that
ops hand to each other stay in caches and are not counted. Element-wise work is counted as multiply-adds of float32, in
round numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from pyedge import _core

if TYPE_CHECKING:
    from pyedge.models.plan import Op, Plan

_FLOATS = ("F32", "F16", "BF16")  # weights that are multiplied as float32
_KV_BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
_SCALING = 2 / 32  # at least: a sum of 32 products is multiplied by the weights' scale, and by the activations'
_EXP = 10  # multiply-adds of an exponential, about
_ANGLE = 40  # of a power, a sine and a cosine in double precision, about


@dataclass(frozen=True)
class Cost:
    bytes: float = 0.0  # read from memory
    int8_macs: float = 0.0
    f32_macs: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.bytes + other.bytes, self.int8_macs + other.int8_macs, self.f32_macs + other.f32_macs)

    @property
    def macs(self) -> float:
        return self.int8_macs + self.f32_macs


@dataclass(frozen=True)
class Batch:
    """One step: pieces (start, end) of sequences, and how many rows are sampled."""

    pieces: Sequence[tuple[int, int]]
    n_rows: int

    @property
    def n_tokens(self) -> int:
        return sum(end - start for start, end in self.pieces)


@dataclass(frozen=True)
class _Counter:
    plan: Plan
    tensors: Sequence[_core.TensorInfo]
    batch: Batch
    precision: str
    kv_type: str

    def product(self, tensor: int, rows: float, read: float = 1.0) -> Cost:
        """rows of an input times a matrix, or one of a tensor's experts; `read`: how many of those are read."""
        info = self.tensors[tensor]
        columns, outputs, *_ = (*info.shape, 1)
        experts = info.shape[2] if len(info.shape) > 2 else 1
        macs = rows * columns * outputs
        n_bytes = read * info.n_bytes / experts
        if self.precision == "f32" or info.type in _FLOATS:
            return Cost(n_bytes, f32_macs=macs)
        return Cost(n_bytes, macs, macs * _SCALING)

    def width(self, op: Op) -> int:
        """Of the op's input, or of its output where it has none."""
        return self.plan.widths[(op.inputs or op.outputs)[0]]

    def vectors(self, weights: Sequence[int], read: float = 1.0) -> Cost:
        return Cost(bytes=read * sum(self.tensors[i].n_bytes for i in weights if i >= 0))

    def each(self, op: Op, macs: float) -> Cost:
        """Element-wise work, and the vectors it reads."""
        return self.vectors(op.weights) + Cost(f32_macs=macs * self.batch.n_tokens * self.width(op))


@cache
def _table() -> list[tuple[str, list[str]]]:
    """The core's kinds of ops: their names, and those of their parameters."""
    return [(info.name, [p.partition(":")[2] for p in info.parameters.split()]) for info in _core.ops()]


def _parameters(op: Op) -> dict[str, int | float]:
    return dict(zip(_table()[op.kind][1], op.parameters, strict=True))


def _embed(c: _Counter, op: Op) -> Cost:
    table = c.tensors[op.weights[0]]
    rows = c.batch.n_tokens
    return Cost(bytes=rows * table.n_bytes / table.shape[1], f32_macs=rows * table.shape[0])


def _linear(c: _Counter, op: Op) -> Cost:
    products = (c.product(i, c.batch.n_tokens) for i in op.weights[::2])
    return sum(products, c.vectors(op.weights[1::2]))


def _rope_table(c: _Counter, op: Op) -> Cost:
    return c.each(op, _ANGLE / 2)


def _rope(c: _Counter, op: Op) -> Cost:
    p = _parameters(op)
    return Cost(f32_macs=2 * c.batch.n_tokens * p["n_heads"] * p["n_rot"])


def _attention(c: _Counter, op: Op) -> Cost:
    p = _parameters(op)
    keys = read = 0.0  # seen by all tokens together; read, once for each piece
    window = int(p["window"])
    for start, end in c.batch.pieces:
        read += end - max(0, start - window + 1) if window else end
        if not p["causal"]:
            seen = (min(end, t + window) - max(0, t - window + 1) if window else end for t in range(start, end))
            keys += sum(seen)
        else:
            keys += sum(min(t + 1, window or t + 1) for t in range(start, end))
    # Two products with each key, its value's among them, and an exponential.
    return Cost(read * _kv_bytes(p, c.kv_type), 0.0, keys * p["n_heads"] * (2 * p["head_dim"] + _EXP))


def _kv_bytes(attention: dict[str, int | float], kv_type: str) -> float:
    """Of one token in one layer: a key and a value for each head."""
    return 2 * attention["n_kv_heads"] * attention["head_dim"] * _KV_BYTES[kv_type]


def kv_bytes_per_token(plan: Plan, kv_type: str = "f16") -> float:
    """What a token takes in the cache, in all layers. The core says so of a loaded model (page_bytes)."""
    kinds = _table()
    return sum(_kv_bytes(_parameters(op), kv_type) for op in plan.ops if kinds[op.kind][0] == "attention")


def _moe(c: _Counter, op: Op) -> Cost:
    p = _parameters(op)
    tokens, n = c.batch.n_tokens, p["n_experts"]
    distinct = n * (1 - (1 - p["n_used"] / n) ** tokens)  # expected, if tokens choose at random
    rows = tokens * p["n_used"]
    cost = c.product(op.weights[0], tokens) + Cost(f32_macs=rows * p["d_ff"] * _EXP)
    for i in op.weights[2::2]:
        cost += c.product(i, rows, distinct)
    return cost + c.vectors(op.weights[1:2]) + c.vectors(op.weights[3::2], distinct / n)


def _logits(c: _Counter, op: Op) -> Cost:
    return c.product(op.weights[0], c.batch.n_rows) + c.vectors(op.weights[1:]) if c.batch.n_rows else Cost()


def _elementwise(macs: float) -> Callable[[_Counter, Op], Cost]:
    return lambda c, op: c.each(op, macs)


KINDS: dict[str, Callable[[_Counter, Op], Cost]] = {  # every row of ops.def
    "embed": _embed,
    "rms_norm": _elementwise(2),
    "layer_norm": _elementwise(4),
    "linear": _linear,
    "split": _elementwise(0),
    "rope_table": _rope_table,
    "rope": _rope,
    "attention": _attention,
    "activation": _elementwise(_EXP),
    "add": _elementwise(1),
    "scale": _elementwise(1),
    "moe": _moe,
    "logits": _logits,
    "pool": _elementwise(1),
}


def costs(
    plan: Plan, tensors: Sequence[_core.TensorInfo], batch: Batch, precision: str = "fast", kv_type: str = "f16"
) -> list[Cost]:
    """The cost of each op of the plan in that step. tensors: of the file that the plan was made from."""
    counter = _Counter(plan, tensors, batch, precision, kv_type)
    return [KINDS[_table()[op.kind][0]](counter, op) for op in plan.ops]
