"""The engine over a core without a model: whatever is batched, cut, shared, preempted, aborted or interrupted, each
request gives what it gives alone."""

import gc
import threading
from array import array
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import fakecore
import numpy as np
import pytest
from fakecore import END, POISON, expected, text_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from salts import check_cached, check_pages

from pyedge.engine.engine import Engine, EngineConfig
from pyedge.engine.request import Request, Status, TokenEvent
from pyedge.engine.sampling_params import SamplingParams
from pyedge.errors import CancelledError, DeadlineError

SIZE = 4


def engine(clock: Callable[[], float] | None = None, **options: Any) -> Engine:
    """Its clock tells a time that passes by a millisecond with each look: what is planned must not depend on mine."""
    clock = clock or count(0.0, 1e-3).__next__
    config = {"n_pages": 64, "max_model_len": 64, "page_size": SIZE, "max_tokens": 16, "max_sequences": 8, **options}
    return Engine(fakecore.Model(), fakecore.Tokenizer(), EngineConfig(**config), fakecore, clock)  # type: ignore[arg-type]


def core(e: Engine) -> fakecore.Engine:
    return e._core  # type: ignore[return-value]


def start(e: Engine, prompt: list[int], **params: Any) -> Request:
    request = e.request(prompt, SamplingParams(**{"seed": 3, "max_tokens": 12, **params}))
    e.add(request)
    return request


def drain(e: Engine, limit: int = 5000, into: list[TokenEvent] | None = None) -> list[TokenEvent]:
    """Steps until nothing is left to do."""
    events = [] if into is None else into
    for _ in range(limit):
        if not e.has_work:
            e.check_integrity()
            assert e.scheduler.pool.n_used == 0
            return events
        events += e.step()
        e.check_integrity()
    raise AssertionError("the engine does not come to an end")


def check(request: Request) -> None:
    """That a finished request is what it is alone."""
    params = request.params
    limit = min(request.max_tokens, params.max_tokens if params.max_tokens is not None else 10**9)
    tokens = expected(request.prompt_token_ids, limit, params.seed or 0, params.min_tokens)
    assert request.output_token_ids == tokens
    assert request.finish_reason == ("stop" if tokens[-1:] == [END] else "length")
    assert request.text == text_of(tokens)


def test_one_request() -> None:
    e = engine()
    request = start(e, [5, 6, 7], logprobs=2)
    events = drain(e)
    check(request)
    assert [event.token_id for event in events] == request.output_token_ids
    assert "".join(event.text for event in events) == request.text
    assert [event.finish_reason for event in events] == [None] * (len(events) - 1) + [request.finish_reason]
    assert events[0].logprob == -0.5
    assert len(events[0].top_logprobs or []) == 2
    assert request.logprobs is not None
    assert all(token in entry for entry, token in zip(request.logprobs, request.output_token_ids, strict=True))
    assert 0 < request.metrics.ttft < 10  # type: ignore[operator]
    assert request.metrics.tpot is not None


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_batched_cut_and_preempted_is_alone(step: int, prefix_cache: bool) -> None:
    e = engine(n_pages=8, max_sequences=min(step, 5), max_tokens=step, prefix_cache=prefix_cache)
    stem = list(range(2, 12))
    requests = [start(e, [*stem[: 3 + 2 * i], 20 + i], seed=i, max_tokens=14) for i in range(6)]
    drain(e)
    for request in requests:
        check(request)
    if step > 3:
        assert any(request.metrics.preemptions for request in requests)
    assert core(e).largest <= step


def test_the_next_turn_computes_only_what_is_new() -> None:
    e = engine()
    first = start(e, list(range(2, 20)), max_tokens=6)
    drain(e)
    before = core(e).n_computed
    prompt = [*first.token_ids, 30, 31]
    second = start(e, prompt, max_tokens=1)
    drain(e)
    check(second)
    cached = (len(first.token_ids) - 1) // SIZE * SIZE
    assert second.metrics.cached_tokens == cached
    assert core(e).n_computed - before == len(prompt) - cached


def test_length_ends_at_the_context_or_the_pool() -> None:
    for options, total in (({"max_model_len": 20}, 20), ({"n_pages": 4}, 16)):
        e = engine(**options)
        request = start(e, [5, 6, 7], max_tokens=None, ignore_eos=True)
        drain(e)
        assert (request.n_tokens, request.finish_reason) == (total, "length")
        assert END not in request.token_ids


