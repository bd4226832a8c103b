"""Log-probabilities of prompts: read beside everything else, in whatever pieces, they are the same, bit for bit; and
those that the same tokens had when they were generated."""

from __future__ import annotations

from itertools import count
from typing import Any

import fakecore
import numpy as np
import pytest
from tinyengine import PROMPTS, load_tiny_llama

from pyedge import _core
from pyedge.engine.engine import Engine, EngineConfig
from pyedge.engine.request import Request
from pyedge.engine.sampling_params import SamplingParams
from pyedge.errors import DeadlineError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _core.Model:
    return load_tiny_llama(tmp_path_factory.mktemp("model"))


def real(model: _core.Model, **options: Any) -> Engine:
    config = {"n_pages": 60, "max_model_len": 128, "page_size": 8, "max_tokens": 64, "max_sequences": 16, **options}
    return Engine(model, fakecore.Tokenizer(), EngineConfig(**config), clock=count(0.0, 1e-3).__next__)  # type: ignore[arg-type]


def fake(**options: Any) -> Engine:
    config = {"n_pages": 64, "max_model_len": 64, "page_size": 4, "max_tokens": 16, "max_sequences": 8, **options}
    e = Engine(fakecore.Model(), fakecore.Tokenizer(), EngineConfig(**config), fakecore, count(0.0, 1e-3).__next__)  # type: ignore[arg-type]
    return e


def start(e: Engine, prompt: list[int], n: int | None = 3, **params: Any) -> Request:
    rules = {"seed": 1, "max_tokens": 24, "logprobs": 3, "temperature": 1.5, **params}
    request = e.request(prompt, SamplingParams(prompt_logprobs=n, **rules))
    e.add(request)
    return request


def drain(e: Engine) -> None:
    for _ in range(2000):
        if not e.has_work:
            break
        e.step()
        e.check_integrity()
    assert not e.has_work
    assert e.scheduler.pool.n_used == 0


@pytest.fixture(scope="module")
def alone(model: _core.Model) -> list[Request]:
    requests = []
    for prompt in PROMPTS:
        e = real(model, prefix_cache=False)
        requests.append(start(e, prompt))
        drain(e)
    return requests


def test_they_are_those_of_the_logits(model: _core.Model, alone: list[Request]) -> None:
    for prompt, request in zip(PROMPTS, alone, strict=True):
        got = request.prompt_logprobs
        assert got is not None
        assert got[0] is None
        assert len(got) == len(prompt)
        x = real(model).logits(prompt).astype(np.float64)
        x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
        for row, token, entry in zip(x, prompt[1:], got[1:], strict=False):
            assert entry is not None
            best = np.argsort(-row, kind="stable")[:3].tolist()
            assert set(entry) == {*best, token}
            assert list(entry)[:3] == best
            assert [entry[t] for t in entry] == pytest.approx([row[t] for t in entry], abs=1e-5)


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
        {"page_size": 32},
        {"threads": 1},
    ],
    ids=str,
)
def test_batched_is_alone(model: _core.Model, alone: list[Request], options: dict[str, Any]) -> None:
    e = real(model, **options)
    for _ in range(2):  # and again, with every prompt in the prefix cache
        requests = [start(e, prompt) for prompt in PROMPTS]
        plain = start(e, PROMPTS[6], None)
        drain(e)
        for request, reference in zip(requests, alone, strict=True):
            assert request.prompt_logprobs == reference.prompt_logprobs  # floats, compared exactly
            assert request.logprobs == reference.logprobs
        assert plain.prompt_logprobs is None
        assert plain.logprobs == alone[6].logprobs
    if options.get("n_pages") == 12:
        assert sum(request.metrics.preemptions for request in requests) > 0


def test_they_are_what_generation_reported(model: _core.Model, alone: list[Request]) -> None:
    for reference in alone:
        e = real(model)
        again = start(e, reference.token_ids[:-1], max_tokens=1)
        drain(e)
        n = len(reference.prompt_token_ids)
        assert (again.prompt_logprobs or [])[n:] == (reference.logprobs or [])[:-1]


def test_the_prefix_cache_loses_none() -> None:
    """Tokens that are to have one are computed, whatever is cached; and cached again by that."""
    e = fake()
    prompt = list(range(2, 32))
    first = start(e, prompt, None)
    drain(e)
    scored, plain = start(e, prompt), start(e, prompt, None)
    drain(e)
    assert (first.metrics.cached_tokens, scored.metrics.cached_tokens, plain.metrics.cached_tokens) == (0, 0, 28)
    assert len(scored.prompt_logprobs or []) == 30
    assert e.scheduler.pool.n_published == len(first.token_ids[:-1]) // 4  # and no second page of any content


