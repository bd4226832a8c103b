"""Bare sockets: broken requests, slow ones, clients that leave, and those that do not read."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from program import write_endless
from serving import Server, post, serving, wait_until

from pyedge.server.listener import SPARE_THREADS

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSE = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def status(answer: bytes) -> int:
    match = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    assert match, answer[:200]
    return int(match[1])


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", 403),  # no Host
        (b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403),
        (b"BREW /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n", 200),
        (b"\r\n\r\n" + CLOSE, 200),
    ],
)
def test_broken_requests(server: Server, data: bytes, wanted: int) -> None:
    answer = server.raw(data)
    assert status(answer) == wanted
    if wanted != 200:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"application/json" in head.lower()
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_bytes_that_mean_nothing(server: Server) -> None:
    """A TLS greeting, and noise."""
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", bytes(range(256)) + b"\r\n\r\n"):
        assert status(server.raw(data)) == 400


def test_a_chunked_body(server: Server) -> None:
    body = b'{"prompt": "the", "max_tokens": 1}'
    chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[i : i + 1]) for i in range(len(body))) + b"0\r\n\r\n"
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    answer = server.raw(head + chunks)
    assert status(answer) == 200


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    ask = post("/v1/completions", {"prompt": "the", "max_tokens": 2})
    answer = server.raw(ask + HEALTH + CLOSE)
    assert [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3})", answer)] == [200, 200, 200]
    assert answer.index(b"text_completion") < answer.index(b'"status"')


def test_a_body_shorter_than_it_says(server: Server) -> None:
    """The rest never comes: nothing is done, and no thread waits."""
    with server.connect() as s:
        s.sendall(post("/v1/completions", {"prompt": "the"}, length=10_000))
        s.settimeout(0.1)
        with pytest.raises(TimeoutError):
            s.recv(1)
        assert server.service.places.taken == 0


def test_a_body_longer_than_it_says(server: Server) -> None:
    """What follows is taken for another request, which it is not."""
    body = {"prompt": "the", "max_tokens": 1}
    answer = server.raw(post("/v1/completions", body, "Connection: keep-alive") + b"rest of it\r\n\r\n")
    assert [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3})", answer)] == [200]
    assert re.findall(rb"HTTP/1\.0 (\d{3})", answer) == [b"400"]


# ---- slow clients, and those that leave ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that never ends its text, and a server with little patience."""
    path = write_endless(tmp_path_factory.mktemp("endless") / "endless.gguf")
    settings = {"max_sequences": 4, "max_queue": 4, "receive_timeout": 0.5, "send_timeout": 0.5, "idle_timeout": 2}
    with serving(path, kv_memory="40MB", settings=settings) as server:
        yield server
        server.check()


BODIES = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "the"}]}),
    ("/v1/completions", {"prompt": "the", "max_tokens": 50_000}),
]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_client_that_leaves(endless: Server, path: str, body: dict[str, object], stream: bool) -> None:
    """Its pages are free within a step and a look."""
    s = endless.connect()
    s.sendall(post(path, {**body, "stream": stream}))
    if stream:
        assert status(s.recv(100)) == 200
    wait_until(lambda: endless.pages_used > 0)
    start = time.monotonic()
    s.close()
    wait_until(endless.at_rest)
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_while_its_prompt_is_read(endless: Server, stream: bool) -> None:
    """Others write meanwhile, and nobody reads on. This one asks for all log-probabilities, which takes longest."""
    body = {"prompt": [5, 6, 7, 8] * 3000, "echo": True, "logprobs": 2, "max_tokens": 0, "stream": stream}
    engine = endless.llm.engine
    with endless.connect() as s:
        s.sendall(post("/v1/completions", body))
        wait_until(lambda: endless.pages_used > 0)
        assert endless.post("/v1/completions", {"prompt": "the", "max_tokens": 20}).status == 200
        (echoed,) = engine.scheduler.running
        assert 0 < len(echoed.prompt_rows or []) < 11_999
    start = time.monotonic()
    wait_until(endless.at_rest)
    assert time.monotonic() - start < 1.5


