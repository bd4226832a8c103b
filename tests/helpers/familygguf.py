"""Writes a tiny model of a fixture as GGUF, with the keys and the changes to weights that converters make.

Owns what a converter knows of each family: keys from the config, and what becomes of a tensor on its way. Names come
from the gguf package's own map, and that package writes the file: nothing of pyedge is involved.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gguf
import numpy as np
from families import Case
from tinymodel import add_key

Config = dict[str, Any]
Tensors = Iterator[tuple[str, np.ndarray]]  # by the checkpoint's names, or whole GGUF names


def write(
    path: str | Path,
    case: Case,
    *,
    types: str = "F32",
    keys: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    tokenizer: dict[str, Any] | None = None,
) -> Path:
    """types: of every matrix whose rows are whole blocks of it (of experts only where the case has them in F32, of
    routers never). keys: to add or replace, without the architecture (None removes). drop: tensors to leave out.
    tokenizer: `tokenizer.ggml.*` by their last names; None: the file has none."""
    family = FAMILIES[case.architecture]
    pooling = {"pooling_type": int(gguf.PoolingType[case.pooling])} if case.pooling else {}
    writer = gguf.GGUFWriter(path, case.architecture)
    for key, value in {**common_keys(case.config), **family.keys(case.config), **pooling, **(keys or {})}.items():
        if value is not None:
            add_key(writer, f"{case.architecture}.{key}", value)
    for key, value in (tokenizer or {}).items():
        add_key(writer, f"tokenizer.ggml.{key}", value)
    for name, values in tensors(case).items():
        if name in drop:
            continue
        kind = gguf.GGMLQuantizationType[_type(name, values, types, case.experts)]
        if values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            kind = gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _type(name: str, values: np.ndarray, types: str, experts: str) -> str:
    if name.endswith("_exps.weight") and experts != "F32":
        return experts
    return "F32" if values.ndim == 1 or name.endswith(".bias") or "norm" in name or "ffn_gate_inp" in name else types


def tensors(case: Case) -> dict[str, np.ndarray]:
    """What the file holds, by GGUF names."""
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(arch, case.config["num_hidden_layers"])
    made: dict[str, np.ndarray] = {}
    for name, values in FAMILIES[case.architecture].tensors(case.config, case.weights()):
        made[names.get_name(name, (".weight", ".bias")) or name] = np.ascontiguousarray(values, np.float32)
    return made


def common_keys(c: Config) -> dict[str, Any]:
    ropes = c.get("rope_parameters", {})
    rope = ropes.get("full_attention", ropes)
    keys: dict[str, Any] = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": c.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": c.get("layer_norm_eps"),
        "attention.key_length": c.get("head_dim"),
        "attention.value_length": c.get("head_dim"),
        "vocab_size": c["vocab_size"],
        "rope.freq_base": rope.get("rope_theta"),
        "rope.freq_base_swa": ropes.get("sliding_attention", {}).get("rope_theta"),
    }
    kind = rope.get("rope_type")
    if kind in ("linear", "yarn", "longrope"):
        keys["rope.scaling.type"] = kind
    if kind in ("linear", "yarn"):
        keys["rope.scaling.factor"] = rope["factor"]
    if kind == "yarn":
        keys |= {
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_attn_factor": rope.get("attention_factor"),
            "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
            "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
        }
    return {key: float(v) if _is_float(key) and v is not None else v for key, v in keys.items()}


def _is_float(key: str) -> bool:
    return key.endswith(("epsilon", "factor", "freq_base", "freq_base_swa", "beta_fast", "beta_slow"))


# ---- families --------------------------------------------------------------------------------------------------------


class Family:
    """What a converter does for a family. This one changes nothing."""

    def keys(self, c: Config) -> dict[str, Any]:
        return {}

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        for name, values in weights.items():
            yield name, self.change(c, name, values)

    def change(self, c: Config, name: str, values: np.ndarray) -> np.ndarray:
        return values


class Llama(Family):
    """Rows of q and k in another order, so that the halves that rope pairs become neighbours; Llama 3's factors."""

    def keys(self, c: Config) -> dict[str, Any]:
        head_dim = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
        return {"rope.dimension_count": head_dim, "attention.sliding_window": c.get("sliding_window")}

    def change(self, c: Config, name: str, values: np.ndarray) -> np.ndarray:
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if heads is None:
            return values
        halves = values.reshape(c[heads], 2, -1, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        yield from super().tensors(c, weights)
        rope = c["rope_parameters"]
        if rope["rope_type"] != "llama3":
            return
        head_dim = c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
        wavelength = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = (rope["original_max_position_embeddings"] / wavelength - low) / (high - low)
        yield "rope_freqs.weight", 1.0 / (1.0 / rope["factor"] + np.clip(smooth, 0, 1) * (1 - 1.0 / rope["factor"]))


class Granite(Llama):
    def keys(self, c: Config) -> dict[str, Any]:
        names = {"attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier"}
        names |= {"residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}
        return {**super().keys(c), **{key: c[name] for key, name in names.items()}}


class Gemma(Family):
    """The 1 that the checkpoints' norms leave out is added."""

    def change(self, c: Config, name: str, values: np.ndarray) -> np.ndarray:
        return values + 1 if name.endswith("norm.weight") else values

    def keys(self, c: Config) -> dict[str, Any]:
        return {
            "attention.sliding_window": c["sliding_window"],
            "attn_logit_softcapping": c.get("attn_logit_softcapping"),
            "final_logit_softcapping": c.get("final_logit_softcapping"),
        }


class Phi3(Family):
    def keys(self, c: Config) -> dict[str, Any]:
        rope, original = c["rope_parameters"], c["original_max_position_embeddings"]
        keys = {
            "rope.dimension_count": self._n_rot(c),
            "rope.scaling.original_context_length": original,
            "attention.sliding_window": c.get("sliding_window", 0),
        }
        if rope["rope_type"] == "longrope":
            grown = c["max_position_embeddings"] / original
            keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(grown) / math.log(original))
        return keys

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        yield from super().tensors(c, weights)
        for kind in ("long", "short"):
            if f"{kind}_factor" in c["rope_parameters"]:
                yield f"rope_factors_{kind}.weight", np.array(c["rope_parameters"][f"{kind}_factor"])

    @staticmethod
    def _n_rot(c: Config) -> int:
        share = c["rope_parameters"].get("partial_rotary_factor", 1.0)
        return int(share * c["hidden_size"] / c["num_attention_heads"])


class Olmo2(Family):
    def keys(self, c: Config) -> dict[str, Any]:
        if "sliding_window" not in c:
            return {}
        pattern = [(i + 1) % 4 != 0 for i in range(c["num_hidden_layers"])]
        return {"attention.sliding_window": c["sliding_window"], "attention.sliding_window_pattern": pattern}


class StableLm(Family):
    """The norms of the heads of q, and of k, are stacked."""

    def keys(self, c: Config) -> dict[str, Any]:
        head_dim = c["hidden_size"] // c["num_attention_heads"]
        return {
            "attention.layer_norm_rms_epsilon": None,
            "rope.freq_base": None,  # what converters write for this family leaves it out
            "rope.dimension_count": int(c["rope_parameters"]["partial_rotary_factor"] * head_dim),
            "use_parallel_residual": c["use_parallel_residual"],
        }

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        stacks: dict[str, list[np.ndarray]] = {}
        for name, values in weights.items():
            where, norms, number = name.partition(".norms.")
            if norms:
                assert int(number.split(".")[0]) == len(stacks.setdefault(f"{where}.weight", []))
                stacks[f"{where}.weight"].append(values)
            else:
                yield name, values
        for name, rows in stacks.items():
            yield name, np.stack(rows)


def _expert_keys(c: Config) -> dict[str, Any]:
    return {
        "expert_count": c.get("num_local_experts", c.get("num_experts")),
        "expert_used_count": c["num_experts_per_tok"],
    }


def _experts_apart(name: str, values: np.ndarray) -> Tensors:
    """The gates and ups of experts, one behind the other in a checkpoint, are tensors of their own."""
    if name.endswith(".gate_up_proj"):
        for part, half in zip(("gate_proj", "up_proj"), np.split(values, 2, axis=1), strict=True):
            yield name.replace("gate_up_proj", f"{part}.weight"), half
    else:
        yield (f"{name}.weight" if name.endswith(".down_proj") else name), values


class Mixtral(Llama):
    def keys(self, c: Config) -> dict[str, Any]:
        return {**super().keys(c), **_expert_keys(c)}

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        for name, values in super().tensors(c, weights):
            yield from _experts_apart(name, values)


class LlamaOrMixtral(Family):
    """One architecture."""

    def keys(self, c: Config) -> dict[str, Any]:
        return self._family(c).keys(c)

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        return self._family(c).tensors(c, weights)

    @staticmethod
    def _family(c: Config) -> Family:
        return Mixtral() if c["model_type"] == "mixtral" else Llama()


class Qwen3Moe(Family):
    def keys(self, c: Config) -> dict[str, Any]:
        return {**_expert_keys(c), "expert_feed_forward_length": c["moe_intermediate_size"]}

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        for name, values in weights.items():
            yield from _experts_apart(name, values)


class GptOss(Family):
    """A checkpoint has the experts' matrices with the input first, and gates and ups in turns."""

    def keys(self, c: Config) -> dict[str, Any]:
        keys = {"expert_feed_forward_length": c["intermediate_size"], "attention.sliding_window": c["sliding_window"]}
        return {**_expert_keys(c), **keys}

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        for name, values in weights.items():
            base, kind = name.removesuffix("_bias"), ".bias" if name.endswith("_bias") else ".weight"
            if ".experts." in name and kind == ".weight":
                values = values.swapaxes(1, 2)
            if name.endswith(".sinks"):
                yield f"{name}.weight", values
            elif ".experts.gate_up_proj" in name:
                yield base.replace("gate_up_proj", "gate_proj") + kind, values[:, ::2]
                yield base.replace("gate_up_proj", "up_proj") + kind, values[:, 1::2]
            elif ".experts.down_proj" in name:
                yield base + kind, values
            else:
                yield name, values


class Bert(Family):
    def keys(self, c: Config) -> dict[str, Any]:
        return {
            "attention.causal": False,
            "attention.head_count_kv": None,
            "attention.layer_norm_rms_epsilon": None,
        }


class NomicBert(Bert):
    """What transformers has apart since version 5 is fused and named as in the published checkpoint."""

    NAMES: ClassVar[dict[str, str]] = {
        "self_attn.o_proj": "attn.out_proj",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
        "mlp.up_proj": "mlp.fc11",
        "mlp.gate_proj": "mlp.fc12",
        "mlp.down_proj": "mlp.fc2",
    }

    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        fused: dict[str, list[np.ndarray]] = {}
        for name, values in weights.items():
            for ours, theirs in self.NAMES.items():
                name = name.replace(ours, theirs)
            name = name.replace("embeddings.LayerNorm", "emb_ln")
            if name.startswith("layers."):
                name = f"encoder.{name}"
            where, is_qkv, part = name.partition(".self_attn.")
            if is_qkv:
                fused.setdefault(f"{where}.attn.Wqkv.weight", []).append(values)
                assert part.startswith("qkv"[len(fused[f"{where}.attn.Wqkv.weight"]) - 1])
            else:
                yield name, values
        for name, parts in fused.items():
            yield name, np.concatenate(parts)


class GemmaEmbedding(Gemma):
    def tensors(self, c: Config, weights: dict[str, np.ndarray]) -> Tensors:
        for name, values in weights.items():
            yield name if name.startswith("dense_") else f"model.{name}", self.change(c, name, values)


FAMILIES: dict[str, Family] = {
    "llama": LlamaOrMixtral(),
    "qwen3moe": Qwen3Moe(),
    "gpt-oss": GptOss(),
    "bert": Bert(),
    "nomic-bert": NomicBert(),
    "gemma-embedding": GemmaEmbedding(),
    "qwen2": Family(),
    "qwen3": Family(),
    "gemma2": Gemma(),
    "gemma3": Gemma(),
    "phi3": Phi3(),
    "smollm3": Llama(),
    "granite": Granite(),
    "olmo2": Olmo2(),
    "stablelm": StableLm(),
}
