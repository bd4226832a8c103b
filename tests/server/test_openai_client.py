"""OpenAI's own client, used as its documentation says, with nothing changed but the address."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from serving import Server

HELLO = [{"role": "user", "content": "the other"}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


def test_chat(client: openai.OpenAI, server: Server) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=HELLO, max_completion_tokens=8, seed=1, logprobs=True, top_logprobs=2, n=2
    )
    assert [c.index for c in answer.choices] == [0, 1]
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert len(entries) == 8
    assert all(len(e.top_logprobs) == 2 and e.logprob <= 0 for e in entries)
    assert b"".join(bytes(e.bytes or []) for e in entries).decode(errors="replace") == choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.usage.prompt_tokens_details is not None
    assert answer.system_fingerprint == server.service.fingerprint


def test_chat_stream(client: openai.OpenAI) -> None:
    same = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "seed": 1}
    stream = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **same)
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == client.chat.completions.create(**same).choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 8


def test_a_stream_that_is_left(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model="tiny", messages=HELLO, stream=True, max_tokens=400) as stream:
        next(iter(stream))


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tiny", prompt=["the", "other"], max_tokens=4, logprobs=3, echo=True, seed=1
    )
    assert [c.text[:3] for c in answer.choices] == ["the", "oth"]
    assert answer.choices[0].logprobs is not None
    parts = client.completions.create(
        model="tiny", prompt="the", max_tokens=4, seed=1, stream=True, extra_body={"top_k": 5}
    )
    assert [p.choices[0].finish_reason for p in parts][-1] in ("length", "stop")


def test_models(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "pyedge"


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt-4", messages=HELLO)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=-1)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="ab " * 1000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.UnprocessableEntityError, match="suffix"):
        client.completions.create(model="tiny", prompt="a", suffix="b")
