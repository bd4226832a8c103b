"""WordPiece (`tokenizer.ggml.model` "bert"), through the `tokenizers` library.

Owns what BERT does to a text before (control characters, accents and capitals go, each CJK character and punctuation
mark is a word) and the names of pieces: a GGUF marks those that begin a word, by U+2581, where BERT's own files mark
the others, by "##".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyedge.tokenizers.pretokenizers import pieces
from pyedge.tokenizers.vocabulary import SPACE, Frame, Metadata, TokenType, Vocabulary

if TYPE_CHECKING:
    import tokenizers

LONGEST_WORD = 100  # characters; a longer word is unknown, as it was when the models were trained
_INSIDE, _UNKNOWN = "\ufdd0", "\ufdd1"  # no characters, so that no text can have them
_BEFORE_SPACE = re.compile(r"\S(?= )")
_END_OF_WORD = re.compile("[A-Za-z0-9] ")


class WordPieceTokenizer:
    space_prefix = True

    def __init__(self, gguf: Metadata, vocabulary: Vocabulary, pre: str | None = None) -> None:
        ids, control = vocabulary.special_ids, vocabulary.texts_of(TokenType.CONTROL)
        begin = ids.get("cls", ids.get("bos", control.get("[CLS]")))
        end = ids.get("seperator", ids.get("eos", control.get("[SEP]")))
        # A BERT is given both, always; files of other programs say otherwise of pairs, or nothing.
        self.frame = Frame(begin, end, begin is not None, end is not None)
        self._unknown = ids.get("unknown", control.get("[UNK]"))
        self._vocabulary = vocabulary
        lower, accents = (gguf.get(f"tokenizer.ggml.normalizer.{key}") for key in ("lowercase", "strip_accents"))
        lower = lower is None or bool(lower)
        self._library = _build(vocabulary, lower, lower if accents is None else bool(accents))

    def fewest(self, text: str) -> int:
        """The text has no fewer tokens than this: a word has one, but for what may vanish from it. Without a token for
        unknown words, all of them may."""
        return 0 if self._unknown is None else len(_END_OF_WORD.findall(text))

    def encode(self, text: str) -> Iterator[list[int]]:
        """Ids of a text that holds no special token, piece by piece."""
        return map(self._encode, pieces(text, cut=_BEFORE_SPACE))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        n = len(self._vocabulary)
        if n not in ids:
            return ids
        return [i if i < n else self._unknown for i in ids if i < n or self._unknown is not None]  # type: ignore[misc]

    def token_bytes(self, token: int) -> bytes:
        return self._vocabulary.piece_bytes(token)


def _build(vocabulary: Vocabulary, lowercase: bool, strip_accents: bool) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    names = {_UNKNOWN: len(vocabulary)}
    for i, text in enumerate(vocabulary.texts):
        if vocabulary.types[i] == TokenType.NORMAL and text and i not in vocabulary.raw:
            names.setdefault(text[1:] if text[0] == SPACE else _INSIDE + text, i)
    library = tokenizers.Tokenizer(
        models.WordPiece(
            names,
            unk_token=_UNKNOWN,
            continuing_subword_prefix=_INSIDE,
            max_input_chars_per_word=LONGEST_WORD,
        )
    )
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library
