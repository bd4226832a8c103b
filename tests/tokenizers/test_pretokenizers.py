"""How text is cut into words, row by row, against llama.cpp and the models' own tokenizers (words.json)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from words import TEXTS, vocabulary, words_of

from pyedge.tokenizers import Tokenizer
from pyedge.tokenizers.pretokenizers import PRE_TOKENIZERS

WORDS: dict[str, list[list[str]]] = json.loads(Path(__file__).with_name("words.json").read_text())


@cache
def metadata() -> dict[str, Any]:
    tokens, merges = vocabulary()
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges}


@pytest.mark.parametrize("pre", WORDS)
def test_words(pre: str) -> None:
    tokenizer = Tokenizer.from_gguf(metadata(), pre=pre)
    tokenizer._kind._composer = None  # type: ignore[attr-defined]  # the cutting is compared, of the text as it is
    for text, words in zip(TEXTS, WORDS[pre], strict=True):
        assert words_of([tokenizer.pieces[i] for i in tokenizer.encode(text, bos=False)]) == words, text


def test_every_row_is_compared() -> None:
    compared = {PRE_TOKENIZERS[name] for name in WORDS}
    assert {name for name, rules in PRE_TOKENIZERS.items() if rules not in compared and rules.byte_level} == set()


def test_the_texts_tell_rows_apart() -> None:
    rules = {PRE_TOKENIZERS[name].patterns: name for name in WORDS}
    assert len({json.dumps(WORDS[name]) for name in rules.values()}) == len(rules)
