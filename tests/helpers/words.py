"""Texts that are cut into words differently by different tokenizers, and a vocabulary in which every word is a token.

Owns the texts, and the vocabulary made from them: all substrings of their bytes, and merges of any two that stand side
by side. So whatever is not cut is merged, and the tokens of a text are its words.
"""

from __future__ import annotations

TEXTS = (
    "I'll don't'S WE'RE", "It's 'tis x'y ''d", "a1b22c333d4444", "12345678 9", "3.14,1,000", "x=1+2;y<=3", "  two  sp ",
    "\t\ttab a\tb", "a\n\nb\r\nc\n \n d", " \n", "\n\n\n x", "x \n  y", "(hi)!?... --", "#$%&@ a_b __c",
    "naïve café É", "e\u0301a\u0308 x", "日本語 text", "ひらカナ漢字12", "한국어 단어", "Привет, мир!", "नमस्ते १२",
    "مرحبا، ٣", "😀😁 a😀b", "👩\u200d👧", "a\u200bb\xa0c", "\ufeffhi", "«x» “y” …z",
    "\uff0c\u3002\uff01\uff1f中a", "camelCase HTTPServer",
    "ABCdefGHI xYz", "foo/bar//baz\n", "a!/\nb", "C++ f(x){}", "<|x|> `y`", "½²Ⅷ x٣", "ﬁ ǅ ʰx",
    "\uff46\uff55\uff4c\uff4c \uff11\uff12", "~^|$+<=>",
    "a'Sb's'LL", "\x00\x01a\x7f",
)  # fmt: skip


def byte_characters() -> list[str]:
    """The printable character that stands for each byte (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    return [chr(b if b in printable else 256 + others.index(b)) for b in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges."""
    names = byte_characters()
    parts: dict[str, None] = {}
    for text in TEXTS:
        name = "".join(names[b] for b in text.encode())
        for n in range(2, len(name) + 1):
            parts |= dict.fromkeys(name[i : i + n] for i in range(len(name) - n + 1))
    ordered = sorted(parts, key=len)
    return [*names, *ordered], [f"{part[:i]} {part[i:]}" for part in ordered for i in range(1, len(part))]


def words_of(tokens: list[str]) -> list[str]:
    """What tokens of the vocabulary stand for; bytes that are no whole character are written as U+DC80 and on."""
    number = {c: b for b, c in enumerate(byte_characters())}
    return [bytes(number[c] for c in token).decode("utf-8", "surrogateescape") for token in tokens]
