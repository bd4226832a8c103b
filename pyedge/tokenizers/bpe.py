"""BPE with merges (`tokenizer.ggml.model` "gpt2", of bytes, and "gemma4", of characters), through the `tokenizers`
library.

Owns the byte alphabet, the merges, the cutting into words, and Unicode's NFC where the original tokenizer has it.
Special tokens never get here: their texts are split off before, and a token that is not ordinary text takes no part in
merging, so text cannot become one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from pyedge.errors import ModelError
from pyedge.tokenizers.pretokenizers import PreTokenizer, pieces, pre_tokenizer
from pyedge.tokenizers.vocabulary import SPACE, Frame, Metadata, TokenType, Vocabulary, read_texts

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import normalizers, pre_tokenizers

log = logging.getLogger(__name__)

_UTF8_BYTES = frozenset(range(0xF5)) - {0xC0, 0xC1}
_MOST_COMPOSED = 4  # bytes that become one: 7 become 2 (U+1FBE U+0308 U+0301)
_MERGED = frozenset((TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE))


class BpeTokenizer:
    space_prefix = False

    def __init__(self, gguf: Metadata, vocabulary: Vocabulary, pre: str | None = None) -> None:
        if pre is None:
            pre = gguf.get("tokenizer.ggml.pre")
        if pre is None and gguf.get("tokenizer.ggml.model") == "gemma4":
            pre = "gemma4"
        if pre is None:
            log.warning("tokenizer.ggml.pre is missing: words are cut by the 'default' rules, which may be wrong")
            pre = "default"
        self._rules = rules = pre_tokenizer(str(pre))
        ids = vocabulary.special_ids
        self.frame = Frame.of(gguf, ids.get("bos"), ids.get("eos"), rules.add_bos, False)
        self._vocabulary = vocabulary
        self._library = _build(vocabulary, read_texts(gguf, "tokenizer.ggml.merges")[0], rules)
        self._composer = _composer() if rules.composes else None
        self._longest = max(1, *map(len, vocabulary.texts))  # in bytes: a character of the byte alphabet is one
        self.missing_bytes = frozenset(b for b in _UTF8_BYTES if self._library.token_to_id(self._name(b)) is None)
        self._warned = not self.missing_bytes

    def _name(self, byte: int) -> str:
        return _byte_characters()[byte] if self._rules.byte_level else f"<0x{byte:02X}>"

    def fewest(self, text: str) -> int:
        """The text has no fewer tokens than this. Counting what it has takes a thousand times as long."""
        if self._rules.byte_level:
            n_bytes = len(text.encode().translate(None, bytes(self.missing_bytes)))
            if self._rules.composes and not text.isascii():
                n_bytes = 0 if self.missing_bytes else -(-n_bytes // _MOST_COMPOSED)
            return -(-n_bytes // self._longest)
        return 0 if self.missing_bytes else -(-len(text) // self._longest)

    def encode(self, text: str) -> Iterator[list[int]]:
        """Ids of a text that holds no special token, piece by piece. A byte that has no token is left out, as in every
        other program: some vocabularies lack rare control characters and unassigned planes."""
        return map(self._encode, pieces(text, cut=self._rules.cut))

    def _encode(self, text: str) -> list[int]:
        if self._rules.byte_level:
            if self._composer is not None and not text.isascii():
                text = self._composer.normalize_str(text)
            if not self._warned and not self.missing_bytes.isdisjoint(text.encode()):
                self._warned = True
                log.warning("the text has bytes for which this model has no token; they are left out")
        else:
            text = text.replace(" ", SPACE)
        try:
            return self._library.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library's own, which is no Exception
                raise
            raise ValueError(f"a text of {len(text)} characters is too long for this tokenizer; cut it") from None

    def token_bytes(self, token: int) -> bytes:
        if not self._rules.byte_level:
            return self._vocabulary.piece_bytes(token)
        own = self._vocabulary.raw.get(token)
        if own is not None:
            return own
        text = self._vocabulary.texts[token].translate(_character_bytes())
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError:  # not of the byte alphabet, so it stands for itself
            return self._vocabulary.texts[token].encode()


def _composer() -> normalizers.NFC:
    """The library's own: Python may know another version of Unicode than the models' tokenizers do."""
    from tokenizers import normalizers

    return normalizers.NFC()


def _build(vocabulary: Vocabulary, merges: list[str], rules: PreTokenizer) -> tokenizers.Tokenizer:
    import tokenizers
    from tokenizers import models

    if not merges:
        raise ModelError("tokenizer.ggml.merges: empty or missing; a BPE model needs them, convert the model again")
    texts = vocabulary.texts
    plain = _plain(vocabulary)
    settings: Any = {"ignore_merges": rules.whole_words, "byte_fallback": not rules.byte_level}
    pairs: Any = [merge.partition(" ")[::2] for merge in merges]
    if _too_long(merges, plain):
        pairs = _merges_of(pairs, plain, set(texts))
    try:
        model = models.BPE(vocab=plain, merges=pairs, **settings)
    except Exception:  # the library has no other, and names one token; looking first takes as long as building
        model = models.BPE(vocab=plain, merges=_merges_of(pairs, plain, set(texts)), **settings)
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = cutter(rules.patterns, rules.byte_level)
    return library


def cutter(patterns: tuple[str, ...], byte_level: bool) -> pre_tokenizers.PreTokenizer:
    """What cuts words so, in the library, and spells them in the vocabulary's alphabet."""
    import tokenizers
    from tokenizers import pre_tokenizers

    cuts = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in patterns]
    to_bytes = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)] if byte_level else []
    return pre_tokenizers.Sequence([*cuts, *to_bytes])


def _plain(vocabulary: Vocabulary) -> dict[str, int]:
    """Ids of the texts that take part in merging; of twins, the last."""
    texts, types, raw = vocabulary.texts, vocabulary.types, vocabulary.raw
    plain = dict(zip(texts, range(len(texts)), strict=True))
    others = {i for i in vocabulary.special if types[i] not in _MERGED} | raw.keys()
    if len(plain) < len(texts):
        return {text: i for i, text in enumerate(texts) if i not in others}
    for i in others:
        del plain[texts[i]]
    return plain


def _too_long(merges: list[str], plain: dict[str, int]) -> bool:
    """Whether a merge could make more bytes than the longest token has, at which the library panics."""
    n_characters = max(map(len, plain), default=0)
    longest = max((len(text.encode()) for text in plain if 4 * len(text) >= n_characters), default=0)
    return any(len(merge.encode()) - 1 > longest for merge in merges if 4 * len(merge) > longest)


def _merges_of(pairs: list[tuple[str, str]], plain: dict[str, int], known: set[str]) -> list[tuple[str, str]]:
    """The merges of ordinary tokens. One that has to do with a special token is dropped, one of no token an error."""
    kept = []
    for rank, (a, b) in enumerate(pairs):
        if a in plain and b in plain and a + b in plain:
            kept.append((a, b))
        elif not known.issuperset((a, b, a + b)):
            raise ModelError(
                f"tokenizer.ggml.merges: merge {rank}, {a[:40]!r} and {b[:40]!r}, is not of tokens in the vocabulary; "
                "convert the model again"
            )
    return kept


@cache
def _byte_characters() -> dict[int, str]:
    """GPT-2's alphabet: printable Latin-1 bytes are themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


@cache
def _character_bytes() -> dict[int, int]:
    table = {ord(c): b for b, c in _byte_characters().items()}
    # Characters outside the alphabet must not pass for the byte of the same number.
    return dict.fromkeys(range(256), 0x10FFFF) | table
