"""The step loop: one engine runs many requests over one model.

Owns the requests under way and what happens to a sampled token: text, stop rules, limits, events. Which tokens run on
which pages is the scheduler's; keys, values and logits are the core's. Threads may share an engine: they take turns.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from numbers import Integral
from typing import TYPE_CHECKING, Any

from pyedge.engine.pages import PagePool
from pyedge.engine.request import FinishReason, Request, Status, TokenEvent
from pyedge.engine.sampling_params import SamplingParams
from pyedge.engine.scheduler import Scheduled, Scheduler

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyedge import _core
    from pyedge.tokenizers import Tokenizer

log = logging.getLogger("pyedge.engine")


@dataclass(frozen=True)
class EngineConfig:
    n_pages: int
    max_model_len: int  # tokens of one sequence, prompt and output
    page_size: int = 16  # tokens: 8, 16 or 32
    max_tokens: int = 512  # per step
    max_sequences: int = 64  # that run at once
    kv_type: str = "f16"
    threads: int = 0  # 0: the machine's default
    prefix_cache: bool = True


@dataclass(frozen=True)
class _Result:
    """What became of a piece of work: a token if one was to be sampled, or the error that stands in its way."""

    work: Scheduled
    sampled: _core.Sampled | None = None
    error: Exception | None = None


class Engine:
    def __init__(self, model: _core.Model, tokenizer: Tokenizer, config: EngineConfig, core: Any = None) -> None:
        """core: what has Engine and Sampler; None for pyedge._core, tests bring another."""
        if core is None:
            from pyedge import _core as core
        self.config = config
        self.n_vocab: int = model.n_vocab
        self._tokenizer = tokenizer
        self._end_ids = tokenizer.end_ids
        self._make_sampler = core.Sampler
        self._core: _core.Engine = core.Engine(
            model,
            page_size=config.page_size,
            n_pages=config.n_pages,
            max_tokens=config.max_tokens,
            max_pieces=config.max_sequences,
            max_rows=config.max_sequences,
            max_sequences=config.max_sequences,
            max_pages_per_sequence=-(-config.max_model_len // config.page_size),
            kv_type=config.kv_type,
            threads=config.threads,
        )
        self._ids = count()
        self._live: dict[int, Request] = {}  # those whose last event is still to come
        self._events: list[TokenEvent] = []  # to be returned by the next step
        self._aborts: deque[Request] = deque()
        self._lock = threading.RLock()
        self._busy = False  # queues and pages are in use: aborts wait
        self.scheduler = self._new_scheduler()

    # ---- requests ----------------------------------------------------------------------------------------------------

    def request(self, prompt_token_ids: Sequence[int], params: SamplingParams, priority: int = 0) -> Request:
        """A request that can be added. ValueError if it cannot run: ids outside the vocabulary, no tokens, no room."""
        prompt = self._checked_ids(prompt_token_ids)
        room = self.scheduler.room(len(prompt))
        if (biased := max(params.logit_bias or (), default=0)) >= self.n_vocab:
            raise ValueError(f"logit_bias: token {biased} is not in the vocabulary (0 to {self.n_vocab - 1})")
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(63))
        return Request(
            id=next(self._ids),
            prompt_token_ids=prompt,
            params=params,
            max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
            detokenizer=self._tokenizer.detokenizer(),
            stops=self._tokenizer.stop_matcher(params.stop),
            priority=priority,
        )

    def add(self, request: Request) -> None:
        with self.exclusive(), self._bookkeeping():
            self._live[request.id] = request
            if request.max_tokens > 0:
                self.scheduler.add(request)
            else:
                self.scheduler.finish(request, "length")
                self._emit(TokenEvent(request.id, "", finish_reason="length"))

    def abort(self, *requests: Request) -> None:
        """Ends requests, without an event. May come at any time, from any thread, and does not wait: a step under way
        ends first, or is broken off and repeated without them if it may be reading one's prompt."""
        under_way = [request for request in requests if request.status is not Status.FINISHED]
        self._aborts.extend(under_way)
        if self._busy and any(request.n_tokens - request.n_computed > 1 for request in under_way):
            self._core.cancel()
        self._settle()

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._events)

    # ---- the step ----------------------------------------------------------------------------------------------------

    def step(self) -> list[TokenEvent]:
        """Computes one batch. Returns an event for each token that was generated and each request that ended.

        An error of the core ends the requests whose tokens it could not compute, and no others. KeyboardInterrupt
        leaves every request as it was before the step; whoever catches it decides which ones to abort.
        """
        with self.exclusive():
            self._busy = True
            try:
                with self._bookkeeping():
                    work = self.scheduler.schedule()
                results = self._run(work)
                with self._bookkeeping():
                    self._postprocess(results)
            finally:
                self._busy = False
            events, self._events = self._events, []
            return events

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits after each of these tokens, as one new sequence: [n, n_vocab]. Requests under way go on later."""
        import numpy as np

        ids, at_once = self._checked_ids(token_ids), self.config.max_sequences
        n, capacity = len(ids), self.scheduler.capacity
        if n > capacity:
            raise ValueError(f"{n} tokens do not fit the context of {capacity}; pass fewer at a time")
        out = np.empty((n, self.n_vocab), np.float32)
        borrowed: tuple[int, list[int]] | None = None
        with self.exclusive():
            try:
                with self._bookkeeping():
                    borrowed = self.scheduler.borrow(self.scheduler.pool.pages_for(n))
                slot, pages = borrowed
                self._core.set_pages(slot, 0, pages)
                for start in range(0, n, at_once):  # every token wants a row of logits, and a step makes only so many
                    part = ids[start : start + at_once]
                    self._core.step([(slot, start, start + len(part))], part, list(range(len(part))))
                    out[start : start + len(part)] = self._core.logits(0, len(part))
            finally:
                if borrowed is not None:
                    with self._bookkeeping():
                        self.scheduler.give_back(*borrowed)
        return out

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other threads out, save for their aborts."""
        try:
            with self._lock:
                yield
        finally:
            self._settle()

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books agree."""
        self.scheduler.check_integrity()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _run(self, work: list[Scheduled]) -> list[_Result]:
        """Computes the work and samples. Changes nothing but the core's pages, so it can be broken off and repeated."""
        if not work:
            if self._live:
                raise AssertionError("requests are under way, but none of them can run")
            return []
        pieces, tokens, rows = [], [], []
        try:
            for item in work:
                request = item.request
                pieces.append((self._write_block_table(request), item.start, item.end))
                tokens += request.token_ids[item.start : item.end]
                if item.samples:
                    rows.append(len(tokens) - 1)
            self._core.step(pieces, tokens, rows)
        except Exception as error:
            if self._aborts:
                return []  # broken off by `abort`; or at fault, and then the next step says so again
            if len(work) == 1:
                return [_Result(work[0], error=error)]
            # One of them is at fault. Alone, each gives the same bits as in the batch, or the error.
            return [result for item in work for result in self._run([item])]
        row = count()
        return [self._sample(item, next(row)) if item.samples else _Result(item) for item in work]

    def _write_block_table(self, request: Request) -> int:
        """Tells the core of the pages it does not know of yet. Returns the request's slot."""
        assert request.slot is not None
        if request.n_pages_written < len(request.pages):
            self._core.set_pages(request.slot, request.n_pages_written, request.pages[request.n_pages_written :])
            request.n_pages_written = len(request.pages)
        return request.slot

    def _sample(self, item: Scheduled, row: int) -> _Result:
        try:
            return _Result(item, self._core.sample(row, self._sampler(item.request), item.request.n_tokens))
        except Exception as error:
            return _Result(item, error=error)

    def _postprocess(self, results: list[_Result]) -> None:
        now = time.perf_counter()
        for result in results:
            request = result.work.request
            if result.error is not None:
                log.info("request %d: %s", request.id, result.error)
                request.error = result.error
                self.scheduler.finish(request, "abort")
                self._emit(TokenEvent(request.id, "", finish_reason="abort", error=result.error))
                continue
            self.scheduler.advance(request, result.work.end)
            if result.sampled is not None:
                self._emit(self._take(request, result.sampled, now))

    def _emit(self, event: TokenEvent) -> None:
        self._events.append(event)
        if event.finish_reason is not None:
            self._live.pop(event.request_id, None)

    def _take(self, request: Request, sampled: _core.Sampled, now: float) -> TokenEvent:
        """Appends a sampled token to its request; finishes the request if it was the last one."""
        params, token = request.params, sampled.token
        logprob = top = None
        if request.logprobs is not None and sampled.logprob is not None:
            logprob, top = sampled.logprob, sampled.top
            request.logprobs.append({**dict(top), token: logprob})
        request.token_ids.append(token)
        request.metrics.count_token(now)
        reason: FinishReason | None = None
        if token in self._end_ids:
            reason = "stop"
            text = ""
        else:
            # Rows of the embedding that only pad it are tokens without a text.
            text = request.detokenizer.push(token) if token < self._tokenizer.n_vocab else ""
            if request.n_output > params.min_tokens:
                text = request.stops.push(text)
            if request.stops.stopped:
                reason = "stop"
            elif request.n_output >= request.max_tokens:
                reason = "length"
        if reason is None:
            if request.sampler is not None:
                request.sampler.accept([token], True)
            if request.n_output == params.min_tokens:
                request.sampler = None  # the next one lets the end come
        else:
            request.sampler = None
            if not request.stops.stopped:
                text += request.stops.push(request.detokenizer.finish()) + request.stops.finish()
            self.scheduler.finish(request, "stop" if request.stops.stopped else reason)
        request.text += text
        return TokenEvent(request.id, text, token, logprob, top, request.finish_reason)

    def _sampler(self, request: Request) -> _core.Sampler:
        if request.sampler is not None:
            return request.sampler
        params = request.params
        bias = dict(params.logit_bias or {})
        if params.ignore_eos or request.n_output < params.min_tokens:
            bias.update(dict.fromkeys(self._end_ids, -math.inf))
        sampler: _core.Sampler = self._make_sampler(
            self.n_vocab,
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
            repeat_penalty=params.repeat_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repeat_last_n=params.repeat_last_n,
            seed=params.seed or 0,
            n_logprobs=-1 if params.logprobs is None else params.logprobs,
            logit_bias=bias,
        )
        sampler.accept(request.prompt_token_ids, False)
        sampler.accept(request.output_token_ids, True)
        request.sampler = sampler
        return sampler

    def _checked_ids(self, token_ids: Sequence[int]) -> list[int]:
        if len(token_ids) == 0:
            raise ValueError("the prompt is empty; give at least one token")
        for token in token_ids:
            if isinstance(token, bool) or not isinstance(token, Integral):
                raise ValueError(f"a token id must be an integer, not {token!r}")
            if not 0 <= token < self.n_vocab:
                raise ValueError(f"token id {token} is outside the vocabulary (0 to {self.n_vocab - 1})")
        return [int(token) for token in token_ids]

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            PagePool(self.config.n_pages, self.config.page_size),
            max_model_len=self.config.max_model_len,
            max_sequences=self.config.max_sequences,
            max_tokens=self.config.max_tokens,
            prefix_cache=self.config.prefix_cache,
        )

    def _settle(self) -> None:
        """Applies aborts, unless someone is at work, who will do so when done."""
        while self._aborts and self._lock.acquire(blocking=False):
            try:
                if self._busy:  # a finalizer, in the middle of this thread's own work
                    return
                with self._bookkeeping():
                    while self._aborts:
                        request = self._aborts.popleft()
                        if request.status is not Status.FINISHED:
                            self.scheduler.finish(request, "abort")
                        self._live.pop(request.id, None)
            finally:
                self._lock.release()

    @contextmanager
    def _bookkeeping(self) -> Iterator[None]:
        """Queues and pages change in here only.

        Should it break off half-way, which Ctrl-C can do at any point, the books are worth nothing: new ones are begun,
        and every request under way ends.
        """
        outer, self._busy = self._busy, True
        try:
            yield
        except BaseException as error:
            self.scheduler = self._new_scheduler()
            for request in list(self._live.values()):
                request.status, request.finish_reason = Status.FINISHED, "abort"
                request.error = RuntimeError(f"the engine was interrupted ({type(error).__name__}); send it again")
                self._emit(TokenEvent(request.id, "", finish_reason="abort", error=request.error))
            raise
        finally:
            self._busy = outer
