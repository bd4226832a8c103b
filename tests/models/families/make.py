"""Makes the fixtures in this folder: what transformers computes with tiny random models of every family.

Run by hand, in an environment with torch and transformers (5.24 made what is here):
`python tests/models/families/make.py [NAME...]`. pytest never imports it. Weights are drawn from their names
(tests/helpers/families.py), so only figures are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))

import families
import torch
import transformers

N_TOKENS = 40
BASE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 16,
    "long_factor": [1.05, 1.1, 1.3, 1.8, 2.5, 3.1, 3.6, 4.0],
    "short_factor": [1.0, 1.0, 1.05, 1.1, 1.1, 1.2, 1.25, 1.3],
}


def theta(base: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": base, **more}


# name -> general.architecture and the config of transformers
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-2": ("llama", {"model_type": "llama", "num_key_value_heads": 4, "rope_parameters": theta(10000.0)}),
    "llama-3.2": (
        "llama",
        {
            "model_type": "llama",
            "tie_word_embeddings": True,
            "rope_parameters": theta(
                5000.0,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=16,
            ),
        },
    ),
    "llama-linear": (
        "llama",
        {"model_type": "llama", "head_dim": 24, "rope_parameters": theta(10000.0, rope_type="linear", factor=4.0)},
    ),
    "llama-yarn": ("llama", {"model_type": "llama", "rope_parameters": YARN}),
    "smollm2": (
        "llama",
        {
            "model_type": "llama",
            "hidden_size": 72,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
            "rope_parameters": theta(100000.0),
        },
    ),
    "mistral-window": (
        "llama",
        {"model_type": "mistral", "sliding_window": 8, "head_dim": 16, "rope_parameters": theta(10000.0)},
    ),
    "qwen2": ("qwen2", {"model_type": "qwen2", "rope_parameters": theta(1000000.0)}),
    "qwen2-yarn": (
        "qwen2",
        {
            "model_type": "qwen2",
            "tie_word_embeddings": True,
            "rope_parameters": {**YARN, "beta_fast": 8, "beta_slow": 2},
        },
    ),
    "qwen3": (
        "qwen3",
        {"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True, "rope_parameters": theta(1000000.0)},
    ),
    "qwen3-embedding": (
        "qwen3",
        {"model_type": "qwen3", "head_dim": 16, "tie_word_embeddings": True, "rope_parameters": theta(1000000.0)},
    ),
    "gemma2": (
        "gemma2",
        {
            "model_type": "gemma2",
            "num_hidden_layers": 4,
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "sliding_window": 8,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
            "tie_word_embeddings": True,
            "rope_parameters": theta(10000.0),
        },
    ),
    "gemma2-27b": (
        "gemma2",
        {
            "model_type": "gemma2",
            "num_hidden_layers": 46,
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "tie_word_embeddings": True,
            "rope_parameters": theta(10000.0),
        },
    ),
    "gemma3": (
        "gemma3",
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 7,
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "num_key_value_heads": 1,
            "sliding_window": 8,
            "tie_word_embeddings": True,
            "rope_parameters": {"full_attention": theta(1000000.0), "sliding_attention": theta(10000.0)},
        },
    ),
    "gemma3-linear": (
        "gemma3",
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "final_logit_softcapping": 4.0,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": theta(10000.0, rope_type="linear", factor=8.0),
                "sliding_attention": theta(500.0),
            },
        },
    ),
    "phi3-window": (
        "phi3",
        {
            "model_type": "phi3",
            "num_key_value_heads": 4,
            "sliding_window": 12,
            "original_max_position_embeddings": 64,
            "rope_parameters": theta(10000.0, partial_rotary_factor=1.0),
        },
    ),
    "phi3-short": ("phi3", {"model_type": "phi3", "original_max_position_embeddings": 16, "rope_parameters": LONGROPE}),
    "phi3-long": ("phi3", {"model_type": "phi3", "original_max_position_embeddings": 16, "rope_parameters": LONGROPE}),
    "phi4-mini": (
        "phi3",
        {
            "model_type": "phi3",
            "original_max_position_embeddings": 16,
            "tie_word_embeddings": True,
            "rope_parameters": {
                **LONGROPE,
                "partial_rotary_factor": 0.75,
                "long_factor": LONGROPE["long_factor"][2:],
                "short_factor": LONGROPE["short_factor"][2:],
            },
        },
    ),
    "smollm3": (
        "smollm3",
        {
            "model_type": "smollm3",
            "num_hidden_layers": 5,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "rope_parameters": theta(10000.0),
        },
    ),
    "granite": (
        "granite",
        {
            "model_type": "granite",
            "tie_word_embeddings": True,
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.5,
            "rope_parameters": theta(10000.0),
        },
    ),
    "olmo2": ("olmo2", {"model_type": "olmo2", "rope_parameters": theta(500000.0)}),
    "olmo3": (
        "olmo2",
        {
            "model_type": "olmo3",
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "rope_parameters": {"full_attention": dict(YARN), "sliding_attention": theta(10000.0)},
        },
    ),
    "stablelm-2": (
        "stablelm",
        {
            "model_type": "stablelm",
            "num_key_value_heads": 4,
            "layer_norm_eps": 1e-5,
            "use_qkv_bias": True,
            "use_parallel_residual": False,
            "rope_parameters": theta(10000.0, partial_rotary_factor=0.25),
        },
    ),
    "stablelm-2-12b": (
        "stablelm",
        {
            "model_type": "stablelm",
            "layer_norm_eps": 1e-5,
            "qk_layernorm": True,
            "use_parallel_residual": True,
            "rope_parameters": theta(10000.0, partial_rotary_factor=0.5),
        },
    ),
}
SHORT = {"phi3-short": 14}  # tokens, where not N_TOKENS; as many are asked for
POOLED = {"qwen3-embedding": "LAST"}


def make(name: str, architecture: str, config: dict[str, Any]) -> families.Case:
    config = {**BASE, **config}
    settings = {k: v for k, v in config.items() if k != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **settings)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()
    tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
    shapes = {k: list(v.shape) for k, v in model.state_dict().items() if k not in tied}
    seed = 3
    weights = families.draw(shapes, seed, config)
    left = model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()}, strict=False)
    assert set(left.missing_keys) <= tied, left
    assert not left.unexpected_keys, left
    n_tokens = SHORT.get(name, N_TOKENS)
    tokens = np.random.RandomState(seed).randint(0, config["vocab_size"], n_tokens).tolist()
    with torch.no_grad():
        if name in POOLED:
            expected = model.model(torch.tensor([tokens])).last_hidden_state[0, -1:]
        else:
            expected = model(torch.tensor([tokens])).logits[0]
    print(f"{name:24} logits {expected.std():.2f}, at most {expected.abs().max():.2f}")
    length = n_tokens if name in SHORT else None
    return families.Case(
        architecture, config, seed, tokens, shapes, families.pack(expected.numpy()), POOLED.get(name), length
    )


def main() -> None:
    for name in sys.argv[1:] or CASES:
        families.save(name, make(name, *CASES[name]))


if __name__ == "__main__":
    main()
