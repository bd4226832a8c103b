"""Embeddings of texts: whole batches through a model that pools.

Owns which texts run together. Needs no queue and no page table: a text's keys and values are worth nothing once its
embedding is there, so every step has all pages to itself. Threads may share an embedder: they take turns, a step each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyedge.engine.engine import MAX_PER_STEP, EngineConfig
from pyedge.engine.turns import Worker
from pyedge.errors import ModelError
from pyedge.models.plan import Pooling

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyedge import _core
    from pyedge.models import Plan


class Embedder(Worker):
    def __init__(self, model: _core.Model, plan: Plan, config: EngineConfig, core: Any = None) -> None:
        """core: what has Engine; None for pyedge._core, tests bring another. Of the config, all that the prefix cache
        and queues do not need is used."""
        if core is None:
            from pyedge import _core as core
        self.width = plan.widths[plan.ops[-1].outputs[0]]
        # A token that sees later ones, or a mean over all of them, needs the whole text in one step.
        whole = not plan.causal or plan.pooling is not Pooling.LAST
        self.capacity = min(config.max_model_len, config.n_pages * config.page_size)  # tokens of one text
        if whole:
            self.capacity = min(self.capacity, MAX_PER_STEP)
        self._max_tokens = max(config.max_tokens, self.capacity) if whole else config.max_tokens
        self._config = config
        self._core: _core.Engine = core.Engine(
            model,
            page_size=config.page_size,
            n_pages=config.n_pages,
            max_tokens=self._max_tokens,
            max_pieces=config.max_sequences,
            max_rows=config.max_sequences,
            max_sequences=config.max_sequences,
            max_pages_per_sequence=self._pages(self.capacity),
            kv_type=config.kv_type,
            threads=config.threads,
        )
        super().__init__()

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """The embeddings of texts that have 1 to `capacity` tokens each: [n, width], not normalized. The bits of one do
        not depend on the others. Raises ModelError if the model makes numbers that are none."""
        import numpy as np

        out = np.empty((len(texts), self.width), np.float32)
        for batch in self._batches([len(text) for text in texts]):
            out[batch] = self._run([texts[i] for i in batch])
        if len(bad := np.flatnonzero(~np.isfinite(out).all(axis=1))):
            raise ModelError(
                f"text {bad[0]}: its embedding is not finite; the model file is damaged, or its numbers are too large "
                "for this KV cache: try kv_type 'f32'"
            )
        return out

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _pages(self, n_tokens: int) -> int:
        return -(-n_tokens // self._config.page_size)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Numbers of the texts that run together, in order: as many as a step has tokens, pages and pieces for. One
        that is longer than a step runs alone."""
        batch: list[int] = []
        tokens = pages = 0
        for i, n in enumerate(lengths):
            full = tokens + n > self._max_tokens or pages + self._pages(n) > self._config.n_pages
            if batch and (full or len(batch) == self._config.max_sequences):
                yield batch
                batch, tokens, pages = [], 0, 0
            batch.append(i)
            tokens, pages = tokens + n, pages + self._pages(n)
        if batch:
            yield batch

    def _run(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """One batch: a step, or several for a single long text."""
        with self._lock:
            self._check_turn()
            try:
                self._inside = True
                page = 0
                for slot, text in enumerate(texts):
                    n = self._pages(len(text))
                    self._core.set_pages(slot, 0, range(page, page + n))
                    page += n
                for start in range(0, max(map(len, texts)), self._max_tokens):
                    self._step(texts, start)
                return self._core.logits()
            finally:
                self._inside = False

    def _step(self, texts: Sequence[Sequence[int]], start: int) -> None:
        """Computes the texts' tokens from `start` on, as many as a step takes, and the embeddings of those that end."""
        pieces: list[tuple[int, int, int]] = []
        tokens: list[int] = []
        rows: list[int] = []
        for slot, text in enumerate(texts):
            end = min(len(text), start + self._max_tokens)
            pieces.append((slot, start, end))
            tokens += text[start:end]
            if end == len(text):
                rows.append(len(tokens) - 1)
        self._core.step(pieces, tokens, rows)
