"""SentencePiece models trained on a few sentences, and their message taken apart.

Owns a reader of the fields that tests look at, so that what the core writes is checked by something that is neither the
core nor the library, and what the library trained becomes the metadata of a GGUF as converters make them.
"""

from __future__ import annotations

import io
import struct
from functools import cache
from typing import Any

import sentencepiece

TEXT = """
The keeper of the lighthouse wrote down what the sea did: 3 ships on Monday, 12 on Tuesday, none in the storm of 1897.
"Don't they'll," said the boy, "I'M sure we've seen it!" He'd counted 100, then 1000 waves;  two  spaces, a	tab.
Über den Dächern, naïve café, Привет, 日本語 text, नमस्ते, 한국어, and the sea, the sea, the keeper and the light.
""".strip().split("\n")


def fields(message: bytes) -> list[tuple[int, Any]]:
    """(number, value) in the message's order: int, bytes, or float for what takes four bytes."""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    at, out = 0, list[tuple[int, Any]]()
    while at < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            out.append((number, varint()))
        elif wire == 5:
            out.append((number, struct.unpack_from("<f", message, at)[0]))
            at += 4
        else:
            assert wire == 2
            n = varint()
            out.append((number, message[at : at + n]))
            at += n
    assert at == len(message)
    return out


def pieces_of(model: bytes) -> list[tuple[str, float, int]]:
    """Text, score, type."""
    pieces = [dict(fields(value)) for number, value in fields(model) if number == 1]
    return [(p[1].decode(), p.get(2, 0.0), p.get(3, 1)) for p in pieces]


@cache
def train(model_type: str, **settings: Any) -> bytes:
    out = io.BytesIO()
    defaults = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "vocab_size": 460}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=out,
        model_type=model_type,
        hard_vocab_limit=False,
        minloglevel=3,
        **{
            **defaults,
            "byte_fallback": True,
            **{k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()},
        },
    )
    return out.getvalue()


def metadata_of(model: bytes) -> dict[str, Any]:
    """What a converter puts into a GGUF."""
    parts = dict(fields(model))
    trainer, normalizer = dict(fields(parts[2])), dict(fields(parts[3]))
    pieces = pieces_of(model)
    types = [kind for _, _, kind in pieces]
    metadata = {
        "tokenizer.ggml.model": "llama" if trainer.get(3, 1) == 2 else "t5",
        "tokenizer.ggml.tokens": [t.replace("\u2581", " ") if kind == 4 else t for t, _, kind in pieces],
        "tokenizer.ggml.scores": [score for _, score, _ in pieces],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": types.index(2),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(3, 1)),
        "tokenizer.ggml.remove_extra_whitespaces": bool(normalizer.get(4, 1)),
    }
    if normalizer.get(2):
        metadata["tokenizer.ggml.precompiled_charsmap"] = list(normalizer[2])
    return metadata
