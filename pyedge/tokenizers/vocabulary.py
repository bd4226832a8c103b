"""The vocabulary of a GGUF file: token texts, their types, and the ids that have a meaning of their own.

Owns reading and checking these keys, and finding special tokens in text. How text between special tokens becomes ids
is the tokenizer kinds' (bpe.py, ...).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, Protocol

from pyedge.errors import ModelError

log = logging.getLogger(__name__)

# Texts that mark a turn in a known chat format. Some converters wrote them as ordinary or user-defined tokens; they are
# control tokens all the same, or a user could type the end of their own turn.
START_OF_TURN = (
    "<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "<|START_OF_TURN_TOKEN|>", "<|turn>",
)  # fmt: skip
END_OF_TURN = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<|eom_id|>",
    "<|return|>", "<|call|>", "<end_of_utterance>", "<|END_OF_TURN_TOKEN|>", "<turn|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001  (DeepSeek writes it with wide bars)
)  # fmt: skip
END_OF_TEXT = ("</s>", "<eos>", "<EOT>")  # HTML and other text may have these: they count if the file marks them
# `tokenizer.ggml.NAME_token_id`, spelled as files have it
SPECIAL_IDS = ("bos", "eos", "eot", "eom", "unknown", "padding", "cls", "seperator")

SPACE = "\u2581"  # what a space is in the pieces of some vocabularies
_LONGEST = 256  # characters of a special text that is looked for
_LARGEST = 2_000_000  # characters of all of them: a second of compiling for each million
_MOST = 1 << 20  # tokens; the largest vocabulary that is known, XLM-V's, has 901,629
_KEEP_SPACE = ("<unk>", "<s>", "<|endoftext|>")
_SPACES = re.compile(r"\s*")
_DEEPEST_TRIE = 16  # nested groups of a regular expression; beyond, alternatives stand side by side


class Metadata(Protocol):
    """What is read of a GGUF. `texts(key)` or `bytes(key)`, where the object has them, give strings that
    need not be UTF-8."""

    def get(self, key: str, /) -> Any: ...  # None: not there
    def __contains__(self, key: str, /) -> bool: ...


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Frame:
    """The tokens around a text: BOS or [CLS], EOS or [SEP]."""

    begin: int | None = None
    end: int | None = None
    add_begin: bool = False  # the model wants it
    add_end: bool = False

    @classmethod
    def of(cls, gguf: Metadata, begin: int | None, end: int | None, add_begin: bool, add_end: bool) -> Frame:
        """add_begin, add_end: where the file does not say."""
        flags = [gguf.get(f"tokenizer.ggml.add_{name}_token") for name in ("bos", "eos")]
        adds = [
            default if flag is None else bool(flag) for flag, default in zip(flags, (add_begin, add_end), strict=True)
        ]
        return cls(begin, end, begin is not None and adds[0], end is not None and adds[1])


@dataclass(frozen=True)
class Vocabulary:
    texts: list[str]  # by id, as the file spells them ("Ġthe")
    types: Sequence[int]  # TokenType, by id
    raw: dict[int, bytes] = field(default_factory=dict)  # texts that are not UTF-8
    special_ids: dict[str, int] = field(default_factory=dict)  # of SPECIAL_IDS, those the file has

    @classmethod
    def from_gguf(cls, gguf: Metadata) -> Vocabulary:
        texts, raw = read_texts(gguf, "tokenizer.ggml.tokens")
        if not texts:
            raise ModelError("tokenizer.ggml.tokens: empty or missing; this file has no vocabulary, use a complete one")
        if len(texts) > _MOST:
            raise ModelError(
                f"tokenizer.ggml.tokens: {len(texts)} tokens; {_MOST} is the most there may be; the file is damaged, "
                "convert the model again"
            )
        found = gguf.get("tokenizer.ggml.token_type")
        types = list(found) if isinstance(found, Sequence) else [TokenType.NORMAL] * len(texts)
        if len(types) != len(texts):
            raise ModelError(
                f"tokenizer.ggml.token_type: {len(types)} types for {len(texts)} tokens; convert the model again"
            )
        _mark_turns(texts, types)
        special_ids = {}
        for name in SPECIAL_IDS:
            key = f"tokenizer.ggml.{name}_token_id"
            token = gguf.get(key)
            if token is None:
                continue
            if type(token) is int and 0 <= token < len(texts):
                special_ids[name] = token
            else:
                log.warning("%s: %r is outside the vocabulary of %d tokens; ignored", key, token, len(texts))
        vocabulary = cls(texts, types, raw, special_ids)
        vocabulary._check_specials()
        return vocabulary

    def _check_specials(self) -> None:
        """At once: libraries take seconds and a gigabyte over a vocabulary that is nothing else."""
        found = self.texts_of(TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        size = sum(map(len, found))
        if size > _LARGEST:
            raise ModelError(
                f"tokenizer.ggml.token_type: the {len(found)} special tokens have {size} characters; {_LARGEST} "
                "is the most there may be; the file is damaged, convert the model again"
            )

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def special(self) -> list[int]:
        """Ids of all but normal tokens: few of many."""
        normal = int(TokenType.NORMAL)  # an enum's member takes longer to compare with
        return [i for i, t in enumerate(self.types) if t != normal]

    @cached_property
    def hidden_ids(self) -> frozenset[int]:
        """Tokens that say something to the program and nothing to the reader."""
        return frozenset(i for i in self.special if self.types[i] in (TokenType.CONTROL, TokenType.UNKNOWN))

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a generation."""
        control = self.texts_of(TokenType.CONTROL)
        ends = {self.special_ids[name] for name in ("eos", "eot", "eom") if name in self.special_ids}
        ends |= {control[text] for text in END_OF_TURN + END_OF_TEXT if text in control}
        if control.keys() >= {"<|return|>", "<|call|>", "<|end|>"}:  # Harmony: <|end|> ends a message, not the answer
            ends.discard(control["<|end|>"])
        return frozenset(ends)

    def texts_of(self, *types: TokenType) -> dict[str, int]:
        """Texts of these types that can be looked for in a text: no longer than is sane, and of a control token more
        than one character, since a text that is typed must be kept from being one by breaking it."""
        return {
            self.texts[i]: i
            for i in self.special
            if self.types[i] in types
            and i not in self.raw
            and (self.types[i] != TokenType.USER_DEFINED) < len(self.texts[i]) <= _LONGEST
        }

    def special_bytes(self, token: int) -> bytes | None:
        """The bytes of a token that stands for its own text; None: its kind of tokenizer knows."""
        kind = self.types[token]
        if kind == TokenType.UNUSED:
            return b""
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED):
            return self.raw.get(token) or self.texts[token].encode()
        return None

    def piece_bytes(self, token: int) -> bytes:
        """The bytes of an ordinary token, or of one that stands for a byte, where a space is U+2581."""
        text = self.texts[token]
        if self.types[token] == TokenType.BYTE:
            byte = byte_of(text)
            if byte is not None:
                return bytes((byte,))
        own = self.raw.get(token)
        return (text.encode() if own is None else own).replace(SPACE.encode(), b" ")


