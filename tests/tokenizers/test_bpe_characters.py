"""BPE of characters (Gemma 4): a space is U+2581, merges go over a whole line, and what has no piece is bytes."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyedge.tokenizers import Tokenizer, pretokenizers

MERGES = [
    "\n \n", "▁ ▁", "▁ t", "h e", "▁t he", "▁▁ ▁▁", "s e", "se a", "▁ sea", "\n\n \n", "the ▁sea", "▁the ▁sea", "日 本",
    "a ▁", "\n\n \n\n",
]  # fmt: skip
CHARACTERS = ["\n", "▁", *"thesa日本"]
TOKENS = [
    "<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{b:02X}>" for b in range(256)), *CHARACTERS,
    *dict.fromkeys(merge.replace(" ", "") for merge in MERGES), "the", "<tool>",
]  # fmt: skip
TYPES = [3, 3, 3, 3, *[6] * 256, *[1] * (len(TOKENS) - 261), 4]
METADATA = {
    "tokenizer.ggml.model": "gemma4",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": TYPES,
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
}
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([" the", " sea", "\n", "  ", "日本", "é", "😀", "<0x0A>", "<tool>", "a "]), st.text(max_size=4)
    ),
    max_size=10,
).map(lambda parts: "".join(parts).replace("▁", "_"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(METADATA)


def by_the_book(text: str) -> list[int]:
    """The lowest merge first, the leftmost of equals, until there is none."""
    ids: list[int] = []
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(MERGES)}
    for line in re.findall(r"<tool>|\n+|(?:(?!<tool>)[^\n])+", text):
        if line == "<tool>":
            ids.append(TOKENS.index(line))
            continue
        symbols = list(line.replace(" ", "▁"))
        while True:
            found = [(ranks[a, b], i) for i, (a, b) in enumerate(pairwise(symbols)) if (a, b) in ranks]
            if not found:
                break
            _, i = min(found)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        for symbol in symbols:
            ids += [TOKENS.index(symbol)] if symbol in TOKENS else [4 + b for b in symbol.encode()]
    return ids


def test_ids_by_the_book_and_the_text_back(tokenizer: Tokenizer) -> None:
    @settings(max_examples=200)
    @given(text=TEXTS)
    def check(text: str) -> None:
        ids = tokenizer.encode(text, bos=False)
        assert ids == by_the_book(text)
        assert tokenizer.decode(ids) == text
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pretokenizers, "PIECE", 1)
            assert tokenizer.encode(text, bos=False) == ids
        assert tokenizer._kind.fewest(text) <= len([i for part in tokenizer._kind.encode(text) for i in part])

    check()


def test_the_rules_need_no_name(tokenizer: Tokenizer) -> None:
    assert tokenizer.add_bos
    assert tokenizer.encode(" the") == [2, TOKENS.index("▁the")]
    named: dict[str, Any] = {**METADATA, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gemma4"}
    assert Tokenizer.from_gguf(named).encode(" the sea") == tokenizer.encode(" the sea")


def test_long_lines(tokenizer: Tokenizer) -> None:
    for text in ("a" * 200_000, " " * 200_000, " the sea" * 25_000, "\n" * 200_000):
        assert tokenizer.decode(tokenizer.encode(text, bos=False)) == text
