"""Two thousand requests of all kinds, a third of which are left at some point: nothing stays behind."""

from __future__ import annotations

import contextlib
import gc
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from serving import Server, post, serving, wait_until

N = 2000
WORDS = ["the ", "other ", "hand ", "in ", "and ", "12 "]


def request(i: int) -> tuple[str, dict[str, Any], random.Random]:
    r = random.Random(i)
    shared = "".join(WORDS * 8)[: r.choice([0, 50, 200])]
    text = shared + "".join(r.choices(WORDS, k=r.randrange(1, 40)))
    body: dict[str, Any] = {"max_tokens": r.randrange(1, 30), "seed": i, "n": r.choice([1, 1, 1, 3])}
    body |= {"stream": r.random() < 0.6, "ignore_eos": r.random() < 0.5}
    if r.random() < 0.5:
        return "/v1/completions", {**body, "prompt": text}, r
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}, r


def ask(server: Server, i: int) -> str:
    """Sends one request, and reads all of its answer, or leaves."""
    path, body, r = request(i)
    if r.random() > 1 / 3:
        reply = server.post(path, body)
        assert reply.status == 200, reply.data
        assert not body["stream"] or reply.chunks
        return "whole"
    message = post(path, body)
    with server.connect() as s:
        s.sendall(message[: r.choice([10, len(message) - 1, len(message), len(message)])])
        if r.random() < 0.5:
            s.settimeout(r.random() * 0.05)
            with contextlib.suppress(TimeoutError):
                s.recv(r.randrange(1, 2000))
    return "left"


@pytest.mark.slow
def test_a_soak(tiny_path: Path) -> None:
    process = psutil.Process()
    with serving(tiny_path, kv_memory="1MB", settings={"max_sequences": 12, "max_queue": 60}) as server:

        def run(first: int, last: int) -> int:
            with ThreadPoolExecutor(12) as pool:
                ends = list(pool.map(lambda i: ask(server, i), range(first, last)))
            wait_until(server.at_rest)
            server.llm.engine.check_integrity()
            gc.collect()
            assert ends.count("left") > (last - first) / 4
            return process.memory_info().rss

        before = run(0, N // 4)
        after = run(N // 4, N)
        assert after - before < 20e6
        assert server.llm.engine.scheduler.pool.n_used == 0
        server.check()
