"""Requests beside each other: the prefix cache and its salts, priorities, and one whose numbers are none."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hostilefiles import with_values
from program import write_endless
from serving import Server, serving, wait_until

TEXT = "/v1/completions"
PROMPT = "the other and the rest in the hand " * 4


def cached(server: Server, **fields: Any) -> int:
    usage = server.post(TEXT, {"prompt": PROMPT, "max_tokens": 1, **fields}).json["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_salts_keep_prompts_apart(tiny_path: Path) -> None:
    """Nobody learns from `cached_tokens`, or from the time it takes, what others have asked."""
    with serving(tiny_path, kv_memory="4MB") as server:
        assert cached(server) == 0
        assert cached(server) > 0
        assert cached(server, cache_salt="alice") == 0
        assert cached(server, cache_salt="bob") == 0
        assert cached(server, cache_salt="alice") > 0
        reply = server.post(TEXT, {"prompt": PROMPT, "cache_salt": ""})
        assert (reply.status, reply.error["param"]) == (400, "cache_salt")


def test_priorities(tmp_path: Path) -> None:
    """Of those that wait, the lower number goes first."""
    path = write_endless(tmp_path / "endless.gguf")
    with serving(path, kv_memory="20MB", settings={"max_sequences": 1}) as server:
        ended: dict[int, float] = {}

        def ask(priority: int) -> None:
            answer = server.post(TEXT, {"prompt": "the", "max_tokens": 200, "priority": priority})
            assert answer.status == 200
            ended[priority] = time.monotonic()

        threads = [threading.Thread(target=server.post, args=(TEXT, {"prompt": "the", "max_tokens": 2000}))]
        threads[0].start()
        wait_until(lambda: server.llm.engine.n_running == 1)
        for n, priority in enumerate((5, 0, 2)):
            threads.append(threading.Thread(target=ask, args=(priority,)))
            threads[-1].start()
            wait_until(lambda n=n: server.llm.engine.n_waiting == n + 1)  # type: ignore[misc]
        for thread in threads:
            thread.join()
        assert sorted(ended, key=ended.__getitem__) == [0, 2, 5]


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_whose_numbers_are_none(tmp_path: Path, stream: bool) -> None:
    """An error, and not a random token."""
    path = tmp_path / "nan.gguf"
    path.write_bytes(with_values("token_embd.weight", float("nan"))())
    with serving(path) as server:
        reply = server.post(TEXT, {"prompt": [5, 6], "max_tokens": 3, "stream": stream})
        assert (reply.status, reply.error["code"]) == (503, "model_error")
        assert "finite" in reply.error["message"]
        server.check()
