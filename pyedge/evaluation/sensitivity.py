"""What each format costs in each matrix of a model: by how much its predictions move, measured by running it.

Owns the measurement of single matrices; choices for all of them are trials.py's, what is made of it is
tools/allocation.py's, and how formats fit tensors tools/mixes.py's.

The divergence of a quantized model from its original is, for errors as small as those of quantizing, about a sum over
its matrices: of each the error of what it puts out, times how much the predictions depend on that. The first factor is
the squared error of the rounded weights, each column weighted by the mean square of what goes into it, relative to the
same sum over the weights themselves: it needs no run, and is taken of each format on some rows of each matrix. The
second is measured once for each matrix, with the model in memory and that matrix alone made coarse: the
Kullback-Leibler divergence of its predictions on a calibration text, over the matrix's error at that moment.

Neighbouring layers are alike: of a large model not all are measured, and what is between two that were is taken from
both. But in a few matrices nearly all of what goes in comes in one column, at one token, and what rounding makes of it
says nothing of the rest. Their errors are unlike those of other matrices, and of them each format is measured.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pyedge import _core
from pyedge.evaluation.imatrix import places
from pyedge.evaluation.matrix import Matrix, role
from pyedge.evaluation.original import Original
from pyedge.tools.mixes import layer

if TYPE_CHECKING:
    from pyedge.evaluation.reader import Reader
    from pyedge.tools.imatrix_file import Imatrix

Progress = Callable[[int, int], None]  # measurements made, and in all

_PROBE_ERROR = 0.015  # about that of Q3_K
_ODD = 2.2  # times what a format's error is among others in most matrices; the next largest seen in 340 was 1.9
_ODD_SHARE = 8  # one matrix in so many is measured format by format at most
_OPERATIONS = 5e13  # of all measurements together: about eight minutes on two cores
_EVERY = 2  # of neighbouring tokens one is enough
_FLOOR = 1e-9  # what rounding in float32 leaves of a divergence


@dataclass(frozen=True)
class Cost:
    """One matrix."""

    sensitivity: float  # divergence, in nats per token, for an error of 1
    errors: Mapping[str, float]  # by format: relative, squared, weighted
    measured: Mapping[str, float] = field(default_factory=dict)  # divergence by format, where errors do not tell it

    def of(self, format_name: str) -> float:
        """The divergence that the format would add."""
        known = self.measured.get(format_name)
        return self.sensitivity * self.errors[format_name] if known is None else known

    def times(self, factor: float) -> Cost:
        return dataclasses.replace(
            self,
            sensitivity=self.sensitivity * factor,
            measured={name: value * factor for name, value in self.measured.items()},
        )


def measure(
    reader: Reader,
    gguf: _core.Gguf,
    formats: Mapping[str, Sequence[str]],
    windows: Sequence[Sequence[int]],
    imatrix: Imatrix | None,
    progress: Progress | None = None,
    *,
    threads: int = 0,
) -> dict[str, Cost]:
    """What the formats cost in each tensor of `formats`. reader: has `gguf` in memory, and has it again unchanged when
    this returns, though not when it raises. A tensor that the model does not use gets the median of sensitivities.
    ModelError for values that no format can hold."""
    slots = {name: (op, slot) for name, op, slot in places(reader, ("embed", "linear", "moe", "logits"))}
    matrices = {name: Matrix(gguf, gguf.tensors[gguf.tensor_index(name)], imatrix, threads) for name in formats}
    errors = {name: matrix.errors(formats[name]) for name, matrix in matrices.items()}
    apart = set(odd({name: errors[name] for name in formats if name in slots}))
    wanted: list[tuple[str, str]] = []  # (matrix, format)
    weights = sum(math.prod(t.shape) for t in gguf.tensors)
    stride = math.ceil(2.0 * weights * sum(map(len, windows)) * len(formats) / _OPERATIONS)
    for name in formats:
        if name in slots and (name in apart or _is_measured(name, formats, stride)):
            probe = _probe(errors[name])
            some = [kind for kind, error in errors[name].items() if error > 0] if name in apart else [probe]
            wanted += [(name, kind) for kind in some if kind is not None]
    original = Original(reader, windows, every=_EVERY)
    moved: list[npt.NDArray[np.float64]] = []  # [tokens] of each
    found: list[float] = []  # error of each
    for i, (name, kind) in enumerate(wanted):
        packed, error = matrices[name].degraded(kind)
        reader.model.replace(*slots[name], matrices[name].type, packed, threads=threads)
        moved.append(original.divergences(reader))
        found.append(error)
        if i + 1 == len(wanted) or wanted[i + 1][0] != name:
            reader.model.replace(*slots[name], matrices[name].type, matrices[name].original(), threads=threads)
        if progress is not None:
            progress(i + 1, len(wanted))
    sensitivities: dict[str, float] = {}
    measured: dict[str, dict[str, float]] = {name: {} for name in formats}
    for (name, kind), error, kl in zip(wanted, found, _means(moved), strict=True):
        if name in apart:
            measured[name][kind] = max(kl, _FLOOR)
        if error > 0 and kind == _probe(errors[name]):
            sensitivities[name] = max(kl, _FLOOR) / error
    return {name: Cost(_between(name, sensitivities), errors[name], measured[name]) for name in formats}


def _is_measured(name: str, names: Collection[str], stride: int) -> bool:
    """Each so many-th layer is, and the last one, and what is in no layer."""
    last = max(layer(other, -1) for other in names)
    return layer(name, -1) in (-1, last) or layer(name, -1) % stride == 0


def _between(name: str, sensitivities: Mapping[str, float]) -> float:
    """What was measured, or what the nearest layers with a matrix of this role let expect, or what most have."""
    found = sensitivities.get(name)
    if found is not None:
        return found
    alike = sorted((layer(other, -1), s) for other, s in sensitivities.items() if role(other) == role(name))
    if alike:
        return math.exp(float(np.interp(layer(name, -1), [at for at, _ in alike], np.log([s for _, s in alike]))))
    return float(np.median(list(sensitivities.values()))) if sensitivities else 1.0


def _probe(errors: Mapping[str, float]) -> str | None:
    """The format that a matrix is made coarse with: of an error that stands out and is not so large that what follows
    no longer grows with it."""
    some = [name for name, error in errors.items() if error > 0]
    return min(some, key=lambda name: abs(math.log(errors[name] / _PROBE_ERROR))) if some else None


def odd(errors: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The matrices where the error of some format, among those of others, is far from what it is in most: the farthest
    first."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, of in errors.items():
        alike.setdefault(tuple(kind for kind, error in of.items() if error > 0), []).append(name)
    far: list[tuple[float, str]] = []
    for kinds, names in alike.items():
        if not kinds:
            continue
        logs = np.log([[errors[name][kind] for kind in kinds] for name in names])
        logs -= np.median(logs, axis=1, keepdims=True)
        logs -= np.median(logs, axis=0)
        far += zip(np.abs(logs).max(axis=1).tolist(), names, strict=True)
    found = [name for distance, name in sorted(far, reverse=True) if distance > math.log(_ODD)]
    return found[: max(1, len(errors) // _ODD_SHARE)]


def _means(moved: Sequence[npt.NDArray[np.float64]]) -> list[float]:
    """Of each measurement. A few tokens have most of a divergence, whatever moved, and a mean over tokens is one over
    those: each counts less by the root of how much more it moves than others, which on another text's divergences was
    nearer (by a tenth) than plain means. In all the means are as large as plain ones."""
    if not moved:
        return []
    divergences = np.maximum(np.stack(moved), 0)
    plain = np.maximum(divergences.mean(axis=1), _FLOOR)
    by_token = (divergences / plain[:, None]).mean(axis=0)
    weights = 1 / np.sqrt(np.maximum(by_token, 1e-3))
    means = divergences @ weights / len(weights)
    return [float(mean) for mean in means * (np.median(plain) / max(float(np.median(means)), _FLOOR))]
