"""From a ticket to an HTTP answer: one JSON document, or server-sent events as the tokens come.

Owns the form of a stream, what happens when its reader goes away, when it takes too long and when the engine fails; and
that the places and the engine's pages are given back in any case. What a chunk says is its route's: an Answer.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from flask import Response, jsonify, request

from pyedge.engine.request import Request, TokenEvent
from pyedge.errors import DeadlineError, ModelError
from pyedge.server import access
from pyedge.server.engine_loop import ClientGoneError, EngineDownError, Ticket
from pyedge.server.errors import MISTAKE, ApiError, error_body
from pyedge.server.service import Service

log = logging.getLogger(__name__)

PING = 15.0  # seconds without an event, after which a comment says that the server is still there
_DONE = b"data: [DONE]\n\n"

Chunk = dict[str, Any]


class Answer(Protocol):
    """Makes of events what a route answers."""

    def begin(self) -> Iterator[Chunk]:
        """What a stream says before the first token."""

    def take(self, index: int, event: TokenEvent) -> Iterator[Chunk]:
        """What a token of the request of that number adds. Noted for `whole` too."""

    def end(self) -> Iterator[Chunk]:
        """What a stream says after the last token."""

    def whole(self) -> Chunk:
        """All of it, as one document."""


def usage(requests: Sequence[Request]) -> dict[str, Any]:
    """OpenAI's `usage`: a prompt that is answered n times is counted once."""
    prompts = sum(len(r.prompt_token_ids) for r in requests if r.index == 0)
    cached = sum(r.metrics.cached_tokens for r in requests if r.index == 0)
    written = sum(r.metrics.output_tokens for r in requests)
    return {
        "prompt_tokens": prompts,
        "completion_tokens": written,
        "total_tokens": prompts + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def client_gone() -> Callable[[], bool]:
    """Whether the client of the present request is, to be asked outside of the request too."""
    gone: Callable[[], bool] = request.environ.get("waitress.client_disconnected", lambda: False)
    return gone


@contextmanager
def ends(record: access.Record) -> Iterator[None]:
    """What ends the wait for the engine, as the ApiError that it is for the client."""
    try:
        yield
    except ClientGoneError:
        record.gone = True
        raise ApiError(499, "the client went away") from None
    except EngineDownError as error:
        raise ApiError(503, str(error), code="unavailable", retry_after=5) from None


def answer(service: Service, requests: Sequence[Request], content: Answer, *, stream: bool) -> Response:
    """Runs requests and answers with what `content` makes of them."""
    call = _Call(service, requests)
    try:
        batches = call.batches()
        if not stream:
            for batch in batches:
                for index, event in batch:
                    for _ in content.take(index, event):
                        pass
            call.close()
            return jsonify(content.whole())
        first = call.first(batches)
    except BaseException:
        call.close()
        raise
    response = Response(call.stream(first, batches, content), content_type="text/event-stream; charset=utf-8")
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    response.call_on_close(call.close)  # also if nobody takes a first chunk
    return response


class _Call:
    """The requests of one call, from their start to their end."""

    def __init__(self, service: Service, requests: Sequence[Request]) -> None:
        self._service = service
        self._record = access.record()
        self._record.requests = requests
        # Asked here, in the request: a stream is written outside of it.
        self._gone = client_gone()
        loop = service.loop
        service.places.take(len(requests))
        self._ticket: Ticket | None = loop.submit(requests)

    def close(self) -> None:
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            ticket.close()
            self._service.places.give_back(len(ticket.requests))
            for each in ticket.requests:
                self._service.metrics.count_sequence(each)

    def batches(self) -> Iterator[list[tuple[int, TokenEvent]]]:
        """Events as they come. Raises ApiError for what ends all of it."""
        assert self._ticket is not None
        with ends(self._record):
            for batch in self._ticket.events(self._gone):
                for _, event in batch:
                    if event.error is not None:
                        raise _told(event.error)
                yield batch

    def first(self, batches: Iterator[list[tuple[int, TokenEvent]]]) -> list[tuple[int, TokenEvent]]:
        """The first events, if they come soon: what goes wrong up to then still gets its own status."""
        until = time.monotonic() + PING
        for batch in batches:
            if batch or time.monotonic() > until:
                return batch
        return []

    def stream(
        self,
        first: list[tuple[int, TokenEvent]],
        batches: Iterator[list[tuple[int, TokenEvent]]],
        content: Answer,
    ) -> Iterator[bytes]:
        try:
            yield b"".join([*map(_event, content.begin()), *self._chunks(first, content)])
            spoken = time.monotonic()
            for batch in batches:
                now = time.monotonic()
                if data := b"".join(self._chunks(batch, content)):
                    yield data
                elif now - spoken > PING:
                    yield b": the server is at work\n\n"
                else:
                    continue
                spoken = now
            yield b"".join([*map(_event, content.end()), _DONE])
        except ApiError as error:
            self._record.error = str(error)
            yield _event(error.body) + _DONE
        except GeneratorExit:  # it could not be written
            self._record.gone = True
            raise
        except Exception:  # a mistake of ours; the status is out already
            log.exception("a stream failed")
            yield _event(error_body(500, MISTAKE)) + _DONE
        finally:
            self.close()

    def _chunks(self, batch: list[tuple[int, TokenEvent]], content: Answer) -> Iterator[bytes]:
        for index, event in batch:
            yield from map(_event, content.take(index, event))


def _told(error: Exception) -> ApiError:
    if isinstance(error, ModelError):
        return ApiError(503, str(error), code="model_error")
    if isinstance(error, DeadlineError):
        return ApiError(503, str(error), code="timeout")
    if isinstance(error, ValueError):
        return ApiError(400, str(error))
    if isinstance(error, EngineDownError):
        return ApiError(503, str(error), code="unavailable", retry_after=5)
    return ApiError(503, " ".join(str(error).split()) or type(error).__name__, code="engine_error")


def _event(chunk: Chunk) -> bytes:
    return f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
