"""How a BPE tokenizer cuts text into words before it merges: one row per `tokenizer.ggml.pre`.

Owns the table, and where a long text can be cut with the same words. A word is cut by the row's patterns in turn, each
within what the former left; they are those of the models' own tokenizer files. Only rows whose ids have been compared
with the original tokenizer's or llama.cpp's stand here, or names that llama.cpp has for the same rules
(tests/tokenizers/oracles.py compares them).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyedge.errors import ModelError

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


def _cl100k(digits: str, letters: str = r"\p{L}", others: str = r"\p{L}\p{N}") -> str:
    """The pattern of cl100k and its heirs, which differ in what a letter is and how many digits make a word."""
    return (
        rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}"
        rf"| ?[^\s{others}]+[\r\n]*|{_SPACES}"
    )


def _o200k(digits: str, contraction: str) -> str:
    """That of o200k: a word is capitals, then small letters."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    begin = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{begin}{upper}*{lower}+{contraction}|{begin}{upper}+{lower}*{contraction}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


# ---- Pieces of a long text -------------------------------------------------------------------------------------------

PIECE = 1 << 16  # characters; the library needs some 230 bytes for each

# In most rows a word ends here, whatever stands before and after: no pattern has a space after what is no white space,
# nor anything but a letter after a letter, and none looks back. Only after white space do they look ahead, `(?!\S)`.
# The letters and what follows them are of blocks that every version of Unicode sees alike.
_LETTER = "A-Za-zΑ-ΡΣ-Ωα-ωА-яぁ-ゖァ-ヺ一-鿌가-힣"  # noqa: RUF001  (Greek and Cyrillic look like Latin)
_ANY = re.compile(rf"[^\s\u180e](?= )|[{_LETTER}](?=[\t-\r!-@\[-`{{-~、。！，？])")  # noqa: RUF001
_NO_APOSTROPHE = re.compile(rf"[^\s\u180e](?= )|[{_LETTER}](?=[\t-\r!-&(-@\[-`{{-~、。！，？])")  # noqa: RUF001
_BETWEEN_WORDS = re.compile("[A-Za-z](?= [A-Za-z])")
_LINES = re.compile(r"\n(?!\n)")


def pieces(text: str, size: int | None = None, cut: re.Pattern[str] = _ANY) -> Iterator[str]:
    """The text in pieces of about `size` characters, each of whole words; longer where it has no place to cut."""
    size = PIECE if size is None else size
    start = 0
    while len(text) - start > size:
        found = cut.search(text, start + size - 1)
        if found is None:
            break
        yield text[start : found.end()]
        start = found.end()
    if start < len(text):
        yield text[start:] if start else text


# ---- The table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreTokenizer:
    patterns: tuple[str, ...]  # Oniguruma
    whole_words: bool = False  # a word that is in the vocabulary is one token, whatever the merges say
    add_bos: bool = False  # where the file does not say
    byte_level: bool = True  # in GPT-2's alphabet of bytes; else in characters, a space as U+2581, the rest as bytes
    composes: bool = False  # text is brought to Unicode's NFC first; at a cut nothing composes
    cut: re.Pattern[str] = _ANY  # a place between two words


_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_DEEPSEEK_LETTERS = (  # the cased letters that its authors listed
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DEEPSEEK_3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    rf"|{_SPACES}",
)

_GPT_2 = PreTokenizer((_GPT2,))
_SMOLLM = PreTokenizer((r"\p{N}", _GPT2))
_CL100K = PreTokenizer((_cl100k(r"\p{N}{1,3}"),))
_LLAMA_3 = replace(_CL100K, whole_words=True, add_bos=True)
_GLM_4 = replace(_CL100K, whole_words=True)
_QWEN_2 = PreTokenizer((_cl100k(r"\p{N}"),))
_QWEN_2_COMPOSED = replace(_QWEN_2, composes=True)
_GPT_NEOX = replace(_GPT_2, composes=True)
_O200K = PreTokenizer((_o200k(r"\p{N}{1,3}", rf"(?i:{_CONTRACTIONS})?"),), cut=_NO_APOSTROPHE)
_DEEPSEEK_V3 = PreTokenizer(_DEEPSEEK_3, cut=_BETWEEN_WORDS)
_OF_WORDS = PreTokenizer((_BLOOM,), cut=_BETWEEN_WORDS)
_OF_LINES = PreTokenizer((r"[^\n]+|\n+",), add_bos=True, byte_level=False, cut=_LINES)

PRE_TOKENIZERS = {  # of names for the same rules, the best known one comes first
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"), cut=_BETWEEN_WORDS
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            r"\p{N}+",
        ),
        cut=_BETWEEN_WORDS,
    ),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    "qwen35": PreTokenizer((_cl100k(r"\p{N}", r"\p{L}\p{M}", r"\p{L}\p{M}\p{N}"),), composes=True),
    "qwen2": _QWEN_2_COMPOSED,
    "command-r": replace(_SMOLLM, composes=True),
    "tekken": PreTokenizer((_o200k(r"\p{N}", ""),), whole_words=True, add_bos=True),
    "viking": replace(_OF_WORDS, patterns=(_BLOOM, r"\p{N}")),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), _CL100K),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
        _LLAMA_3,
    ),
    **dict.fromkeys(("glm4", "glm5"), _GLM_4),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _O200K),
    **dict.fromkeys(
        (
            "gpt-2", "phi-2", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0", "mellum",
            "modern-bert", "jais", "trillion", "granite-docling", "exaone4", "jina-v1-en",
            "jina-v2-code", "roberta-bpe",
        ),
        _GPT_2,
    ),
    **dict.fromkeys(("olmo", "mpt"), _GPT_NEOX),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"), _SMOLLM
    ),
    **dict.fromkeys(
        ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        _QWEN_2,
    ),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _DEEPSEEK_V3),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _OF_WORDS),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _OF_LINES),
}  # fmt: skip


def pre_tokenizer(name: str) -> PreTokenizer:
    try:
        return PRE_TOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise ModelError(
            f"tokenizer.ggml.pre: {name[:40]!r} is not known; if it cuts words like one of {known}, say --pre NAME "
            "(in Python, pre=NAME)"
        ) from None