def test_refused_at_once() -> None:
    e = engine(n_pages=4)
    for prompt, said in (
        ([], "empty"),
        ([40], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
        ([True], "an integer, not bool"),
        (["a"], "an integer, not str"),
        ([1.0], "an integer, not float"),
        (np.zeros((1, 500)), "an integer, not ndarray"),
        (np.array(5), "not a single number"),
        ([2**200], "outside the vocabulary"),
        *((ids, "must be a list of integers") for ids in ("ab", b"ab", {5: 6}, {5, 6}, 5, None, iter([5]))),
        ([2] * 16, "KV cache holds 16"),
    ):
        for use in (e.logits, lambda ids: start(e, ids)):
            if said == "KV cache holds 16" and use == e.logits:
                continue
            with pytest.raises(ValueError, match=said) as error:
                use(prompt)  # type: ignore[arg-type, operator]
            assert "\n" not in str(error.value)
    assert not e.has_work


@pytest.mark.parametrize("ids", [np.array([2, 3], np.int8), np.array([2, 3], np.uint64), array("i", [2, 3]), (2, 3)])
def test_integers_of_any_kind(ids: Any) -> None:
    e = engine()
    request = start(e, ids)
    drain(e)
    check(request)
    assert {type(token) for token in request.token_ids} == {int}
    assert np.array_equal(e.logits(ids), e.logits([2, 3]))


def test_no_tokens_wanted() -> None:
    e = engine()
    request = start(e, [2, 3], max_tokens=0)
    assert drain(e) == [TokenEvent(request.id, "", finish_reason="length")]
    assert (request.output_token_ids, request.finish_reason, core(e).n_steps) == ([], "length", 0)


def test_end_of_text_waits_for_min_tokens() -> None:
    seed = next(s for s in range(1000) if len(expected([5, 6], 12, s)) in range(2, 8))
    short = len(expected([5, 6], 12, seed))
    e = engine()
    requests = [start(e, [5, 6], seed=seed, min_tokens=n) for n in (0, short - 1, short, short + 2)]
    drain(e)
    for request in requests:
        check(request)
    assert [r.n_output > short for r in requests] == [False, False, True, True]


def test_stop_strings() -> None:
    tokens = expected([5, 6], 12, 3)
    text = text_of(tokens)
    for stop, kept in (
        ([text[2:5]], text[:2]),
        ([text[4], text[2:5]], text[:2]),
        (["nothing"], text),
        ([text[0]], ""),
    ):
        e = engine()
        request = start(e, [5, 6], stop=stop)
        events = drain(e)
        assert request.text == "".join(event.text for event in events) == kept
        assert request.finish_reason == ("length" if kept == text else "stop")
        assert request.output_token_ids == tokens[: request.n_output]
    e = engine()
    request = start(e, [5, 6], stop=[text[0], text[3]], min_tokens=2)
    drain(e)
    assert (request.text, request.finish_reason) == (text[:3], "stop")


def test_a_seed_is_drawn_and_recorded() -> None:
    e = engine()
    requests = [start(e, [5, 6], seed=None) for _ in range(3)]
    drain(e)
    assert len({request.params.seed for request in requests}) == 3
    for request in requests:
        check(request)


def test_abort() -> None:
    e = engine(max_sequences=2, max_tokens=4)
    running, other, waiting = (start(e, [5, 6, i]) for i in (7, 8, 9))
    e.step()
    e.abort(running)
    e.abort(waiting)
    assert {running.finish_reason, waiting.finish_reason} == {"abort"}
    assert {event.request_id for event in drain(e)} == {other.id}
    check(other)
    e.abort(running)
    assert not e.has_work


def test_abort_during_a_step() -> None:
    """From another thread, or from a finalizer in this one: it takes effect when the step is over."""
    e = engine()
    requests = [start(e, [5, 6, i]) for i in range(7, 10)]

    def intrude() -> None:
        thread = threading.Thread(target=e.abort, args=[requests[0]])
        thread.start()
        thread.join()
        e.abort(requests[1])
        assert requests[0].status is not Status.FINISHED

    core(e).on_step = intrude
    assert e.step() == []  # they were being read, so the step is broken off
    core(e).on_step = lambda: None
    assert [r.finish_reason for r in requests] == ["abort", "abort", None]
    drain(e)
    check(requests[2])


def test_an_abort_of_a_request_that_waits_breaks_nothing_off() -> None:
    e = engine(max_sequences=1)
    running, waiting = start(e, [5, 6, 7]), start(e, [5, 6, 8])
    core(e).on_step = lambda: e.abort(waiting)
    assert [event.request_id for event in e.step()] == [running.id]
    assert waiting.finish_reason == "abort"


class LateAbort:
    """An abort in another thread that sees a step under way, and cancels when it is long over: in the middle of what
    `hit` is called from."""

    def __init__(self, e: Engine, doomed: Request) -> None:
        self.seen, self.go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=e.abort, args=[doomed])
        self.core, self.cancel = core(e), core(e).cancel
        core(e).cancel = self.late  # type: ignore[method-assign]
        core(e).on_step = self.begin

    def begin(self) -> None:
        self.core.on_step = lambda: None
        self.thread.start()
        assert self.seen.wait(10)

    def late(self) -> None:
        self.seen.set()
        assert self.go.wait(10)
        self.cancel()

    def hit(self) -> None:
        self.core.on_step = lambda: None
        self.go.set()
        self.thread.join(10)
        assert self.core.cancelled


