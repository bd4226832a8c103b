"""Writes checkpoints in Hugging Face's form: a folder with config.json, safetensors and a small tokenizer.

Owns the names that published checkpoints have where transformers has others in memory (tests/models/families has the
latter), the spellings of both generations of its config, and the bytes of safetensors. Nothing of pyedge is involved.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from families import Case
from tinymodel import byte_characters

CLASSES = {  # of `architectures`, by model_type
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM", "phi3": "Phi3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM", "granite": "GraniteForCausalLM", "olmo2": "Olmo2ForCausalLM",
    "olmo3": "Olmo3ForCausalLM", "stablelm": "StableLmForCausalLM", "gpt_oss": "GptOssForCausalLM",
    "bert": "BertModel", "nomic_bert": "NomicBertModel",
}  # fmt: skip
_POOLINGS = {"MEAN": "mean_tokens", "CLS": "cls_token", "LAST": "lasttoken"}
_NOMIC = {
    "self_attn.o_proj": "attn.out_proj", "post_attention_layernorm": "norm1", "post_mlp_layernorm": "norm2",
    "mlp.up_proj": "mlp.fc11", "mlp.gate_proj": "mlp.fc12", "mlp.down_proj": "mlp.fc2",
    "embeddings.LayerNorm": "emb_ln",
}  # fmt: skip
_KINDS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "I64": np.int64}
Tensors = Mapping[str, np.ndarray]


def write(folder: Path, case: Case, *, older: bool = False, dtype: str = "F32", n_shards: int = 1) -> Path:
    """older: the config as before version 5 of transformers. dtype: of all weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(_published(case))
    dense = {name: tensors.pop(name) for name in list(tensors) if name.startswith("dense_")}
    write_weights(folder, tensors, dtype, n_shards)
    config = as_before_5(case.config) if older else dict(case.config)
    name = "Gemma3TextModel" if case.architecture == "gemma-embedding" else CLASSES[config["model_type"]]
    write_json(folder / "config.json", {**config, "architectures": [name]})
    write_tokenizer(folder, case.config["vocab_size"])
    if case.pooling is not None:
        modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
        (folder / "1_Pooling").mkdir(exist_ok=True)
        flags = {f"pooling_mode_{mode}": kind == case.pooling for kind, mode in _POOLINGS.items()}
        write_json(folder / "1_Pooling" / "config.json", flags)
        for dense_name, values in dense.items():
            path = f"{dense_name[6]}_Dense"
            modules.append({"type": "sentence_transformers.models.Dense", "path": path})
            (folder / path).mkdir(exist_ok=True)
            write_safetensors(folder / path / "model.safetensors", {"linear.weight": values}, dtype)
        write_json(folder / "modules.json", modules)
    return folder


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")


def write_weights(folder: Path, tensors: Tensors, dtype: str = "F32", n_shards: int = 1) -> None:
    if n_shards == 1:
        write_safetensors(folder / "model.safetensors", tensors, dtype)
        return
    where = {name: f"model-{i % n_shards + 1:05}-of-{n_shards:05}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(where.values()):
        write_safetensors(folder / shard, {n: v for n, v in tensors.items() if where[n] == shard}, dtype)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})


def write_safetensors(path: Path, tensors: Tensors, dtype: str = "F32") -> None:
    """A header's length, the header, and the data. dtype: of what is float."""
    header, data, end = dict[str, Any](), [], 0
    for name, values in tensors.items():
        kind = {"uint8": "U8", "int64": "I64"}.get(values.dtype.name, dtype)
        raw = _rounded(values, kind).tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [end, end + len(raw)]}
        data.append(raw)
        end += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data))


def _rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "BF16":
        return gguf.quants.quantize(np.ascontiguousarray(values, np.float32), gguf.GGMLQuantizationType.BF16)
    return values.astype(_KINDS[dtype])


def write_tokenizer(folder: Path, n: int) -> None:
    """One of some bytes, n tokens at most: no merges that matter."""
    common = byte_characters()[33 : min(32 + n, 127)]
    vocabulary = {text: i for i, text in enumerate([*common, "".join(common[:2])])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": [[common[0], common[1]]],
        },
    }  # fmt: skip
    write_json(folder / "tokenizer.json", tokenizer)


# ---- Names -----------------------------------------------------------------------------------------------------------