def test_who_is_preempted_goes_on_where_it_was() -> None:
    """What is known is not asked for again; its pages may be found in the cache."""
    e = fake(n_pages=16, max_tokens=5, max_sequences=4)
    writers = [start(e, [5, 6, 7 + i], None, max_tokens=20, ignore_eos=True) for i in range(3)]
    while not all(writer.n_output for writer in writers):
        e.step()
    scored = start(e, list(range(2, 34)), max_tokens=1, ignore_eos=True)
    known = []
    while e.has_work:
        rows = scored.prompt_rows
        assert rows is not None
        if scored.status is scored.status.WAITING:
            known.append(len(rows))
        e.step()
        e.check_integrity()
    assert scored.metrics.preemptions > 0
    assert any(0 < n < 31 for n in known)
    assert [writer.n_output for writer in writers] == [20, 20, 20]
    lone = start(fresh := fake(), scored.prompt_token_ids)
    drain(fresh)
    assert scored.prompt_logprobs == lone.prompt_logprobs


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("max_sequences", [1, 2, 8])
def test_several_answers_have_those_of_one_reading(max_tokens: int, max_sequences: int) -> None:
    e = fake(max_sequences=max_sequences)
    prompt = list(range(2, 27))
    requests = e.requests(prompt, SamplingParams(n=4, seed=1, max_tokens=max_tokens, prompt_logprobs=2))
    for request in requests:
        e.add(request)
    drain(e)
    lone = start(fake_alone := fake(), prompt, 2)
    drain(fake_alone)
    for request in requests:
        assert request.prompt_logprobs == lone.prompt_logprobs
        assert request.n_output == max_tokens or request.finish_reason == "stop"
    if max_tokens == 0:
        assert {r.finish_reason for r in requests} == {"length"}
        assert e._core.n_computed == len(prompt)  # type: ignore[attr-defined]


def test_a_prompt_of_one_token_has_none() -> None:
    e = fake()
    one = start(e, [7], max_tokens=0)
    assert (one.finish_reason, one.prompt_logprobs) == ("length", [None])
    two = start(e, [7, 8], 0, max_tokens=0)
    drain(e)
    assert two.prompt_logprobs is not None
    assert two.prompt_logprobs[0] is None
    assert list(two.prompt_logprobs[1] or ()) == [8]  # the token alone


def test_others_run_on_meanwhile() -> None:
    """Writers have a token in every step, and a prompt beside it begins before it is through."""
    e = fake(max_sequences=4, max_tokens=64)
    writer = start(e, [5, 6], None, max_tokens=60, ignore_eos=True)
    while not writer.n_output:
        e.step()
    scored = start(e, list(range(2, 40)), max_tokens=1)
    other = start(e, [9, 10, 11], None, max_tokens=1)
    steps = 0
    while scored.status is not scored.status.FINISHED:
        before = writer.n_output
        e.step()
        e.check_integrity()
        assert writer.n_output == before + 1
        steps += 1
    assert steps > 4
    assert other.metrics.last_token is not None
    assert scored.metrics.last_token is not None
    assert other.metrics.last_token < scored.metrics.last_token
    drain(e)


def test_who_is_aborted_leaves_them_to_the_others_of_its_group() -> None:
    e = fake(max_sequences=2)
    prompt = list(range(2, 30))
    requests = e.requests(prompt, SamplingParams(n=2, seed=1, max_tokens=3, prompt_logprobs=1))
    for request in requests:
        e.add(request)
    e.step()
    assert 0 < len(requests[0].prompt_rows or []) < 27
    e.abort(requests[0])
    drain(e)
    lone = start(fresh := fake(), prompt, 1)
    drain(fresh)
    assert requests[1].prompt_logprobs == lone.prompt_logprobs


def test_a_deadline_ends_it() -> None:
    now = [0.0]
    e = fake(max_sequences=1, max_tokens=4)
    e.clock = lambda: now[0]
    request = e.request(list(range(2, 30)), SamplingParams(prompt_logprobs=0, max_tokens=0), deadline=5.0)
    e.add(request)
    e.step()
    now[0] = 6.0
    (event,) = e.step()
    assert isinstance(event.error, DeadlineError)
    drain(e)


def test_not_a_number_ends_the_request_that_has_it(model: _core.Model, alone: list[Request]) -> None:
    e = real(model, max_tokens=16)
    bad, good = start(e, [5] * 40), start(e, PROMPTS[5])
    e.step()
    e._core.fill_page(bad.pages[0], float("nan"))
    drain(e)
    assert bad.finish_reason == "abort"
    assert "blk.0.attn" in str(bad.error)
    assert good.prompt_logprobs == alone[5].prompt_logprobs


def test_wrong_numbers_of_them() -> None:
    for wrong in (-1, 65, 1.5, "2", True):
        with pytest.raises(ValueError, match="prompt_logprobs must be"):
            SamplingParams(prompt_logprobs=wrong)  # type: ignore[arg-type]
