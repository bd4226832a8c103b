"""A file of a given size: each matrix in the format that costs the predictions least.

Owns what a target is, the two bounds of what is possible, how measured costs (sensitivity.py) become a choice
(tools/allocation.py), and which of several choices is kept. Does not own what is measured, nor the writing
(tools/quantize.py).

Costs of single matrices are measured on little text each, and a choice among thousands of formats finds those that were
measured too low. So some choices are made, and tried (trials.py) on text that no matrix was measured on: the one by the
costs as they are; one by costs corrected so that those of each role (ffn_down of all layers, say) add up to what that
role costs when tried; one where, besides, neighbouring layers' costs are brought nearer to each other; and the mix that
fits and should cost least. The one that costs least is kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from pyedge import _core
from pyedge.evaluation import sensitivity
from pyedge.evaluation.matrix import role
from pyedge.evaluation.trials import Trials
from pyedge.tools import allocation, quantize
from pyedge.tools.gguf_writer import Tensor, alignment_of
from pyedge.tools.mixes import FLOATS, MIXES, Choice, Traits, Wishes, candidates, choose, layer, mostly

if TYPE_CHECKING:
    from pyedge.evaluation.calibration import Calibration
    from pyedge.evaluation.reader import Reader

Costs = Mapping[str, sensitivity.Cost]
Progress = Callable[[int, int], None]  # choices tried, and in all

_MOST_FACTOR = 4.0  # of a role's correction, or its inverse
_LAYERS = 2  # on either side, that are a layer's neighbours


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
    def amount(self) -> float:
        """Of bytes or of bits."""
        found = self.file_bytes if self.file_bytes is not None else self.bits_per_weight
        assert found is not None
        return found

    @property
    def name(self) -> str:
        """Of the file, where there are others."""
        if self.file_bytes is not None:
            return (
                f"target {self.file_bytes / 1e6:.1f} MB"
                if self.file_bytes >= 10**6
                else f"target {self.file_bytes} bytes"
            )
        return f"target {self.bits_per_weight:g} bits"

    @property
    def option(self) -> str:
        """Of the command line."""
        if self.file_bytes is not None:
            return f"--target-size {self.file_bytes}"
        return f"--target-bpw {self.bits_per_weight:g}"


@dataclass(frozen=True)
class Tried:
    """A choice, and what it costs."""

    name: str
    plan: quantize.Plan
    kl: float  # nats per token, on text that no matrix was measured on


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
        if low <= target.amount <= high:
            return
        if not formats:
            raise ValueError(f"{self.gguf.path}: each matrix's format is given, so none can be chosen; leave some open")
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

    def measure(
        self, reader: Reader, calibration: Calibration, progress: sensitivity.Progress | None = None
    ) -> dict[str, sensitivity.Cost]:
        """What the formats of each open matrix cost. reader: of the same file."""
        return sensitivity.measure(
            reader, self.gguf, self.formats(), calibration.probes, calibration.imatrix, progress, threads=self.threads
        )

    def trials(self, reader: Reader, calibration: Calibration) -> Trials:
        """reader: of the same file."""
        return Trials(reader, self.gguf, calibration.trials, calibration.imatrix, self.threads)

    def best(
        self,
        target: Target,
        costs: Costs,
        calibration: Calibration,
        trials: Trials,
        progress: Progress | None = None,
    ) -> list[Tried]:
        """Several choices within the target, the best first. ValueError as of `check`."""
        first = self.choose(target, costs, calibration)
        opened = [c for c in first.choices if c.name in costs]
        roles = {role(c.name) for c in opened}
        done, total = 0, len(roles) + 4

        def step(n: int = 1) -> None:
            nonlocal done
            done += n
            if progress is not None:
                progress(min(done, total), total)

        corrected = _corrected(costs, opened, trials.by_role(opened))
        step(len(roles))
        found: list[Tried] = []
        for name, plan in (
            ("costs as measured", first),
            ("costs corrected by role", self.choose(target, corrected, calibration)),
            ("costs evened out", self.choose(target, _evened(corrected), calibration)),
            *self._mix(target, corrected, calibration),
        ):
            if not any(plan.choices == other.plan.choices for other in found):
                found.append(Tried(name, plan, trials.divergence(plan.choices)))
            step()
        return sorted(found, key=lambda tried: tried.kl)

    def _mix(self, target: Target, costs: Costs, calibration: Calibration) -> list[tuple[str, quantize.Plan]]:
        """The mix within the target that should cost least, if there is one."""
        found: list[tuple[float, str, quantize.Plan]] = []
        for mix, (kind, _) in MIXES.items():
            if kind in FLOATS or kind == "MXFP4":
                continue
            wishes = dataclasses.replace(self.wishes, mix=mix)
            plan = quantize.plan(self.gguf, wishes, calibration.imatrix, requantize=self.requantize)
            if _size(plan, target) <= target.amount:
                found.append((self.expected(plan, costs), mix, plan))
        return [(mix, plan) for _, mix, plan in sorted(found, key=lambda one: one[0])[:1]]

    @staticmethod
    def expected(plan: quantize.Plan, costs: Costs) -> float:
        """What the costs of a plan's types add up to: the divergence of the file, in nats per token."""
        known = ((c.type, costs[c.name]) for c in plan.choices if c.name in costs)
        return sum(cost.of(kind) for kind, cost in known if kind in cost.errors)


def _corrected(costs: Costs, choices: Sequence[Choice], tried: Mapping[str, float]) -> Costs:
    """Costs with those of each role times what makes them add up, for these choices, to what was tried."""
    sums: dict[str, float] = defaultdict(float)
    for c in choices:
        if c.type in costs[c.name].errors:
            sums[role(c.name)] += costs[c.name].of(c.type)
    factors = {
        name: min(max(tried[name] / sums[name], 1 / _MOST_FACTOR), _MOST_FACTOR)
        for name in tried
        if sums[name] > 0 and tried[name] > 0
    }
    return {name: cost.times(factors.get(role(name), 1.0)) for name, cost in costs.items()}


def _evened(costs: Costs) -> Costs:
    """Sensitivities halfway, on a logarithmic scale, to the median of the neighbouring layers'."""
    layers = {name: layer(name, -1) for name in costs}
    found = {}
    for name, cost in costs.items():
        near = [
            other.sensitivity
            for at, other in costs.items()
            if role(at) == role(name) and abs(layers[at] - layers[name]) <= _LAYERS and not other.measured
        ]
        if near and not cost.measured:
            cost = cost.times(math.sqrt(float(median(near)) / cost.sensitivity))
        found[name] = cost
    return found


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
