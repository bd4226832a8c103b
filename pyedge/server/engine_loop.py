"""The one thread that steps the engine, and what handler threads hold of it.

Owns the order in which requests reach the engine, the notification of those who wait, and what happens if a step fails
or hangs. A handler submits requests and gets a Ticket, whose events it waits for without the engine's lock: requests
reach the engine in its own thread, between two steps, so a busy engine keeps nobody out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from pyedge.engine.request import Request, Status, TokenEvent

if TYPE_CHECKING:
    from pyedge.engine.engine import Engine

log = logging.getLogger(__name__)

POLL = 0.25  # seconds between two looks at whether the client is still there
STUCK_AFTER = 120.0  # seconds in one step: the longest one, 512 tokens of a large model on slow cores, takes far less
END_AFTER = 5.0  # seconds that a step under way has when the server ends


class ClientGoneError(Exception):
    """Nobody reads the answer any more."""


class EngineDownError(RuntimeError):
    """The engine's thread is at an end."""


class _Mailbox(deque[TokenEvent]):
    """Where the engine puts events: it wakes who waits for them. Never holds any itself."""

    def __init__(self, put: Callable[[TokenEvent], None]) -> None:
        super().__init__()
        self.append = put  # type: ignore[method-assign]


class Ticket:
    """The requests of one call of the API. Used by one handler thread, and the engine's."""

    def __init__(self, loop: EngineLoop, requests: Sequence[Request]) -> None:
        self.requests = list(requests)
        self._index = {request.id: i for i, request in enumerate(requests)}
        self._open = set(self._index)  # ids of requests whose last event is still to come
        self._loop = loop
        self._queue: SimpleQueue[TokenEvent] = SimpleQueue()
        self.mailbox = _Mailbox(self._queue.put)
        self.lock = threading.Lock()  # of the two flags
        self.added = False  # the engine has the requests
        self.closed = False  # nobody wants them any more

    def events(self, gone: Callable[[], bool]) -> Iterator[list[tuple[int, TokenEvent]]]:
        """Batches of (number of the request, event), as they come, until all requests have ended; an empty one each
        POLL seconds without. gone: whether the client is. Raises ClientGoneError, or EngineDownError."""
        while self._open:
            if gone():
                raise ClientGoneError
            batch: list[tuple[int, TokenEvent]] = []
            try:
                event = self._queue.get(timeout=POLL)
                while True:
                    batch.append((self._index[event.request_id], event))
                    if event.finish_reason is not None:
                        self._open.discard(event.request_id)
                    event = self._queue.get_nowait()
            except Empty:
                if not batch and (trouble := self._loop.trouble) is not None:
                    raise EngineDownError(trouble) from None
            yield batch

    def close(self) -> None:
        """Ends what is still under way. May be called again."""
        with self.lock:
            self.closed, added = True, self.added
        self._loop.forget(self)
        if added and self._open:
            self._loop.engine.abort(*self.requests)

    def fail(self, error: Exception) -> None:
        """Wakes the handler with this error."""
        for request in self.requests:
            self._queue.put(TokenEvent(request.id, "", finish_reason="abort", error=error))


class EngineLoop:
    """Steps an engine for as long as there is something to do, whatever happens."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._inbox: deque[Ticket] = deque()
        self._tickets: set[Ticket] = set()
        self._wake = threading.Event()
        self._stop = False
        self._busy_since: float | None = None  # a step began then, and is not over
        self._thread = threading.Thread(target=self._run, name="pyedge-engine", daemon=True)
        self._thread.start()

    # ---- for handler threads -----------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[Request]) -> Ticket:
        """Sends requests that `Engine.request` made."""
        ticket = Ticket(self, requests)
        self._tickets.add(ticket)
        self._inbox.append(ticket)
        self._wake.set()
        return ticket

    def forget(self, ticket: Ticket) -> None:
        self._tickets.discard(ticket)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be expected of it; None: all is well."""
        if not self.alive:
            return "the engine has stopped"
        since = self._busy_since
        if since is not None and (seconds := time.monotonic() - since) > STUCK_AFTER:
            return f"the engine is stuck in a step for {seconds:.0f} s"
        return None

    def abort_all(self, why: Exception) -> None:
        for ticket in list(self._tickets):
            ticket.fail(why)
            ticket.close()

    def close(self) -> None:
        """Ends the thread after the step under way, and all requests."""
        self._stop = True
        self.abort_all(EngineDownError("the server is shutting down"))
        self._wake.set()
        self._thread.join(timeout=END_AFTER)

    # ---- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop:
            try:
                self._turn()
            except BaseException as error:
                # A bug: the engine ends requests whose computation fails by an event. None of those that are under way
                # can be trusted now; the next ones start from sound books.
                log.exception("a step of the engine failed; %d calls end with it", len(self._tickets))
                self.abort_all(RuntimeError(f"the engine failed: {type(error).__name__}; send the request again"))

    def _turn(self) -> None:
        while self._inbox:
            self._add(self._inbox.popleft())
        if self.engine.has_work:
            self._busy_since = time.monotonic()
            try:
                self.engine.step()
            finally:
                self._busy_since = None
            return
        self._wake.clear()
        if not self._inbox and not self._stop:  # looked at after the clearing: what comes later sets it again
            self._wake.wait()

    def _add(self, ticket: Ticket) -> None:
        with ticket.lock:
            if ticket.closed:
                return
            ticket.added = True
            try:
                for request in ticket.requests:
                    if request.status is not Status.FINISHED:
                        self.engine.add(request, ticket.mailbox)
            except Exception as error:
                log.exception("requests could not be started")
                ticket.fail(error)
