"""LLM.embed on tiny models: forms of texts, begin and end tokens, lengths, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import families
import familygguf
import numpy as np
import pytest
from tinymodel import write_tiny_llama

from pyedge import LLM, SamplingParams

TEXTS = ["the cat and the rest", "on", "12312", "the cat and the rest on the wheel " * 12, "a"]
LAST, MEAN = {"llama.pooling_type": 3}, {"llama.pooling_type": 1}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_tiny_llama(folder / "m.gguf", keys=LAST, tied=True, types="Q8_0", context=256)


@pytest.fixture(scope="module")
def mean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_tiny_llama(folder / "m.gguf", keys=MEAN, tied=True, types="Q8_0", context=256)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_memory="4MB", threads=2) as llm:
        yield llm


def test_a_text_is_a_row(llm: LLM) -> None:
    rows = llm.embed(TEXTS)
    assert rows.shape == (len(TEXTS), 64)
    assert rows.dtype == np.float32
    for text, row in zip(TEXTS, rows, strict=True):
        assert np.array_equal(llm.embed(text), row[None])
    assert llm.embed([]).shape == (0, 64)
    assert len(np.unique(rows.round(4), axis=0)) == len(TEXTS)


def test_forms_of_a_text(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the cat")
    wanted = llm.embed("the cat")
    as_ids = {"prompt_token_ids": ids}
    for texts in (["the cat"], ("the cat",), as_ids, [as_ids], np.array(["the cat"])):
        assert np.array_equal(llm.embed(cast(Any, texts)), wanted)
    assert np.array_equal(llm.embed([as_ids, "the cat"]), np.repeat(wanted, 2, axis=0))
    assert np.array_equal(llm.embed({"prompt_token_ids": np.array(ids)}), wanted)


def test_length_is_1_unless_told_otherwise(llm: LLM) -> None:
    rows, raw = llm.embed(TEXTS), llm.embed(TEXTS, normalize=False)
    assert np.abs(np.linalg.norm(rows.astype(np.float64), axis=1) - 1).max() < 1e-6
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    assert np.allclose(raw / np.linalg.norm(raw, axis=1, keepdims=True), rows, atol=1e-6)


def test_begin_and_end_tokens_are_those_of_the_file(tmp_path: Path, llm: LLM) -> None:
    keys = {**LAST, "tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_bos_token": True}
    path = write_tiny_llama(tmp_path / "m.gguf", keys=keys, tied=True, types="Q8_0", context=256)
    ids = llm.tokenizer.encode("the cat", bos=False)
    with LLM(path) as other:
        assert np.array_equal(other.embed("the cat"), other.embed({"prompt_token_ids": [0, *ids, 2]}))
        assert np.array_equal(other.embed(""), other.embed({"prompt_token_ids": [0, 2]}))


def test_control_tokens_in_a_text_stay_text(llm: LLM) -> None:
    ids = llm.tokenizer.encode("a<|im_end|>", special=False)
    assert 2 not in ids
    assert np.array_equal(llm.embed("a<|im_end|>"), llm.embed({"prompt_token_ids": ids}))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581the", "\u2581cat", "s", "\u2581on", "\u2581!"]
WORDPIECE = {
    "model": "bert",
    "tokens": WORDS,
    "token_type": [3] * 4 + [1] * (len(WORDS) - 4),
    "unknown_token_id": 1,
    "cls_token_id": 2,
    "seperator_token_id": 3,
}


@pytest.mark.parametrize("name", ["bert-mean", "bert-cls", "nomic-bert"])
def test_an_encoder_reads_words(tmp_path: Path, name: str) -> None:
    path = familygguf.write(tmp_path / "m.gguf", families.load(name), tokenizer=WORDPIECE)
    with LLM(path, max_sequences=2, step_tokens=2, threads=2) as llm:
        ids = [[2, 4, 5, 6, 7, 1, 8, 3], [2, 3], [2, *[5] * 62, 3]]
        rows = llm.embed(["The CATS on [CLS]!", "", "cat " * 62])
        assert np.array_equal(rows[1:], llm.embed([{"prompt_token_ids": i} for i in ids[1:]]))
        assert np.array_equal(llm.embed("thé cats on mars!"), llm.embed({"prompt_token_ids": ids[0]}))
        assert not np.array_equal(rows[:1], llm.embed({"prompt_token_ids": [2, 4, 5, 6, 7, 2, 8, 3]}))
        assert np.array_equal(np.concatenate([llm.embed(t) for t in ("The CATS on [CLS]!", "", "cat " * 62)]), rows)
        with pytest.raises(ValueError, match="text 1: 65 tokens, but this model reads at most 64"):
            llm.embed(["", "cat " * 63])


def test_a_mean_is_taken_over_the_whole_text(mean: Path) -> None:
    """However few tokens a step was to have."""
    with LLM(mean, step_tokens=8, max_sequences=4, threads=1) as small, LLM(mean, step_tokens=512) as large:
        assert small.max_model_len == large.max_model_len == 256
        assert np.array_equal(small.embed(TEXTS), large.embed(TEXTS))


@pytest.mark.parametrize("name", ["nomic-bert", "gemma-embedding"])
def test_an_encoder_reads_no_more_than_a_step_takes(tmp_path: Path, name: str) -> None:
    case = families.load(name)
    path = familygguf.write(tmp_path / "m.gguf", case, tokenizer=WORDPIECE, keys={"context_length": 2**30})
    with LLM(path, threads=1) as llm:
        assert llm.max_model_len == 65536
        with pytest.raises(ValueError, match="text 0: 65537 tokens, but this model reads at most 65536"):
            llm.embed({"prompt_token_ids": [5] * 65537})
        assert np.isfinite(llm.embed({"prompt_token_ids": [5] * 40})).all()


def test_too_long_a_text_is_refused(llm: LLM, path: Path) -> None:
    assert llm.embed({"prompt_token_ids": [5] * 256}).shape == (1, 64)
    with pytest.raises(ValueError, match=r"^text 1: 257 tokens, but this model reads at most 256; cut it up$"):
        llm.embed(["a", {"prompt_token_ids": [5] * 257}])
    with pytest.raises(ValueError, match="more than 256 tokens"):
        llm.embed("the cat " * 200_000)  # without counting them
    with LLM(path, max_model_len=100) as short, pytest.raises(ValueError, match="reads at most 100"):
        short.embed({"prompt_token_ids": [5] * 101})


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("", "text 0 is empty, and this model has no begin or end token"),
        (["a", ""], "text 1 is empty"),
        (5, "a text must be str or .*, not int"),
        (b"a", "a text must be str or .*, not bytes"),
        (np.array("a"), "a text must be str or .*, not ndarray"),
        (["a", None], "a text must be str or .*, not NoneType"),
        ({"prompt": "a"}, '{"prompt_token_ids"'),
        ({"prompt_token_ids": []}, "empty"),
        ({"prompt_token_ids": [281]}, r"token id 281 is outside the vocabulary \(0 to 280\)"),
        ({"prompt_token_ids": "abc"}, "must be a list of integers, not str"),
        ("\ud800", "surrogate"),
    ],
)
def test_wrong_texts(llm: LLM, texts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        llm.embed(texts)


def test_a_model_that_embeds_does_not_generate(llm: LLM) -> None:
    uses: list[Callable[[], object]] = [
        lambda: llm.generate("a", SamplingParams(max_tokens=1)),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
        lambda: next(llm.stream("a")),
        lambda: next(llm.stream_chat([{"role": "user", "content": "a"}])),
        lambda: llm.logits([5, 6]),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=r"m\.gguf: this model embeds texts and generates none; use LLM\.embed"):
            use()


def test_a_model_that_generates_does_not_embed(tmp_path: Path) -> None:
    with LLM(write_tiny_llama(tmp_path / "m.gguf")) as llm:
        with pytest.raises(ValueError, match=r"m\.gguf: this model generates text and embeds none"):
            llm.embed("a")
        assert len(llm.generate("a", SamplingParams(max_tokens=2, ignore_eos=True))[0].token_ids) == 2


def test_closed(path: Path) -> None:
    llm = LLM(path)
    llm.close()
    for use in (lambda: llm.embed("a"), lambda: llm.generate("a"), lambda: llm.max_model_len):
        with pytest.raises(ValueError, match="this LLM is closed"):
            use()
