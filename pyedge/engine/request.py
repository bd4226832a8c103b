"""A request: one sequence, the rules for its tokens, and where it stands. And the events that come out of it.

Owns data and no behaviour: the scheduler moves requests, the engine feeds their samplers and texts.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from pyedge.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyedge import _core
    from pyedge.engine.grammar import Matcher
    from pyedge.tokenizers import IncrementalDetokenizer, StopMatcher

FinishReason = Literal["stop", "length", "abort"]


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class TokenEvent:
    """One token of a request, or its end. A token's text may come with a later event, once its characters are whole."""

    request_id: int
    text: str  # whole characters only, nothing of a stop string
    token_id: int | None = None  # None: the end came without a token
    logprob: float | None = None  # natural log, from the model's own distribution
    top_logprobs: list[tuple[int, float]] | None = None  # most likely first
    finish_reason: FinishReason | None = None  # of the last event
    error: Exception | None = None  # why it was aborted, if the engine did it


@dataclass
class Metrics:
    """Seconds and counts of one request."""

    arrival: float = field(default_factory=time.perf_counter)
    scheduled: float | None = None  # when its prompt was first begun with
    first_token: float | None = None
    last_token: float | None = None
    output_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    preemptions: int = 0

    def count_token(self, now: float) -> None:
        self.output_tokens += 1
        self.last_token = now
        if self.first_token is None:
            self.first_token = now

    @property
    def queue_time(self) -> float | None:
        """Seconds from arrival until its turn came."""
        return None if self.scheduled is None else self.scheduled - self.arrival

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first."""
        if self.first_token is None or self.last_token is None or self.output_tokens < 2:
            return None
        return (self.last_token - self.first_token) / (self.output_tokens - 1)


@dataclass(eq=False)
class Request:
    """One sequence. `token_ids[:n_computed]` have their keys and values in `pages`; the rest is still to be run."""

    id: int
    prompt_token_ids: list[int]
    params: SamplingParams  # its seed is never None
    max_tokens: int  # of output, with the context's end taken into account
    detokenizer: IncrementalDetokenizer
    stops: StopMatcher
    matcher: Matcher | None = None  # at the output's end; it outlives preemption, as the output does
    priority: int = 0  # lower runs first; equal ones in order of id
    cache_salt: str = ""  # its pages are found only by requests of the same salt
    deadline: float | None = None  # on the engine's clock: when it ends, come what may
    watched: bool = True  # someone takes its tokens as they come: steps are kept short for it
    index: int = 0  # among the answers to one prompt
    group: list[Request] = field(default_factory=list, repr=False)  # those that were added of these answers

    status: Status = Status.WAITING  # FINISHED is set when all else is in place: other threads look at it
    token_ids: list[int] = field(default_factory=list)  # prompt and output
    n_computed: int = 0
    pages: list[int] = field(default_factory=list)  # block table: token i is in pages[i // page_size]
    n_pages_written: int = 0  # the first block-table entries, that the core has
    slot: int | None = None  # the core's row for the block table
    events: deque[TokenEvent] | None = None  # where its events go; None: `Engine.step` returns them
    sampler: _core.Sampler | None = None  # made when first needed: it may be as large as the vocabulary
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    logprobs: list[dict[int, float]] | None = None  # one entry per output token: the most likely ones, and itself
    prompt_rows: list[_core.Sampled] | None = None  # of the prompt's tokens from the second on; its group's, in common
    scorer: _core.Sampler | None = None  # makes them
    text: str = ""
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)
        if self.params.logprobs is not None:
            self.logprobs = []

    @property
    def n_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def n_output(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def rows_from(self) -> int:
        """The first token after which logits are wanted: the last one, whose next is drawn; or, as long as some of the
        prompt's log-probabilities are still to come, the one before the first of these."""
        if self.prompt_rows is not None and len(self.prompt_rows) < len(self.prompt_token_ids) - 1:
            return len(self.prompt_rows)
        return len(self.token_ids) - 1

    @property
    def prompt_logprobs(self) -> list[dict[int, float] | None] | None:
        """As `logprobs`, one entry per token of the prompt; None for the first, which nothing predicts."""
        if self.prompt_rows is None:
            return None
        return [None, *({**dict(row.top), row.token: row.logprob or 0.0} for row in self.prompt_rows)]

    @property
    def order(self) -> tuple[int, int]:
        """Sorts requests: who runs first, and last to be preempted."""
        return self.priority, self.id
