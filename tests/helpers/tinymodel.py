"""Writes small random models as real GGUF files, with a byte-level BPE vocabulary so that text prompts work.

Owns shapes, random weights and the vocabulary. The files are written, and their weights quantized, by the `gguf`
package: nothing of pyedge is involved, so its loader and kernels are tested against something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1 and 2; the last ends a turn
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_MERGES = [
    *("t h", "th e", "Ġ t", "Ġ a", "i n", "h e", "Ġ w", "o r", "a n", "e r", "o u", "Ġt he"),
    *("r e", "o n", "a t", "Ġ s", "Ġa n", "Ġan d", "e n", "i s", "1 2", "12 3"),
]  # with the rest 281 tokens, not a multiple of any panel

# Formats that the gguf package reads but cannot write: where each block's float16 scales are and in what ratio, so that
# minimums cancel the mean, and the root mean square of its decoded values for a scale of 1 and random bytes elsewhere.
_RANDOM_BLOCKS: dict[str, tuple[dict[int, float], float]] = {
    "Q2_K": ({80: 1, 82: 1.5}, 10.5),
    "Q3_K": ({108: 1}, 43.5),
    "Q4_K": ({0: 1, 2: 7.5}, 178.0),
    "Q5_K": ({0: 1, 2: 15.5}, 356.0),
    "Q6_K": ({208: 1}, 1369.0),
    "IQ4_NL": ({0: 1}, 67.3),
    "IQ4_XS": ({0: 1}, 1258.0),
}


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [b for b in range(256) if b not in printable]
    return [chr(b if b in printable else 256 + others.index(b)) for b in range(256)]


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges."""
    return [*CONTROL, *byte_characters(), *(m.replace(" ", "") for m in _MERGES)], list(_MERGES)


def encode(values: np.ndarray, type_name: str, rng: np.random.Generator) -> np.ndarray:
    """Values [..., columns] in a format: an array of that type, or of bytes [..., bytes per row]."""
    kind = gguf.GGMLQuantizationType[type_name]
    if type_name == "F32":
        return values.astype(np.float32)
    if type_name not in _RANDOM_BLOCKS:
        return gguf.quants.quantize(values.astype(np.float32), kind)
    offsets, rms = _RANDOM_BLOCKS[type_name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    n_blocks = values.size // block
    raw = rng.integers(0, 256, (n_blocks, size), dtype=np.uint8)
    scales = (values.std() / rms * rng.uniform(0.5, 1.5, n_blocks)).astype(np.float16)
    # A part's minimum equal to its scale: its values have no mean then, as a real model's have none.
    if type_name == "Q2_K":
        raw[:, :16] = (raw[:, :16] & 15) * 17
    elif type_name in ("Q4_K", "Q5_K"):
        raw[:, 8:12] = raw[:, 4:8]
        raw[:, 12:16] = (raw[:, 12:16] & 15) * 17
    for at, ratio in offsets.items():
        raw[:, at : at + 2] = (scales * np.float16(ratio))[:, None].view(np.uint8)
    return raw.reshape(*values.shape[:-1], -1)


def write_tiny_llama(
    path: str | Path,
    *,
    n_embd: int = 64,
    n_head: int = 4,
    n_kv: int | None = None,
    head_dim: int | None = None,
    n_layer: int = 2,
    n_ff: int = 96,
    n_vocab: int | None = None,
    context: int = 512,
    types: str | Mapping[str, str] = "F32",
    bias: bool = False,
    tied: bool = False,
    rope_factors: bool = False,
    rope_base: float = 10000.0,
    n_rot: int | None = None,
    linear_scale: float | None = None,
    chat_template: str | None = CHATML,
    tokenizer: bool = True,
    seed: int = 0,
    keys: Mapping[str, Any] | None = None,
    drop: Sequence[str] = (),
    extra: Mapping[str, np.ndarray | tuple[np.ndarray, str]] | None = None,
) -> Path:
    """Writes a random llama and returns its path.

    types: one format for every matrix, or formats by the tensor's own name (`{"attn_q": "Q8_0", "": "Q4_0"}`; the empty
    name is the default). keys: metadata to add or replace, by full name (None removes). drop: tensors or keys to leave
    out. extra: tensors to add or replace, F32 or of a format.
    """
    rng = np.random.default_rng(seed)
    n_kv = n_head if n_kv is None else n_kv
    head_dim = n_embd // n_head if head_dim is None else head_dim
    n_rot = head_dim if n_rot is None else n_rot
    tokens, merges = vocabulary()
    n_rows = len(tokens) if n_vocab is None else n_vocab

    tensors: dict[str, tuple[np.ndarray, str]] = {}

    def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        own_name = name.rsplit(".", 2)[-2]
        kind = types if isinstance(types, str) else types.get(own_name, types.get("", "F32"))
        values = rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)
        tensors[name] = (encode(values, kind, rng), kind)

    def vector(name: str, size: int, mean: float = 0.0) -> None:
        tensors[name] = ((mean + 0.2 * rng.standard_normal(size)).astype(np.float32), "F32")

    matrix("token_embd.weight", n_rows, n_embd, gain=2.0 if tied else np.sqrt(n_embd))
    for i in range(n_layer):
        b = f"blk.{i}"
        vector(f"{b}.attn_norm.weight", n_embd, mean=1.0)
        for name, heads, gain in (("attn_q", n_head, 1.5), ("attn_k", n_kv, 1.5), ("attn_v", n_kv, 1.0)):
            matrix(f"{b}.{name}.weight", heads * head_dim, n_embd, gain)
            if bias:
                vector(f"{b}.{name}.bias", heads * head_dim)
        matrix(f"{b}.attn_output.weight", n_embd, n_head * head_dim)
        vector(f"{b}.ffn_norm.weight", n_embd, mean=1.0)
        matrix(f"{b}.ffn_gate.weight", n_ff, n_embd)
        matrix(f"{b}.ffn_up.weight", n_ff, n_embd)
        matrix(f"{b}.ffn_down.weight", n_embd, n_ff)
    vector("output_norm.weight", n_embd, mean=1.0)
    if not tied:
        matrix("output.weight", n_rows, n_embd, gain=2.0)
    if rope_factors:  # as Llama 3 has them: high frequencies kept, low ones slowed
        tensors["rope_freqs.weight"] = (np.linspace(1.0, 8.0, n_rot // 2, dtype=np.float32), "F32")
    for name, given in (extra or {}).items():
        values, kind = given if isinstance(given, tuple) else (given, "F32")
        tensors[name] = (encode(values, kind, rng), kind)

    metadata: dict[str, Any] = {
        "llama.context_length": context,
        "llama.embedding_length": n_embd,
        "llama.block_count": n_layer,
        "llama.feed_forward_length": n_ff,
        "llama.attention.head_count": n_head,
        "llama.attention.head_count_kv": n_kv,
        "llama.attention.key_length": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": n_rot,
        "llama.rope.freq_base": rope_base,
    }
    if linear_scale is not None:
        metadata |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": linear_scale}
    if tokenizer:
        metadata |= {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_bos_token": False,
        }
        if chat_template is not None:
            metadata["tokenizer.chat_template"] = chat_template
    metadata |= keys or {}

    writer = gguf.GGUFWriter(path, str(metadata.pop("general.architecture", "llama")))
    for key, value in metadata.items():
        if value is not None and key not in drop:
            add_key(writer, key, value)
    for name, (data, kind) in tensors.items():
        if name not in drop:
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if 0 <= value < 2**32 else writer.add_int64)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
