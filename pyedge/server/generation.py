"""From the fields of a body to requests of the engine, checked before any of them runs.

Owns what chat and completions have in common: prompts that fit, n answers to each, how long they may take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

from pyedge.engine.grammar import SECONDS
from pyedge.engine.request import Request
from pyedge.engine.sampling_params import SamplingParams
from pyedge.errors import BusyError
from pyedge.server.errors import ApiError
from pyedge.server.schemas import Sampling, refused
from pyedge.server.service import Service


def make_requests(
    service: Service, body: Sampling, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[Request]:
    """Requests for each prompt in turn, n for each. Raises ApiError."""
    settings, engine = service.settings, service.loop.engine
    if params.n > settings.max_choices:
        raise ApiError(400, f"n: must be from 1 to {settings.max_choices}, not {params.n}", param="n")
    if len(prompts) * params.n > service.places.n:
        raise ApiError(
            400, f"{len(prompts)} prompts with n={params.n} are more than this server takes at once, {service.places.n}"
        )
    deadline = None if settings.request_timeout is None else engine.clock() + settings.request_timeout
    rules: dict[str, Any] = {
        "priority": body.priority or 0,
        "cache_salt": body.cache_salt,
        "deadline": deadline,
        "watched": bool(body.stream),
    }
    with refusals("prompt"):
        for prompt in prompts:
            engine.scheduler.room(len(prompt))  # before each of the ids is looked at
        return [request for prompt in prompts for request in engine.requests(prompt, params, **rules)]


@contextmanager
def refusals(param: str) -> Iterator[None]:
    """What is said in Python as ValueError is 400 here, and BusyError 503."""
    try:
        yield
    except BusyError as error:
        raise ApiError(503, str(error), code="server_busy", retry_after=ceil(SECONDS)) from None
    except ValueError as error:
        raise refused(error, param) from None
