"""llama.cpp as an oracle for tokenizers, through the PyPI package xllamacpp. Not used by pytest.

Owns the smallest model that it loads with a given vocabulary, and asking its server, which answers on loopback.
"""

from __future__ import annotations

import json
import struct
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path

from ggufbytes import Kv, Type, write_gguf

WIDTH = 32


def write_model(path: Path, n_vocab: int, tokenizer: Sequence[Kv]) -> None:
    sizes = {
        "block_count": 1, "context_length": 512, "embedding_length": WIDTH, "feed_forward_length": WIDTH,
        "attention.head_count": 1, "attention.head_count_kv": 1, "rope.dimension_count": WIDTH, "vocab_size": n_vocab,
    }  # fmt: skip
    kv: list[Kv] = [("general.architecture", Type.STRING, "llama")]
    kv += [(f"llama.{key}", Type.U32, value) for key, value in sizes.items()]
    kv += [("llama.attention.layer_norm_rms_epsilon", Type.F32, 1e-5), *tokenizer]
    matrices = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    columns = {"token_embd": n_vocab, **dict.fromkeys((f"blk.0.{name}" for name in matrices), WIDTH)}
    tensors = [(f"{name}.weight", (WIDTH, n), 1, struct.pack("<e", 0.01) * WIDTH * n) for name, n in columns.items()]
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors.append((f"{name}.weight", (WIDTH,), 0, struct.pack("<f", 1.0) * WIDTH))
    write_gguf(path, kv, tensors)


def tokenize(path: Path, texts: Iterable[str], special: bool = False) -> list[list[int]]:
    """special: BOS and its kind are added, and control tokens are parsed."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.warmup = 256, False
    server = xllamacpp.Server(params)
    out = []
    for text in texts:
        body = json.dumps({"content": text, "add_special": special, "parse_special": special}).encode()
        headers = {"Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(server.listening_address + "/tokenize", body, headers)
        ) as answer:
            out.append(json.load(answer)["tokens"])
    return out