class SpecialTokens:
    """Finds special tokens in text: leftmost first, the longest there. A user-defined one is found always, a control
    token only on request."""

    def __init__(self, vocabulary: Vocabulary, strips: bool = False) -> None:
        """strips: white space behind a token goes, as Phi-3 has it (but for its first three)."""
        self._strips = strips
        self.control = vocabulary.texts_of(TokenType.CONTROL, TokenType.UNKNOWN)
        self._user_defined = vocabulary.texts_of(TokenType.USER_DEFINED)
        self._all = self._user_defined | self.control
        self._all_finder = TextFinder(self._all)

    def split(self, text: str, *, control: bool) -> Iterator[str | int]:
        """The text as ids of special tokens and the non-empty runs between them."""
        finder = self._all_finder if control else self._user_finder
        ids = self._all if control else self._user_defined
        done = 0
        for start, end in finder.find_all(text):
            if done < start:
                yield text[done:start]
            found = text[start:end]
            yield ids[found]
            done = end
            if self._strips and found not in _KEEP_SPACE:
                done = _SPACES.match(text, done).end()  # type: ignore[union-attr]
        if done < len(text):
            yield text[done:]

    @cached_property
    def ids(self) -> frozenset[int]:
        """Of all the tokens that are found."""
        return frozenset(self._all.values())

    @cached_property
    def _user_finder(self) -> TextFinder:
        return TextFinder(self._user_defined)