def _published(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    kind, fused = case.config["model_type"], dict[str, list[np.ndarray]]()
    for name, values in case.weights().items():
        if kind in ("mixtral", "qwen3_moe") and ".mlp." in name:
            yield from _experts(name, values, kind == "mixtral")
        elif case.experts == "MXFP4" and name.endswith((".gate_up_proj", ".down_proj")):
            yield from _mxfp4(name, values)
        elif kind == "nomic_bert":
            for ours, theirs in _NOMIC.items():
                name = name.replace(ours, theirs)
            name = f"encoder.{name}" if name.startswith("layers.") else name
            where, is_qkv, _ = name.partition(".self_attn.")
            if is_qkv:
                fused.setdefault(f"{where}.attn.Wqkv.weight", []).append(values)
            else:
                yield name, values
        elif name.startswith("dense_"):
            yield name.removesuffix(".weight"), values
        else:
            yield name, values
    for name, parts in fused.items():
        yield name, np.concatenate(parts)


def _experts(name: str, values: np.ndarray, mixtral: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Each expert's matrices alone."""
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    where, _, part = name.partition(".experts.")
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    if part == "gate_up_proj":
        for e, both in enumerate(values):
            for one, half in zip(names, np.split(both, 2), strict=False):
                yield f"{where}.experts.{e}.{one}.weight", half
    elif part == "down_proj":
        for e, matrix in enumerate(values):
            yield f"{where}.experts.{e}.{names[2]}.weight", matrix
    else:
        yield name, values


def _mxfp4(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Blocks and scales. A GGUF has value i beside value i + 16, a checkpoint neighbours."""
    rows = np.ascontiguousarray(values.swapaxes(-1, -2))
    raw = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.MXFP4).reshape(*rows.shape[:2], -1, 17)
    codes = np.concatenate((raw[..., 1:] & 15, raw[..., 1:] >> 4), axis=-1)
    yield f"{name}_blocks", codes[..., ::2] | (codes[..., 1::2] << 4)
    yield f"{name}_scales", raw[..., 0].copy()


def as_before_5(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` as rope_theta, rope_scaling and their kind."""
    config = dict(config)
    ropes = config.pop("rope_parameters", {})
    rope = dict(ropes.get("full_attention", ropes))
    if "sliding_attention" in ropes and config["model_type"].startswith("gemma3"):
        config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in rope:
            config[name] = rope.pop(name)
    if rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = {("type" if k == "rope_type" else k): v for k, v in rope.items()}
    return config


# ---- From a GGUF -----------------------------------------------------------------------------------------------------

_OF_LLAMA = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def from_llama(path: Path, folder: Path, pre_tokenizer: Mapping[str, Any]) -> Path:
    """The checkpoint that a file of llama could come from, its weights unpacked to F32. pre_tokenizer: as in its
    tokenizer.json, which the file does not spell."""
    folder.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    heads, kv_heads = (keys[f"llama.attention.head_count{kv}"] for kv in ("", "_kv"))
    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        _, layer, *rest = [*tensor.name.split("."), ""]
        if tensor.name.startswith("blk."):
            names[tensor.name] = f"model.layers.{layer}.{_OF_LLAMA[rest[0]]}.weight"
        if rest[0] in ("attn_q", "attn_k"):  # neighbours become halves again
            n = heads if rest[0] == "attn_q" else kv_heads
            values = values.reshape(n, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        tensors[names[tensor.name]] = values
    write_weights(folder, tensors, n_shards=3)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "vocab_size": len(keys["tokenizer.ggml.tokens"]), "hidden_size": keys["llama.embedding_length"],
        "intermediate_size": keys["llama.feed_forward_length"], "num_hidden_layers": keys["llama.block_count"],
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "tie_word_embeddings": True,
        "max_position_embeddings": keys["llama.context_length"], "rope_theta": keys["llama.rope.freq_base"],
        "rms_norm_eps": keys["llama.attention.layer_norm_rms_epsilon"], "rope_scaling": None,
    }  # fmt: skip
    write_json(folder / "config.json", config)
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True, **dict.fromkeys(_FLAGS, False)}
            for i, kind in enumerate(types)
            if kind == gguf.TokenType.CONTROL
        ],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(tokens)}, "merges": keys["tokenizer.ggml.merges"],
        },
    }  # fmt: skip
    write_json(folder / "tokenizer.json", tokenizer)
    ids = {name: keys.get(f"tokenizer.ggml.{key}_token_id") for name, key in _IDS.items()}
    write_json(folder / "tokenizer_config.json", {name: tokens[i] for name, i in ids.items() if i is not None})
    (folder / "chat_template.jinja").write_text(keys["tokenizer.chat_template"], encoding="utf-8")
    return folder


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
_IDS = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
