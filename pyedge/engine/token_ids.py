"""Token ids that a caller gave: what they may be. Owns the checks and their messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set, Sized
from operator import index
from typing import Any

_NO_IDS = (str, bytes, bytearray, memoryview, Mapping, Set)  # in spite of having a length and elements


def checked_ids(token_ids: Any, n_vocab: int) -> list[int]:
    """Integers of any kind (numpy's too) in anything that has an order and a length."""
    if not isinstance(token_ids, Iterable) or not isinstance(token_ids, Sized) or isinstance(token_ids, _NO_IDS):
        raise ValueError(f"token ids must be a list of integers, not {type(token_ids).__name__}")
    try:
        ids = [_checked_id(token, n_vocab) for token in list(token_ids)]
    except TypeError:  # of an array without dimensions
        raise ValueError("token ids must be a list of integers, not a single number") from None
    if not ids:
        raise ValueError("the prompt is empty; give at least one token")
    return ids


def _checked_id(token: Any, n_vocab: int) -> int:
    try:
        number = None if isinstance(token, bool) else index(token)
    except TypeError:
        number = None
    if number is None:
        raise ValueError(f"a token id must be an integer, not {type(token).__name__}")
    if not 0 <= number < n_vocab:
        raise ValueError(f"token id {number} is outside the vocabulary (0 to {n_vocab - 1})")
    return number
