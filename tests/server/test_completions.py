"""Completions over HTTP: forms of prompts, echo, log-probabilities, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from serving import Server

from pyedge import SamplingParams

PATH = "/v1/completions"


def ask(prompt: Any = "the other", **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 6, "temperature": 0, **fields}


def texts(answer: Any) -> list[str]:
    assert [c["index"] for c in answer["choices"]] == list(range(len(answer["choices"])))
    return [c["text"] for c in answer["choices"]]


def test_whole_and_streamed(server: Server) -> None:
    alone = server.llm.generate("the other", SamplingParams(temperature=0, max_tokens=6))[0]
    answer = server.post(PATH, ask()).json
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": alone.text, "logprobs": None, "finish_reason": "length"}]
    chunks = server.post(PATH, ask(stream=True)).chunks
    assert "".join(c["choices"][0]["text"] for c in chunks) == alone.text
    assert [c["choices"][0]["finish_reason"] for c in chunks][-1] == "length"


def test_forms_of_prompts(server: Server) -> None:
    ids = server.llm.tokenizer.encode("the other")
    more = server.llm.tokenizer.encode("and then")
    one = texts(server.post(PATH, ask()).json)
    two = [*one, *texts(server.post(PATH, ask("and then")).json)]
    assert texts(server.post(PATH, ask(ids)).json) == one
    for prompts in (["the other", "and then"], [ids, more], [ids, "and then"]):
        answer = server.post(PATH, ask(prompts)).json
        assert texts(answer) == two
        assert answer["usage"]["prompt_tokens"] == len(ids) + len(more)
        assert answer["usage"]["completion_tokens"] == 12


def test_n_answers_to_each_prompt(server: Server) -> None:
    fields = {"temperature": 1.5, "seed": 7}
    answer = server.post(PATH, ask(["the other", "and then"], n=3, best_of=3, **fields)).json
    alone = [
        texts(server.post(PATH, ask(prompt, **{**fields, "seed": seed})).json)[0]
        for prompt in ("the other", "and then")
        for seed in (7, 8, 9)
    ]
    assert texts(answer) == alone
    assert answer["usage"]["prompt_tokens"] == 2 * len(server.llm.tokenizer.encode("the other"))
    streamed = [""] * 6
    for chunk in server.post(PATH, ask(["the other", "and then"], n=3, stream=True, **fields)).chunks:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == alone


def test_the_default_is_sixteen_tokens(server: Server) -> None:
    answer = server.post(PATH, {"prompt": "the other", "ignore_eos": True}).json
    assert answer["usage"]["completion_tokens"] == 16


def test_logprobs(server: Server) -> None:
    ids = server.llm.tokenizer.encode("the other")
    answer = server.post(PATH, ask(logprobs=3, return_tokens_as_token_ids=True, ignore_eos=True)).json
    entries = answer["choices"][0]["logprobs"]
    out = server.llm.generate("the other", SamplingParams(temperature=0, max_tokens=6, logprobs=3, ignore_eos=True))[0]
    assert entries["tokens"] == [f"token_id:{t}" for t in out.token_ids]
    assert entries["token_logprobs"] == [step[t] for step, t in zip(out.logprobs or [], out.token_ids, strict=True)]
    assert all(len(top) == 3 for top in entries["top_logprobs"])
    rows = server.llm.logits(ids + out.token_ids[:-1]).astype(np.float64)[len(ids) - 1 :]
    for row, token, logprob in zip(rows, out.token_ids, entries["token_logprobs"], strict=True):
        assert math.isclose(row[token] - np.log(np.exp(row).sum()), logprob, abs_tol=1e-4)

    spelled = server.post(PATH, ask(logprobs=3)).json["choices"][0]["logprobs"]
    for text, token in zip(spelled["tokens"], out.token_ids, strict=True):
        data = server.llm.tokenizer.token_bytes(token)
        assert text == (data.decode() if data.isascii() else "bytes:" + "".join(f"\\x{b:02x}" for b in data))
    assert all(len(top) == 3 for top in spelled["top_logprobs"])


def test_echo(server: Server) -> None:
    plain = server.post(PATH, ask()).json["choices"][0]["text"]
    assert server.post(PATH, ask(echo=True)).json["choices"][0]["text"] == "the other" + plain
    chunks = server.post(PATH, ask(echo=True, stream=True)).chunks
    assert "".join(c["choices"][0]["text"] for c in chunks) == "the other" + plain
    ids = server.llm.tokenizer.encode("the other")
    assert server.post(PATH, ask(ids, echo=True, max_tokens=0)).json["choices"][0]["text"] == "the other"


def test_echo_with_logprobs(server: Server) -> None:
    """What evaluation harnesses ask for: how likely the prompt itself is."""
    ids = server.llm.tokenizer.encode("the other")
    answer = server.post(PATH, ask(echo=True, logprobs=2, max_tokens=1, return_tokens_as_token_ids=True)).json
    entries = answer["choices"][0]["logprobs"]
    assert entries["tokens"][: len(ids)] == [f"token_id:{t}" for t in ids]
    assert len(entries["tokens"]) == len(ids) + 1
    assert entries["token_logprobs"][0] is entries["top_logprobs"][0] is None
    rows = server.llm.logits(ids).astype(np.float64)
    for row, token, logprob in zip(rows, ids[1:], entries["token_logprobs"][1:], strict=False):
        assert math.isclose(row[token] - np.log(np.exp(row).sum()), logprob, abs_tol=1e-6)
    text = answer["choices"][0]["text"]
    pieces = [server.llm.tokenizer.decode([t], continues=True) for t in ids]
    assert entries["text_offset"] == [sum(map(len, pieces[:i])) for i in range(len(ids) + 1)]
    assert text.startswith("the other")
    body = ask("the other", echo=True, logprobs=2, max_tokens=1, return_tokens_as_token_ids=True)
    first, *rest = (c["choices"][0] for c in server.post(PATH, {**body, "stream": True}).chunks)
    assert first["text"] == "the other"
    assert {k: v[: len(ids)] for k, v in entries.items()} == first["logprobs"]
    assert rest[-1]["finish_reason"] == "length"
    only = server.post(PATH, {**body, "max_tokens": 0, "n": 2}).json
    for choice in only["choices"]:
        assert (choice["text"], choice["logprobs"]) == ("the other", first["logprobs"])
    assert only["usage"]["completion_tokens"] == 0


def test_echo_with_too_many_logprobs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyedge.server.routes.completions.MAX_ECHOED", 20)
    ids = [5, 6, 7, 8]
    assert server.post(PATH, ask(ids, echo=True, logprobs=4)).status == 200
    for fields in ({"logprobs": 5}, {"prompt": [ids, ids], "logprobs": 2}, {"logprobs": 2, "n": 2}):
        reply = server.post(PATH, {**ask(ids, echo=True), **fields})
        assert (reply.status, reply.error["param"]) == (400, "echo")


def test_stop_strings(server: Server) -> None:
    whole = server.post(PATH, ask(max_tokens=24, ignore_eos=True)).json["choices"][0]["text"]
    stop = next(whole[i : i + 2] for i in range(6, len(whole)) if whole[i : i + 2].isascii())
    wanted = whole[: whole.index(stop)]
    for given in (stop, [stop], ["never there", stop]):
        body = ask(max_tokens=24, ignore_eos=True, stop=given)
        choice = server.post(PATH, body).json["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (wanted, "stop")
        chunks = server.post(PATH, {**body, "stream": True}).chunks
        assert "".join(c["choices"][0]["text"] for c in chunks) == wanted


@pytest.mark.parametrize(
    "prompt", [[], [[]], [["a"]], 5, {"a": 1}, [1.5], [True], [-1], [10**6], [None], None, [["", 1]]]
)
def test_prompts_that_are_none(server: Server, prompt: Any) -> None:
    reply = server.post(PATH, ask(prompt))
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
    ],
)
def test_what_is_not_done_here(server: Server, fields: dict[str, Any], param: str) -> None:
    reply = server.post(PATH, ask(**fields))
    assert (reply.status, reply.error["param"]) == (422, param)


def test_greedy_is_greedy(server: Server) -> None:
    """B21: however temperature, seeds and filters are combined."""
    ways = [
        {},
        {"seed": 1},
        {"seed": 2},
        {"top_p": 0},
        {"top_k": 0},
        {"top_k": 1},
        {"min_p": 1},
        {"temperature": 1e-4},
        {"temperature": 1e-6},
        {"temperature": 5, "top_k": 1},
    ]
    assert len({server.post(PATH, ask(**way)).json["choices"][0]["text"] for way in ways}) == 1
    assert server.post(PATH, ask(temperature=None)).status == 200
