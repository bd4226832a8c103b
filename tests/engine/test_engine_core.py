"""The engine over the real core and a tiny model: the same tokens and log-probabilities, bit for bit, however made."""

from typing import Any

import fakecore
import numpy as np
import pytest
from tinyengine import PROMPTS, load_tiny_llama

from pyedge import _core
from pyedge.engine.engine import Engine, EngineConfig
from pyedge.engine.request import Request
from pyedge.engine.sampling_params import SamplingParams
from pyedge.errors import CancelledError, ModelError

NAN = float("nan")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _core.Model:
    return load_tiny_llama(tmp_path_factory.mktemp("model"))


def engine(model: _core.Model, **options: Any) -> Engine:
    config = {"n_pages": 60, "max_model_len": 128, "page_size": 8, "max_tokens": 64, "max_sequences": 16, **options}
    e = Engine(model, fakecore.Tokenizer(), EngineConfig(**config))
    spoil_free_pages(e)
    return e


def spoil_free_pages(e: Engine) -> None:
    """What holds nothing holds NaN, so that whoever reads it shows."""
    pool = e.scheduler.pool
    for page in pool._free:
        if pool._identity[page] is None:
            e._core.fill_page(page, NAN)


def start(e: Engine, prompt: list[int], i: int) -> Request:
    request = e.request(prompt, SamplingParams(seed=i, max_tokens=24, logprobs=5, repeat_penalty=1.1, temperature=1.5))
    e.add(request)
    return request


def drain(e: Engine) -> None:
    while e.has_work:
        spoil_free_pages(e)
        for event in e.step():
            assert event.error is None, event.error
        e.check_integrity()
    assert e.scheduler.pool.n_used == 0


@pytest.fixture(scope="module")
def alone(model: _core.Model) -> list[Request]:
    requests = []
    for i, prompt in enumerate(PROMPTS):
        e = engine(model, prefix_cache=False)
        requests.append(start(e, prompt, i))
        drain(e)
    assert all(r.n_output == 24 or r.finish_reason == "stop" for r in requests)
    return requests


