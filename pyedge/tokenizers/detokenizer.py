"""Text from a stream of tokens, whole characters at a time.

Owns the bytes of a character that is still incomplete. What is pushed and finished adds up to `Tokenizer.decode` of
the same ids: bytes that are no UTF-8 become U+FFFD as soon as that is certain, an incomplete character at the end
becomes one U+FFFD.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import Protocol

_Decoder = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    @property
    def hidden_ids(self) -> Collection[int]: ...
    def token_bytes(self, token: int) -> bytes: ...


class IncrementalDetokenizer:
    def __init__(self, tokenizer: TokenBytes, skip_special: bool = True) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.hidden_ids if skip_special else frozenset()
        self._decoder = _Decoder("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        return "" if token in self._skipped else self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """What is left at the end."""
        return self._decoder.decode(b"", final=True)
