"""What made other engines fail at the edges of pages, pools and limits, over HTTP, on a tiny model; by the numbers of
shared/cases. Those of bodies, templates and sockets are in the files of these; the default model's, in test_smollm2.py.
"""

from __future__ import annotations

import contextlib
import gc
import json
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from serving import Server, post, serving, wait_until
from tinymodel import write_tiny_llama

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "Give a color as JSON."}]


def complete(server: Server, prompt: Any, **fields: Any) -> dict[str, Any]:
    """The one choice, which must be the same when streamed."""
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True, **fields}
    (choice,) = server.post(TEXT, body).json["choices"]
    chunks = server.post(TEXT, {**body, "stream": True}).chunks
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return dict(choice)


def test_b24_small_limits(server: Server) -> None:
    whole = server.post(TEXT, {"prompt": "the other", "temperature": 0, "ignore_eos": True, "max_tokens": 8}).json
    for n in range(4):
        body = {"prompt": "the other", "temperature": 0, "ignore_eos": True, "max_tokens": n}
        answer = server.post(TEXT, body).json
        assert answer["usage"]["completion_tokens"] == n
        assert answer["choices"][0]["finish_reason"] == "length"
        assert whole["choices"][0]["text"].startswith(answer["choices"][0]["text"].rstrip("\ufffd"))
        complete(server, "the other", max_tokens=n)
        answer = server.post(CHAT, {"messages": HELLO, "max_completion_tokens": n, "ignore_eos": True}).json
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (n, "length")
    for path, body in ((TEXT, {"prompt": "a", "max_tokens": -5}), (CHAT, {"messages": HELLO, "max_tokens": -5})):
        reply = server.post(path, body)
        assert (reply.status, reply.error["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(
    ("path", "body", "answered"),
    [
        (TEXT, {"prompt": ""}, True),
        (TEXT, {"prompt": [""]}, True),
        (TEXT, {"prompt": []}, False),
        (TEXT, {"prompt": [[]]}, False),
        (TEXT, {"prompt": ["", []]}, False),
        (CHAT, {"messages": []}, False),
        (CHAT, {"messages": [{"role": "user", "content": ""}]}, True),
        (CHAT, {"messages": [{"role": "user", "content": []}]}, True),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_b25_empty_prompts(server: Server, path: str, body: dict[str, Any], answered: bool, stream: bool) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    reply = server.post(path, {**body, "max_tokens": 2, "ignore_eos": True, **options})
    if answered:
        assert reply.status == 200
        usage = (reply.chunks[-1] if stream else reply.json)["usage"]
        n = 1 if path == TEXT else len(server.llm.encode_chat([{"role": "user", "content": ""}]))
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (n, 2)
    else:
        assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
    start = time.monotonic()
    assert server.get("/health").status == 200
    assert server.post(TEXT, {"prompt": "1 2 3", "max_tokens": 2}).status == 200
    assert time.monotonic() - start < 5


def test_b34_every_length_of_prompt(tiny_path: Path) -> None:
    """Alone, from the cache, all at once, and in parts of any size: the same tokens and log-probabilities."""
    ids = [3 + (7 * i * i + i) % 270 for i in range(70)]
    prompts = [ids[:n] for n in range(1, 71)]

    def ask(server: Server, prompt: list[int]) -> str:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 20, "logprobs": 1, "ignore_eos": True}
        (choice,) = server.post(TEXT, body).json["choices"]
        return json.dumps([choice["text"], choice["logprobs"]])

    with serving(tiny_path, kv_memory="8MB", prefix_cache=False, page_size=16) as server:
        alone = [ask(server, prompt) for prompt in prompts]
    for page_size, chunk in ((16, 512), (8, 70), (32, 75)):
        options = {"page_size": page_size, "step_tokens": chunk}
        with serving(tiny_path, kv_memory="8MB", settings={"max_sequences": 70}, **options) as server:
            with ThreadPoolExecutor(70) as pool:
                assert list(pool.map(lambda prompt: ask(server, prompt), prompts)) == alone
            if chunk == 512:
                assert [ask(server, prompt) for prompt in prompts] == alone
    for chunk in (1, 7):
        with serving(tiny_path, kv_memory="8MB", settings={"max_sequences": 1}, step_tokens=chunk) as server:
            assert [ask(server, prompt) for prompt in prompts[::3]] == alone[::3]


def test_b36_a_small_pool(tmp_path: Path) -> None:
    """What can never fit is refused at once; what does not fit now waits or is computed again, with the same text; and
    of 300 requests, half of which are left, nothing stays."""
    path = write_tiny_llama(tmp_path / "m.gguf", context=8192)
    pool = 256 * 512  # tokens; bytes of keys and values of each
    with serving(path, kv_memory=pool, settings={"max_queue": 20}) as server:
        assert server.llm.engine.scheduler.capacity == 256
        start = time.monotonic()
        reply = server.post(TEXT, {"prompt": [100] * 1000, "max_tokens": 1})
        assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")
        assert "256" in reply.error["message"]
        assert server.post(TEXT, {"prompt": "1 2 3", "max_tokens": 1}).status == 200
        assert time.monotonic() - start < 5

        def text(i: int) -> str:
            body = {"prompt": [5 + i, *range(100, 199)], "max_tokens": 100, "temperature": 0, "ignore_eos": True}
            return str(server.post(TEXT, body).json["choices"][0]["text"])

        alone = [text(i) for i in range(6)]
        with ThreadPoolExecutor(6) as threads:
            assert list(threads.map(text, range(6))) == alone
        server.check()
        assert re.search(rb"pyedge_preemptions_total [1-9]", server.get("/metrics").data)

        def come_and_go(i: int) -> None:
            body = {"prompt": [5 + i % 9, 6, 7], "max_tokens": 1 + i % 30, "seed": i, "stream": i % 3 == 0}
            if i % 2:
                assert server.post(TEXT, body).status == 200
                return
            with server.connect() as s, contextlib.suppress(TimeoutError):
                s.sendall(post(TEXT, body))
                s.settimeout(random.Random(i).random() * 0.02)
                s.recv(20)

        process, sizes = psutil.Process(), []
        for _ in range(2):  # the first time fills what is filled once
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(come_and_go, range(300)))
            wait_until(server.at_rest)
            gc.collect()
            sizes.append(process.memory_info().rss)
        server.check()
        assert b"pyedge_kv_pages_used 0.0" in server.get("/metrics").data
        assert sizes[1] - sizes[0] < 50e6


COLOR = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "ok": {"type": "boolean"}},
    "required": ["color", "ok"],
    "additionalProperties": False,
}
FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "color", "schema": COLOR}}}


