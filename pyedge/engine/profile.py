"""Where the time of a step goes: a model's ops timed one by one, and held against this machine's limits.

Owns which steps are run (a prompt is read; then tokens are written behind it, one at a time) and what an op's share of
a limit is. What ops cost is counted by models/cost.py; limits come from the core's probe. Needs no tokenizer, no text
and no scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from pyedge import _core
from pyedge.engine.pace import StepCost
from pyedge.models import Plan
from pyedge.models.cost import Batch, Cost, costs

PAGE_SIZE = 16
STEP_TOKENS = 512  # of a prompt that are read at once
SOON = 4.0  # seconds for which limits hold
_SCOPE = re.compile(r"^blk\.\d+\.")


@dataclass(frozen=True)
class Limits:
    """What this machine does at best."""

    read_gb_s: float
    int8_gmac_s: float
    f32_gmac_s: float

    def better(self, other: Limits) -> Limits:
        """The higher of each: what others on this machine took away was there all the same."""
        return Limits(
            max(self.read_gb_s, other.read_gb_s),
            max(self.int8_gmac_s, other.int8_gmac_s),
            max(self.f32_gmac_s, other.f32_gmac_s),
        )

    def memory_s(self, cost: Cost) -> float:
        """Seconds that reading its bytes takes at least."""
        return cost.bytes / (self.read_gb_s * 1e9)

    def arithmetic_s(self, cost: Cost) -> float:
        """Seconds that its multiply-adds take at least."""
        return cost.int8_macs / (self.int8_gmac_s * 1e9) + cost.f32_macs / (self.f32_gmac_s * 1e9)


_NOMINAL = Limits(12.0, 60.0, 20.0)
_DEEP = 1024  # tokens


class Probe:
    """The limits, measured when it is made, and again at the end of what took a while: others who share this machine
    come and go."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._limits = self._measure()
        self._since = perf_counter()

    def _measure(self) -> Limits:
        found = _core.probe(self._threads)
        return Limits(found["read_gb_s"], found["int8_gmac_s"], found["f32_gmac_s"])

    def limits(self) -> Limits:
        late = perf_counter() - self._since > SOON
        return self._limits.better(self._measure()) if late else self._limits


@dataclass(frozen=True)
class Row:
    """Some ops: their time and cost together."""

    name: str
    time_s: float
    cost: Cost

    def shares(self, limits: Limits) -> tuple[float, float]:
        """Of its time, what reading at the memory's limit and computing at the processor's would have taken."""
        time = self.time_s or 1e-9
        return limits.memory_s(self.cost) / time, limits.arithmetic_s(self.cost) / time


@dataclass(frozen=True)
class Half:
    """Reading or writing: time and cost per op of the plan, over all `tokens`."""

    tokens: int
    time_s: float  # of the steps, with what lies between ops
    rows: list[Row]  # one per op, in the plan's order
    kv_bytes: float  # of keys and values, among those that were read

    @property
    def total(self) -> Row:
        return Row("total", self.time_s, sum((row.cost for row in self.rows), Cost()))

    def groups(self, labels: Mapping[str, str]) -> list[Row]:
        """The same op of all layers together, in order of time."""
        sums: dict[str, tuple[float, Cost]] = {}
        for row in self.rows:
            name = labels[row.name]
            time, cost = sums.get(name, (0.0, Cost()))
            sums[name] = time + row.time_s, cost + row.cost
        return sorted((Row(n, t, c) for n, (t, c) in sums.items()), key=lambda row: -row.time_s)


def expected(plan: Plan, tensors: Sequence[_core.TensorInfo], precision: str, kv_type: str) -> StepCost:
    """What a step costs by the plan's count, on a machine of no particular speed: the ratios are meant."""

    def seconds(start: int, end: int, rows: int = 0) -> float:
        each = costs(plan, tensors, Batch([(start, end)], rows), precision=precision, kv_type=kv_type)
        cost = sum(each, Cost())
        return _NOMINAL.memory_s(cost) + _NOMINAL.arithmetic_s(cost)

    one = seconds(0, 1)
    key = (seconds(_DEEP, _DEEP + 1) - one) / _DEEP
    token = seconds(0, 2) - one - 2 * key
    row = seconds(0, 1, 1) - one
    # None is nothing: what a machine makes of it is a multiple.
    return StepCost(
        max(1e-3 * one, one - token - key), max(1e-3 * one, token), max(1e-4 * one, row), max(1e-8 * one, key)
    )


