"""Text from a stream of tokens, whole characters at a time.

Owns the bytes of a character that is still incomplete. What is pushed and finished adds up to `Tokenizer.decode` of
the same ids: bytes that are no UTF-8 become U+FFFD as soon as that is certain, an incomplete character at the end
becomes one U+FFFD.

Owns also the space that some vocabularies want before a text, and after a special token: encoding puts it there, so
decoding takes it off. What continues a text, as all that a model writes, has its own spaces.
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
    def __init__(
        self,
        tokenizer: TokenBytes,
        skip_special: bool = True,
        *,
        prefixed: Collection[int] | None = None,
        continues: bool = True,
    ) -> None:
        """prefixed: the tokens that encoding puts a space behind, as it does before a text; None: it puts none.
        continues: the tokens follow others, else they begin a text."""
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.hidden_ids if skip_special else frozenset()
        self._prefixed = prefixed
        self._at_prefix = prefixed is not None and not continues
        self._decoder = _Decoder("replace")

    def push(self, token: int) -> str:
        """The characters that this token completes."""
        text = self._token_bytes(token)  # which checks it
        if self._prefixed is not None:
            if token in self._prefixed:
                self._at_prefix = True
            elif self._at_prefix:
                self._at_prefix = False
                text = text.removeprefix(b" ")
        return "" if token in self._skipped else self._decoder.decode(text)

    def finish(self) -> str:
        """What is left at the end."""
        return self._decoder.decode(b"", final=True)
