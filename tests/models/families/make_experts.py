"""Makes the fixtures of the families with experts, as make.py beside it does for the others.

Run by hand, in an environment with torch, transformers (5.24 made what is here) and gguf:
python tests/models/families/make_experts.py [NAME...]. pytest never imports it.
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
from make import BASE, N_TOKENS, theta

SEED = 3
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 4,
    "head_dim": 16,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": 8,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 32.0,
        "beta_fast": 2.0,  # with these the ramp lies over several pairs of so small a head, and ends between two
        "beta_slow": 0.05,
        "truncate": False,
        "original_max_position_embeddings": 16,
    },
}

# name -> general.architecture, the config of transformers, and the format of the experts
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "mixtral": (
        "llama",
        {
            "model_type": "mixtral",
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "rope_parameters": theta(1000000.0),
        },
        "F32",
    ),
    "qwen3moe": (
        "qwen3moe",
        {
            "model_type": "qwen3_moe",
            "head_dim": 24,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "rope_parameters": theta(1000000.0),
        },
        "F32",
    ),
    "gpt-oss": ("gpt-oss", GPT_OSS, "F32"),
    "gpt-oss-mxfp4": ("gpt-oss", GPT_OSS, "MXFP4"),
}


def make(name: str, architecture: str, config: dict[str, Any], experts: str) -> families.Case:
    config = {**BASE, **config}
    settings = {k: v for k, v in config.items() if k != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **settings)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()
    shapes = {k: list(v.shape) for k, v in model.state_dict().items()}
    weights = families.draw(shapes, SEED, config)
    if experts != "F32":
        weights = {k: _rounded(k, v, experts) for k, v in weights.items()}
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
    tokens = np.random.RandomState(SEED).randint(0, config["vocab_size"], N_TOKENS).tolist()
    closest = _watch_routers(model, made)
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    print(f"{name:24} logits {expected.std():.2f}, closest choice of experts {min(closest):.1e}")
    assert min(closest) > 1e-4  # or float32's own error would choose
    return families.Case(architecture, config, SEED, tokens, shapes, families.pack(expected.numpy()), experts=experts)


def _rounded(name: str, values: np.ndarray, experts: str) -> np.ndarray:
    """What the file's format leaves of an expert's weights: its blocks lie along the input, here the middle axis."""
    if not families.is_expert(name):
        return values
    import gguf

    kind = gguf.GGMLQuantizationType[experts]
    rows = np.ascontiguousarray(values.swapaxes(-1, -2))
    return np.ascontiguousarray(gguf.dequantize(gguf.quantize(rows, kind), kind).swapaxes(-1, -2))


def _watch_routers(model: Any, config: Any) -> list[float]:
    """How far the last chosen expert was from the first one left out, in every layer."""
    closest: list[float] = []

    def look(_: Any, __: Any, output: Any) -> None:
        scores = output[0].sort(dim=-1, descending=True).values
        k = config.num_experts_per_tok
        closest.append(float((scores[..., k - 1] - scores[..., k]).min()))

    for name, module in model.named_modules():
        if name.endswith((".mlp.gate", ".mlp.router")):
            module.register_forward_hook(look)
    return closest


def main() -> None:
    for name in sys.argv[1:] or CASES:
        families.save(name, make(name, *CASES[name]))


if __name__ == "__main__":
    main()
