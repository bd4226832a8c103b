"""Real models against figures from elsewhere: transformers in float32 on the dequantized weights.

What they are, and where they come from, is told by tests/helpers/golden.py. A longer text is test_long_text.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from golden import FIGURES, MODELS, Golden, log_softmax, perplexity_of

import pyedge
from pyedge import store

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 0.0004), ("fast", 0.015)])
def test_perplexity(golden: Golden, precision: str, tolerance: float) -> None:
    """Of 255 tokens, so that the fast path's is noisier than on a longer text."""
    text = (FIGURES / "harbour.txt").read_text(encoding="utf-8")
    assert perplexity_of(golden, text, precision) == pytest.approx(golden.harbour_ppl, rel=tolerance)
