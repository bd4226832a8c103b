"""The vocabularies that checkpoints have, as a GGUF has them: texts, types, scores or merges.

Owns the forms of tokenizer.model (SentencePiece's message), tokenizer.json (the `tokenizers` library's) and vocab.txt,
read as what a stranger made. Does not own special tokens' meanings and templates (tokenizer_files.py), nor how words
are cut (pre_recognition.py).
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyedge import _core
from pyedge.errors import ModelError
from pyedge.tokenizers.vocabulary import SPACE, TokenType, byte_of

AGAIN = "download the checkpoint again"
_MARKED = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass
class Vocabulary:
    """What `tokenizer.ggml.*` says of single tokens, and of how text becomes them."""

    model: str  # tokenizer.ggml.model
    texts: list[str | None]  # by id; None: no token has that id
    types: list[int]  # TokenType
    scores: list[float] | None = None
    merges: list[str] | None = None
    keys: dict[str, Any] = field(default_factory=dict)  # without `tokenizer.ggml.`

    def add(self, token: int, text: str, special: bool) -> None:
        """What a checkpoint says besides, of a token that it has or of one more."""
        self._reach(token + 1)
        known = self.texts[token] == text
        if not (known and self.types[token] in (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.BYTE)):
            self.types[token] = TokenType.CONTROL if special else TokenType.USER_DEFINED
            if self.scores is not None:
                self.scores[token] = -1000.0
        self.texts[token] = text

    def fit(self, n: int) -> int:
        """To the rows of the embedding. Tokens that nothing embeds cannot be used, and are left out: how many."""
        dropped = sum(text is not None for text in self.texts[n:])
        del self.texts[n:], self.types[n:]
        if self.scores is not None:
            del self.scores[n:]
        self._reach(n)
        for i, text in enumerate(self.texts):
            if text is None:
                self.texts[i], self.types[i] = f"[PAD{i}]", TokenType.UNUSED
        return dropped

    def _reach(self, n: int) -> None:
        """n tokens there are, at least."""
        missing = n - len(self.texts)
        self.texts += [None] * missing
        self.types += [TokenType.UNUSED] * missing
        if self.scores is not None:
            self.scores += [-10000.0] * missing


# ---- SentencePiece ---------------------------------------------------------------------------------------------------

_MODELS = {1: "t5", 2: "llama"}  # by TrainerSpec.model_type: unigram, BPE


def from_sentencepiece(message: bytes) -> Vocabulary:
    """Of a tokenizer.model. Format: sentencepiece_model.proto of https://github.com/google/sentencepiece"""
    try:
        parts = list(_fields(message))
        trainer, normalizer = (dict(_fields(dict(parts)[field])) for field in (2, 3))
        pieces = [dict(_fields(part)) for field, part in parts if field == 1]
        texts = [str(piece[1], "utf-8") for piece in pieces]
        types = [int(piece.get(3, TokenType.NORMAL)) for piece in pieces]
        scores = [float(piece.get(2, 0.0)) for piece in pieces]
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error) as e:
        raise ModelError(f"tokenizer.model: is no model of SentencePiece; {AGAIN}") from e
    kind = trainer.get(3, 1)
    if kind not in _MODELS or trainer.get(24):
        raise ModelError(
            "tokenizer.model: is neither byte-pair encoding nor unigram, or marks the ends of words; take another model"
        )
    if not texts or not all(map(math.isfinite, scores)) or not set(types) <= set(TokenType):
        raise ModelError(f"tokenizer.model: has pieces that are not possible; {AGAIN}")
    found = [
        text.replace(SPACE, " ") if kind == TokenType.USER_DEFINED else text
        for text, kind in zip(texts, types, strict=True)
    ]
    keys: dict[str, Any] = {"add_space_prefix": bool(normalizer.get(3, 1))}
    if normalizer.get(4, 1):
        keys["remove_extra_whitespaces"] = True
    if charsmap := normalizer.get(2):
        keys["precompiled_charsmap"] = list(charsmap)
    return Vocabulary(_MODELS[kind], [*found], types, scores, keys=keys)


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message: int, bytes, or float where four bytes are given."""
    view, at = memoryview(message), 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = view[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError

    while at < len(view):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        n = {1: 8, 5: 4}[wire] if wire != 2 else varint()
        if n > len(view) - at:
            raise ValueError
        yield number, struct.unpack_from("<f", view, at)[0] if wire == 5 else bytes(view[at : at + n])
        at += n


# ---- tokenizer.json --------------------------------------------------------------------------------------------------


def from_json(tokenizer: dict[str, Any]) -> Vocabulary:
    """Of a tokenizer.json."""
    model = tokenizer.get("model")
    if not isinstance(model, dict):
        raise _wrong("it has no model")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind == "WordPiece":
        return _word_pieces(model, _of_kind(tokenizer.get("normalizer"), "BertNormalizer"))
    if kind == "Unigram":
        return _unigram(model, tokenizer)
    if kind != "BPE":
        raise ModelError(
            f"tokenizer.json: model {kind!r:.40} is not supported, only BPE, Unigram and WordPiece are; "
            "give a tokenizer.model or take another model"
        )
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise _wrong("its BPE marks the parts of words")
    texts = _texts(model.get("vocab"))
    merges = [_merge(m) for m in _list(model.get("merges"), "merges")]
    known = set(texts)
    for a, b in merges:
        if a not in known or b not in known or a + b not in known:
            raise _wrong(f"merge {(a, b)!r:.80} is not of its tokens")
    if model.get("byte_fallback"):
        return _characters(texts, merges, model.get("unk_token"))
    if not any(_of_kind(tokenizer.get(part), "ByteLevel") for part in ("pre_tokenizer", "decoder")):
        raise _wrong("its BPE is neither of bytes nor falls back to them")
    for a, b in merges:
        if " " in a + b:
            raise _wrong(f"merge {(a, b)!r:.80} has a space")
    return Vocabulary("gpt2", texts, _normal(texts), merges=[f"{a} {b}" for a, b in merges])


def _characters(texts: list[str | None], merges: list[tuple[str, str]], unknown: Any) -> Vocabulary:
    """SentencePiece's BPE, rewritten as merges: a piece's score is the rank of the merges that make it, negated."""
    ranks: dict[str, int] = {}
    for rank, (a, b) in enumerate(merges):
        ranks.setdefault(a + b, rank)
    types = _normal(texts)
    for i, text in enumerate(texts):
        if text is not None and byte_of(text) is not None:
            types[i] = TokenType.BYTE
        elif text is not None and text == unknown:
            types[i] = TokenType.UNKNOWN
    scores = [-float(ranks.get(text or "", len(merges))) for text in texts]
    return Vocabulary("llama", texts, types, scores)


def _unigram(model: dict[str, Any], tokenizer: dict[str, Any]) -> Vocabulary:
    """SentencePiece's own kind. What it does to white space is for the caller to say, who has the library."""
    _check_like_sentencepiece(tokenizer)
    pieces = _list(model.get("vocab"), "vocab")
    if not pieces or not all(
        isinstance(p, list) and len(p) == 2 and isinstance(p[0], str) and _is_score(p[1]) for p in pieces
    ):
        raise _wrong("its vocabulary is no list of pieces with scores")
    unknown = model.get("unk_id")
    if unknown is not None and not (type(unknown) is int and 0 <= unknown < len(pieces)):
        raise _wrong(f"unk_id {unknown!r:.40} is none of its pieces")
    texts: list[str | None] = [text for text, _ in pieces]
    types = _normal(texts)
    if model.get("byte_fallback"):
        types = [int(TokenType.NORMAL if byte_of(text) is None else TokenType.BYTE) for text, _ in pieces]
    keys: dict[str, Any] = {}
    if unknown is not None:
        types[unknown] = TokenType.UNKNOWN
        keys["unknown_token_id"] = unknown
    if (normalizer := _of_kind(tokenizer.get("normalizer"), "Precompiled")) is not None:
        keys["precompiled_charsmap"] = _charsmap(normalizer.get("precompiled_charsmap"))
    return Vocabulary("t5", texts, types, [float(score) for _, score in pieces], keys=keys)


