"""Perplexity of a text of some 60 kB, in minutes: beside a developer's checkout only, and by `pytest -m long`."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden import MODELS, Golden, perplexity_of

TEXT = Path(__file__).parents[2] / "shared" / "golden" / "eval_en.txt"  # not ours to copy

pytestmark = [pytest.mark.long, pytest.mark.skipif(not TEXT.exists(), reason="the text is not there")]


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("golden", MODELS, ids=lambda golden: golden.name)
def test_perplexity(golden: Golden, precision: str) -> None:
    tolerance = {"f32": 0.01, "fast": 0.005 * golden.eval_ppl}[precision]
    found = perplexity_of(golden, TEXT.read_text(encoding="utf-8"), precision)
    print(f"{golden.name} {precision}: {found:.4f}")
    assert found == pytest.approx(golden.eval_ppl, abs=tolerance)
