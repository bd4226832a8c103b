"""How a BPE tokenizer cuts text into words before it merges: one row per `tokenizer.ggml.pre`.

Owns the table, and where a long text can be cut with the same words in every row. A word is cut by the row's patterns
in turn, each within what the former left. Only rows whose ids have been compared with llama.cpp's stand here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pyedge.errors import ModelError

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"


def _cl100k(digits: str) -> str:
    """The pattern of cl100k and its heirs, which differ in how many digits make a word."""
    return (
        rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@dataclass(frozen=True)
class PreTokenizer:
    patterns: tuple[str, ...]  # Oniguruma
    whole_words: bool = False  # a word that is in the vocabulary is one token, whatever the merges say
    add_bos: bool = False  # where the file does not say


_GPT_2 = PreTokenizer((_GPT2,))
_SMOLLM = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA_3 = PreTokenizer((_cl100k(r"\p{N}{1,3}"),), whole_words=True, add_bos=True)
_QWEN_2 = PreTokenizer((_cl100k(r"\p{N}"),))

PRE_TOKENIZERS = {
    "command-r": _SMOLLM,
    "deepseek-r1-qwen": _QWEN_2,
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT_2,
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "mpt": _GPT_2,
    "qwen2": _QWEN_2,
    "refact": _SMOLLM,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
}


def pre_tokenizer(name: str) -> PreTokenizer:
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelError(
            f"tokenizer.ggml.pre: {name[:40]!r} is not known; if it cuts words like one of {known}, say --pre NAME"
        ) from None


# ---- Pieces of a long text -------------------------------------------------------------------------------------------

PIECE = 1 << 16  # characters; the library needs some 230 bytes for each

# In every row a word ends here, whatever stands before and after: no pattern has a space after what is no white space,
# nor anything but a letter after a letter, and none looks back. Only after white space do they look ahead, `(?!\S)`.
# The letters and what follows them are of blocks that every version of Unicode sees alike.
_LETTER = "A-Za-zΑ-ΡΣ-Ωα-ωА-яぁ-ゖァ-ヺ一-鿌가-힣"  # noqa: RUF001  (Greek and Cyrillic look like Latin)
_CUT = re.compile(rf"[^\s\u180e](?= )|[{_LETTER}](?=[\t-\r!-@\[-`{{-~、。！，？])")  # noqa: RUF001


def pieces(text: str, size: int | None = None) -> Iterator[str]:
    """The text in pieces of about `size` characters, each of whole words; longer where it has no place to cut."""
    size = PIECE if size is None else size
    start = 0
    while len(text) - start > size:
        cut = _CUT.search(text, start + size - 1)
        if cut is None:
            break
        yield text[start : cut.end()]
        start = cut.end()
    if start < len(text):
        yield text[start:] if start else text
