"""The step loop: one engine runs many requests over one model.

Owns the requests under way and what happens to a sampled token: text, stop rules, limits, events. Which tokens run on
which pages is the scheduler's; keys, values and logits are the core's. Threads may share an engine: they take turns.

Ctrl-C may come anywhere in here, that is, wherever Python looks for it: after each call and at a function's start.
Locks are taken by statements that it cannot come into, what it breaks off is finished when the next turn begins, and an
event that was made is in its request's queue.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from pyedge.engine.grammar import GrammarCompiler
from pyedge.engine.pace import CHUNK, Pace, StepCost
from pyedge.engine.pages import PagePool
from pyedge.engine.request import FinishReason, Metrics, Request, Status, TokenEvent
from pyedge.engine.samplers import Samplers
from pyedge.engine.sampling_params import SamplingParams, shown
from pyedge.engine.scheduler import Scheduled, Scheduler, total
from pyedge.engine.token_ids import checked_ids
from pyedge.engine.turns import Worker
from pyedge.errors import CancelledError, DeadlineError, ModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pyedge import _core
    from pyedge.tokenizers import Tokenizer

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("pyedge.engine")

MAX_PER_STEP = 65536  # tokens, and sequences: the core's own limits


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

    @property
    def max_rows(self) -> int:
        """Of logits, in a step: beside all others that draw a token, a prompt whose log-probabilities are wanted still
        gets on."""
        return min(self.max_sequences + CHUNK - 1, MAX_PER_STEP)


@dataclass(frozen=True)
class _Result:
    """What became of a piece of work: what is reported of tokens of the prompt; and a token for each who draws one, the
    request and then its heirs, or in its place the error that stands in the way."""

    work: Scheduled
    scored: Sequence[_core.Sampled] = ()
    drawn: tuple[_core.Sampled | Exception, ...] = ()
    error: Exception | None = None  # nothing was computed


def _exclusive(method: Callable[Concatenate[Engine, P], T]) -> Callable[Concatenate[Engine, P], T]:
    """One caller at a time, save for aborts."""

    @wraps(method)
    def turn(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with self._lock:
                self._check_turn()
                try:
                    self._inside = True
                    self._tidy()
                    return method(self, *args, **kwargs)
                finally:
                    self._inside = False
        finally:
            self._settle()

    return turn


class Engine(Worker):
    def __init__(
        self,
        model: _core.Model,
        tokenizer: Tokenizer,
        config: EngineConfig,
        core: Any = None,
        clock: Callable[[], float] = time.perf_counter,
        prior: Callable[[], StepCost] = StepCost,
    ) -> None:
        """core: what has Engine and Sampler; None for pyedge._core, tests bring another. clock: seconds; deadlines,
        metrics and the times of steps are by it. prior: what steps cost before any was timed."""
        if core is None:
            from pyedge import _core as core
        self.config = config
        self.n_vocab: int = model.n_vocab
        self._tokenizer = tokenizer
        self._end_ids = tokenizer.end_ids
        self._samplers = Samplers(core.Sampler, self.n_vocab, self._end_ids)
        self._core: _core.Engine = core.Engine(
            model,
            page_size=config.page_size,
            n_pages=config.n_pages,
            max_tokens=config.max_tokens,
            max_pieces=config.max_sequences,
            max_rows=config.max_rows,
            max_sequences=config.max_sequences,
            max_pages_per_sequence=min(config.n_pages, -(-config.max_model_len // config.page_size)),
            kv_type=config.kv_type,
            threads=config.threads,
        )
        self.clock = clock
        self._pace = Pace(prior)
        self._grammars = GrammarCompiler(tokenizer, self.n_vocab)
        self._ids = count()
        self._live: dict[int, Request] = {}  # those whose last event is still to come
        self._events: list[TokenEvent] = []  # to be returned by the next step
        self._aborts: deque[Request] = deque()
        self._sound = True  # no change of queues and pages was broken off
        self.scheduler = self._new_scheduler()
        super().__init__()

    # ---- requests ----------------------------------------------------------------------------------------------------

    def request(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        priority: int = 0,
        *,
        cache_salt: str | None = None,
        deadline: float | None = None,
        watched: bool = True,
    ) -> Request:
        """A request that can be added. ValueError if it cannot run: ids outside the vocabulary, no tokens, no room, a
        grammar that does not compile.

        priority: lower ones go first. cache_salt: shares pages of the prefix cache with requests of the same salt only,
        so that nobody learns from the time it takes what others have asked. deadline: when, as `clock` counts, it ends
        with a DeadlineError, whatever it has by then; a step that is under way ends first. watched: someone takes the
        tokens as they come, so that other prompts are read in smaller parts meanwhile; else they are read sooner.
        """
        if params.n > 1:
            raise ValueError(f"n is {params.n}: one request is one answer; Engine.requests makes one for each")
        (request,) = self.requests(
            prompt_token_ids, params, priority, cache_salt=cache_salt, deadline=deadline, watched=watched
        )
        return request

    def requests(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        priority: int = 0,
        *,
        cache_salt: str | None = None,
        deadline: float | None = None,
        watched: bool = True,
    ) -> list[Request]:
        """One request for each of the params.n answers to a prompt, `index` 0 to n - 1, each to be added. Once they all
        are, the prompt is read for them together; each one's tokens are those of a lone request with its seed."""
        prompt = checked_ids(prompt_token_ids, self.n_vocab)
        if cache_salt is not None and (not isinstance(cache_salt, str) or not cache_salt):
            raise ValueError(f"cache_salt must be a text of at least one character, not {shown(cache_salt)}")
        room = self.scheduler.room(len(prompt))
        if (biased := max(params.logit_bias or (), default=0)) >= self.n_vocab:
            raise ValueError(f"logit_bias: token {biased} is not in the vocabulary (0 to {self.n_vocab - 1})")
        if params.seed is None:
            params = replace(params, seed=int.from_bytes(os.urandom(8), "little") >> 1)
        group: list[Request] = []
        prompt_rows: list[_core.Sampled] | None = None if params.prompt_logprobs is None else []
        return [
            Request(
                id=next(self._ids),
                prompt_token_ids=prompt,
                params=params.of_answer(index),
                max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
                detokenizer=self._tokenizer.detokenizer(),
                stops=self._tokenizer.stop_matcher(params.stop),
                matcher=None if params.grammar is None else self._grammars.matcher(params.grammar),
                priority=priority,
                cache_salt=cache_salt or "",
                deadline=deadline,
                watched=watched,
                index=index,
                group=group,
                prompt_rows=prompt_rows,
                metrics=Metrics(arrival=self.clock()),
            )
            for index in range(params.n)
        ]

    @_exclusive
    def add(self, request: Request, events: deque[TokenEvent] | None = None) -> None:
        """Starts a request. events: the queue that its events go into as they are made; None: `step` returns them, and
        then Ctrl-C can lose some on their way."""
        request.events = events
        self._change(self._add, request)

    def abort(self, *requests: Request) -> None:
        """Ends requests, without an event. May come at any time, from any thread, and does not wait: a step under way
        ends first, or is broken off and repeated without them if it may be reading one's prompt."""
        under_way = [request for request in requests if request.status is not Status.FINISHED]
        self._aborts.extend(under_way)
        if self._inside and any(r.status is Status.RUNNING and r.n_tokens - r.n_computed > 1 for r in under_way):
            self._core.cancel()  # it may come late and hit another step, which is then repeated
        self._settle()

    def prepare_grammars(self) -> None:
        """What the first request with a grammar would have to wait for. From any thread."""
        self._grammars.prepare()

    @property
    def has_work(self) -> bool:
        return bool(self._live or self._events)

    @property
    def n_waiting(self) -> int:
        """Requests that were added and are not running: what a server holds its queue's limit against."""
        return len(self.scheduler.waiting)

    @property
    def n_running(self) -> int:
        return len(self.scheduler.running)

    # ---- the step ----------------------------------------------------------------------------------------------------

    @_exclusive
    def step(self, wanted_by: Request | None = None) -> list[TokenEvent]:
        """Computes one batch, which makes an event for each token that was generated and each request that ended: put
        into the request's queue, or returned if it brought none.

        wanted_by: nothing is done if this request's queue has an event already, from a step of another thread.

        An error of the core ends the requests whose tokens it could not compute, and no others. KeyboardInterrupt
        leaves every request as it was before the step, or else ends it with an event that says so.
        """
        if wanted_by is not None:
            if wanted_by.events:
                return []
            if wanted_by.status is Status.FINISHED:
                raise RuntimeError("this request was ended by someone else; send it again")
        self._change(self._expire)
        results = self._run(self._change(self.scheduler.schedule))
        self._change(self._postprocess, results)
        events, self._events = self._events, []
        return events

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits after each of these tokens, as one new sequence: [n, n_vocab]. Requests under way go on later.
        Raises ModelError if the model makes numbers that are none."""
        ids = checked_ids(token_ids, self.n_vocab)
        if len(ids) > self.scheduler.capacity:
            raise ValueError(
                f"{len(ids)} tokens do not fit the context of {self.scheduler.capacity}; pass fewer at a time"
            )
        return self._logits(ids)

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books agree."""
        self.scheduler.check_integrity()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _add(self, request: Request) -> None:
        self._live[request.id] = request
        if request.max_tokens > 0 or request.rows_from < request.n_tokens - 1:
            self.scheduler.add(request)
        else:
            self._end_unwritten(request)

    def _expire(self) -> None:
        """Ends the requests whose deadline has passed."""
        now = self.clock()
        for request in [r for r in self._live.values() if r.deadline is not None and r.deadline <= now]:
            waited = now - request.metrics.arrival
            why = f"its deadline passed after {waited:.1f} s, with {request.n_output} tokens of the answer written"
            self._fail(request, DeadlineError(f"request {request.id}: {why}; allow more time, or ask for fewer"))

    def _run(self, work: list[Scheduled]) -> list[_Result]:
        """Computes the work and samples. Changes nothing but the core's pages, and what is known of the pace, so it can
        be broken off and repeated."""
        if not work:
            if self._live:
                raise AssertionError("requests are under way, but none of them can run")
            return []
        pieces: list[tuple[int, int, int]] = []
        tokens: list[int] = []
        rows: list[int] = []
        try:
            for item in work:
                request = item.request
                pieces.append((self._write_block_table(request), item.start, item.end))
                tokens += request.token_ids[item.start : item.end]
                rows += range(len(tokens) - item.n_rows, len(tokens))
            start, row, results = self.clock(), 0, []
            self._core.step(pieces, tokens, rows)
            for item in work:
                results.append(self._draw(item, row) if item.n_rows else _Result(item))
                row += item.n_rows
            self._pace.observe(total(work), self.clock() - start)
            return results
        except CancelledError:
            return []  # whoever was aborted is gone from the next step, which does the same for all others
        except Exception as error:
            if len(work) == 1:
                return [_Result(work[0], error=error)]
            # One of them is at fault. Alone, each gives the same bits as in the batch, or the error.
            self._pace.forget()
            return [result for item in work for result in self._run([item])]

    def _write_block_table(self, request: Request) -> int:
        """Tells the core of the pages it does not know of yet. Returns the request's slot."""
        assert request.slot is not None
        if request.n_pages_written < len(request.pages):
            self._core.set_pages(request.slot, request.n_pages_written, request.pages[request.n_pages_written :])
            request.n_pages_written = len(request.pages)
        return request.slot

    def _draw(self, item: Scheduled, row: int) -> _Result:
        """What comes of the item's rows, which begin with this one: the last one draws if the tokens end there, and all
        others tell how likely the token is that follows."""
        request, n, scored = item.request, item.n_rows - item.ends, []
        if n:
            first = item.end - item.n_rows + 1
            try:
                scored = self._core.score(row, self._samplers.scoring(request), request.token_ids[first : first + n])
            except CancelledError:
                raise
            except Exception as error:
                return _Result(item, error=error)
        if not item.ends or not request.max_tokens:
            return _Result(item, scored)
        return _Result(item, scored, tuple(self._sample(each, row + n) for each in (request, *item.heirs)))

    def _sample(self, request: Request, row: int) -> _core.Sampled | Exception:
        try:
            mask = None if request.matcher is None else request.matcher.mask(self._samplers.holds_end(request))
            return self._core.sample(row, self._samplers.drawing(request), request.n_tokens, mask)
        except CancelledError:  # it was finding out which op is at fault, which runs the step again
            raise
        except Exception as error:
            return error

    @_exclusive
    def _logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        import numpy as np

        n, at_once = len(ids), self.config.max_sequences
        out = np.empty((n, self.n_vocab), np.float32)
        try:
            slot, pages = self._change(self.scheduler.borrow, self.scheduler.pool.pages_for(n))
            self._core.set_pages(slot, 0, pages)
            for start in range(0, n, at_once):  # every token wants a row of logits, and a step makes only so many
                part = ids[start : start + at_once]
                self._step_until_done([(slot, start, start + len(part))], part, list(range(len(part))))
                out[start : start + len(part)] = self._core.logits(0, len(part))
        finally:
            self._change(self.scheduler.give_back)  # of this scheduler: another one has nothing to take back
        if len(bad := np.flatnonzero(~np.isfinite(out).all(axis=1))):
            raise ModelError(
                f"token {bad[0]}: the logits after it are not finite; the model file is damaged, or its numbers are "
                "too large for this KV cache: try kv_type 'f32'"
            )
        return out

    def _step_until_done(self, pieces: list[tuple[int, int, int]], tokens: list[int], rows: list[int]) -> None:
        done = False
        while not done:
            try:
                self._core.step(pieces, tokens, rows)
                done = True
            except CancelledError:
                pass  # by an abort, which was meant for another step

    def _postprocess(self, results: list[_Result]) -> None:
        now = self.clock()
        for result in results:
            request, heirs = result.work.request, result.work.heirs
            if result.error is not None:
                self._fail(request, result.error)
                continue
            if request.prompt_rows is not None:
                request.prompt_rows += result.scored
            self.scheduler.advance(request, result.work.end)
            if result.work.ends and not request.max_tokens:
                for each in request.group:
                    if each.status is not Status.FINISHED:
                        self._end_unwritten(each)
                continue
            for heir in heirs:
                self.scheduler.inherit(request, heir)
            if not result.drawn:
                continue
            request.scorer = None
            for owner, drawn in zip((request, *heirs), result.drawn, strict=True):
                if isinstance(drawn, Exception):
                    self._fail(owner, drawn)
                else:
                    self._emit(owner, self._take(owner, drawn, now))

    def _end_unwritten(self, request: Request) -> None:
        """Nothing was to be written: its prompt was all."""
        self.scheduler.finish(request, "length")
        self._emit(request, TokenEvent(request.id, "", finish_reason="length"))

    def _fail(self, request: Request, error: Exception) -> None:
        log.info("request %d: %s", request.id, error)
        request.error = error
        self.scheduler.finish(request, "abort")
        self._emit(request, TokenEvent(request.id, "", finish_reason="abort", error=error))

    def _emit(self, request: Request, event: TokenEvent) -> None:
        (self._events if request.events is None else request.events).append(event)
        if event.finish_reason is not None:
            self._live.pop(request.id, None)

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
            if request.matcher is not None:
                request.matcher.accept(token)
            if request.stops.stopped or (request.matcher is not None and request.matcher.complete):
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
        request.text += text
        if reason is not None:
            self.scheduler.finish(request, "stop" if request.stops.stopped else reason)
        return TokenEvent(request.id, text, token, logprob, top, request.finish_reason)

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            PagePool(self.config.n_pages, self.config.page_size),
            max_model_len=self.config.max_model_len,
            max_sequences=self.config.max_sequences,
            max_tokens=self.config.max_tokens,
            max_rows=self.config.max_rows,
            prefix_cache=self.config.prefix_cache,
            pace=self._pace,
            copy_page=self._core.copy_page,
            clock=self.clock,
        )

    # ---- turns -------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Finishes what is left to do between turns, unless someone is at work, who will do so when done."""
        while (self._aborts or self.scheduler.lent or not self._sound) and not self._inside and not self._lost:
            # Not a call: Ctrl-C could come right behind that, and the lock would stay taken.
            (taken,) = map(self._lock.acquire, [False])
            if not taken:
                return
            try:
                self._inside = True
                self._tidy()
            finally:
                self._inside = False
                self._lock.release()

    def _tidy(self) -> None:
        """Finishes what Ctrl-C broke off, and applies aborts."""
        if not self._sound:
            self._begin_anew("Ctrl-C")
        if self.scheduler.lent:
            self._change(self.scheduler.give_back)
        if self._aborts:
            self._change(self._apply_aborts)

    def _apply_aborts(self) -> None:
        while self._aborts:
            request = self._aborts.popleft()
            if request.status is not Status.FINISHED:
                self.scheduler.finish(request, "abort")
            self._live.pop(request.id, None)

    def _change(self, change: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Queues and pages change in here only.

        Should it break off half-way, which Ctrl-C can do at any point, the books are worth nothing: new ones are begun,
        and every request under way ends.
        """
        try:
            self._sound = False
            result = change(*args, **kwargs)
            self._sound = True
            return result
        except BaseException as error:
            if not self._sound:
                self._begin_anew(type(error).__name__)
            raise

    def _begin_anew(self, cause: str) -> None:
        """New books. May be broken off itself, and is done again then: an event twice at the end does no harm."""
        self.scheduler = self._new_scheduler()
        for request in list(self._live.values()):
            request.error = RuntimeError(f"the engine was interrupted ({cause}); send it again")
            request.finish_reason = "abort"
            request.status = Status.FINISHED
            self._emit(request, TokenEvent(request.id, "", finish_reason="abort", error=request.error))
        self._sound = True