class TextFinder:
    """Finds any of many texts in a text. A regular expression looks for their beginnings, and the lengths that texts of
    this beginning have are tried: an expression of all of Gemma's 6,000 takes 60 ms to compile, this one 2."""

    _BEGINNING = 3  # characters

    def __init__(self, texts: Collection[str]) -> None:
        self._texts = frozenset(texts)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[: self._BEGINNING], set()).add(len(text))
        self._lengths = {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}
        self._beginnings = re.compile(longest_of(lengths)) if lengths else None

    def find_all(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of what is found one behind the other: leftmost first, the longest there."""
        found = self._find(text, 0)
        while found is not None:
            yield found
            found = self._find(text, found[1])

    def starts(self, text: str) -> Iterator[int]:
        """Where one of the texts begins, also inside another."""
        found = self._find(text, 0)
        while found is not None:
            yield found[0]
            found = self._find(text, found[0] + 1)

    def _find(self, text: str, at: int) -> tuple[int, int] | None:
        while self._beginnings is not None and (match := self._beginnings.search(text, at)):
            at = match.start()
            for n in range(self._BEGINNING, 0, -1):
                for length in self._lengths.get(text[at : at + n], ()):
                    if text[at : at + length] in self._texts:
                        return at, at + length
            at += 1
        return None


def longest_of(texts: Collection[str], depth: int = 0) -> str:
    """A regular expression that matches the longest of the texts: a trie, so that a character of the searched text
    costs the same for three tokens as for a thousand."""
    if depth == _DEEPEST_TRIE:
        return "(?:" + "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) + ")"
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[:1], []).append(text[1:])
    optional = by_first.pop("", None) is not None
    branches = []
    for first, rests in by_first.items():
        shared = _common_prefix(rests)
        rests = [rest[len(shared) :] for rest in rests]
        branches.append(re.escape(first + shared) + (longest_of(rests, depth + 1) if any(rests) else ""))
    return f"(?:{'|'.join(branches)})" + ("?" if optional else "")


def _common_prefix(texts: Collection[str]) -> str:
    first, last = min(texts), max(texts)
    n = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:n]


def byte_of(text: str) -> int | None:
    """The byte that a token of type BYTE stands for: "<0x0A>"."""
    match = _BYTE.fullmatch(text)
    return int(match[1], 16) if match else None


_BYTE = re.compile(r"<0[xX]([0-9a-fA-F]{2})>")


def read_texts(gguf: Metadata, key: str) -> tuple[list[str], dict[int, bytes]]:
    """An array of strings, and by index the bytes of those that are not UTF-8. Empty: the key is missing."""
    if key not in gguf:
        return [], {}
    at_once = getattr(gguf, "texts", None)
    if at_once is not None:
        found: tuple[list[str], dict[int, bytes]] = at_once(key)
        return found
    read = getattr(gguf, "bytes", None)
    values = read(key) if read is not None else gguf.get(key)
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)):
        raise ModelError(f"{key}: not an array of strings; convert the model again")
    raw: dict[int, bytes] = {}
    try:
        return [v.decode() if isinstance(v, bytes) else _text(v) for v in values], raw
    except UnicodeDecodeError:
        texts = []
        for i, value in enumerate(values):
            texts.append(value.decode("utf-8", "replace"))
            if texts[-1].encode() != value:
                raw[i] = value
        return texts, raw
    except TypeError:
        raise ModelError(f"{key}: not an array of strings; convert the model again") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


_TURNS = frozenset(END_OF_TURN + START_OF_TURN)


def _mark_turns(texts: list[str], types: list[int]) -> None:
    pair: dict[str, int] = {}
    wanted = _TURNS | {"<s>", "</s>"}
    for token in [i for i, text in enumerate(texts) if text in wanted]:
        text = texts[token]
        if text not in _TURNS:
            pair[text] = token
        elif types[token] in (TokenType.NORMAL, TokenType.USER_DEFINED):
            _mark(token, text, types)
    # Phi-3 has its </s> as user-defined. Gemma has both so: they are HTML's.
    if len(pair) == 2 and [types[pair[text]] for text in ("<s>", "</s>")] == [
        TokenType.CONTROL,
        TokenType.USER_DEFINED,
    ]:
        _mark(pair["</s>"], "</s>", types)


def _mark(token: int, text: str, types: list[int]) -> None:
    log.info("token %d, %r, is not marked as a control token; it is taken for one", token, text)
    types[token] = TokenType.CONTROL
