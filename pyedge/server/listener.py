"""The sockets: waitress, with what it leaves to its users.

Owns four things that waitress has no setting for. Its own error pages become OpenAI's errors. A request must have come
within a time, however slowly its bytes drip; and a client must take what waits for it within a time, or its connection
ends, and with it what is computed for it. When all connections are taken, those that have been idle the longest make
room. And an end in two steps: no new connections, then none at all.

Measured traps of waitress 3. It sees that a client went away only if `channel_request_lookahead` lets it read beside a
running request, and then it takes the end of what a client sends for its leaving: a client that closes its sending half
and waits for the answer gets none. A thread is held for as long as an answer takes, so there must be more threads than
answers, or nobody hears `/health`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import socket
import time
from typing import TYPE_CHECKING, Any

from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ErrorTask, ThreadedTaskDispatcher

from pyedge.errors import ModelError
from pyedge.server import access
from pyedge.server.errors import error_body

if TYPE_CHECKING:
    from flask import Flask

    from pyedge.server.settings import Settings

log = logging.getLogger(__name__)

SPARE_THREADS = 8  # for what is answered at once, beside those that wait for tokens
_OUTPUT_MARK = 256 << 10  # bytes waiting for a client, above which its thread waits
_LOOK = 1.0  # seconds between two looks at deadlines


def bind(settings: Settings) -> socket.socket:
    """A socket with the server's address, which refuses connections until a server listens on it. Raises ModelError."""
    where = f"{settings.host}:{settings.port}"
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        s = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ModelError(f"{where}: {error.strerror or error}; give an address of this machine as --host") from None
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(address)
    except OSError as error:
        s.close()
        if error.errno == errno.EADDRINUSE:
            remedy = "another program listens there; end it, or give another --port (0: any that is free)"
        elif error.errno == errno.EACCES:
            remedy = "no permission for this port; give a --port above 1023"
        else:
            remedy = f"{error.strerror or error}; give an address of this machine as --host"
        raise ModelError(f"{where}: {remedy}") from None
    return s


class Listener:
    """A server on a bound socket. `run` serves until `stop`, from whatever thread or signal handler."""

    def __init__(self, app: Flask, s: socket.socket, settings: Settings, n_threads: int) -> None:
        """n_threads: as many as answers may be under way at once, and SPARE_THREADS."""
        adjustments = Adjustments(
            sockets=[s],
            threads=n_threads,
            channel_request_lookahead=1,
            connection_limit=2 * n_threads + 100,
            channel_timeout=settings.idle_timeout,
            cleanup_interval=_LOOK,
            max_request_body_size=settings.max_body,
            max_request_header_size=settings.max_header,
            outbuf_high_watermark=_OUTPUT_MARK,
            log_socket_errors=False,  # a client that leaves is no event
            ident=None,
        )
        self._map: dict[int, Any] = {}
        self._dispatcher = ThreadedTaskDispatcher()
        try:
            self._dispatcher.set_thread_count(n_threads)
        except RuntimeError as e:  # of threading: a limit on processes or memory
            self._dispatcher.shutdown()
            raise ValueError(
                f"{n_threads} threads cannot be started here ({e}); allow more, or serve fewer at once"
            ) from e
        self._server = _Server(
            app,
            self._map,
            _sock=s,
            dispatcher=self._dispatcher,
            adj=adjustments,
            sockinfo=(s.family, s.type, s.proto, s.getsockname()),
            bind_socket=False,
        )
        self._server.settings = settings
        self._ending_at: float | None = None  # by time.monotonic(): when answers under way end too

    @property
    def port(self) -> int:
        return int(self._server.effective_port)

    @property
    def url(self) -> str:
        host = self._server.effective_host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def run(self) -> None:
        """Serves; returns when it was stopped and answers under way are out, or their time is over."""
        while self._ending_at is None:
            wasyncore.loop(timeout=_LOOK, use_poll=True, map=self._map, count=1)
        self._server.stop_accepting()
        while time.monotonic() < self._ending_at and self._server.n_answering:
            wasyncore.loop(timeout=0.05, use_poll=True, map=self._map, count=1)

    def stop(self, seconds: float) -> None:
        """Ends `run`: no new connections, and answers under way have this long. Of several calls the soonest holds."""
        until = time.monotonic() + seconds
        self._ending_at = until if self._ending_at is None else min(self._ending_at, until)
        with contextlib.suppress(OSError):
            self._server.pull_trigger()

    def close(self) -> None:
        """Closes all connections, and ends the threads that have nothing to do."""
        self._dispatcher.shutdown(timeout=2)
        wasyncore.close_all(self._map, ignore_all=True)


class _ErrorTask(ErrorTask):  # type: ignore[misc]
    """A request that no application sees: broken, too long, too large."""

    def execute(self) -> None:
        self.channel.refused = True
        error = self.request.error
        access.log.info("client=%s path=(none) status=%d", self.channel.addr[0], error.code)
        self.status = f"{error.code} {error.reason}"
        self.response_headers.append(("Content-Type", "application/json"))
        self.set_close_on_finish()
        body = json.dumps(error_body(error.code, f"{error.reason}: {error.body}")).encode()
        self.content_length = len(body)
        self.write(body)


class _Channel(HTTPChannel):  # type: ignore[misc]
    error_task_class = _ErrorTask

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.receiving_since: float | None = None  # a request has come in part
        self.refused = False  # what was sent is no request, and more of it may be under way
        self.lingers_since: float | None = None  # all is said, and what still comes is thrown away

    def readable(self) -> bool:
        return self.lingers_since is not None or bool(super().readable())

    def writable(self) -> bool:
        return self.lingers_since is None and bool(super().writable())

    def handle_write(self) -> None:
        """Of a refused request the rest is read first: closing a socket with bytes unread would reset the connection,
        and who sent them would never see why."""
        if self.refused and self.close_when_flushed and not self.total_outbufs_len:
            self.lingers_since = time.time()
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_WR)
            return
        super().handle_write()

    def received(self, data: bytes) -> bool:
        if self.lingers_since is not None:
            return True
        answer: bool = super().received(data)
        if self.request is None:
            self.receiving_since = None
        elif self.receiving_since is None:
            self.receiving_since = time.time()
        return answer

    def overdue(self, now: float, settings: Settings) -> bool:
        if self.total_outbufs_len and now - self.last_activity > settings.send_timeout:
            return True
        since = self.receiving_since if self.lingers_since is None else self.lingers_since
        return since is not None and now - since > settings.receive_timeout


class _Server(TcpWSGIServer):  # type: ignore[misc]
    channel_class = _Channel
    settings: Settings

    def maintenance(self, now: float) -> None:
        super().maintenance(now)
        channels = list(self.active_channels.values())
        for channel in channels:
            if channel.overdue(now, self.settings):
                channel.handle_close()  # and not when its output is out
        if self.in_connection_overflow:  # those who say nothing must not keep out those who do
            idle = [c for c in channels if c.connected and not c.requests and not c.total_outbufs_len]
            for channel in sorted(idle, key=lambda c: c.last_activity)[: self.adj.connection_limit // 2]:
                channel.handle_close()

    def stop_accepting(self) -> None:
        self.accepting = False
        wasyncore.dispatcher.close(self)

    @property
    def n_answering(self) -> int:
        return sum(bool(c.requests or c.total_outbufs_len) for c in self.active_channels.values())
