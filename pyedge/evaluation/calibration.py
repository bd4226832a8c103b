"""The text that a choice of formats is measured on, and what is taken from it.

Owns which parts of a text are for what. Of four windows three calibrate: their importances weight the errors, and
sensitivities are measured on pieces of every other one, and whole choices on the rest. The fourth is kept for judging
(the command, report.py), as a file is good on the text that it was made for in any case. Without a text of the user's
there is the package's own, calibration.txt: prose, dialogue, lists, tables and code, written for this purpose, so that
one command is enough and needs no network. It is small; a text like what the model will be used for is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyedge import _core
from pyedge.evaluation.imatrix import Progress, collect
from pyedge.evaluation.reader import Reader, windows
from pyedge.tools.imatrix_file import Imatrix

_N_CTX = 256  # tokens of a window
_PROBE, _PROBES = 48, 6  # tokens, and pieces: many short ones say more of a text than few long ones
_TRIAL, _TRIALS = 128, 8  # tokens, and windows
_MOST = 96  # windows whose importances are collected


@dataclass(frozen=True)
class Text:
    content: str
    name: str

    @classmethod
    def own(cls) -> Text:
        return cls(Path(__file__).with_name("calibration.txt").read_text(encoding="utf-8"), "pyedge's own text")


@dataclass(frozen=True)
class Calibration:
    name: str  # of the text
    imatrix: Imatrix
    probes: Sequence[Sequence[int]]  # what single matrices are measured on,
    trials: Sequence[Sequence[int]]  # and what choices of formats for all of them are
    held_out: Sequence[Sequence[int]]  # windows that nothing was taken from


def window(gguf: _core.Gguf) -> int:
    """How many tokens a window has."""
    length = gguf.get(f"{gguf.get('general.architecture')}.context_length")
    return min(_N_CTX, length) if isinstance(length, int) and length > 0 else _N_CTX


def calibrate(
    reader: Reader, text: Text, imatrix: Imatrix | None = None, progress: Progress | None = None
) -> Calibration:
    """imatrix: what a person has; None: it is collected. ValueError for a text of less than four windows."""
    ids = reader.tokenizer.encode(text.content, eos=False)
    if len(ids) < 4 * reader.n_ctx:
        raise ValueError(f"{text.name}: has {len(ids)} tokens, and {4 * reader.n_ctx} are needed; give a longer text")
    found = windows(reader.tokenizer, text.content, reader.n_ctx)
    ours = [window for i, window in enumerate(found) if i % 4 != 3]
    if imatrix is None:
        for imatrix in collect(reader, ours[:: -(-len(ours) // _MOST)], progress):
            imatrix.texts = [text.name]
        reader.engine.collect(False)
    assert imatrix is not None
    bos = reader.tokenizer.bos_id if reader.tokenizer.add_bos else None
    pieces = [w[at : at + _PROBE] for w in ours[::2] for at in range(0, len(w) - min(_PROBE, len(w)) + 1, _PROBE)]
    probes = [piece if bos is None else [bos, *piece[1:]] for piece in _spread(pieces, _PROBES)]
    trials = [window[:_TRIAL] for window in _spread(ours[1::2], _TRIALS)]
    return Calibration(text.name, imatrix, probes, trials, found[3::4])


def _spread(some: Sequence[list[int]], most: int) -> list[list[int]]:
    """At most so many, from all over."""
    n = min(len(some), most)
    return [some[(2 * i + 1) * len(some) // (2 * n)] for i in range(n)]
