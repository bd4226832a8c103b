"""The table of families: each variant has a fixture, a tokenizer and a template that works; README says the same."""

from __future__ import annotations

import unicodedata
from typing import Any

import families
import pytest
from familytable import MESSAGES, README, TABLE, TEMPLATES, Variant, in_readme, section
from tinymodel import vocabulary

from pyedge import tokenizers
from pyedge.models import architectures
from pyedge.tokenizers.chat_template import ChatTemplate

TEXT = "It's 1897: naïve café, Привет!\n  日本語 x = f(12345)"


def test_every_family_has_a_row() -> None:
    assert {v.architecture for v in TABLE} == set(architectures())


def test_every_fixture_has_a_row() -> None:
    assert {v.fixture for v in TABLE} == set(families.names())


@pytest.mark.parametrize("variant", TABLE, ids=lambda v: f"{v.architecture}-{v.fixture}")
def test_fixtures_are_of_the_family(variant: Variant) -> None:
    assert families.load(variant.fixture).architecture == variant.architecture


@pytest.mark.parametrize(("model", "pre"), sorted({v.tokenizer for v in TABLE}, key=str))
def test_tokenizers(model: str, pre: str | None) -> None:
    tokenizer = tokenizers.Tokenizer.from_gguf(METADATA[model](pre))
    decoded = tokenizer.decode(tokenizer.encode(TEXT, bos=False, eos=False))
    if model == "bert":  # it keeps neither spaces nor capitals nor accents
        assert "".join(decoded.split()) == "".join(plain(TEXT).split())
    else:
        assert decoded == TEXT


def plain(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")


def byte_level(pre: str | None) -> dict[str, Any]:
    tokens, merges = vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": merges,
    }


def sentencepiece(pre: str | None) -> dict[str, Any]:
    assert pre is None
    words = ["▁", "▁It", "It", "'s", "na", "caf", "é", "12", "123"]
    n_special = 3 + 256
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(words),
        "tokenizer.ggml.scores": [0.0] * n_special + [-1.0 - i for i in range(len(words))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def unigram(pre: str | None) -> dict[str, Any]:
    return {**sentencepiece(pre), "tokenizer.ggml.model": "t5"}


def wordpiece(pre: str | None) -> dict[str, Any]:
    assert pre is None
    special, letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], sorted({*plain(TEXT)} - {" ", "\n"})
    tokens = [*special, "▁cafe", *letters, *(f"▁{c}" for c in letters)]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(special) + [1] * (len(tokens) - len(special)),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    }


METADATA = {"gpt2": byte_level, "llama": sentencepiece, "t5": unigram, "bert": wordpiece}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates(name: str) -> None:
    template = TEMPLATES[name]
    made = ChatTemplate(template.source, (), {"bos_token": "<s>", "eos_token": "</s>"}).render(MESSAGES)
    assert made.text == template.rendered


def test_every_template_is_named_and_used() -> None:
    assert {v.template for v in TABLE} - {None} == set(TEMPLATES)


def test_readme_has_the_table() -> None:
    if not README.exists():
        pytest.skip("README.md lies beside a checkout only")
    assert in_readme(README.read_text(encoding="utf-8")) == section(), "python tests/helpers/familytable.py writes it"
