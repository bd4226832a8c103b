"""Chat completions over HTTP: the same as in Python, streamed or whole, alone or beside others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import Server

from pyedge import SamplingParams

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "the other hand"}]


def ask(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 12, "seed": 5, **fields}


def test_whole(server: Server) -> None:
    answer = server.post(PATH, ask()).json
    alone = server.llm.chat(HELLO, SamplingParams(max_tokens=12, seed=5))
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    assert answer.pop("system_fingerprint").startswith("fp_")
    n = len(alone.prompt_token_ids)
    usage = answer.pop("usage")
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (n, 12, n + 12)
    message = {"role": "assistant", "content": alone.text, "refusal": None}
    assert answer == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
    }


@pytest.mark.parametrize("include_usage", [False, True])
def test_stream(server: Server, include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = server.post(PATH, ask(stream=True, **options)).chunks
    assert len({(c["id"], c["created"], c["model"], c["object"], c["system_fingerprint"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    if include_usage:
        assert chunks[-1]["choices"] == []
        assert chunks.pop()["usage"]["completion_tokens"] == 12
        assert all(c["usage"] is None for c in chunks)
    assert all("usage" not in c for c in chunks) or include_usage
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    whole = server.post(PATH, ask()).json["choices"][0]["message"]["content"]
    assert "".join(d.get("content", "") for d in deltas) == whole


def test_many_at_once_are_as_alone(server: Server) -> None:
    bodies = [ask(seed=i, max_tokens=5 + i, stream=i % 2 == 0) for i in range(12)]

    def text(body: dict[str, Any]) -> str:
        reply = server.post(PATH, body)
        if not body["stream"]:
            return str(reply.json["choices"][0]["message"]["content"])
        return "".join(c["choices"][0]["delta"].get("content", "") for c in reply.chunks)

    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(text, bodies))
    alone = [server.llm.chat(HELLO, SamplingParams(max_tokens=b["max_tokens"], seed=b["seed"])) for b in bodies]
    assert together == [out.text for out in alone]