@pytest.mark.parametrize("n_others", [1, 3])
def test_a_late_abort_harms_no_other_request(n_others: int) -> None:
    e = engine()
    doomed, *others = (start(e, [5, 6, i]) for i in range(7, 8 + n_others))
    late = LateAbort(e, doomed)
    e.step()
    assert doomed.finish_reason == "abort"
    core(e).on_step = late.hit
    assert e.step() == []  # broken off, for nobody: it is done again
    drain(e)
    for request in others:
        assert request.error is None
        check(request)


def test_a_late_abort_harms_no_logits() -> None:
    e = engine(max_sequences=3)
    wanted = e.logits(list(range(2, 12)))
    doomed = start(e, [5, 6, 7])
    late = LateAbort(e, doomed)
    e.step()
    core(e).on_step = late.hit
    assert np.array_equal(e.logits(list(range(2, 12))), wanted)
    drain(e)


def test_a_late_abort_while_a_fault_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core runs a step again to name the op at fault, and that can be cancelled as well."""
    e = engine()
    requests = [start(e, [5, 6, i]) for i in (7, 8)]
    sample, calls = core(e).sample, iter(range(100))

    def cancelled(*args: Any) -> Any:
        if next(calls) == 1:
            raise CancelledError("the step was cancelled")
        return sample(*args)

    monkeypatch.setattr(core(e), "sample", cancelled)
    drain(e)
    for request in requests:
        check(request)


def test_an_error_ends_the_requests_it_concerns() -> None:
    e = engine()
    good, bad, late = start(e, [5, 6, 7]), start(e, [5, 6, POISON]), start(e, [5, 6])
    events = drain(e)
    (failed,) = [event for event in events if event.error]
    assert (failed.request_id, failed.finish_reason) == (bad.id, "abort")
    assert "blk.0.attn_q" in str(bad.error)
    check(good)
    check(late)


def test_an_error_in_sampling_ends_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    e = engine()
    good, bad = start(e, [5, 6, 7]), start(e, [5, 6, 8], seed=99)
    draw = fakecore.Sampler.draw
    monkeypatch.setattr(fakecore.Sampler, "draw", lambda self, *args: draw(self, *args) if self.seed != 99 else 1 / 0)
    drain(e)
    monkeypatch.undo()
    assert isinstance(bad.error, ZeroDivisionError)
    check(good)


def group(e: Engine, prompt: list[int], n: int, **params: Any) -> list[Request]:
    requests = e.requests(prompt, SamplingParams(**{"seed": 3, "max_tokens": 12, "n": n, **params}))
    for request in requests:
        e.add(request)
    return requests


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("n_prompt", [1, 3, 4, 7])
def test_several_answers_to_one_prompt(n_prompt: int, prefix_cache: bool) -> None:
    e = engine(prefix_cache=prefix_cache)
    requests = group(e, list(range(5, 5 + n_prompt)), 6)
    drain(e)
    for i, request in enumerate(requests):
        assert (request.index, request.params.seed, request.params.n) == (i, 3 + i, 1)
        check(request)
    assert core(e).n_computed == n_prompt + sum(request.n_output - 1 for request in requests)


def test_answers_that_find_no_slot_or_page() -> None:
    for options in ({"max_sequences": 2}, {"n_pages": 5}, {"n_pages": 6, "max_tokens": 8, "prefix_cache": False}):
        e = engine(**options)
        first, other, second = group(e, [5, 6, 7, 8, 9], 4), start(e, [5, 6]), group(e, [5, 6, 7, 8, 9], 3, seed=20)
        drain(e)
        for request in [*first, other, *second]:
            check(request)


def test_an_answer_that_is_aborted_leaves_the_others() -> None:
    for gone in range(3):
        for when in range(4):
            e = engine(max_tokens=8)
            requests = group(e, list(range(5, 16)), 3)
            for _ in range(when):
                e.step()
            e.abort(requests[gone])
            drain(e)
            for request in requests:
                if request is not requests[gone]:
                    check(request)


def test_an_error_of_one_answer_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    e = engine()
    requests = group(e, [5, 6, 7], 3)
    draw = fakecore.Sampler.draw
    monkeypatch.setattr(fakecore.Sampler, "draw", lambda self, *args: draw(self, *args) if self.seed != 3 else 1 / 0)
    drain(e)
    monkeypatch.undo()
    assert isinstance(requests[0].error, ZeroDivisionError)
    check(requests[1])
    check(requests[2])


def test_one_request_is_one_answer() -> None:
    with pytest.raises(ValueError, match=r"n is 2.*Engine\.requests"):
        engine().request([5, 6], SamplingParams(n=2))


def test_a_salt_keeps_prompts_apart() -> None:
    e = engine()
    prompt, cached = list(range(2, 20)), []
    for salt in (None, "a", "b", "a", None):
        request = e.request(prompt, SamplingParams(seed=3, max_tokens=2), cache_salt=salt)
        e.add(request)
        drain(e)
        check(request)
        cached.append(request.metrics.cached_tokens)
    assert cached == [0, 0, 0, 16, 16]
    for salt in ("", 5):
        with pytest.raises(ValueError, match="cache_salt must be a text"):
            e.request(prompt, SamplingParams(), cache_salt=salt)  # type: ignore[arg-type]


def test_what_steps_cost_is_learned_from_their_times() -> None:
    """And a long prompt is read in parts that keep them short."""
    now = [0.0]
    e = engine(lambda: now[0], n_pages=200, max_model_len=400, max_tokens=64)
    sizes: list[int] = []
    step = core(e).step

    def timed(pieces: Any, tokens: Any, rows: Any) -> None:
        step(pieces, tokens, rows)
        sizes.append(len(tokens))
        now[0] += 0.004 + 0.0005 * len(tokens)

    core(e).step = timed  # type: ignore[method-assign]
    writer = start(e, [5, 6, 7], min_tokens=40, max_tokens=40)
    for _ in range(10):
        e.step()
    reader = start(e, [2 + i % 30 for i in range(200)])
    sizes.clear()
    drain(e)
    while_both = sizes[: sizes.index(1)] if 1 in sizes else sizes
    assert max(while_both) < 50
    # 4.5 ms alone, so 6.75 for it: 13.5 tokens; but for the first steps, and the last piece and its token.
    assert all(10 <= n <= 16 for n in while_both[2:-2]), while_both
    check(writer)
    check(reader)


def test_which_token_ended_a_hit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    e = engine()
    start(e, list(range(2, 14)))
    drain(e)
    with caplog.at_level("DEBUG", "pyedge.engine"):
        request = start(e, [*range(2, 11), 30, 31, 32, 33])
        drain(e)
    said = "8 of 13 prompt tokens were cached; token 9 is 30, and was 11 in an earlier prompt"
    assert f"request {request.id}: {said}" in caplog.text


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    now = [100.0]
    e = engine(lambda: now[0], max_tokens=4, max_sequences=2)
    core(e).on_step = lambda: now.__setitem__(0, now[0] + 1)
    params = SamplingParams(seed=3, max_tokens=12, ignore_eos=True)
    reading, writing, waiting = (
        e.request(prompt, params, deadline=deadline)
        for prompt, deadline in (([*range(2, 32)], 102.5), ([5, 6], 111.0), ([5, 7], 103.5))
    )
    free = e.request([5, 6, 8], SamplingParams(seed=3, max_tokens=12), deadline=1e9)
    for request in (reading, writing, waiting, free):
        e.add(request)
    errors = [event for event in drain(e) if event.error is not None]
    assert [event.request_id for event in errors] == [reading.id, waiting.id, writing.id]
    for event, request in zip(errors, (reading, waiting, writing), strict=True):
        assert isinstance(event.error, DeadlineError)
        assert (event.finish_reason, request.finish_reason, request.error) == ("abort", "abort", event.error)
    assert "deadline passed after 11.0 s, with 8 tokens of the answer written" in str(writing.error)
    check(free)
    assert free.metrics.queue_time == 4.0


class Interrupt:
    """Raises KeyboardInterrupt at one call of `step`."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_interrupt_in_the_core_changes_nothing() -> None:
    e = engine()
    requests = [start(e, [5, 6, i, 7, 8, 9], seed=i) for i in range(10, 13)]
    core(e).on_step = Interrupt(4)
    with pytest.raises(KeyboardInterrupt):
        drain(e)
    e.check_integrity()
    e.abort(requests[0])
    drain(e)
    for request in requests[1:]:
        check(request)


