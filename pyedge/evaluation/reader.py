"""A model that reads windows of tokens, one after the other, and says what it expects next.

Owns loading for that purpose, one sequence at a time, and the cutting of a window into steps. There is no sampling, no
queue and no cache of prefixes: the engine's are for answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from pyedge import _core
from pyedge.errors import ModelError
from pyedge.models import build_plan
from pyedge.tokenizers import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PAGE = 16  # tokens
STEP = 512  # tokens
_LOGIT_BYTES = 1 << 26  # of the rows of one step: a vocabulary of 262144 has a megabyte in a row
SMALLEST, LARGEST = 8, 1 << 20  # tokens of a window


class Reader:
    """Raises ModelError for files that do not run, or that embed texts, and ValueError for a window that is longer than
    the model's context."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        n_ctx: int = 512,
        *,
        threads: int = 0,
        precision: str = "fast",
        kv_type: str | None = None,
        pre: str | None = None,
    ) -> None:
        """n_ctx: tokens of the longest window. threads: 0 for the machine's default. kv_type: None for f16, or with
        precision f32 f32. pre: as of LLM."""
        self.path = os.fspath(path)
        self.n_ctx = n_ctx
        if not SMALLEST <= n_ctx <= LARGEST:
            raise ValueError(f"max_model_len is {n_ctx}, and a window has {SMALLEST} to {LARGEST} tokens")
        with _core.Gguf(path) as gguf:
            self.plan = build_plan(gguf, n_ctx)
            if self.plan.pooling is not None:
                raise ModelError(f"{self.path}: embeds texts and predicts no tokens; take a model that generates")
            length = self.plan.hparams.context_length
            if n_ctx > length:
                raise ValueError(f"max_model_len is {n_ctx}, and {self.path} has a context of {length}; take less")
            self.tokenizer = Tokenizer.from_gguf(gguf, pre)
            self.tensors = [t.name for t in gguf.tensors]
            self.model = _core.Model(gguf, self.plan.ops, precision, threads)
        self.n_vocab = self.model.n_vocab
        self.rows = max(1, min(STEP, n_ctx, _LOGIT_BYTES // (4 * self.n_vocab)))
        n_pages = -(-n_ctx // PAGE)
        self.engine = _core.Engine(
            self.model,
            page_size=PAGE,
            n_pages=n_pages,
            max_tokens=min(STEP, n_ctx),
            max_pieces=1,
            max_rows=self.rows,
            max_sequences=1,
            max_pages_per_sequence=n_pages,
            kv_type=kv_type or ("f32" if precision == "f32" else "f16"),
            threads=threads,
        )
        self.engine.set_pages(0, 0, range(n_pages))

    def close(self) -> None:
        del self.engine, self.model

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self, ids: Sequence[int]) -> None:
        """Reads a window, for those who look into the engine."""
        for start in range(0, len(ids), STEP):
            part = ids[start : start + STEP]
            self.engine.step([(0, start, start + len(part))], list(part), [])

    def logits(
        self, ids: Sequence[int], first: int = 0, rows: int | None = None, *, every: int = 1
    ) -> Iterator[npt.NDArray[np.float32]]:
        """Reads a window, and gives the logits after the token `first` and after each, or each `every`-th, behind it
        (every: at most STEP): [rows, n_vocab], at most so many rows at a time; None: `self.rows`. Raises ModelError
        where the model makes numbers that are none."""
        import numpy as np

        rows = self.rows if rows is None else rows
        most = min(rows * every, STEP // every * every)  # tokens of a step, whose rows begin with its first
        self.read(ids[:first])
        for start in range(first, len(ids), most):
            part = list(ids[start : start + most])
            wanted = list(range(0, len(part), every))
            self.engine.step([(0, start, start + len(part))], part, wanted)
            logits = self.engine.logits(0, len(wanted))
            if not np.isfinite(logits.sum(axis=1, dtype=np.float64)).all() and not np.isfinite(logits).all():
                raise ModelError(f"{self.path}: the logits are not finite; the file is damaged, get it again")
            yield logits


def windows(tokenizer: Tokenizer, text: str, n_ctx: int, most: int | None = None) -> list[list[int]]:
    """A text as windows of n_ctx tokens, one behind the other, and at most so many; what is left over is not read.
    Where a model wants BOS, each window begins with it, in place of its own first token. (As in llama.cpp.)

    ValueError for a text without a whole window."""
    ids = tokenizer.encode(text, eos=False)
    if len(ids) < n_ctx:
        raise ValueError(
            f"the text has {len(ids)} tokens, and a window has {n_ctx}; give a longer text, or a smaller max_model_len"
        )
    found = [ids[i : i + n_ctx] for i in range(0, len(ids) - n_ctx + 1, n_ctx)][:most]
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        for window in found:
            window[0] = tokenizer.bos_id
    return found
