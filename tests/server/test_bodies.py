"""Bodies that are wrong, odd or too much: each gets an error in OpenAI's shape, and the server goes on."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from serving import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"[]",
        b"null",
        b"3",
        b'"text"',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a",}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\xff"}',
        b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": ' + b'{"a":' * 500 + b"1" + b"}" * 500 + b"}",
    ],
)
def test_no_json(server: Server, body: bytes) -> None:
    for path in (TEXT, CHAT):
        reply = server.post(path, body)
        assert reply.status == 400
        assert reply.error["type"] == "invalid_request_error"
        assert len(reply.error["message"]) < 300


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"min_p": -1}, "min_p"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"seed": 10**30}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"n": -1}, "n"),
        ({"stop": 5}, "stop"),
        ({"stop": [5]}, "stop[0]"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"stop": "x" * 100_000}, "stop"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(10_000)}}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "no"}}, "stream_options.include_usage"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"priority": 2**40}, "priority"),
        ({"model": 5}, "model"),
    ],
)
@pytest.mark.parametrize(("path", "rest"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "a"})])
def test_wrong_fields(server: Server, path: str, rest: dict[str, Any], fields: dict[str, Any], param: str) -> None:
    reply = server.post(path, {"max_tokens": 2, **rest, **fields})
    assert reply.status == 400, reply.data
    assert reply.error["param"] == param
    assert reply.error["message"].startswith(param.split("[")[0].split(".")[0])


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        ("hi", "messages"),
        ([{"role": "user"}], None),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "boss", "content": "hi"}], "messages[0].role"),
        ([{"role": 5, "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages"),
        ([{"role": "user", "content": [{"type": "poem", "text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{}]}], "messages[0].content[0].type"),
        (["hi"], "messages[0]"),
    ],
)
def test_wrong_messages(server: Server, messages: Any, param: str | None) -> None:
    reply = server.post(CHAT, {"messages": messages, "max_tokens": 1})
    if param is None:
        assert reply.status == 200
        return
    assert reply.status == 400, reply.data
    assert reply.error["param"] == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_no_images(server: Server, kind: str) -> None:
    part = {"type": kind, kind: {"url": "data:image/png;base64,AAAA"}}
    content = [{"type": "text", "text": "what is that?"}, part]
    reply = server.post(CHAT, {"messages": [{"role": "user", "content": content}]})
    assert reply.status == 422
    assert reply.error["param"] == "messages[0].content[1]"
    assert "text only" in reply.error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"continue_final_message": True}, "continue_final_message"),
    ],
)
def test_what_is_not_done_here(server: Server, fields: dict[str, Any], param: str) -> None:
    reply = server.post(CHAT, {"messages": HELLO, **fields})
    assert (reply.status, reply.error["param"]) == (422, param)


def test_too_many_logprobs(server: Server) -> None:
    for path, body in (
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 100}),
        (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": -1}),
        (TEXT, {"prompt": "a", "logprobs": 100}),
        (TEXT, {"prompt": "a", "logprobs": -1}),
    ):
        reply = server.post(path, body)
        assert (reply.status, reply.error["param"]) == (400, "logprobs")
    assert server.post(CHAT, {"messages": HELLO, "top_logprobs": 2}).error["param"] == "top_logprobs"


def test_unknown_and_empty_fields_are_ignored(server: Server) -> None:
    odd = {"user": "me", "store": False, "metadata": {"a": "b"}, "service_tier": "auto", "invented": [1], "audio": None}
    same = {"seed": 3, "max_tokens": 4}
    plain = server.post(CHAT, {"messages": HELLO, **same}).json["choices"]
    assert server.post(CHAT, {"messages": HELLO, **same, **odd}).json["choices"] == plain
    assert server.post(CHAT, {"messages": HELLO, **same, "temperature": None, "stop": None}).json["choices"] == plain


def test_the_last_of_a_field_given_twice_counts(server: Server) -> None:
    body = b'{"prompt": "a", "max_tokens": 9, "ignore_eos": true, "max_tokens": 2}'
    assert server.post(TEXT, body).json["usage"]["completion_tokens"] == 2


def test_any_content_type_will_do(server: Server) -> None:
    """curl -d sends another one."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json; charset=utf-8"):
        assert server.post(TEXT, body, **{"Content-Type": kind}).status == 200


def test_models(server: Server) -> None:
    (model,) = server.get("/v1/models").json["data"]
    assert (model["id"], model["object"]) == ("tiny", "model")
    assert server.get("/v1/models/tiny").json == model
    assert server.get("/v1/models/tiny.gguf").json == model
    for wrong in ("/v1/models/gpt-4", "/v1/models/a/b"):
        reply = server.get(wrong)
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
    for path, rest in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "a"}), ("/v1/embeddings", {"input": "a"})):
        reply = server.post(path, {"model": "gpt-4", **rest})
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def test_other_paths_and_methods(server: Server) -> None:
    assert server.get("/v2/models").status == 404
    assert server.get("/v2/models").error["code"] is None
    for method, path, allowed in (("GET", CHAT, "POST"), ("DELETE", "/health", "GET"), ("PUT", TEXT, "POST")):
        reply = server.call(method, path)
        assert reply.status == 405
        assert allowed in reply.headers["allow"]
        assert method in reply.error["message"]
    assert server.get("/static/../../llm.py").status == 404
    assert server.get("/static/%2e%2e/%2e%2e/llm.py").status == 404


def test_a_prompt_that_cannot_fit(server: Server) -> None:
    for path, rest in (
        (CHAT, {"messages": [{"role": "user", "content": "ab " * 2000}]}),
        (TEXT, {"prompt": "ab " * 2000}),
    ):
        for stream in (False, True):
            reply = server.post(path, {**rest, "stream": stream})
            assert reply.status == 400
            assert reply.error["code"] == "context_length_exceeded"
            assert "512" in reply.error["message"]
    for path, rest in (
        (TEXT, {"prompt": "x" * 4_000_000}),
        (TEXT, {"prompt": [5] * 2_000_000}),
        (CHAT, {"messages": [{"role": "user", "content": "ab " * 1_000_000}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab " * 1_000_000}]}]}),
    ):
        start = time.monotonic()
        reply = server.post(path, rest)
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert time.monotonic() - start < 2


def test_a_body_that_is_too_long(server: Server) -> None:
    reply = server.post(TEXT, b'{"prompt": "' + b"x" * (9 << 20) + b'"}')
    assert reply.status == 413
    assert reply.error["type"] == "invalid_request_error"
