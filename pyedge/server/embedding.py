"""Texts to vectors for the routes that need some, with the client's presence looked at in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyedge.server import access
from pyedge.server.errors import ApiError
from pyedge.server.generation import refusals
from pyedge.server.service import Service
from pyedge.server.streaming import client_gone

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_AT_ONCE = 16  # texts, between two looks


def embed(s: Service, texts: list[str] | list[str | list[int]], param: str) -> tuple[npt.NDArray[np.float32], int]:
    """Vectors of length 1, and how many tokens the texts have. Raises ApiError."""
    import numpy as np

    if not s.embeds:
        raise ApiError(
            400, f"the model {s.name} generates text and embeds none; serve an embedding model, such as a BERT"
        )
    with refusals(param):
        ids = [s.llm.encode_text(i, t if isinstance(t, str) else {"prompt_token_ids": t}) for i, t in enumerate(texts)]
    record = access.record()
    record.tokens = sum(map(len, ids))
    gone = client_gone()
    s.places.take()
    try:
        parts = []
        for start in range(0, len(ids), _AT_ONCE):
            if gone():
                record.gone = True
                raise ApiError(499, "the client went away")
            parts.append(s.llm.embed([{"prompt_token_ids": i} for i in ids[start : start + _AT_ONCE]]))
        return np.concatenate(parts), record.tokens
    finally:
        s.places.give_back()
