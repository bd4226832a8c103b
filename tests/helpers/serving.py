"""A server in this process, on a real socket of this machine, and the two ways to talk with it: HTTP and bare bytes."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyedge import LLM
from pyedge.server.app import create_app
from pyedge.server.listener import SPARE_THREADS, Listener, bind
from pyedge.server.service import Service
from pyedge.server.settings import Settings


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> dict[str, Any]:
        """Of an error in OpenAI's shape."""
        (only,) = self.json.items()
        assert only[0] == "error"
        assert set(only[1]) == {"message", "type", "param", "code"}
        assert "\n" not in only[1]["message"]
        return only[1]

    @property
    def chunks(self) -> list[Any]:
        """Of a stream, which must be whole."""
        assert self.headers["content-type"].startswith("text/event-stream")
        *events, last, rest = self.data.decode().split("\n\n")
        assert (last, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events if not event.startswith(":")]


class Server:
    """One that runs, and its engine."""

    def __init__(self, service: Service, port: int) -> None:
        self.service = service
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    @property
    def llm(self) -> LLM:
        return self.service.llm

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """body: what becomes JSON, or bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        return self.call("POST", path, body, **headers)

    def get(self, path: str, **headers: str) -> Reply:
        return self.call("GET", path, **headers)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def raw(self, data: bytes) -> bytes:
        """All that comes back until the server closes the connection."""
        with self.connect() as s:
            s.sendall(data)
            return b"".join(iter(lambda: s.recv(65536), b""))

    @property
    def pages_used(self) -> int:
        return self.llm.engine.scheduler.pool.n_used

    def at_rest(self) -> bool:
        engine = self.llm.engine
        return self.pages_used == 0 and not engine.has_work and self.service.places.taken == 0

    def check(self) -> None:
        """That nothing is left behind, and that it answers."""
        wait_until(self.at_rest)
        self.llm.engine.check_integrity()
        assert self.get("/health").json == {"status": "ok"}


def post(path: str, body: object, *headers: str, length: int | None = None) -> bytes:
    """A request's bytes. length: that it claims to have."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


def wait_until(true: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it does not come about"
        time.sleep(0.005)


@contextmanager
def serving(
    path: Path, model: str | None = None, settings: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Server]:
    """A server of that file. model: as it was asked for; options: of LLM."""
    rules = Settings(port=0, **{"max_sequences": 8, **(settings or {})})
    with bind(rules) as s:
        service = Service(rules, path if model is None else model)
        service.start(LLM(path, threads=1, max_sequences=rules.max_sequences, **options))
        listener = Listener(create_app(service), s, rules, service.places.n + SPARE_THREADS)
        thread = threading.Thread(target=listener.run, daemon=True)
        thread.start()
        try:
            yield Server(service, listener.port)
        finally:
            listener.stop(0)
            thread.join()
            service.close()
            listener.close()
            service.llm.close()
