"""Log-probabilities in OpenAI's two shapes: of chat, and of completions.

Owns how a token is spelled there. A token may be a part of a character: in completions, whose keys are texts, that is
spelled `bytes:\\xe6\\x97`, as OpenAI does; with `return_tokens_as_token_ids`, as vLLM has it, each is `token_id:N`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyedge.engine.request import TokenEvent

if TYPE_CHECKING:
    from pyedge.tokenizers import Tokenizer


def of_chat(tokenizer: Tokenizer, event: TokenEvent) -> dict[str, Any]:
    """An element of `logprobs.content`."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        data = _bytes(tokenizer, token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

    assert event.token_id is not None
    assert event.logprob is not None
    return {**one(event.token_id, event.logprob), "top_logprobs": [one(t, p) for t, p in event.top_logprobs or ()]}


class Completion:
    """`logprobs` of a completion, token by token."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._offset = 0  # characters before the next token

    def empty(self) -> dict[str, Any]:
        return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}

    def add(
        self,
        to: dict[str, Any],
        token: int,
        logprob: float | None,  # None: of a prompt's first token, which nothing predicts
        top: list[tuple[int, float]] | None,
        n_characters: int,
    ) -> None:
        """n_characters: that the text grows by with this token."""
        to["tokens"].append(self._spelled(token))
        to["token_logprobs"].append(logprob)
        to["top_logprobs"].append(None if top is None else {self._spelled(t): p for t, p in top})
        to["text_offset"].append(self._offset)
        self._offset += n_characters

    def _spelled(self, token: int) -> str:
        if self._as_ids:
            return f"token_id:{token}"
        data = _bytes(self._tokenizer, token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _bytes(tokenizer: Tokenizer, token: int) -> bytes:
    return tokenizer.token_bytes(token) if token < tokenizer.n_vocab else b""  # beyond: rows that pad the embedding
