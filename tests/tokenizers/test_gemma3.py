"""A vocabulary of 262,144 pieces and its template, against llama.cpp's ids (tests/golden/tok_gemma3.json)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pyedge import LLM, SamplingParams, _core
from pyedge.tokenizers import Tokenizer

pytestmark = pytest.mark.slow

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "tok_gemma3.json").read_text(encoding="utf-8"))["cases"]
IDS = {  # from llama.cpp, no BOS
    "  two leading": [138, 13498, 5830],
    "a\tb": [236746, 255968, 236763],
    "\t\t\t\t\t\ttest": [255973, 2181],
    "🦙": [478, 397, 404, 391],
    "日本語": [94951],
    "\u200b": [237141],
    "\xa0x": [432, 398, 236781],
}


@pytest.fixture(scope="module")
def tokenizer(gemma3_path: Path) -> Tokenizer:
    with _core.Gguf(gemma3_path) as gguf:
        return Tokenizer.from_gguf(gguf)


def test_golden_ids(tokenizer: Tokenizer) -> None:
    for case in GOLDEN:
        for special, key in ((False, "ids"), (True, "ids_with_special")):
            assert tokenizer.encode(case["text"], special=special, bos=False) == case[key], case["text"]
            assert tokenizer.decode(case[key]) == case["text"]
            detokenizer = tokenizer.detokenizer(skip_special=False)
            assert "".join([*map(detokenizer.push, case[key]), detokenizer.finish()]) == case["text"]


@pytest.mark.parametrize("text", IDS)
def test_ids(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text, bos=False) == IDS[text]
    assert tokenizer.decode(IDS[text]) == text


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<pad>text<eos>", special=True, bos=False) == [0, 1005, 1]
    assert (tokenizer.n_vocab, tokenizer.bos_id, tokenizer.eos_id, tokenizer.add_bos) == (262144, 2, 1, True)
    assert tokenizer.encode("text") == [2, 1005]
    assert tokenizer.end_ids == {1, 106}  # <eos>, <end_of_turn>


def test_what_follows_a_text_begins_with_its_space(tokenizer: Tokenizer) -> None:
    whole, prompt = tokenizer.encode("The capital of France is Paris"), tokenizer.encode("The capital of France is")
    detokenizer = tokenizer.detokenizer()
    assert "".join(map(detokenizer.push, whole[len(prompt) :])) == " Paris"


def test_a_completion_begins_with_its_space(gemma3_path: Path) -> None:
    with LLM(str(gemma3_path), max_model_len=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=3)
        text = llm.generate("The capital of France is", params)[0].text
        assert text[0] == " " != text[1]
        assert "".join(event.text for event in llm.stream("The capital of France is", params)) == text


def test_loading_is_quick(gemma3_path: Path) -> None:
    import sentencepiece  # noqa: F401  (its import is not the vocabulary's)

    times = []
    with _core.Gguf(gemma3_path) as gguf:
        for _ in range(3):
            start = time.process_time()
            Tokenizer.from_gguf(gguf)
            times.append(time.process_time() - start)
    assert min(times) < 0.5