@pytest.mark.parametrize("place", ["allocate", "publish", "release"])
@pytest.mark.parametrize("when", [1, 2, 3])
def test_interrupt_in_the_books_ends_all_requests(place: str, when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    e = engine(n_pages=9)
    requests = [start(e, [5, 6, i, 7, 8, 9], seed=i) for i in range(10, 14)]
    interrupt, method = Interrupt(when), getattr(e.scheduler.pool, place)

    def interrupted(*args: Any) -> Any:
        interrupt()
        return method(*args)

    monkeypatch.setattr(e.scheduler.pool, place, interrupted)
    events: list[TokenEvent] = []
    with pytest.raises(KeyboardInterrupt):
        drain(e, into=events)
    drain(e, into=events)
    assert all(request.status is Status.FINISHED for request in requests)
    ends = [event.request_id for event in events if event.finish_reason]
    assert sorted(ends) == [request.id for request in requests]
    again = start(e, [5, 6, 10, 7])
    drain(e)
    check(again)


def test_events_go_into_the_queue_that_a_request_brings() -> None:
    e = engine()
    queues: list[deque[TokenEvent]] = [deque(), deque()]
    requests = [e.request([5, 6, i], SamplingParams(seed=i, max_tokens=12)) for i in (7, 8)]
    for request, queue in zip(requests, queues, strict=True):
        e.add(request, queue)
    other = start(e, [5, 6, 9])
    assert {event.request_id for event in drain(e)} == {other.id}
    for request, queue in zip(requests, queues, strict=True):
        assert [event.token_id for event in queue] == request.output_token_ids
        check(request)
    n_steps = core(e).n_steps
    assert e.step(wanted_by=requests[0]) == []
    queues[0].clear()
    with pytest.raises(RuntimeError, match="ended by someone else"):
        e.step(wanted_by=requests[0])
    assert core(e).n_steps == n_steps


def test_a_request_is_whole_when_it_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may look at any time, without a lock."""
    seen: dict[int, Any] = {}

    def facts(request: Request) -> tuple[object, ...]:
        return request.text, request.n_output, request.finish_reason, request.error, request.metrics.output_tokens

    def noting(request: Request, name: str, value: Any) -> None:
        object.__setattr__(request, name, value)
        if name == "status" and value is Status.FINISHED:
            seen[request.id] = facts(request)

    monkeypatch.setattr(Request, "__setattr__", noting)
    e = engine()
    requests = [start(e, [5, 6, i], seed=i, max_tokens=n) for i, n in ((7, 0), (8, 1), (9, 12), (POISON, 4), (10, 12))]
    requests.append(start(e, [5, 6], stop=[text_of(expected([5, 6], 3, 3))[1:]]))
    drain(e)
    requests.append(start(e, [5, 6, 7]))
    core(e).on_step = lambda: e.abort(requests[-1])
    drain(e)
    assert {request.finish_reason for request in requests} == {"stop", "length", "abort"}
    for request in requests:
        assert seen[request.id] == facts(request)


def test_called_from_within_its_own_step() -> None:
    e = engine()
    request, said = start(e, [5, 6, 7]), []

    def call() -> None:
        core(e).on_step = lambda: None
        for use in (e.step, lambda: e.logits([5])):
            with pytest.raises(RuntimeError, match="from within its own step") as error:
                use()
            said.append(error)

    core(e).on_step = call
    drain(e)
    assert len(said) == 2
    check(request)


def test_block_tables_are_no_longer_than_the_pool() -> None:
    """A file may claim a context of any length."""
    assert core(engine(n_pages=8, max_model_len=2**31 - 1)).max_pages_per_sequence == 8


def test_logits_between_steps() -> None:
    e = engine(n_pages=8, max_sequences=3, max_tokens=8)
    alone = engine().logits(list(range(2, 30)))
    requests = [start(e, [5, 6, i], seed=i, max_tokens=16) for i in range(7, 10)]
    for _ in range(4):
        e.step()
        assert np.array_equal(e.logits(list(range(2, 30))), alone)
        e.check_integrity()
    drain(e)
    for request in requests:
        check(request)
    with pytest.raises(ValueError, match="33 tokens do not fit the context of 32"):
        e.logits([2] * 33)
    assert alone.shape == (28, 40)
    assert alone[4].tolist() == [fakecore.mix(fakecore.hidden(range(2, 7)), t) % 1000 for t in range(40)]


def test_finished_requests_are_not_kept() -> None:
    e = engine()
    gc.collect()
    before = len([o for o in gc.get_objects() if isinstance(o, Request)])
    for i in range(20):
        start(e, [5, 6, i + 2])
    drain(e)
    gc.collect()
    assert len([o for o in gc.get_objects() if isinstance(o, Request)]) == before


class EngineMachine(RuleBasedStateMachine):
    """Arrivals, steps, aborts, interrupts and foreign logits in any order, on a pool that is too small."""

    @initialize(
        n_pages=st.integers(2, 12),
        max_sequences=st.integers(1, 5),
        spare=st.integers(0, 6),
        prefix_cache=st.booleans(),
    )
    def begin(self, n_pages: int, max_sequences: int, spare: int, prefix_cache: bool) -> None:
        self.now = 0.0
        self.engine = engine(
            n_pages=n_pages,
            page_size=2,
            max_model_len=20,
            max_sequences=max_sequences,
            max_tokens=max_sequences + spare,
            prefix_cache=prefix_cache,
            clock=lambda: self.now,
        )
        self.requests: list[Request] = []
        self.salts: dict[Request, str | None] = {}

    @rule(
        stem=st.integers(0, 12) | st.just(12),
        tail=st.lists(st.integers(2, 5), max_size=3),
        max_tokens=st.integers(0, 8) | st.none(),
        seed=st.integers(0, 3),
        priority=st.integers(0, 1),
        n=st.sampled_from([1, 1, 2, 4]),
        salt=st.sampled_from([None, "a", "b"]),
        time=st.sampled_from([None, None, 4.0, 16.0]),
    )
    def arrive(
        self,
        stem: int,
        tail: list[int],
        max_tokens: int | None,
        seed: int,
        priority: int,
        n: int,
        salt: str | None,
        time: float | None,
    ) -> None:
        prompt = [2 + i % 5 for i in range(stem)] + tail or [2]
        params = SamplingParams(seed=seed, max_tokens=max_tokens, n=n)
        deadline = None if time is None else self.now + time
        if len(prompt) >= self.engine.scheduler.capacity:
            with pytest.raises(ValueError, match="shorten the prompt"):
                self.engine.requests(prompt, params, priority, cache_salt=salt, deadline=deadline)
            return
        for request in self.engine.requests(prompt, params, priority, cache_salt=salt, deadline=deadline):
            self.engine.add(request)
            self.requests.append(request)
            self.salts[request] = salt

    @rule(n=st.integers(1, 4))
    def step(self, n: int) -> None:
        for _ in range(n):
            self.now += 1
            self.engine.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.engine.abort(self.requests[data.draw(st.integers(0, len(self.requests) - 1))])

    @precondition(lambda self: self.engine.scheduler.running)
    @rule()
    def interrupt(self) -> None:
        core(self.engine).on_step = Interrupt(1)
        with pytest.raises(KeyboardInterrupt):
            self.engine.step()
        core(self.engine).on_step = lambda: None

    @rule(n=st.integers(1, 6))
    def logits(self, n: int) -> None:
        n = min(n, self.engine.scheduler.capacity)
        assert self.engine.logits([3] * n).shape == (n, 40)

    @invariant()
    def sound(self) -> None:
        self.engine.check_integrity()
        check_pages(self.salts)

    def teardown(self) -> None:
        if not hasattr(self, "requests"):
            return
        drain(self.engine)
        check_cached(self.salts)
        # First come, first served, within a priority. Heirs begin when their prompt has been read.
        for priority in (0, 1):
            first = [r.metrics.scheduled for r in self.requests if r.priority == priority and r.index == 0]
            began = [t for t in first if t is not None]
            assert began == sorted(began)
        for request in self.requests:
            assert request.status is Status.FINISHED
            if isinstance(request.error, DeadlineError):
                assert request.deadline is not None
                assert request.deadline <= self.now
            if request.finish_reason != "abort":
                check(request)


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=60, stateful_step_count=30)
