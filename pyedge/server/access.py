"""The access log: a line of key=value for each request, without a word of what was said.

Owns what is noted of a request while it is answered. The line is written when the answer is out, or its reader gone.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from flask import Flask, Response, g, request

from pyedge.engine.request import Request
from pyedge.server.service import Service

log = logging.getLogger("pyedge.server.access")


@dataclass
class Record:
    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(8)}")  # the client gets it too, to ask about
    start: float = field(default_factory=time.perf_counter)
    requests: Sequence[Request] = ()  # of the engine
    tokens: int = 0  # that were embedded
    error: str | None = None
    gone: bool = False  # the client left before the end


def record() -> Record:
    if "record" not in g:
        g.record = Record()
    return g.record  # type: ignore[no-any-return]


def install(app: Flask, service: Service) -> None:
    @app.before_request
    def _begin() -> None:
        record()

    @app.after_request
    def _end(response: Response) -> Response:
        noted, client, method = record(), request.remote_addr, request.method
        path = request.url_rule.rule if request.url_rule is not None else "(none)"  # not what a stranger typed

        response.headers["X-Request-Id"] = noted.id

        def write() -> None:
            service.metrics.count_answer(path, response.status_code)
            if log.isEnabledFor(logging.INFO):
                log.info(
                    "%s",
                    _line(noted, f"id={noted.id} client={client} method={method} path={path}", response.status_code),
                )

        response.call_on_close(write)
        return response


def _line(noted: Record, who: str, status: int) -> str:
    parts = [who, f"status={status}", f"seconds={time.perf_counter() - noted.start:.3f}"]
    if noted.requests:
        each = [r.metrics for r in noted.requests]
        parts += [
            f"prompt_tokens={sum(len(r.prompt_token_ids) for r in noted.requests if r.index == 0)}",
            f"cached_tokens={sum(r.metrics.cached_tokens for r in noted.requests if r.index == 0)}",
            f"output_tokens={sum(m.output_tokens for m in each)}",
        ]
        queued = [m.queue_time for m in each if m.queue_time is not None]
        if queued:
            parts.append(f"queue={max(queued):.3f}")
        first = [m.ttft for m in each if m.ttft is not None]
        rest = [m.tpot for m in each if m.tpot is not None]
        if first:
            parts.append(f"ttft={min(first):.3f}")
        if rest:
            parts.append(f"tpot={sum(rest) / len(rest):.4f}")
        parts.append(f"preemptions={sum(m.preemptions for m in each)}")
        parts.append("finish=" + ",".join(dict.fromkeys(r.finish_reason or "abort" for r in noted.requests)))
    if noted.tokens:
        parts.append(f"prompt_tokens={noted.tokens}")
    if noted.gone:
        parts.append("gone=true")
    return " ".join(parts)
