"""Real models and their figures, made elsewhere: transformers in float32 on the dequantized weights.

tests/golden/MODEL.json holds the ten likeliest tokens at every greedy step. Perplexity is over tokens in windows of
512, positions 256 to 510 of each predicting the next.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pyedge import store
from pyedge.evaluation.perplexity import perplexity
from pyedge.evaluation.reader import Reader, windows

FIGURES = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Golden:
    """A model and its figures. Perplexities are of torch 2.13, transformers 5.24."""

    name: str  # as the store knows it
    figures: str  # in tests/golden
    default_mean: float  # the most that log-probabilities of the default path may be off
    harbour_ppl: float
    eval_ppl: float
    n_generated: int | None = None  # cases that are generated, too; None: all

    @cached_property
    def cases(self) -> list[dict[str, Any]]:
        cases: list[dict[str, Any]] = json.loads((FIGURES / self.figures).read_text())["cases"]
        return cases


MODELS = [
    # 0.033; llama.cpp's mean is 0.095 on the same file, and ours 0.094 without second terms (PE_FINE_ABOVE).
    Golden("smollm2:135m", "smollm2.json", 0.04, harbour_ppl=27.9904, eval_ppl=25.914),
    # 0.032; llama.cpp's is 0.111.
    Golden("gemma3:270m", "gemma3.json", 0.04, 26.6999, 22.365, n_generated=1),
]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def perplexity_of(golden: Golden, text: str, precision: str) -> float:
    path = store.resolve(golden.name, pull=True)
    with Reader(path, 512, precision=precision) as reader:
        return perplexity(reader, windows(reader.tokenizer, text, 512)).ppl
