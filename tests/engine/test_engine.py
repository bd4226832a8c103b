"""The engine over a core without a model: whatever is batched, cut, shared, preempted, aborted or interrupted, each
request gives what it gives alone."""

import gc
import threading
from typing import Any

import fakecore
import numpy as np
import pytest
from fakecore import END, POISON, expected, text_of
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyedge.engine.engine import Engine, EngineConfig
from pyedge.engine.request import Request, Status, TokenEvent
from pyedge.engine.sampling_params import SamplingParams

SIZE = 4


def engine(**options: Any) -> Engine:
    config = {"n_pages": 64, "max_model_len": 64, "page_size": SIZE, "max_tokens": 16, "max_sequences": 8, **options}
    return Engine(fakecore.Model(), fakecore.Tokenizer(), EngineConfig(**config), fakecore)  # type: ignore[arg-type]


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
        ([True], "integer"),
        (["a"], "integer"),
        ([1.0], "integer"),
        ([2] * 16, "KV cache holds 16"),
    ):
        with pytest.raises(ValueError, match=said):
            start(e, prompt)  # type: ignore[arg-type]
    assert not e.has_work
    check_after = start(e, np.array([2, 3]))  # type: ignore[arg-type]
    drain(e)
    check(check_after)


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
        self.engine = engine(
            n_pages=n_pages,
            page_size=2,
            max_model_len=20,
            max_sequences=max_sequences,
            max_tokens=max_sequences + spare,
            prefix_cache=prefix_cache,
        )
        self.requests: list[Request] = []

    @rule(
        stem=st.integers(0, 12),
        tail=st.lists(st.integers(2, 5), max_size=3),
        max_tokens=st.integers(0, 8) | st.none(),
        seed=st.integers(0, 3),
        priority=st.integers(0, 1),
    )
    def arrive(self, stem: int, tail: list[int], max_tokens: int | None, seed: int, priority: int) -> None:
        prompt = [2 + i % 5 for i in range(stem)] + tail or [2]
        params = SamplingParams(seed=seed, max_tokens=max_tokens)
        if len(prompt) >= self.engine.scheduler.capacity:
            with pytest.raises(ValueError, match="shorten the prompt"):
                self.engine.request(prompt, params, priority)
            return
        request = self.engine.request(prompt, params, priority)
        self.engine.add(request)
        self.requests.append(request)

    @rule(n=st.integers(1, 4))
    def step(self, n: int) -> None:
        for _ in range(n):
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

    def teardown(self) -> None:
        if not hasattr(self, "requests"):
            return
        drain(self.engine)
        for request in self.requests:
            assert request.status is Status.FINISHED
            if request.finish_reason != "abort":
                check(request)


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
