"""Makes a smaller GGUF of a model: every matrix in the format that a mix has for it, metadata kept.

Owns the order of the work, what is refused, and what is told of it. Does not own which format a tensor gets (mixes.py),
how blocks are made (the core), nor how the file appears whole (gguf_writer.py). Tensors are read, quantized and written
some rows at a time, so that memory does not depend on the model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pyedge import _core
from pyedge.errors import ModelError
from pyedge.tools import output_file
from pyedge.tools.gguf_writer import GgufWriter, Tensor, copied, packed
from pyedge.tools.imatrix_file import Imatrix
from pyedge.tools.mixes import FLOATS, MIXES, Choice, Traits, Wishes, choose

Progress = Callable[[int, int], None]  # (bytes read, bytes in all)

QUANTIZATION_VERSION = 2  # of the block formats, as `general.quantization_version` counts
_VALUES_AT_ONCE = 1 << 22
_APART = 1 << 16  # bytes that are worth another thread to be written by
_SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")  # the output is one file


@dataclass(frozen=True)
class Plan:
    """What will be written."""

    choices: list[Choice]
    metadata: dict[str, bytes]
    imatrix: Imatrix | None

    @cached_property
    def tensors(self) -> list[Tensor]:
        return [Tensor(c.name, c.type, c.shape) for c in self.choices]

    @property
    def file_bytes(self) -> int:
        return GgufWriter("", self.metadata, self.tensors).file_size


def plan(gguf: _core.Gguf, wishes: Wishes, imatrix: Imatrix | None = None, *, requantize: bool = False) -> Plan:
    """Chooses for each tensor, and reads none. ValueError and ModelError for what cannot be done."""
    choices = choose(gguf.tensors, Traits.of(gguf, imatrix is not None), wishes)
    return planned(gguf, choices, MIXES[wishes.mix][1], imatrix, requantize=requantize)


def planned(
    gguf: _core.Gguf, choices: list[Choice], file_type: int, imatrix: Imatrix | None, *, requantize: bool = False
) -> Plan:
    """What was chosen, checked as `plan` does. file_type: `general.file_type` of the new file."""
    for c in choices:
        if c.type == c.source:
            continue
        if c.source not in _runs():
            raise ModelError(
                f"{gguf.path}: tensor '{c.name}' is {c.source}, which this version cannot unpack; take another file of"
                " the model"
            )
        if c.source not in FLOATS and not requantize:
            raise ValueError(
                f"{gguf.path}: tensor '{c.name}' is {c.source} already, and rounding twice costs quality; take a file"
                " in F16, BF16 or F32, or give --allow-requantize"
            )
    metadata = {key: value for key, value in copied(gguf).items() if key not in _SPLIT_KEYS}
    metadata["general.quantization_version"] = packed(QUANTIZATION_VERSION)
    metadata["general.file_type"] = packed(file_type)
    if imatrix is not None:
        _check_imatrix(choices, imatrix)
        if imatrix.path:  # else it was made just now
            metadata["quantize.imatrix.file"] = packed(os.path.basename(imatrix.path))
        if imatrix.texts:
            metadata["quantize.imatrix.dataset"] = packed(imatrix.texts[0])
        metadata["quantize.imatrix.entries_count"] = packed(len(imatrix.sums))
        metadata["quantize.imatrix.chunks_count"] = packed(max(imatrix.n_windows, 0))
    return Plan(choices, metadata, imatrix)


def _check_imatrix(choices: Sequence[Choice], imatrix: Imatrix) -> None:
    """One of another model fits by its names and not by its sizes, or not even by its names."""
    of_use = 0
    for c in choices:
        given = imatrix.sums.get(c.name)
        if given is None:
            continue
        matrices = math.prod(c.shape[2:])
        if given.size not in (c.shape[0], c.shape[0] * matrices):
            raise ModelError(
                f"{imatrix.path}: has {given.size} numbers for tensor '{c.name}' of {matrices} x {c.shape[0]}"
                " columns; it is of another model"
            )
        of_use += 1
    if not of_use:
        raise ModelError(f"{imatrix.path}: has none of this model's tensors; it is of another model")


def quantize(
    gguf: _core.Gguf,
    out: str | os.PathLike[str],
    plan: Plan,
    *,
    threads: int = 0,
    progress: Progress | None = None,
) -> int:
    """Writes the file and returns its size in bytes. ModelError for a value that no format can hold: NaN, infinity, or
    too large. Raises OSError that names `out`. Whatever is raised, there is no file, or the one before."""
    _check_is_another(gguf, out)
    total, done = sum(t.n_bytes for t in gguf.tensors), 0
    sizes = {t.name: t.n_bytes for t in gguf.tensors}
    threads = threads or _core.machine()["default_threads"]  # asked once, not for each piece
    with ThreadPoolExecutor(1) as pool, GgufWriter(out, plan.metadata, plan.tensors) as writer:
        written: Future[None] | None = None  # one piece is written while the next one is made
        try:
            for choice in plan.choices:
                rows = math.prod(choice.shape[1:])
                for data, n in _pieces(gguf, choice, plan.imatrix, threads):
                    if written is not None:
                        written.result()
                        written = None
                    if memoryview(data).nbytes >= _APART:
                        written = pool.submit(writer.write, choice.name, data)
                    else:
                        writer.write(choice.name, data)
                    done += sizes[choice.name] * n // rows
                    if progress is not None:
                        progress(done, total)
        finally:
            if written is not None:
                written.result()
    if progress is not None:
        progress(total, total)
    return writer.file_size


def check_output(gguf: _core.Gguf, out: str | os.PathLike[str], size: int = 0) -> None:
    """Raises what `quantize` would raise of the new file's name and place, before something that takes long. size: in
    bytes, at least."""
    _check_is_another(gguf, out)
    output_file.check_output(out, size)


def _check_is_another(gguf: _core.Gguf, out: str | os.PathLike[str]) -> None:
    if any(os.path.exists(out) and os.path.samefile(out, part) for part in gguf.files):
        raise ValueError(f"{os.fspath(out)}: is the file that is read; give the new one another name")


@cache
def _runs() -> frozenset[str]:
    """Formats whose values the core can read."""
    return frozenset(info.name for info in _core.formats() if info.runs)


def _pieces(gguf: _core.Gguf, choice: Choice, imatrix: Imatrix | None, threads: int) -> Iterator[tuple[Any, int]]:
    """A tensor's new bytes, some rows at a time: (buffer, rows)."""
    columns, rows = choice.shape[0], math.prod(choice.shape[1:])
    weights: npt.NDArray[np.float32] | None = None
    if imatrix is not None and choice.type not in FLOATS and choice.type != choice.source:
        means = imatrix.importance(choice.name)
        weights = None if means is None else means.reshape(-1).astype(np.float32)
    step = max(1, _VALUES_AT_ONCE // columns)
    for first in range(0, rows, step):
        n = min(step, rows - first)
        if choice.type != choice.source or choice.type in FLOATS:
            yield gguf.quantize(choice.name, choice.type, first, n, importance=weights, threads=threads), n
            continue
        if choice.type in _runs():  # only looked at: a scale may be NaN
            gguf.quantize(choice.name, "F32", first, n, threads=threads)
        row_bytes = Tensor("", choice.type, (columns,)).n_bytes
        yield gguf.read(choice.name, first * row_bytes, n * row_bytes), n


# ---- what is told of it ----------------------------------------------------------------------------------------------


def facts(plan: Plan, gguf: _core.Gguf) -> dict[str, Any]:
    """For people and for JSON: tensors, sizes, bits per weight."""
    tensors = [
        {"name": c.name, "shape": list(c.shape), "from": c.source, "to": c.type, "bytes": t.n_bytes}
        | ({} if c.type == c.wanted else {"in_place_of": c.wanted})
        for c, t in zip(plan.choices, plan.tensors, strict=True)
    ]
    before, after = sum(t.n_bytes for t in gguf.tensors), sum(t.n_bytes for t in plan.tensors)
    parameters = sum(math.prod(c.shape) for c in plan.choices)
    return {
        "tensors": tensors,
        "bytes_before": before,
        "bytes_after": after,
        "bits_per_weight": 8 * after / parameters if parameters else None,
        "notes": notes(plan),
    }


def notes(plan: Plan) -> list[str]:
    """What a person should know: formats that do not fit, matrices without importances."""
    lines = []
    groups: dict[tuple[int, str, str], list[str]] = {}
    for c in plan.choices:
        if c.type != c.wanted:
            groups.setdefault((c.shape[0], c.wanted, c.type), []).append(c.name)
    blocks = {info.name: info.block_values for info in _core.formats()}
    for (columns, wanted, taken), names in groups.items():
        lines.append(
            f"{_several(names)}: rows of {columns} values are no multiple of {blocks[wanted]};"
            f" {taken} in place of {wanted}"
        )
    if plan.imatrix is not None:
        seen = plan.imatrix.sums
        without = [c.name for c in plan.choices if c.type not in FLOATS and c.type != c.source and c.name not in seen]
        if without:
            lines.append(
                f"{_several(without)}: not in {plan.imatrix.path or 'what was collected'}; all columns count alike"
            )
    return lines


def _several(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