def test_b37_an_object_ends_with_its_last_brace(server: Server) -> None:
    """By a model that is random, and as likely to write white space as anything."""
    for fields in ({"temperature": 0}, *({"temperature": 1.5, "seed": seed} for seed in range(1, 11))):
        body = {"messages": HELLO, "max_tokens": 200, "top_k": 0, "top_p": 1, "min_p": 0, **FORM, **fields}
        (choice,) = server.post(CHAT, body).json["choices"]
        text = choice["message"]["content"]
        assert choice["finish_reason"] == "stop"
        assert json.loads(text).keys() == {"color", "ok"}
        assert text.endswith("}")
        assert not re.search(r"\s{21}", text)
        chunks = server.post(CHAT, {**body, "stream": True}).chunks
        assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text
        (cut,) = server.post(CHAT, {**body, "max_tokens": 3}).json["choices"]
        assert cut["finish_reason"] == "length"
        assert text.startswith(cut["message"]["content"])
        (free,) = server.post(CHAT, {**body, "response_format": {"type": "json_object"}}).json["choices"]
        assert not re.search(r"\s{21}", free["message"]["content"])
        if free["finish_reason"] == "stop":
            assert isinstance(json.loads(free["message"]["content"]), dict)


def test_b20_what_templates_use(tmp_path: Path) -> None:
    source = (
        "{%- set ns = namespace(n=0, last='') %}\n{%- for m in messages %}\n    {%- if m.role == 'user' %}\n"
        "        {%- set ns.n = ns.n + 1 %}\n        {%- set ns.last = m.content %}\n    {%- endif %}\n{%- endfor %}\n"
        "[{{ ns.n }}:{{ ns.last }}]\n{% for m in messages[::-1] %}\n  {% if loop.first %}<{{ m.role }}>{% endif %}\n"
        "{% endfor %}\n{{ tools | tojson }}{{ tools[0].function | tojson(indent=4) }}E"
    )
    path = write_tiny_llama(tmp_path / "m.gguf", chat_template=source)
    tool = {"type": "function", "function": {"name": "a", "description": "thé <b> & 'q' 🐢"}}
    with serving(path) as server:
        messages = [{"role": r, "content": c} for r, c in (("user", "x"), ("assistant", "y"), ("user", "z"))]
        prompt = server.post("/apply-template", {"messages": messages, "tools": [tool]}).json["prompt"]
    assert prompt.startswith("[2:z]\n<user>")
    assert json.dumps([tool], ensure_ascii=False) in prompt
    assert prompt.endswith(json.dumps(tool["function"], ensure_ascii=False, indent=4) + "E")