def _is_score(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30


def _charsmap(text: Any) -> list[int]:
    """Checked before the tokenizers library sees it, which takes it for sound."""
    try:
        charsmap = base64.b64decode(text, validate=True)
    except (ValueError, TypeError) as e:
        raise _wrong("its precompiled_charsmap is no base64") from e
    flags = dict.fromkeys(("byte_fallback", "add_space_prefix", "remove_extra_whitespaces"), False)
    _core.sentencepiece_model(["a"], [0.0], [TokenType.UNKNOWN], unigram=True, charsmap=charsmap, **flags)
    return list(charsmap)


def _check_like_sentencepiece(tokenizer: dict[str, Any]) -> None:
    """What stands before the model must be what SentencePiece does: its table of characters, and spaces."""
    for part in _flat(tokenizer.get("normalizer")):
        kind, pattern = part.get("type"), part.get("pattern")
        spaces = isinstance(pattern, dict) and all(str(p).strip(" ") in ("", "{2,}", "+") for p in pattern.values())
        if kind not in ("Precompiled", "Strip", "Prepend", "Replace") or (kind == "Replace" and not spaces):
            raise _wrong(f"its normalizer {kind!r:.40} is not supported beside Unigram")
    for part in _flat(tokenizer.get("pre_tokenizer")):
        if part.get("type") not in ("Metaspace", "WhitespaceSplit"):
            raise _wrong(f"its pre_tokenizer {part.get('type')!r:.40} is not supported beside Unigram")


def _word_pieces(model: dict[str, Any], normalizer: dict[str, Any] | None) -> Vocabulary:
    texts = _texts(model.get("vocab"))
    prefix = model.get("continuing_subword_prefix", "##")
    if prefix != "##" or normalizer is None or not normalizer.get("clean_text", True):
        raise _wrong("its WordPiece is not BERT's")
    lower, accents = bool(normalizer.get("lowercase", True)), normalizer.get("strip_accents")
    return _marked(texts, lower, lower if accents is None else bool(accents))


def from_words(text: str, lowercase: bool) -> Vocabulary:
    """Of a vocab.txt."""
    return _marked([*text.splitlines()], lowercase, lowercase)


def _marked(texts: list[str | None], lowercase: bool, strip_accents: bool) -> Vocabulary:
    """In a GGUF, a word's beginning has a mark, where BERT marks what continues one."""
    types = _normal(texts)
    for i, text in enumerate(texts):
        if text in _MARKED:
            types[i] = TokenType.CONTROL
        elif text is not None:
            texts[i] = text[2:] if text.startswith("##") else SPACE + text
    keys = {"normalizer.lowercase": lowercase, "normalizer.strip_accents": strip_accents}
    return Vocabulary("bert", texts, types, keys=keys)


def _texts(vocab: Any) -> list[str | None]:
    if not isinstance(vocab, dict) or not vocab:
        raise _wrong("it has no vocabulary")
    ids = vocab.values()
    if not all(type(i) is int and 0 <= i < 4 * len(vocab) + 1024 for i in ids):
        raise _wrong("its vocabulary has ids that are not possible")
    texts: list[str | None] = [None] * (max(ids) + 1)
    for text, i in vocab.items():
        texts[i] = text
    return texts


def _normal(texts: list[str | None]) -> list[int]:
    return [int(TokenType.UNUSED if text is None else TokenType.NORMAL) for text in texts]


def _merge(merge: Any) -> tuple[str, str]:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise _wrong(f"merge {merge!r:.80} is none of two pieces")
    return parts[0], parts[1]


def _of_kind(part: Any, kind: str) -> dict[str, Any] | None:
    """That part of a normalizer, pre-tokenizer or decoder."""
    return next((one for one in _flat(part) if one.get("type") == kind), None)


def _flat(part: Any) -> Iterator[dict[str, Any]]:
    """The parts of a normalizer, pre-tokenizer or decoder, which may be a sequence of several."""
    if not isinstance(part, dict):
        return
    if part.get("type") != "Sequence":
        yield part
    for name in ("normalizers", "pretokenizers", "decoders"):
        for inner in _list(part.get(name, []), name):
            yield from _flat(inner)


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(f"{name} is no list")
    return value


def _wrong(what: str) -> ModelError:
    return ModelError(f"tokenizer.json: {what}; {AGAIN}, or take another model")
