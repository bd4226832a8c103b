"""The engine's thread survives whatever a step does, and says so when it cannot go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import Server, wait_until

from pyedge import SamplingParams
from pyedge.engine.request import TokenEvent
from pyedge.server import engine_loop
from pyedge.server.routes.completions import CompletionAnswer

TEXT = "/v1/completions"
BODY = {"prompt": "the", "max_tokens": 4}


def failing(step: Callable[..., Any], error: BaseException) -> Callable[..., Any]:
    """A step that fails once."""
    left = [error]

    def wrapped(*args: Any) -> Any:
        if left:
            raise left.pop()
        return step(*args)

    return wrapped


@pytest.mark.parametrize(
    "error", [RuntimeError("a bug"), MemoryError(), AssertionError("books"), SystemExit(3), KeyboardInterrupt()]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_step_that_fails(server: Server, monkeypatch: pytest.MonkeyPatch, error: BaseException, stream: bool) -> None:
    """It ends the requests under way with an error, and no others."""
    engine = server.llm.engine
    monkeypatch.setattr(engine, "step", failing(engine.step, error))
    reply = server.post(TEXT, {**BODY, "stream": stream})
    assert (reply.status, reply.error["type"]) == (503, "server_error")
    assert type(error).__name__ in reply.error["message"]
    server.check()
    assert server.post(TEXT, BODY).status == 200


def test_requests_that_cannot_be_added(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = server.llm.engine
    monkeypatch.setattr(engine, "add", failing(engine.add, RuntimeError("no")))
    assert server.post(TEXT, BODY).status == 503
    assert server.post(TEXT, BODY).status == 200


def test_a_step_that_hangs(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, hang = server.llm.engine, threading.Event()
    step = engine.step

    def hanging(*args: Any) -> Any:
        hang.wait(20)
        return step(*args)

    monkeypatch.setattr(engine, "step", hanging)
    monkeypatch.setattr(engine_loop, "STUCK_AFTER", 0.2)
    try:
        reply = server.post(TEXT, BODY)
        assert (reply.status, reply.error["code"]) == (503, "unavailable")
        health = server.get("/health")
        assert health.status == 503
        assert "stuck" in health.error["message"]
    finally:
        hang.set()
    wait_until(lambda: server.get("/health").status == 200)


def test_a_route_that_fails(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours is 500, without a traceback for the client."""
    monkeypatch.setattr(server.llm, "encode", lambda prompt: 1 // 0)
    reply = server.post(TEXT, BODY)
    assert (reply.status, reply.error["type"]) == (500, "server_error")
    assert b"Zero" not in reply.data


def test_a_stream_that_fails_in_the_middle(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader is told, and nothing stays behind."""
    take = CompletionAnswer.take

    def failing_later(self: CompletionAnswer, index: int, event: TokenEvent) -> Any:
        assert event.finish_reason is None
        return take(self, index, event)

    monkeypatch.setattr(CompletionAnswer, "take", failing_later)
    chunks = server.post(TEXT, {**BODY, "stream": True, "ignore_eos": True}).chunks
    assert chunks[-1]["error"]["type"] == "server_error"
    assert server.post(TEXT, BODY).status == 500


def test_requests_left_before_they_were_added(server: Server) -> None:
    """However the engine's thread and the client's come upon each other, nothing stays behind."""

    def come_and_go(i: int) -> None:
        requests = server.llm.engine.requests([5, 6, 7 + i % 3], SamplingParams(max_tokens=400, ignore_eos=True))
        ticket = server.service.loop.submit(requests)
        if i % 3:
            next(ticket.events(lambda: False))
        ticket.close()
        ticket.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(come_and_go, range(200)))
    server.check()
