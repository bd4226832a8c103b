"""Builds a Plan: the flat list of ops that the core runs in every step, made once when a model is loaded.

Owns: op and value numbering, op names, the look-up of weights in the file, the widths of values, and the rule that no
tensor of the file stays unread. Does not own: what an op computes (the core; its table of ops is read through the
binding, so the two cannot drift), nor which ops make a family (one file each beside this one).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, overload

from pyedge import _core
from pyedge.errors import ModelError
from pyedge.models.keys import CONVERT

if TYPE_CHECKING:
    from pyedge.models.hparams import HParams

_MAX_NAME = 63  # bytes, the core's limit


class Op(NamedTuple):
    """One row of a plan, in the form that `_core.Model` takes."""

    kind: int  # row of the core's table
    name: str  # unique: `blk.3.attn_q`
    inputs: list[int]  # values
    outputs: list[int]  # values, numbered in order of appearance
    weights: list[int]  # tensor numbers in the file, -1: absent
    parameters: list[int | float]


class Index(IntEnum):
    """What chooses a row of an embedding. Like the enums below: numbers of pyedge.h."""

    TOKEN = 0
    POSITION = 1
    ZERO = 2  # row 0 for every token: the type of a lone text in an encoder


class Pairing(IntEnum):
    """Which dims of a head rope rotates together."""

    INTERLEAVED = 0  # (2i, 2i + 1)
    HALVES = 1  # (i, i + n_rot / 2)


class Activation(IntEnum):
    SILU = 0  # x * sigmoid(x)
    GELU_TANH = 1  # the approximation by tanh      Hendrycks and Gimpel 2016, arXiv:1606.08415
    GELU = 2  # x * Phi(x), by erf
    RELU = 3
    SWIGLU_CLAMPED = 4  # of gpt-oss, always gated: gate at most 7, up within +-7, gate * sigmoid(1.702 gate) * (up + 1)


class Pooling(IntEnum):
    """How the tokens of a text become its embedding."""

    MEAN = 0
    FIRST = 1  # [CLS]
    LAST = 2


@dataclass(frozen=True)
class Rope:
    """One configuration of rotary embeddings. Ops with equal configurations share one table of cosines and sines."""

    head_dim: int
    n_rot: int
    base: float
    scale: float = 1.0  # positions are divided by it
    factors: str | None = None  # tensor of n_rot / 2 divisors, `rope_freqs`; left out where the file has none
    pairing: Pairing = Pairing.INTERLEAVED
    magnitude: float = 1.0  # of cosines and sines
    ramp: tuple[float, float] = (0.0, 0.0)  # YaRN: the pairs i between which `scale` sets in; (0, 0): it holds for all


@dataclass(frozen=True, eq=False)
class Value:
    """A handle of what an op makes: float32 [T, width] in every step."""

    id: int
    width: int
    name: str  # of the op, or of the weight for one output of a linear op
    builder: PlanBuilder = field(repr=False)

    def __add__(self, other: Value) -> Value:
        return self.builder.add(self, other)


@dataclass(frozen=True, eq=False)
class Plan:
    """The ops of one model, with what is needed to read them. `str(plan)` shows one op a line."""

    hparams: HParams
    ops: list[Op]
    widths: list[int]  # of each value
    tensors: dict[int, str]  # number -> `token_embd.weight Q4_1 [49152, 576]`, for those the plan reads
    pooling: Pooling | None  # of a model that embeds; None: it generates
    causal: bool  # a token sees none after it, so that a text may be computed in parts

    def __str__(self) -> str:
        kinds = [info.name for info in _core.ops()]
        width = max(len(op.name) for op in self.ops)
        lines = []
        for op in self.ops:
            rows = "rows" if kinds[op.kind] in ("logits", "pool") else "T"
            made = " ".join(f"%{i} [{rows}, {self.widths[i]}]" for i in op.outputs)
            call = f"{kinds[op.kind]}({', '.join(f'%{i}' for i in op.inputs)})"
            read = ", ".join(self.tensors[i] for i in op.weights if i >= 0)
            numbers = " ".join(
                f"{n}={v:g}" if isinstance(v, float) else f"{n}={v}"
                for n, v in zip(_table()[kinds[op.kind]].parameters, op.parameters, strict=True)
            )
            lines.append("  ".join(s for s in (f"{op.name:{width}}", call, "->", made, numbers, read) if s))
        return "\n".join(lines)


class _Kind(NamedTuple):
    number: int
    parameters: list[str]


@cache
def _table() -> dict[str, _Kind]:
    return {
        info.name: _Kind(i, [p.partition(":")[2] for p in info.parameters.split()])
        for i, info in enumerate(_core.ops())
    }


class _State:
    """What all scopes of one builder share."""

    def __init__(self, gguf: _core.Gguf, hparams: HParams) -> None:
        self.hparams = hparams
        self.tensors = gguf.tensors
        self.index = {t.name: i for i, t in enumerate(self.tensors)}
        self.ops: list[Op] = []
        self.names: set[str] = set()
        self.widths: list[int] = []
        self.read: set[int] = set()
        self.ropes: dict[tuple[int | float, ...], Value] = {}
        self.n_layers = 0
        self.causal = True
        self.pooling: Pooling | None = None


class PlanBuilder:
    """Appends ops. `scope("blk.3")` gives the same builder with that prefix on every name it looks up or makes."""

    def __init__(self, gguf: _core.Gguf, hparams: HParams) -> None:
        self._state = _State(gguf, hparams)
        self._prefix = ""

    def scope(self, name: str) -> PlanBuilder:
        inner = copy(self)  # the state stays shared
        inner._prefix = f"{self._prefix}{name}."
        return inner

    # ---- ops ---------------------------------------------------------------------------------------------------------

    def embed(self, name: str, by: Index = Index.TOKEN) -> Value:
        """Rows of an embedding."""
        table, _, width = self._matrix(f"{self._prefix}{name}.weight")
        return self._emit("embed", self._prefix + name, [], [width], [table], d_model=width, by=int(by))[0]

    def rms_norm(self, x: Value, name: str, group: int | None = None) -> Value:
        """group: values that are normed together, `head_dim` for every head by itself; None: the whole row."""
        weight, group = self._norm_weight(x, name, group)
        eps = self._state.hparams.norm_eps
        return self._emit("rms_norm", self._prefix + name, [x], [x.width], [weight], eps=eps, group=group)[0]

    def layer_norm(self, x: Value, name: str, group: int | None = None) -> Value:
        """With the bias, if the file has one."""
        weight, group = self._norm_weight(x, name, group)
        weights = [weight, self._vector(f"{self._prefix}{name}.bias", x.width)]
        eps = self._state.hparams.norm_eps
        return self._emit("layer_norm", self._prefix + name, [x], [x.width], weights, eps=eps, group=group)[0]

    @overload
    def linear(self, x: Value, name: str, /) -> Value: ...
    @overload
    def linear(self, x: Value, name: str, second: str, /, *more: str) -> tuple[Value, ...]: ...
    def linear(self, x: Value, *names: str) -> Value | tuple[Value, ...]:
        """One product per name, over the same input; a bias that the file has is added. The op bears the first name."""
        weights: list[int] = []
        widths: list[int] = []
        for name in names:
            weight, rows = self._product(x, name)
            weights += [weight, self._vector(f"{self._prefix}{name}.bias", rows)]
            widths.append(rows)
        labels = [self._prefix + name for name in names]
        made = self._emit("linear", labels[0], [x], widths, weights, labels, n_weights=len(names))
        return made[0] if len(made) == 1 else made

    def split(self, x: Value, **widths: int) -> tuple[Value, ...]:
        """The parts of x, two or three, by the names that their own weights would have: split(qkv, attn_q=512, ...)."""
        total = sum(widths.values())
        self._expect(x, total, f"{' + '.join(map(str, widths.values()))} = {total} is needed")
        labels = [self._prefix + name for name in widths]
        parts = [*widths.values(), 0][:3]
        return self._emit(
            "split",
            f"{x.name}_split",
            [x],
            list(widths.values()),
            (),
            labels,
            first=parts[0],
            second=parts[1],
            third=parts[2],
        )

    def rope(self, x: Value, rope: Rope) -> Value:
        """Rotates every head of x. Named after x: `blk.3.rope_q` for `blk.3.attn_q`."""
        n_heads = x.width // rope.head_dim
        self._expect(x, n_heads * rope.head_dim, f"heads are {rope.head_dim} wide")
        scope, _, label = x.name.rpartition(".")
        name = f"{scope}.rope_{label.removeprefix('attn_')}".lstrip(".")
        return self._emit(
            "rope",
            name,
            [x, self._rope_table(rope)],
            [x.width],
            n_heads=n_heads,
            head_dim=rope.head_dim,
            n_rot=rope.n_rot,
            pairing=int(rope.pairing),
        )[0]

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        scale: float | None = None,
        *,
        causal: bool = True,
        window: int = 0,
        softcap: float = 0.0,
        sinks: str | None = None,
    ) -> Value:
        """The next layer's attention, with the write of k and v to its pages.

        scale: None for 1 / sqrt(head_dim). window: keys further away than that, the token itself counted, are not seen;
        0: all are. softcap: 0 for none. sinks: name of a vector with a score for every head."""
        h = self._state.hparams
        for x, n, key in (
            (q, h.n_heads, "head_count"),
            (k, h.n_kv_heads, "head_count_kv"),
            (v, h.n_kv_heads, "head_count_kv"),
        ):
            because = f"{h.architecture}.attention.{key} is {n}, with heads of {h.head_dim}"
            self._expect(x, n * h.head_dim, because)
        layer = self._state.n_layers
        self._state.n_layers += 1
        self._state.causal &= causal
        sink = -1 if sinks is None else self._vector(f"{self._prefix}{sinks}.weight", h.n_heads, required=True)
        return self._emit(
            "attention",
            f"{self._prefix}attn",
            [q, k, v],
            [q.width],
            [sink],
            layer=layer,
            n_heads=h.n_heads,
            n_kv_heads=h.n_kv_heads,
            head_dim=h.head_dim,
            causal=int(causal),
            window=window,
            scale=1.0 / math.sqrt(h.head_dim) if scale is None else scale,
            softcap=softcap,
        )[0]

    def activation(self, function: Activation, x: Value, up: Value | None = None) -> Value:
        """f(x), or f(x) * up, in the scope of x: `blk.3.gelu`, `blk.3.silu_mul`."""
        name = f"{x.name.rpartition('.')[0]}.{function.name.lower()}".lstrip(".")
        inputs = [x]
        if up is not None:
            self._expect(up, x.width, f"{x.name} is {x.width} wide")
            inputs, name = [x, up], f"{name}_mul"
        return self._emit("activation", name, inputs, [x.width], function=int(function), width=x.width)[0]

    def add(self, x: Value, y: Value, factor: float = 1.0) -> Value:
        """x + factor * y, named after y, the new part of a residual stream: `blk.3.attn_output_add`."""
        self._expect(y, x.width, f"{x.name} is {x.width} wide")
        return self._emit("add", f"{y.name}_add", [x, y], [x.width], width=x.width, factor=factor)[0]

    def scale(self, x: Value, factor: float) -> Value:
        return self._emit("scale", f"{x.name}_scale", [x], [x.width], width=x.width, factor=factor)[0]

    def moe(
        self, x: Value, n_experts: int, n_used: int, d_ff: int, function: Activation, *, chosen: bool = True
    ) -> Value:
        """Experts chosen by `ffn_gate_inp`: `ffn_gate_exps`, `ffn_up_exps` and `ffn_down_exps`, [n_experts, rows,
        columns], and the biases that the file has. chosen: their weights are the softmax of the chosen experts' scores,
        not of all."""
        router, rows, columns = self._matrix(f"{self._prefix}ffn_gate_inp.weight")
        if (rows, columns) != (n_experts, x.width):
            raise ModelError(
                f"{self._prefix}ffn_gate_inp.weight: [{rows}, {columns}], where {n_experts} experts and an input of "
                f"{x.width} are expected; {CONVERT}"
            )
        weights = [router, self._vector(f"{self._prefix}ffn_gate_inp.bias", n_experts)]
        for name, shape in (
            ("ffn_gate_exps", (d_ff, x.width)),
            ("ffn_up_exps", (d_ff, x.width)),
            ("ffn_down_exps", (x.width, d_ff)),
        ):
            weights.append(self._tensor(f"{self._prefix}{name}.weight", (n_experts, *shape)))
            weights.append(self._tensor(f"{self._prefix}{name}.bias", (n_experts, shape[0]), required=False))
        return self._emit(
            "moe",
            f"{self._prefix}ffn_moe",
            [x],
            [x.width],
            weights,
            n_experts=n_experts,
            n_used=n_used,
            d_ff=d_ff,
            function=int(function),
            chosen=int(chosen),
        )[0]

    def logits(
        self, x: Value, name: str, tied: str | None = None, *, scale: float = 1.0, softcap: float = 0.0
    ) -> Value:
        """The last op, over the rows that are sampled. tied: the embedding to use where the file has no such weight."""
        source = name
        if tied is not None and f"{self._prefix}{name}.weight" not in self._state.index:
            source = tied
        weight, rows = self._product(x, source)
        if rows != self._state.hparams.n_vocab:
            n_vocab = self._state.hparams.n_vocab
            raise ModelError(
                f"{self._prefix}{source}.weight: {rows} rows, but the vocabulary has {n_vocab} tokens; {CONVERT}"
            )
        weights = [weight, self._vector(f"{self._prefix}{name}.bias", rows)]
        return self._emit(
            "logits", self._prefix + name, [x], [rows], weights, n_vocab=rows, scale=scale, softcap=softcap
        )[0]

    def pool(self, x: Value, pooling: Pooling) -> Value:
        """The last op of a model that embeds: one row for each text."""
        self._state.pooling = pooling
        return self._emit("pool", f"{self._prefix}pool", [x], [x.width], width=x.width, pooling=int(pooling))[0]

    # ---- the end -----------------------------------------------------------------------------------------------------

    def require(self, x: Value, width: int, key: str) -> None:
        """Refuses a file whose key `{architecture}.{key}` is not the width of x."""
        self._expect(x, width, f"{self._state.hparams.architecture}.{key} is {width}")

    def finish(self, ignored: Iterable[str] = ()) -> Plan:
        """The plan. Every tensor must have been read, or match one of `ignored` (shell patterns): a bias or a frequency
        table that nobody reads is how an engine becomes silently wrong."""
        state = self._state
        patterns = tuple(ignored)
        unread = [
            t.name
            for i, t in enumerate(state.tensors)
            if i not in state.read and not any(fnmatchcase(t.name, p) for p in patterns)
        ]
        if unread:
            more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
            raise ModelError(
                f"{unread[0]}{more}: the {state.hparams.architecture} family does not read this tensor, and without it "
                "the output would be wrong; the file needs a newer pyedge, or was not made correctly"
            )
        described = {
            i: f"{t.name} {t.type} [{', '.join(map(str, reversed(t.shape)))}]"
            for i, t in enumerate(state.tensors)
            if i in state.read
        }
        return Plan(state.hparams, state.ops, state.widths, described, state.pooling, state.causal)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _emit(
        self,
        kind: str,
        name: str,
        inputs: Sequence[Value],
        widths: Sequence[int],
        weights: Sequence[int] = (),
        labels: Sequence[str] | None = None,
        **parameters: int | float,
    ) -> tuple[Value, ...]:
        state, row = self._state, _table()[kind]
        if set(parameters) != set(row.parameters):  # a fault of this file, never of a model
            raise TypeError(f"{name}: op {kind} takes {row.parameters}, not {sorted(parameters)}")
        if name in state.names or len(name.encode()) > _MAX_NAME:
            raise ValueError(f"{name}: an op's name must be unique and at most {_MAX_NAME} bytes")
        state.names.add(name)
        outputs = list(range(len(state.widths), len(state.widths) + len(widths)))
        state.widths += widths
        in_order = [parameters[p] for p in row.parameters]
        state.ops.append(Op(row.number, name, [x.id for x in inputs], outputs, list(weights), in_order))
        labels = labels or [name] * len(widths)
        return tuple(Value(i, w, label, self) for i, w, label in zip(outputs, widths, labels, strict=True))

    def _product(self, x: Value, name: str) -> tuple[int, int]:
        """Tensor number and rows of the matrix that x is multiplied with."""
        full = f"{self._prefix}{name}.weight"
        weight, rows, columns = self._matrix(full)
        if columns != x.width:
            raise ModelError(f"{full}: {columns} columns, but {x.name} is {x.width} wide; {CONVERT}")
        return weight, rows

    def _matrix(self, full: str, required: bool = True) -> tuple[int, int, int]:
        """Tensor number, rows and columns of a matrix or vector, which counts as read; (-1, 0, 0) if there is none."""
        index = self._state.index.get(full, -1)
        if index < 0:
            if required:
                family = self._state.hparams.architecture
                raise ModelError(
                    f"{full}: tensor missing; the file is incomplete or holds no {family} model, get another"
                )
            return -1, 0, 0
        columns, rows, *higher = (*self._state.tensors[index].shape, 1)
        if any(n != 1 for n in higher):
            raise ModelError(f"{full}: {len(higher) + 1} dimensions, where a matrix is expected; {CONVERT}")
        self._state.read.add(index)
        return index, rows, columns

    def _tensor(self, full: str, shape: tuple[int, ...], required: bool = True) -> int:
        """Tensor number of a tensor of `shape`, slowest axis first; -1 if the file has none."""
        index = self._state.index.get(full, -1)
        if index < 0:
            if required:
                self._matrix(full)  # says that it is missing
            return -1
        found = tuple(reversed(self._state.tensors[index].shape))
        if found != shape:
            raise ModelError(f"{full}: shape {list(found)}, where {list(shape)} is expected; {CONVERT}")
        self._state.read.add(index)
        return index

    def _vector(self, full: str, width: int, required: bool = False) -> int:
        """Tensor number of a vector of `width`; -1 if the file has none."""
        index, rows, columns = self._matrix(full, required)
        if index >= 0 and (rows, columns) != (1, width):
            raise ModelError(f"{full}: shape [{rows}, {columns}], where a vector of {width} is expected; {CONVERT}")
        return index

    def _norm_weight(self, x: Value, name: str, group: int | None) -> tuple[int, int]:
        """Tensor number of a norm's weight, and the values that are normed together. The weight has a value for each of
        them, or for each of the row, in which case it may have the shape [groups, group]."""
        full = f"{self._prefix}{name}.weight"
        group = x.width if group is None else group
        index, rows, columns = self._matrix(full)
        if (rows, columns) not in ((1, group), (1, x.width), (x.width // group, group)):
            raise ModelError(f"{full}: shape [{rows}, {columns}], where a vector of {group} is expected; {CONVERT}")
        return index, group

    def _rope_table(self, rope: Rope) -> Value:
        state = self._state
        factors = -1 if rope.factors is None else self._vector(f"{rope.factors}.weight", rope.n_rot // 2)
        key = (rope.n_rot, rope.base, rope.scale, rope.magnitude, *rope.ramp, factors)
        if key not in state.ropes:
            name = "rope_table" if not state.ropes else f"rope_table_{len(state.ropes)}"
            (state.ropes[key],) = self._emit(
                "rope_table",
                name,
                [],
                [rope.n_rot],
                [factors],
                n_rot=rope.n_rot,
                base=rope.base,
                scale=rope.scale,
                magnitude=rope.magnitude,
                ramp_low=rope.ramp[0],
                ramp_high=rope.ramp[1],
            )
        return state.ropes[key]

    def _expect(self, x: Value, width: int, because: str) -> None:
        if x.width != width:
            raise ModelError(f"{x.name}: {x.width} wide, but {because}; {CONVERT}")
