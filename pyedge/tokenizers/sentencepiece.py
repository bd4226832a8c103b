"""SentencePiece (`tokenizer.ggml.model` "llama": byte-pair encoding with scores, "t5": unigram), through the
`sentencepiece` library.

Owns which pieces of the vocabulary take part and what the library calls them. The bytes of the library's model are
written by the core. Special tokens, user-defined ones too, never get here: their texts are split off before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyedge.errors import ModelError
from pyedge.tokenizers.vocabulary import SPACE, Frame, Metadata, TokenType, Vocabulary, byte_of

if TYPE_CHECKING:
    import sentencepiece

PIECE = 1 << 16  # characters of a long text that are encoded at a time; the library needs some 200 bytes for each
_MARK = "\ufdd0"  # begins the names that we give; it is no character
LONGEST_PIECE = 1999  # characters; the library takes less than 8000 bytes


class SentencePieceTokenizer:
    def __init__(self, gguf: Metadata, vocabulary: Vocabulary, pre: str | None = None) -> None:
        self._unigram = gguf.get("tokenizer.ggml.model") == "t5"
        ids, control = vocabulary.special_ids, vocabulary.texts_of(TokenType.CONTROL)
        begin, end = ids.get("bos", control.get("<s>")), ids.get("eos", control.get("</s>"))
        self.frame = Frame.of(gguf, begin, end, not self._unigram, self._unigram)
        prefix = gguf.get("tokenizer.ggml.add_space_prefix")
        self.space_prefix = not self._unigram if prefix is None else bool(prefix)
        self._squeezes = bool(gguf.get("tokenizer.ggml.remove_extra_whitespaces"))
        self._charsmap = _charsmap(gguf)
        self._vocabulary = vocabulary
        self._longest = max(map(len, vocabulary.texts))
        self._unknown = vocabulary.special_ids.get("unknown")
        self._n = len(vocabulary)
        self._byte_fallback = False
        self._library = self._load(_scores(gguf, self._n))

    def _load(self, scores: Sequence[float]) -> sentencepiece.SentencePieceProcessor:
        import sentencepiece

        from pyedge import _core

        names, types = self._pieces()
        if max(map(len, names)) > LONGEST_PIECE:
            i, name = max(enumerate(names), key=lambda item: len(item[1]))
            raise ModelError(
                f"tokenizer.ggml.tokens: token {i} has {len(name)} characters, and {LONGEST_PIECE} is the most that "
                "can be; the file is damaged, convert the model again"
            )
        # The unknown piece is one of our own, the last: the vocabulary may have none, or several.
        for second_try in (False, True):
            try:
                model = _core.sentencepiece_model(
                    [*names, _MARK],
                    [*scores, 0.0],
                    [*types, TokenType.UNKNOWN],
                    unigram=self._unigram,
                    byte_fallback=self._byte_fallback,
                    add_space_prefix=self.space_prefix,
                    remove_extra_whitespaces=self._squeezes,
                    charsmap=self._charsmap,
                )
                library = sentencepiece.SentencePieceProcessor()
                library.LoadFromSerializedProto(model)
                return library
            except (RuntimeError, OSError) as error:
                if second_try:
                    said = " ".join(str(error).split())[:200]
                    raise ModelError(
                        f"tokenizer.ggml.tokens: SentencePiece refuses them ({said}); convert the model again"
                    ) from None
            # Looking for twins first takes as long as loading. The first one of them is kept, as a text's token.
            seen: set[str] = set()
            for i, name in enumerate(names):
                if types[i] != TokenType.CONTROL and (name in seen or name.startswith(_MARK)):
                    self._disable(names, types, i)
                seen.add(name)
        raise AssertionError

    def _pieces(self) -> tuple[list[str], list[int]]:
        """Names and types for the library. What must not be found in a text becomes a control piece of a name that is
        none else's, so that all else in it is of no matter."""
        vocabulary = self._vocabulary
        names, types = list(vocabulary.texts), list(vocabulary.types)
        of_bytes: dict[int, int] = {}
        for i in vocabulary.special:
            kind = types[i]
            if kind == TokenType.UNUSED:
                continue
            byte = byte_of(names[i]) if kind == TokenType.BYTE else None
            if byte is not None and of_bytes.setdefault(byte, i) == i:
                names[i] = f"<0x{byte:02X}>"
            else:
                self._disable(names, types, i)
        for i in vocabulary.raw:  # a text cannot have what is not UTF-8
            self._disable(names, types, i)
        if not all(names):
            for i in [i for i, name in enumerate(names) if not name]:
                self._disable(names, types, i)
        self._byte_fallback = len(of_bytes) == 256
        if not self._byte_fallback:
            for i in of_bytes.values():
                self._disable(names, types, i)
        return names, types

    @staticmethod
    def _disable(names: list[str], types: list[int], i: int) -> None:
        names[i], types[i] = f"{_MARK}{i}", TokenType.CONTROL

    def fewest(self, text: str) -> int:
        """The text has no fewer tokens than this: none is longer than the longest. An unknown piece can be."""
        return -(-len(text) // self._longest) if self._byte_fallback and not self._squeezes else 0

    def encode(self, text: str) -> Iterator[list[int]]:
        """Ids of a text that stands at the beginning or after a special token, piece by piece."""
        encode = self._library.EncodeAsIds
        for piece in self._cut(text):
            ids: list[int] = encode(piece)
            if not self._byte_fallback:
                ids = self._without_unknown(ids)
            yield ids

    def _without_unknown(self, ids: list[int]) -> list[int]:
        if self._unknown is None:
            return [i for i in ids if i != self._n]
        return [self._unknown if i == self._n else i for i in ids]

    def _cut(self, text: str) -> Iterator[str]:
        start, end = 0, PIECE
        while end < len(text) and self._words_begin_with_spaces:
            found = _BEFORE_SPACE.search(text, end - 1)
            if found is None:
                break
            yield text[start : found.end()]
            # The library puts the space before this piece, if it does so before a text.
            start = found.end() + self.space_prefix
            end = start + PIECE
        yield text[start:] if start else text

    @cached_property
    def _words_begin_with_spaces(self) -> bool:
        """No piece has a space behind something else, so that none can cross the beginning of a word."""
        if (self._squeezes and not self.space_prefix) or self._charsmap:
            return False
        crossing = re.compile(f"[^{SPACE}]{SPACE}").search
        return not any(map(crossing, self._vocabulary.texts))

    def token_bytes(self, token: int) -> bytes:
        return self._vocabulary.piece_bytes(token)


_BEFORE_SPACE = re.compile(rf"[^ {SPACE}](?= .)", re.DOTALL)


def _scores(gguf: Metadata, n: int) -> list[float]:
    key = "tokenizer.ggml.scores"
    scores: Any = gguf.get(key)
    if scores is None:
        raise ModelError(f"{key}: missing; they say which pieces are joined first, convert the model again")
    if not isinstance(scores, list) or not all(isinstance(s, (int, float)) for s in scores[:1]):
        raise ModelError(f"{key}: not an array of numbers; convert the model again")
    if len(scores) != n:
        raise ModelError(f"{key}: {len(scores)} scores for {n} tokens; convert the model again")
    return scores


def _charsmap(gguf: Metadata) -> bytes:
    key = "tokenizer.ggml.precompiled_charsmap"
    values: Any = gguf.get(key)
    if values is None:
        return b""
    try:
        return bytes(v & 0xFF for v in values)  # some writers made them signed
    except TypeError:
        raise ModelError(f"{key}: not an array of bytes; convert the model again") from None