def test_a_client_that_leaves_hard(endless: Server) -> None:
    """With a reset."""
    s = endless.connect()
    s.sendall(post(*BODIES[1]))
    wait_until(lambda: endless.pages_used > 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()
    wait_until(endless.at_rest)


def test_a_client_that_closes_its_half_counts_as_gone(endless: Server) -> None:
    with endless.connect() as s:
        s.sendall(post(*BODIES[1]))
        wait_until(lambda: endless.pages_used > 0)
        s.shutdown(socket.SHUT_WR)
        wait_until(endless.at_rest)


def test_a_client_that_does_not_read(endless: Server) -> None:
    """Others go on, and after a while it is cut off."""
    with endless.connect() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = {"prompt": "the", "max_tokens": 50_000, "stream": True, "logprobs": 64}
        s.sendall(post("/v1/completions", body))
        wait_until(lambda: endless.pages_used > 0)
        other = endless.post("/v1/completions", {"prompt": "the", "max_tokens": 4})
        assert other.status == 200
        wait_until(endless.at_rest, 20)


def test_slowloris(endless: Server) -> None:
    """Bytes that drip do not keep a connection open, nor does silence."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
    sockets = [endless.connect() for _ in range(3)]
    start = time.monotonic()
    for s, begun in zip(sockets, (b"", b"GET /hea", head), strict=True):
        s.sendall(begun)
        s.setblocking(False)
    silent = sockets[0]
    while sockets:
        assert time.monotonic() - start < 5, "it is still open"
        time.sleep(0.05)
        for s in list(sockets):
            try:
                if s is not silent:
                    s.send(b"x")
                over = s.recv(100) == b""
            except BlockingIOError:
                over = False
            except OSError:
                over = True
            if over:
                s.close()
                sockets.remove(s)


def test_silent_connections_keep_nobody_out(tmp_path: Path) -> None:
    """They make room when there is none, long before their time is over; an answer under way goes on."""
    path = write_endless(tmp_path / "endless.gguf")
    with serving(path, kv_memory="40MB", settings={"max_sequences": 1, "max_queue": 0}) as server, ExitStack() as stack:
        limit = 2 * (1 + SPARE_THREADS) + 100
        busy = stack.enter_context(server.connect())
        busy.sendall(post("/v1/completions", {"prompt": "the", "max_tokens": 50_000, "stream": True}))
        assert busy.recv(100)
        silent = [stack.enter_context(server.connect()) for _ in range(limit + 20)]
        assert server.get("/health").status == 200
        for s in silent:
            s.setblocking(False)
        closed = 0
        for s in silent:
            with suppress(BlockingIOError):
                closed += s.recv(100) == b""
        assert 0 < closed <= limit // 2 + 1
        busy.setblocking(True)
        assert all(busy.recv(1000) for _ in range(20))


def test_a_full_queue(endless: Server) -> None:
    """It says when to come again, and goes on; health is answered all along."""
    sockets = [endless.connect() for _ in range(8)]
    for s in sockets:
        s.sendall(post(*BODIES[1]))
    wait_until(lambda: endless.service.places.taken == 8)
    for _ in range(3):
        reply = endless.post(*BODIES[0])
        assert (reply.status, reply.error["code"]) == (503, "server_busy")
        assert 1 <= int(reply.headers["retry-after"]) <= 60
    assert endless.get("/health").status == 200
    assert b"pyedge_requests_running 4.0" in endless.get("/metrics").data
    for s in sockets:
        s.close()
    wait_until(endless.at_rest)
    assert endless.post("/v1/completions", {"prompt": "the", "max_tokens": 2}).status == 200


def test_a_time_limit(tmp_path: Path) -> None:
    path = write_endless(tmp_path / "endless.gguf")
    with serving(path, kv_memory="40MB", settings={"max_sequences": 4, "request_timeout": 0.3}) as server:
        reply = server.post(*BODIES[1])
        assert (reply.status, reply.error["code"]) == (503, "timeout")
        chunks = server.post(BODIES[1][0], {**BODIES[1][1], "stream": True}).chunks
        assert len(chunks) > 1
        assert chunks[-1]["error"]["code"] == "timeout"
        server.check()


def test_doubled_slashes_are_one(server: Server) -> None:
    for path in ("//v1/models", "/v1//models", "//v1///models//tiny"):
        assert server.get(path).status == 200
    reply = server.get("//nowhere//")
    assert (reply.status, reply.error["type"]) == (404, "invalid_request_error")
