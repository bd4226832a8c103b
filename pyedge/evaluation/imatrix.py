"""Importance matrices: how much goes into each column of each matrix while a model reads a text.

Owns the reading, and the names of what the engine collected. The sums are made by the core, where products are. What a
matrix of the output sees is left out, as in llama.cpp, whose files these are (pyedge/tools/imatrix_file.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyedge import _core
from pyedge.errors import ModelError
from pyedge.tools.imatrix_file import Imatrix

if TYPE_CHECKING:
    from pyedge.evaluation.reader import Reader

Progress = Callable[[int, int], None]  # windows read, and in all


def collect(reader: Reader, windows: Sequence[Sequence[int]], progress: Progress | None = None) -> Iterator[Imatrix]:
    """Reads the windows, and gives after each what was collected since the beginning. Raises ModelError for a model
    that makes numbers that are none."""
    reader.engine.collect(True)
    found_at = list(places(reader))
    for i, window in enumerate(windows):
        reader.read(window)
        found = Imatrix(n_windows=i + 1, n_ctx=len(window))
        for name, op, slot in found_at:
            sums, rows = reader.engine.collected(op, slot)
            if not (sums < float("inf")).all():
                raise ModelError(f"{reader.path}: {name}: what goes in is not finite; the file is damaged")
            found.put(name, sums, rows)
        if progress is not None:
            progress(i + 1, len(windows))
        yield found


def places(reader: Reader, kinds: Sequence[str] = ("linear", "moe")) -> Iterator[tuple[str, int, int]]:
    """The matrices of ops of these kinds, and where they are: the number of the op, and of the weight in it."""
    named = [info.name for info in _core.ops()]
    for number, op in enumerate(reader.plan.ops):
        if named[op.kind] in kinds:  # each second weight is a bias
            for slot in range(0, len(op.weights), 2):
                yield reader.tensors[op.weights[slot]], number, slot