def same(requests: list[Request], alone: list[Request]) -> None:
    for request, reference in zip(requests, alone, strict=True):
        assert request.output_token_ids == reference.output_token_ids
        assert request.logprobs == reference.logprobs  # floats, compared exactly


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"prefix_cache": False},
        {"max_tokens": 16},
        {"max_tokens": 3, "max_sequences": 3},
        {"max_tokens": 1, "max_sequences": 1},
        {"n_pages": 12},
        {"n_pages": 12, "max_tokens": 16, "prefix_cache": False},
        {"page_size": 16},
        {"page_size": 32},
        {"threads": 1},
    ],
    ids=str,
)
def test_batched_is_alone(model: _core.Model, alone: list[Request], options: dict[str, Any]) -> None:
    e = engine(model, **options)
    requests = [start(e, prompt, i) for i, prompt in enumerate(PROMPTS)]
    drain(e)
    same(requests, alone)
    if options.get("n_pages") == 12:
        assert sum(request.metrics.preemptions for request in requests) > 0
    again = [start(e, prompt, i) for i, prompt in enumerate(PROMPTS)]
    drain(e)
    same(again, alone)
    if not options:
        assert [r.metrics.cached_tokens for r in again] == [(len(prompt) - 1) // 8 * 8 for prompt in PROMPTS]


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("n_prompt", [1, 8, 23])
def test_several_answers_are_those_of_lone_requests(model: _core.Model, kv_type: str, n_prompt: int) -> None:
    """Also where heirs find the pool full, are preempted, and begin again."""
    rules = {"max_tokens": 24, "logprobs": 5, "temperature": 1.5}
    prompt, lone = PROMPTS[5][:n_prompt], []
    for i in range(4):
        e = engine(model, kv_type=kv_type, prefix_cache=False)
        lone.append(e.request(prompt, SamplingParams(seed=9 + i, **rules)))
        e.add(lone[-1])
        drain(e)
    for options in {}, {"n_pages": 9}, {"n_pages": 9, "prefix_cache": False, "max_tokens": 16}, {"max_sequences": 3}:
        e = engine(model, kv_type=kv_type, **options)
        requests = e.requests(prompt, SamplingParams(seed=9, n=4, **rules))
        for request in requests:
            e.add(request)
        drain(e)
        same(requests, lone)


@pytest.mark.parametrize("kv_type", ["f32", "q8_0", "q4_0"])
def test_small_caches_share_and_preempt_with_the_same_bits(model: _core.Model, kv_type: str) -> None:
    lone = []
    for i, prompt in enumerate(PROMPTS):
        e = engine(model, kv_type=kv_type, prefix_cache=False)
        lone.append(start(e, prompt, i))
        drain(e)
    e = engine(model, kv_type=kv_type, n_pages=12, max_tokens=16)
    for _ in range(2):
        requests = [start(e, prompt, i) for i, prompt in enumerate(PROMPTS)]
        drain(e)
        same(requests, lone)
        assert sum(request.metrics.preemptions for request in requests) > 0
    assert sum(request.metrics.cached_tokens for request in requests) > 0


def test_arrivals_and_aborts_in_between(model: _core.Model, alone: list[Request]) -> None:
    e = engine(model, n_pages=24)
    requests: list[Request] = []
    for i, prompt in enumerate(PROMPTS):
        requests.append(start(e, prompt, i))
        intruder = start(e, [*prompt, 7, 7], 99)
        for _ in range(3):
            e.step()
            spoil_free_pages(e)
        e.abort(intruder)
    drain(e)
    same(requests, alone)


def test_logits_are_the_same_wherever_they_come_from(model: _core.Model) -> None:
    tokens = PROMPTS[6]
    one_by_one = engine(model, max_sequences=1).logits(tokens)
    e = engine(model, n_pages=40)
    start(e, tokens, 0)
    start(e, PROMPTS[4], 1)
    for _ in range(3):
        e.step()
        spoil_free_pages(e)
        assert np.array_equal(e.logits(tokens), one_by_one)
    drain(e)
    assert one_by_one.dtype == np.float32
    assert one_by_one.shape == (64, model.n_vocab)
    assert np.isfinite(one_by_one).all()


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_cancel_that_was_not_meant_for_this_step(model: _core.Model, alone: list[Request], nth: int) -> None:
    """It is done again, and gives the same bits; logits too."""
    e = engine(model, max_tokens=16)
    calls = 0

    def cancel(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            e._core.cancel()

    e._core.tap("blk.0.attn", cancel)
    wanted = engine(model).logits(PROMPTS[6])
    assert np.array_equal(e.logits(PROMPTS[6]), wanted)
    assert calls == 4 + 1
    calls = 0
    requests = [start(e, prompt, i) for i, prompt in enumerate(PROMPTS)]
    drain(e)
    same(requests, alone)
    assert calls > nth


def test_a_cancelled_step_has_its_own_exception(model: _core.Model) -> None:
    e = engine(model)
    e._core.set_pages(0, 0, [0])
    e._core.tap("blk.0.attn", lambda *_: e._core.cancel())
    with pytest.raises(CancelledError):
        e._core.step([(0, 0, 2)], [5, 6], [])


def test_not_a_number_ends_the_request_that_has_it(model: _core.Model, alone: list[Request]) -> None:
    e = engine(model)
    bad, good = start(e, [5] * 20, 0), start(e, PROMPTS[5], 5)
    e.step()
    e._core.fill_page(bad.pages[0], NAN)
    while e.has_work:
        e.step()
        e.check_integrity()
    assert bad.finish_reason == "abort"
    assert "blk.0.attn" in str(bad.error)
    same([good], [alone[5]])


def test_bias(model: _core.Model) -> None:
    e = engine(model)
    request = e.request([5, 6], SamplingParams(logit_bias={77: 1000.0, 78: -float("inf")}, max_tokens=4))
    e.add(request)
    drain(e)
    assert request.output_token_ids == [77] * 4
    with pytest.raises(ValueError, match=f"token {model.n_vocab} is not in the vocabulary"):
        e.request([5, 6], SamplingParams(logit_bias={model.n_vocab: 1.0}))


def test_a_score_is_what_a_draw_reports(model: _core.Model) -> None:
    e = engine(model)._core
    e.set_pages(0, 0, [0, 1])
    tokens = PROMPTS[4][:16]
    e.step([(0, 0, 16)], tokens, list(range(16)))
    greedy, scorer = (_core.Sampler(model.n_vocab, temperature=0, n_logprobs=4) for _ in range(2))
    drawn = [e.sample(row, greedy, row) for row in range(16)]
    scored = e.score(3, scorer, [d.token for d in drawn[3:]])
    assert [(s.token, s.logprob, s.top) for s in scored] == [(d.token, d.logprob, d.top) for d in drawn[3:]]
    (other,) = e.score(0, scorer, [drawn[0].top[3][0]])
    assert (other.logprob, other.top) == (drawn[0].top[3][1], drawn[0].top)
    assert e.score(0, scorer, []) == []
    for row, given, said in ((14, [5, 6, 7], "row 16"), (-1, [5], "row -1"), (0, [model.n_vocab], "not in the voc")):
        with pytest.raises(ValueError, match=said):
            e.score(row, scorer, given)
    with pytest.raises(ValueError, match="n_logprobs"):
        e.score(0, _core.Sampler(model.n_vocab), [5])
    e.fill_page(0, NAN)
    e.step([(0, 15, 16)], tokens[15:], [0])
    with pytest.raises(ModelError, match=r"blk\.0\.attn"):
        e.score(0, scorer, [5])
