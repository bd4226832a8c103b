"""What a salt keeps apart, as tests of the engine see it: who may have found what in the prefix cache.

`salts` are the model's own: each request that ever was, and the salt that it was made with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyedge.engine.request import Request


def check_pages(salts: Mapping[Request, str | None]) -> None:
    """No page is held under two salts."""
    held: dict[int, str | None] = {}
    for request, salt in salts.items():
        for page in request.pages:
            assert held.setdefault(page, salt) == salt, f"page {page} is shared across salts"


def check_cached(salts: Mapping[Request, str | None]) -> None:
    """What a request found in the prefix cache, another one of its salt had."""
    for request, salt in salts.items():
        if request.metrics.cached_tokens:
            others = [r.token_ids for r, other in salts.items() if r is not request and other == salt]
            most = max((_in_common(request.prompt_token_ids, ids) for ids in others), default=0)
            assert request.metrics.cached_tokens <= most, "tokens were found that nobody of this salt had"


def _in_common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
