"""The real all-MiniLM-L6-v2 against sentence-transformers: tests/golden/minilm.json has its vectors for some texts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from minilm import fetch_wheel, write_minilm

import pyedge

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent / "golden" / "minilm.json"
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
TEXTS = [case["text"] for case in CASES]
EXPECTED = np.stack([np.frombuffer(base64.b64decode(case["vector"]), np.float32) for case in CASES])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=[("f32", "f32", 0.9999), ("fast", "f32", 0.9999), ("fast", "q8_0", 0.999)])
def setting(request: pytest.FixtureRequest) -> tuple[str, str, float]:
    """Precision, the file's format, and the least cosine."""
    return cast("tuple[str, str, float]", request.param)


@pytest.fixture(scope="module")
def llm(wheel: Path, setting: tuple[str, str, float], tmp_path_factory: pytest.TempPathFactory) -> Iterator[pyedge.LLM]:
    precision, types, _ = setting
    path = write_minilm(wheel, tmp_path_factory.mktemp("minilm") / "m.gguf", types)
    with pyedge.LLM(path, precision=precision, threads=2) as llm:
        yield llm


def test_vectors(llm: pyedge.LLM, setting: tuple[str, str, float]) -> None:
    rows = llm.embed(TEXTS)
    assert rows.shape == EXPECTED.shape
    cosines = (rows.astype(np.float64) * EXPECTED).sum(axis=1)
    assert cosines.min() > setting[2], TEXTS[cosines.argmin()]


def test_token_ids(llm: pyedge.LLM) -> None:
    for case in CASES:
        assert llm.tokenizer.encode(case["text"]) == case["token_ids"]


def test_a_text_does_not_depend_on_others(llm: pyedge.LLM) -> None:
    rows = llm.embed(TEXTS)
    assert np.array_equal(np.concatenate([llm.embed(text) for text in TEXTS]), rows)
    assert np.array_equal(llm.embed(TEXTS[::-1]), rows[::-1])


def test_more_than_it_reads_is_refused(llm: pyedge.LLM) -> None:
    with pytest.raises(ValueError, match="text 1: 602 tokens, but this model reads at most 512"):
        llm.embed(["a", "cat " * 600])
