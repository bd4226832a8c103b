"""Runs token ids through the core by hand: a model, an engine and a page table that the test controls.

Owns no expectations. Every page is filled with NaN before a run, so a read of a slot that nobody wrote shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from pyedge import _core
from pyedge.models import Plan, build_plan

Piece = tuple[int, int, int]  # slot, start, end

MAX_SEQUENCES = 8
MAX_TOKENS = 512


class Runner:
    def __init__(
        self,
        path: str | Path,
        *,
        precision: str = "f32",
        kv_type: str = "f32",
        page_size: int = 16,
        n_pages: int = 96,
        threads: int = 1,
        fill: float = np.nan,
        build: Callable[[_core.Gguf], Plan] = build_plan,
    ) -> None:
        gguf = _core.Gguf(str(path))
        self.plan: Plan = build(gguf)
        self.model = _core.Model(gguf, self.plan.ops, precision, threads)
        gguf.close()
        self.page_size = page_size
        self.engine = _core.Engine(
            self.model,
            page_size=page_size,
            n_pages=n_pages,
            max_tokens=MAX_TOKENS,
            max_pieces=MAX_SEQUENCES,
            max_rows=MAX_TOKENS,
            max_sequences=MAX_SEQUENCES,
            max_pages_per_sequence=n_pages,
            kv_type=kv_type,
            threads=threads,
        )
        self.n_pages = n_pages
        self.fill(range(n_pages), fill)

    def fill(self, pages: Iterable[int], value: float = np.nan) -> None:
        for page in pages:
            self.engine.fill_page(page, value)

    def pages_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page_size)

    def step(self, pieces: Sequence[Piece], sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Runs pieces (slot, start, end) of sequences (by slot): logits [end - start, n_vocab] of each piece."""
        tokens = [t for slot, start, end in pieces for t in sequences[slot][start:end]]
        self.engine.step(pieces, tokens, range(len(tokens)))
        ends = np.cumsum([end - start for _, start, end in pieces])
        return np.split(self.engine.logits(), ends[:-1])

    def run(self, tokens: Sequence[int], cuts: Sequence[int] = (), pages: Sequence[int] | None = None) -> np.ndarray:
        """Logits [T, n_vocab] of one sequence alone, in one step or cut at `cuts`, on emptied pages."""
        pages = range(self.pages_for(len(tokens))) if pages is None else pages
        self.fill(pages)
        self.engine.set_pages(0, 0, pages)
        edges = [0, *cuts, len(tokens)]
        return np.concatenate([self.step([(0, a, b)], [tokens])[0] for a, b in pairwise(edges)])

    def run_tapped(self, tokens: Sequence[int]) -> dict[str, list[np.ndarray]]:
        """What every op makes, by its name: [T, width] each."""
        seen: dict[str, list[np.ndarray]] = {}
        for op in self.plan.ops:
            outputs = seen[op.name] = []
            self.engine.tap(op.name, lambda name, i, data, into=outputs: into.append(data.copy()))
            self.run(tokens)
        self.engine.tap(None)
        return seen


def some_tokens(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, n_vocab, n)]
