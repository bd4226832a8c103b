"""Tiny models of every family: their weights, drawn anew from names, and what transformers computes with them.

Owns the form of the fixtures in tests/models/families and the rule by which a tensor's name gives its values. Imports
nothing but numpy: the generator beside the fixtures uses the same rule where there is no pyedge and no gguf.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parents[1] / "models" / "families"


@dataclass(frozen=True)
class Case:
    """One fixture. Shapes are the checkpoint's, slowest axis first, by its own names."""

    architecture: str  # general.architecture
    config: dict[str, Any]  # of transformers
    seed: int
    tokens: list[int]
    shapes: dict[str, list[int]]
    expected: str  # float32, base64: logits [T, n_vocab], or the embedding [1, d_model] of the text
    pooling: str | None = None  # of gguf's PoolingType, for models that embed
    experts: str = "F32"  # the format of their matrices
    max_model_len: int | None = None  # asked for; None: the model's own

    @property
    def values(self) -> np.ndarray:
        data = np.frombuffer(base64.b64decode(self.expected), np.float32)
        return data.reshape(1 if self.pooling else len(self.tokens), -1)

    def weights(self) -> dict[str, np.ndarray]:
        return draw(self.shapes, self.seed, self.config)


def pack(values: np.ndarray) -> str:
    return base64.b64encode(values.astype(np.float32).tobytes()).decode()


def is_expert(name: str) -> bool:
    """Whether the tensor holds the experts' matrices."""
    return name.endswith((".experts.gate_up_proj", ".experts.down_proj"))


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def load(name: str) -> Case:
    return Case(**json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def save(name: str, case: Case) -> None:
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in asdict(case).items())
    (FOLDER / f"{name}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def draw(shapes: Mapping[str, Sequence[int]], seed: int, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Values of each tensor by its name alone. numpy promises that RandomState's streams never change."""
    return {name: _draw(name, tuple(shape), seed, config) for name, shape in shapes.items()}


def _draw(name: str, shape: tuple[int, ...], seed: int, config: Mapping[str, Any]) -> np.ndarray:
    """Gains are such that scores differ enough for rope, windows and caps to matter, and logits by about 2."""
    normal = np.random.RandomState(zlib.crc32(name.encode()) ^ seed).standard_normal(shape)
    if len(shape) == 1:
        is_norm = "norm" in name.lower() and name.endswith(".weight")
        adds_one = config["model_type"].startswith("gemma")  # to its norms, when it runs
        return (0.3 * normal + (1.0 if is_norm and not adds_one else 0.0)).astype(np.float32)
    gain = 1.0
    if "embed_tokens" in name:
        gain = 2.0 if config.get("tie_word_embeddings") else np.sqrt(shape[-1])
    elif "lm_head" in name:
        gain = 2.0
    elif any(part in name for part in ("q_proj", "k_proj", "qkv_proj", "self.query", "self.key")):
        gain = 1.6
    elif config["model_type"] == "gpt_oss" and is_expert(name):
        gain = 8.0  # or its clamps at 7 would not be seen
    return (gain / np.sqrt(shape[-1]) * normal).astype(np.float32)
