"""From the fields of a body to requests of the engine, checked before any of them runs.

Owns what chat and completions have in common: prompts that fit, n answers to each, the seeds of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pyedge.engine.request import Request
from pyedge.engine.sampling_params import SamplingParams
from pyedge.server.errors import ApiError
from pyedge.server.schemas import Sampling, refused
from pyedge.server.service import Service


def make_requests(
    service: Service, body: Sampling, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> list[Request]:
    """Requests for each prompt in turn, n for each. Raises ApiError."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= service.settings.max_choices:
        raise ApiError(400, f"n: must be from 1 to {service.settings.max_choices}, not {n}", param="n")
    if len(prompts) * n > service.places.n:
        raise ApiError(
            400, f"{len(prompts)} prompts with n={n} are more than this server takes at once, {service.places.n}"
        )
    engine = service.loop.engine
    with refusals("prompt"):
        return [engine.request(prompt, _seeded(params, i), body.priority or 0) for prompt in prompts for i in range(n)]


def _seeded(params: SamplingParams, i: int) -> SamplingParams:
    """The rules of the i-th answer: with a seed, each answer has the next one."""
    return params if params.seed is None or i == 0 else replace(params, seed=params.seed + i)


@contextmanager
def refusals(param: str) -> Iterator[None]:
    """What is said in Python as ValueError is 400 here."""
    try:
        yield
    except ValueError as error:
        raise refused(error, param) from None
