"""Makes the fixtures of the encoders, as make.py beside it does for the decoders.

Run by hand, in an environment with torch and transformers (5.24 made what is here):
python tests/models/families/make_encoders.py [NAME...]. pytest never imports it.
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
BERT: dict[str, Any] = {"model_type": "bert", "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12}

# name -> general.architecture, the config of transformers, and how it pools: by gguf's PoolingType
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert-mean": ("bert", BERT, "MEAN"),
    "bert-cls": ("bert", {**BERT, "num_attention_heads": 2, "num_hidden_layers": 3}, "CLS"),
    "nomic-bert": (
        "nomic-bert",
        {
            "model_type": "nomic_bert",
            "pad_token_id": 0,
            "type_vocab_size": 2,
            "hidden_act": "silu",
            "layer_norm_eps": 1e-12,
            "rope_parameters": theta(1000.0),
        },
        "MEAN",
    ),
    "gemma-embedding": (
        "gemma-embedding",
        {
            "model_type": "gemma3_text",
            "num_hidden_layers": 7,
            "head_dim": 24,
            "query_pre_attn_scalar": 24,
            "num_key_value_heads": 1,
            "sliding_window": 16,
            "use_bidirectional_attention": True,
            "rope_parameters": {"full_attention": theta(1000000.0), "sliding_attention": theta(10000.0)},
        },
        "MEAN",
    ),
}
DENSE = {"dense_2.weight": [96, 64], "dense_3.weight": [64, 96]}  # of gemma-embedding, behind the mean


def make(name: str, architecture: str, config: dict[str, Any], pooling: str) -> families.Case:
    config = {**BASE, **config}
    settings = {k: v for k, v in config.items() if k != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **settings)
    more = {} if architecture == "gemma-embedding" else {"add_pooling_layer": False}
    model = transformers.AutoModel.from_config(made, attn_implementation="eager", **more).eval()
    shapes = {k: list(v.shape) for k, v in model.state_dict().items()}
    if architecture == "gemma-embedding":
        shapes |= DENSE
    weights = families.draw(shapes, SEED, config)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items() if k not in DENSE})
    tokens = np.random.RandomState(SEED).randint(0, config["vocab_size"], N_TOKENS).tolist()
    with torch.no_grad():
        states = model(torch.tensor([tokens])).last_hidden_state[0]
        expected = (states.mean(dim=0) if pooling == "MEAN" else states[0])[None].numpy()
    if architecture == "gemma-embedding":
        for dense in DENSE:
            expected = expected @ weights[dense].T
    print(f"{name:24} embedding {expected.std():.2f}, a token {states.std():.2f}")
    return families.Case(architecture, config, SEED, tokens, shapes, families.pack(expected), pooling)


def main() -> None:
    for name in sys.argv[1:] or CASES:
        families.save(name, make(name, *CASES[name]))


if __name__ == "__main__":
    main()
