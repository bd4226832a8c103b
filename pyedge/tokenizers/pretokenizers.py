"""How a BPE tokenizer cuts text into words before it merges: one row per `tokenizer.ggml.pre`.

Owns the table and nothing else. A word is cut by the row's patterns in turn, each within what the former left. Only
rows whose ids have been compared with llama.cpp's stand here.
"""

from __future__ import annotations

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
