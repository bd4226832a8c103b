"""A small BPE vocabulary, trained on a few sentences, as the metadata of a GGUF.

Owns the vocabulary that the fast tests share: every byte, a few hundred merges, control and user-defined tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, trainers

from pyedge.tokenizers import Tokenizer

Metadata = dict[str, Any]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPECIALS = {
    "<|endoftext|>": CONTROL,
    "<|im_start|>": CONTROL,
    "<|im_end|>": CONTROL,
    "<think>": USER_DEFINED,
    "</think>": USER_DEFINED,
    "</": USER_DEFINED,
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = """
The keeper of the lighthouse wrote down what the sea did: 3 ships on Monday, 12 on Tuesday, none in the storm of 1897.
"Don't they'll," said the boy, "I'M sure we've seen it!" He'd counted 100, then 1000 waves;  two  spaces, a	tab.
def keep(light, hours=24):
    return light * hours  # every hour
Über den Dächern, naïve café, Привет, 日本語 text, नमस्ते, 한국어, and 😀😁😂 too.
"""


@cache
def _trained() -> tuple[list[str], list[str]]:
    """Tokens and merges."""
    import json

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, min_frequency=1, show_progress=False)
    library.train_from_iterator([_TEXT], trainer)
    model = json.loads(library.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].get), merges


@pytest.fixture
def metadata() -> Metadata:
    tokens, merges = _trained()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*SPECIALS, *tokens],
        "tokenizer.ggml.token_type": [*SPECIALS.values()] + [NORMAL] * len(tokens),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


@pytest.fixture
def make(metadata: Metadata) -> Callable[..., Tokenizer]:
    """A tokenizer of that metadata with keys changed (short names: `pre`, `eos_token_id`), or removed where None."""

    def tokenizer(template: str | None = None, **changes: Any) -> Tokenizer:
        changed = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
        if template is not None:
            changed["tokenizer.chat_template"] = template
        return Tokenizer.from_gguf({k: v for k, v in {**metadata, **changed}.items() if v is not None})

    return tokenizer
