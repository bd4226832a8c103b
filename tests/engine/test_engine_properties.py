"""The engine over the real core, with everything at once: arrivals at random times, prompts with beginnings in common,
salts, several answers to one, aborts, priorities, deadlines, and pools that are too small. Whatever is not ended by
someone gives, bit for bit, what it gives alone."""

from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

import fakecore
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from salts import check_cached, check_pages
from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.engine.engine import Engine, EngineConfig
from pyedge.engine.request import Request
from pyedge.engine.sampling_params import SamplingParams
from pyedge.errors import DeadlineError
from pyedge.models import build_plan

CONTEXT = 64
STEM = [5 + (7 * j * j) % 250 for j in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> _core.Model:
    path: Path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_llama(path, types="Q4_0", n_embd=64, n_head=4, n_kv=2, n_ff=64, n_layer=1)
    with _core.Gguf(path) as gguf:
        return _core.Model(gguf, build_plan(gguf).ops, "fast", 1)


@dataclass(frozen=True)
class Arrival:
    after: int  # steps
    stem: int  # tokens in common with others
    tail: tuple[int, ...]
    max_tokens: int
    seed: int
    n: int
    salt: str | None
    prompt_logprobs: int | None
    priority: int
    time: float | None  # until its deadline, in steps
    abort: tuple[int, int] | None  # so many steps later, which of its answers

    @property
    def prompt(self) -> list[int]:
        return [*STEM[: self.stem], *self.tail] or [9]


arrivals = st.builds(
    Arrival,
    after=st.integers(0, 6),
    stem=st.integers(0, 40) | st.just(40),
    tail=st.lists(st.integers(3, 6), max_size=3).map(tuple),
    max_tokens=st.integers(0, 20),
    seed=st.integers(0, 2),
    n=st.sampled_from([1, 1, 2, 3]),
    salt=st.sampled_from([None, "a", "b"]),
    prompt_logprobs=st.sampled_from([None, None, 0, 2]),
    priority=st.integers(0, 1),
    time=st.sampled_from([None, None, None, 8.0]),
    abort=st.none() | st.tuples(st.integers(0, 12), st.integers(0, 2)),
)


def make(model: _core.Model, now: list[float], **options: object) -> Engine:
    # Its clock moves by steps, and by a little with each look: what is planned must not depend on this machine.
    ticks = count()
    config = {"max_model_len": CONTEXT, "page_size": 8, "threads": 1, **options}
    return Engine(
        model,
        fakecore.Tokenizer(),  # type: ignore[arg-type]
        EngineConfig(**config),  # type: ignore[arg-type]
        clock=lambda: now[0] + 1e-6 * next(ticks),
    )


@given(
    planned=st.lists(arrivals, min_size=1, max_size=8),
    n_pages=st.integers(6, 30),
    max_sequences=st.integers(1, 6),
    spare=st.integers(0, 30),
    prefix_cache=st.booleans(),
    kv_type=st.sampled_from(["f16", "q8_0", "q4_0"]),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_everything_at_once_is_alone(
    model: _core.Model,
    planned: list[Arrival],
    n_pages: int,
    max_sequences: int,
    spare: int,
    prefix_cache: bool,
    kv_type: str,
) -> None:
    now = [0.0]
    e = make(
        model,
        now,
        n_pages=n_pages,
        max_sequences=max_sequences,
        max_tokens=max_sequences + spare,
        prefix_cache=prefix_cache,
        kv_type=kv_type,
    )
    aborts: list[tuple[float, Request]] = []
    requests: list[Request] = []
    salts: dict[Request, str | None] = {}

    def step() -> None:
        now[0] += 1
        for pair in [pair for pair in aborts if pair[0] <= now[0]]:
            aborts.remove(pair)
            e.abort(pair[1])
        e.step()
        e.check_integrity()
        check_pages(salts)

    for arrival in planned:
        for _ in range(arrival.after):
            step()
        rules = SamplingParams(
            seed=arrival.seed,
            max_tokens=arrival.max_tokens,
            n=arrival.n,
            logprobs=2,
            prompt_logprobs=arrival.prompt_logprobs,
            temperature=1.5,
        )
        deadline = None if arrival.time is None else now[0] + arrival.time
        if len(arrival.prompt) >= e.scheduler.capacity:
            with pytest.raises(ValueError, match="the prompt has"):
                e.requests(arrival.prompt, rules)
            continue
        group = e.requests(arrival.prompt, rules, arrival.priority, cache_salt=arrival.salt, deadline=deadline)
        for request in group:
            e.add(request)
            salts[request] = arrival.salt
        requests += group
        if arrival.abort is not None and arrival.abort[1] < len(group):
            aborts.append((now[0] + arrival.abort[0], group[arrival.abort[1]]))
    for _ in range(2000):
        if not e.has_work:
            break
        step()
    assert not e.has_work  # nobody starves
    assert e.scheduler.pool.n_used == 0
    check_cached(salts)

    @cache
    def alone(prompt: tuple[int, ...], seed: int, max_tokens: int, prompt_logprobs: int | None) -> Request:
        lone = make(model, [0.0], n_pages=8, max_sequences=1, max_tokens=64, prefix_cache=False, kv_type=kv_type)
        rules = SamplingParams(
            seed=seed, max_tokens=max_tokens, logprobs=2, prompt_logprobs=prompt_logprobs, temperature=1.5
        )
        request = lone.request(prompt, rules)
        lone.add(request)
        while lone.has_work:
            lone.step()
        return request

    for request in requests:
        params = request.params
        reference = alone(tuple(request.prompt_token_ids), params.seed or 0, request.max_tokens, params.prompt_logprobs)
        n = request.n_output
        assert request.output_token_ids == reference.output_token_ids[:n]
        assert request.logprobs == (reference.logprobs or [])[:n]
        if request.finish_reason == "abort":
            assert request.error is None or isinstance(request.error, DeadlineError)
        else:
            assert (n, request.finish_reason) == (reference.n_output, reference.finish_reason)
            assert request.prompt_logprobs == reference.prompt_logprobs
