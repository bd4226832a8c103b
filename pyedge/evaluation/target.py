"""A file of a given size: each matrix in the format that costs the predictions least.

Owns what a target is, the two bounds of what is possible, and how measured costs (sensitivity.py) become a choice
(tools/allocation.py). Does not own what is measured, nor the writing (tools/quantize.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge import _core
from pyedge.evaluation import sensitivity
from pyedge.tools import allocation, quantize
from pyedge.tools.gguf_writer import Tensor, alignment_of
from pyedge.tools.mixes import Choice, Traits, Wishes, candidates, choose, mostly

if TYPE_CHECKING:
    from pyedge.evaluation.calibration import Calibration
    from pyedge.evaluation.reader import Reader

Costs = Mapping[str, sensitivity.Cost]


@dataclass(frozen=True)
class Target:
    """One of the two."""

    file_bytes: int | None = None  # of the whole file
    bits_per_weight: float | None = None  # of the tensors: metadata do not count

    def __str__(self) -> str:
        if self.file_bytes is not None:
            return f"{self.file_bytes:,} bytes"
        return f"{self.bits_per_weight:g} bits per weight"

    @property
    def option(self) -> str:
        """Of the command line."""
        if self.file_bytes is not None:
            return f"--target-size {self.file_bytes}"
        return f"--target-bpw {self.bits_per_weight:g}"


@dataclass(frozen=True)
class Task:
    """A file, and what may be chosen in it."""

    gguf: _core.Gguf
    wishes: Wishes  # what a person says of single tensors; their mix is not asked
    requantize: bool = False
    threads: int = 0  # 0: the machine's default

    def formats(self) -> dict[str, list[str]]:
        return candidates(self.gguf.tensors, self.wishes)

    def plan(self, types: Mapping[str, str], calibration: Calibration | None) -> quantize.Plan:
        """With these types of the matrices that are open."""
        imatrix = None if calibration is None else calibration.imatrix
        chosen: list[Choice] = []
        for c in choose(self.gguf.tensors, Traits.of(self.gguf, imatrix is not None), self.wishes):
            new = types.get(c.name)
            chosen.append(c if new is None else dataclasses.replace(c, type=new, wanted=new))
        sizes: Counter[str] = Counter()
        for c in chosen:
            sizes[c.type] += Tensor(c.name, c.type, c.shape).n_bytes
        return quantize.planned(self.gguf, chosen, mostly(sizes), imatrix, requantize=self.requantize)

    def check(self, target: Target, calibration: Calibration | None = None) -> None:
        """ValueError, with the bounds, for a target that no choice meets. Before anything is measured, metadata of the
        importances are not counted."""
        formats = self.formats()
        least, most = (self.plan({n: f[end] for n, f in formats.items()}, calibration) for end in (0, -1))
        low, high = _size(least, target), _size(most, target)
        wanted = target.file_bytes if target.file_bytes is not None else target.bits_per_weight
        assert wanted is not None
        if low <= wanted <= high:
            return
        if target.file_bytes is not None:
            bounds = f"{low:,} to {high:,} bytes are possible"
        else:
            bounds = f"{math.ceil(1000 * low) / 1000} to {math.floor(1000 * high) / 1000} bits per weight are possible"
        raise ValueError(f"{self.gguf.path}: cannot be made of {target}: {bounds}; take a target between")

    def choose(self, target: Target, costs: Costs, calibration: Calibration) -> quantize.Plan:
        """The least sum of costs within the target. ValueError as of `check`."""
        self.check(target, calibration)
        formats = self.formats()
        shapes = {t.name: t.shape for t in self.gguf.tensors}
        least = self.plan({n: f[0] for n, f in formats.items()}, calibration)
        alignment = alignment_of(least.metadata) if target.file_bytes is not None else 1
        items, names = [], list(formats)
        for name in names:
            sizes = [Tensor(name, kind, shapes[name]).n_bytes for kind in formats[name]]
            padded = [size + -size % alignment for size in sizes]
            items.append([(s, costs[name].of(kind)) for s, kind in zip(padded, formats[name], strict=True)])
        budget = allocation.bounds(items)[0]
        if target.file_bytes is not None:
            budget += target.file_bytes - least.file_bytes
        else:
            assert target.bits_per_weight is not None
            weights = sum(math.prod(shape) for shape in shapes.values())
            budget += int(target.bits_per_weight * weights / 8) - sum(t.n_bytes for t in least.tensors)
        taken = allocation.allocate(items, budget)
        return self.plan({n: formats[n][at] for n, at in zip(names, taken, strict=True)}, calibration)

    def plan_for(self, target: Target | None, costs: Costs, calibration: Calibration) -> quantize.Plan:
        """The choice by size; None: the mix's."""
        if target is not None:
            return self.choose(target, costs, calibration)
        return quantize.plan(self.gguf, self.wishes, calibration.imatrix, requantize=self.requantize)

    def measure(
        self, reader: Reader, calibration: Calibration, progress: sensitivity.Progress | None = None
    ) -> dict[str, sensitivity.Cost]:
        """What the formats of each open matrix cost. reader: of the same file."""
        return sensitivity.measure(
            reader, self.gguf, self.formats(), calibration.probes, calibration.imatrix, progress, threads=self.threads
        )

    @staticmethod
    def expected(plan: quantize.Plan, costs: Costs) -> float:
        """What the costs of a plan's types add up to: the divergence of the file, in nats per token."""
        known = ((c.type, costs[c.name]) for c in plan.choices if c.name in costs)
        return sum(cost.of(kind) for kind, cost in known if kind in cost.errors)


def _size(plan: quantize.Plan, target: Target) -> float:
    if target.file_bytes is not None:
        return plan.file_bytes
    n = sum(math.prod(c.shape) for c in plan.choices)
    return 8 * sum(t.n_bytes for t in plan.tensors) / n if n else 0.0


def by_format(plan: quantize.Plan) -> Sequence[tuple[str, int, int]]:
    """(format, tensors, bytes), the most bytes first."""
    found: dict[str, tuple[int, int]] = {}
    for t in plan.tensors:
        n, size = found.get(t.type, (0, 0))
        found[t.type] = (n + 1, size + t.n_bytes)
    return sorted(((name, n, size) for name, (n, size) in found.items()), key=lambda row: -row[2])
