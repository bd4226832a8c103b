"""A core without a model, for tests of the engine: what `pyedge._core` offers it, in a hundred lines of Python.

A token's "keys and values" are a hash of the token, its position and the entry before it as read through the block
table; what is sampled depends on every entry of the sequence as read through the block table. So a wrong page, a page
overwritten while shared, a table entry not sent or a token computed twice at another place changes the output, or is
found to be missing. `expected` says what a sequence must give, with no pages at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyedge.errors import CancelledError
from pyedge.tokenizers.stop import StopMatcher

END = 0  # ends a generation
POISON = 1  # a prompt with it makes NaN


def mix(*numbers: int) -> int:
    """A hash that is the same in every process."""
    h = 0x9E3779B97F4A7C15
    for n in numbers:
        h = ((h ^ (n & (2**64 - 1))) * 0xFF51AFD7ED558CCD) & (2**64 - 1)
        h ^= h >> 29
    return h


@dataclass
class Model:
    n_vocab: int = 40


@dataclass
class Sampled:
    token: int
    logprob: float | None
    top: list[tuple[int, float]]


class Sampler:
    def __init__(
        self, n_vocab: int, *, seed: int, n_logprobs: int, logit_bias: Mapping[int, float], **settings: object
    ) -> None:
        self.n_vocab, self.seed, self.n_logprobs, self.logit_bias = n_vocab, seed, n_logprobs, dict(logit_bias)
        self.accepted: list[tuple[int, bool]] = []

    def accept(self, tokens: Sequence[int], generated: bool = True) -> None:
        self.accepted += [(token, generated) for token in tokens]

    def draw(self, hidden: int, position: int) -> Sampled:
        h = mix(hidden, self.seed, position, *(2 * token + generated for token, generated in self.accepted))
        token = h % self.n_vocab
        while token == POISON or token in self.logit_bias:
            token = (token + 1) % self.n_vocab
        top = [((token + i) % self.n_vocab, -float(i)) for i in range(max(self.n_logprobs, 0))]
        return Sampled(token, None if self.n_logprobs < 0 else -0.5, top)

    def score(self, hidden: int, token: int) -> Sampled:
        likely = mix(hidden) % self.n_vocab
        top = [((likely + i) % self.n_vocab, -float(i)) for i in range(self.n_logprobs)]
        return Sampled(token, -float(mix(hidden, token) % 1000), top)


@dataclass
class Engine:
    model: Model
    page_size: int
    n_pages: int
    max_tokens: int
    max_pieces: int
    max_rows: int
    max_sequences: int
    max_pages_per_sequence: int
    kv_type: str = "f16"
    threads: int = 0
    on_step: Callable[[], None] = lambda: None  # called half-way through every step
    n_steps: int = 0
    n_computed: int = 0
    largest: int = 0  # step, in tokens
    hidden: list[int] = field(default_factory=list)  # of the rows of the last step

    def __post_init__(self) -> None:
        self.pages: list[list[int | None]] = [[None] * self.page_size for _ in range(self.n_pages)]
        self.table = [[-1] * self.max_pages_per_sequence for _ in range(self.max_sequences)]
        self.cancelled = False

    def set_pages(self, slot: int, first: int, pages: Sequence[int]) -> None:
        assert all(0 <= page < self.n_pages for page in pages)
        assert first + len(pages) <= self.max_pages_per_sequence
        self.table[slot][first : first + len(pages)] = pages

    def copy_page(self, source: int, target: int) -> None:
        self.pages[target] = list(self.pages[source])

    def step(self, pieces: Sequence[tuple[int, int, int]], tokens: Sequence[int], rows: Sequence[int]) -> None:
        self.cancelled = False
        assert 0 < len(pieces) <= self.max_pieces
        assert sum(end - start for _, start, end in pieces) == len(tokens) <= self.max_tokens
        assert len(rows) <= self.max_rows
        assert list(rows) == sorted(set(rows))
        assert len({slot for slot, _, _ in pieces}) == len(pieces)
        self.n_steps += 1
        self.largest = max(self.largest, len(tokens))
        stream = iter(tokens)
        hidden = []
        for i, (slot, start, end) in enumerate(pieces):
            if i == len(pieces) // 2:
                self.on_step()
            if self.cancelled:
                raise CancelledError("cancelled")
            for position in range(start, end):
                token = next(stream)
                if token == POISON:
                    raise ValueError("blk.0.attn_q: the result is NaN")
                before = self.read(slot, position - 1) if position else 0
                page, place = divmod(position, self.page_size)
                self.pages[self.table[slot][page]][place] = mix(before, token, position)
                hidden.append(mix(*(self.read(slot, i) for i in range(position + 1))))
                self.n_computed += 1
        self.hidden = [hidden[row] for row in rows]

    def read(self, slot: int, position: int) -> int:
        page, place = divmod(position, self.page_size)
        entry = self.pages[self.table[slot][page]][place]
        assert entry is not None, f"position {position} of slot {slot} was never computed"
        return entry

    def sample(self, row: int, sampler: Sampler, position: int, mask: bytes | None = None) -> Sampled:
        assert mask is None  # a fake vocabulary spells nothing
        return sampler.draw(self.hidden[row], position)

    def score(self, row: int, sampler: Sampler, tokens: Sequence[int]) -> list[Sampled]:
        return [sampler.score(self.hidden[row + i], token) for i, token in enumerate(tokens)]

    def logits(self, first: int = 0, n: int | None = None) -> Any:
        rows = self.hidden[first : None if n is None else first + n]
        return np.array([[mix(h, token) % 1000 for token in range(self.model.n_vocab)] for h in rows], np.float32)

    def cancel(self) -> None:
        self.cancelled = True


def hidden(tokens: Sequence[int]) -> int:
    """What a sequence's last token must lead to."""
    entries: list[int] = []
    for position, token in enumerate(tokens):
        entries.append(mix(entries[-1] if entries else 0, token, position))
    return mix(*entries)


def expected(prompt: Sequence[int], max_tokens: int, seed: int, min_tokens: int = 0) -> list[int]:
    """What a prompt must be continued with."""
    tokens = list(prompt)
    for n in range(max_tokens):
        banned = {END: 0.0} if n < min_tokens else {}
        sampler = Sampler(Model().n_vocab, seed=seed, n_logprobs=-1, logit_bias=banned)
        sampler.accept(prompt, False)
        sampler.accept(tokens[len(prompt) :], True)
        tokens.append(sampler.draw(hidden(tokens), len(tokens)).token)
        if tokens[-1] == END:
            break
    return tokens[len(prompt) :]


class Tokenizer:
    """Each token is one character, by its number; 0 ends a generation."""

    end_ids = frozenset({END})
    n_vocab = 300

    def detokenizer(self) -> Detokenizer:
        return Detokenizer()

    def stop_matcher(self, stop: Sequence[str]) -> StopMatcher:
        return StopMatcher(stop)


class Detokenizer:
    def push(self, token: int) -> str:
        return text_of([token])

    def finish(self) -> str:
        return ""


def text_of(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("A") + token) for token in tokens if token != END)
