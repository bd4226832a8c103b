"""Real models against figures from elsewhere: transformers in float32 on the dequantized weights.

tests/golden/MODEL.json holds the ten likeliest tokens at every greedy step. Perplexity is over tokens in windows of
512, positions 256 to 510 of each predicting the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyedge
from pyedge import store

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
HARBOUR = HERE / "golden" / "harbour.txt"  # written for this test
EVAL = HERE.parents[1] / "shared" / "golden" / "eval_en.txt"  # beside the checkout of a developer; not ours to copy


@dataclass(frozen=True)
class Golden:
    """A model and its figures. Perplexities are of torch 2.13, transformers 5.24."""

    name: str  # as the store knows it
    figures: str  # in tests/golden
    default_mean: float  # the most that log-probabilities of the default path may be off
    harbour_ppl: float
    eval_ppl: float
    windows_begin_with_bos: bool = False  # in place of their first token
    n_generated: int | None = None  # cases that are generated, too; None: all

    @cached_property
    def cases(self) -> list[dict[str, Any]]:
        cases: list[dict[str, Any]] = json.loads((HERE / "golden" / self.figures).read_text())["cases"]
        return cases


MODELS = [
    # 0.053; llama.cpp's mean is 0.095 on the same file, and ours 0.094 without second terms (PE_FINE_ABOVE).
    Golden("smollm2:135m", "smollm2.json", 0.06, harbour_ppl=27.9904, eval_ppl=25.914),
    # 0.049; llama.cpp's is 0.111.
    Golden("gemma3:270m", "gemma3.json", 0.06, 26.6999, 22.365, windows_begin_with_bos=True, n_generated=1),
]


@pytest.fixture(scope="module", params=MODELS, ids=lambda golden: golden.name)
def golden(request: pytest.FixtureRequest) -> Golden:
    found: Golden = request.param
    return found


@pytest.fixture(scope="module")
def reference(golden: Golden) -> Iterator[pyedge.LLM]:
    with pyedge.LLM(store.resolve(golden.name, pull=True), precision="f32", max_model_len=1024) as llm:
        yield llm


@pytest.fixture(scope="module")
def fast(golden: Golden) -> Iterator[pyedge.LLM]:
    with pyedge.LLM(store.resolve(golden.name, pull=True), max_model_len=1024) as llm:
        yield llm


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def along(llm: pyedge.LLM, case: dict[str, Any]) -> np.ndarray:
    """Log-probabilities [steps, n_vocab] along the reference's own greedy path."""
    n_prompt = len(case["prompt_ids"])
    return log_softmax(llm.logits(case["prompt_ids"] + case["greedy"])[n_prompt - 1 : -1])


def differences(found: np.ndarray, case: dict[str, Any]) -> np.ndarray:
    return np.abs([found[i][step["top"]] - step["logprob"] for i, step in enumerate(case["steps"])])


def test_reference_path_is_the_reference(golden: Golden, reference: pyedge.LLM) -> None:
    for case in golden.cases:
        assert differences(along(reference, case), case).max() < 0.01, case["prompt_ids"]


def test_default_path_is_near_the_reference(golden: Golden, fast: pyedge.LLM) -> None:
    """On the whole, and in what it chooses where the reference is sure."""
    off = []
    for case in golden.cases:
        found = along(fast, case)
        off.append(differences(found, case))
        chosen = found.argmax(axis=-1)
        margins = [step["logprob"][0] - step["logprob"][1] for step in case["steps"]]
        wrong = [i for i, margin in enumerate(margins) if margin > 0.5 and chosen[i] != case["steps"][i]["top"][0]]
        assert not wrong, case["prompt_ids"]
    assert np.concatenate(off).mean() <= golden.default_mean


def test_greedy_generation_is_the_reference_path(golden: Golden, reference: pyedge.LLM) -> None:
    """Tokens one by one, through the scheduler and the sampler, and not one prompt."""
    for case in golden.cases[: golden.n_generated]:
        params = pyedge.SamplingParams(temperature=0, max_tokens=len(case["greedy"]))
        (out,) = reference.generate({"prompt_token_ids": case["prompt_ids"]}, params)
        assert out.token_ids == case["greedy"]


def perplexity(golden: Golden, llm: pyedge.LLM, text: str) -> float:
    ids = llm.tokenizer.encode(text)
    losses = []
    for start in range(0, len(ids) - 511, 512):
        window = ids[start : start + 512]
        if golden.windows_begin_with_bos:
            window[0] = llm.tokenizer.bos_id
        logits = llm.logits(window)[256:511]
        top = logits.max(axis=-1)
        log_sum = np.log(np.exp(logits - top[:, None]).sum(axis=-1, dtype=np.float64)) + top
        losses.append(log_sum - logits[np.arange(255), window[257:]])
    return math.exp(np.concatenate(losses).mean())


def test_perplexity(golden: Golden, reference: pyedge.LLM, fast: pyedge.LLM) -> None:
    text = HARBOUR.read_text(encoding="utf-8")
    assert perplexity(golden, reference, text) == pytest.approx(golden.harbour_ppl, abs=0.01)
    # 255 tokens: noisier than the longer text
    assert perplexity(golden, fast, text) == pytest.approx(golden.harbour_ppl, rel=0.015)


@pytest.mark.skipif(not EVAL.exists(), reason="the longer evaluation text lies beside a developer's checkout only")
@pytest.mark.parametrize("path", ["reference", "fast"])
def test_perplexity_of_the_longer_text(golden: Golden, path: str, request: pytest.FixtureRequest) -> None:
    llm: pyedge.LLM = request.getfixturevalue(path)
    tolerance = {"reference": 0.01, "fast": 0.005 * golden.eval_ppl}[path]
    assert perplexity(golden, llm, EVAL.read_text(encoding="utf-8")) == pytest.approx(golden.eval_ppl, abs=tolerance)