def labels(plan: Plan, tensors: Sequence[_core.TensorInfo]) -> dict[str, str]:
    """What an op is called without its layer. A linear op over several weights bears all their names."""
    linear = [info.name for info in _core.ops()].index("linear")
    found = {}
    for op in plan.ops:
        names = [tensors[i].name.removesuffix(".weight") for i in op.weights[::2]] if op.kind == linear else [op.name]
        first, *others = (_SCOPE.sub("", name) for name in names)
        start = first[: first.find("_") + 1]  # attn_q, attn_k, attn_v: attn_q/k/v
        found[op.name] = "/".join([first, *(name.removeprefix(start) for name in others)])
    return found


def _of_kind(plan: Plan, *kinds: str) -> list[int]:
    names = [info.name for info in _core.ops()]
    return [i for i, op in enumerate(plan.ops) if names[op.kind] in kinds]


def weight_bits(plan: Plan, tensors: Sequence[_core.TensorInfo]) -> float:
    """Bits per weight, of those that a token is multiplied with."""
    cost = costs(plan, tensors, Batch([(0, 1)], 1))
    products = [cost[i] for i in _of_kind(plan, "linear", "moe", "logits")]
    return 8 * sum(c.bytes for c in products) / (sum(c.macs for c in products) or 1.0)


@dataclass
class Profiler:
    """A model with pages for one sequence."""

    model: _core.Model
    plan: Plan
    tensors: Sequence[_core.TensorInfo]
    capacity: int  # tokens of the sequence
    kv_type: str = "f16"
    precision: str = "fast"  # of the model
    threads: int = 0
    _core_engine: _core.Engine = field(init=False, repr=False)

    def __post_init__(self) -> None:
        n_pages = -(-self.capacity // PAGE_SIZE)
        self._step_tokens = STEP_TOKENS if self.plan.causal and self.plan.pooling is None else self.capacity
        self._core_engine = _core.Engine(
            self.model,
            page_size=PAGE_SIZE,
            n_pages=n_pages,
            max_tokens=self._step_tokens,
            max_pieces=1,
            max_rows=1,
            max_sequences=1,
            max_pages_per_sequence=n_pages,
            kv_type=self.kv_type,
            threads=self.threads,
        )
        self._core_engine.set_pages(0, 0, list(range(n_pages)))

    def read(self, tokens: int, runs: int = 3) -> Half:
        """Reads a prompt of so many tokens, and samples behind it. The run in the middle counts."""
        steps = [
            (start, min(start + self._step_tokens, tokens), min(start + self._step_tokens, tokens) == tokens)
            for start in range(0, tokens, self._step_tokens)
        ]
        return sorted((self._run(steps) for _ in range(runs)), key=lambda half: half.time_s)[runs // 2]

    def write(self, tokens: int, depth: int, runs: int = 3) -> Half:
        """Writes so many tokens behind `depth` others, which `read` (of at least as many) has computed."""
        steps = [(depth + i, depth + i + 1, True) for i in range(tokens)]
        return sorted((self._run(steps) for _ in range(runs)), key=lambda half: half.time_s)[runs // 2]

    def _run(self, steps: Sequence[tuple[int, int, bool]]) -> Half:
        n_vocab = self.model.n_vocab
        cost = [Cost()] * len(self.plan.ops)
        time_s = 0.0
        self._core_engine.profile(True)
        for start, end, samples in steps:
            tokens = [31 * t % n_vocab for t in range(start, end)]
            rows = [end - start - 1] if samples else []
            before = perf_counter()
            self._core_engine.step([(0, start, end)], tokens, rows)
            time_s += perf_counter() - before
            batch = Batch([(start, end)], len(rows))
            each = costs(self.plan, self.tensors, batch, precision=self.precision, kv_type=self.kv_type)
            cost = [a + b for a, b in zip(cost, each, strict=True)]
        times = self._core_engine.op_times()
        self._core_engine.profile(False)
        timed = [Row(op.name, t / 1e9, c) for op, t, c in zip(self.plan.ops, times, cost, strict=True)]
        kv_bytes = sum(cost[i].bytes for i in _of_kind(self.plan, "attention"))
        return Half(steps[-1][1] - steps[0][0], time_s, timed, kv_bytes)


def as_dict(row: Row, limits: Limits) -> dict[str, Any]:
    memory, arithmetic = row.shares(limits)
    return {
        "name": row.name,
        "time_s": row.time_s,
        "bytes": row.cost.bytes,
        "int8_macs": row.cost.int8_macs,
        "f32_macs": row.cost.f32_macs,
        "memory_share": memory,
        "arithmetic_share": arithmetic,
    }
