"""Perplexity and divergence against their definitions, in float64 on the logits that LLM gives."""

from __future__ import annotations

import json
import math
from pathlib import Path

import families
import familygguf
import numpy as np
import pytest
from program import program
from tinymodel import write_tiny_llama

from pyedge import LLM, ModelError
from pyedge.evaluation.perplexity import Comparison, Score, compare, perplexity
from pyedge.evaluation.reader import Reader, windows

TEXT = "The keeper and the sea: 123 ships, and then the rest of them in a row. " * 12
N_CTX = 64


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the same one as Q8_0."""
    folder = tmp_path_factory.mktemp("models")
    return tuple(write_tiny_llama(folder / f"{t}.gguf", types=t) for t in ("F32", "Q4_0"))  # type: ignore[return-value]


def log_probs(path: Path, ids: list[int]) -> np.ndarray:
    with LLM(path, precision="f32") as llm:
        logits = llm.logits(ids).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    found: np.ndarray = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return found


def test_windows(paths: tuple[Path, Path]) -> None:
    with Reader(paths[0], N_CTX) as reader:
        ids = reader.tokenizer.encode(TEXT)
        found = windows(reader.tokenizer, TEXT, N_CTX)
        assert [i for window in found for i in window] == ids[: len(ids) // N_CTX * N_CTX]
        assert windows(reader.tokenizer, TEXT, N_CTX, 2) == found[:2]
        assert windows(reader.tokenizer, reader.tokenizer.decode(ids[:N_CTX]), N_CTX) == found[:1]
        reader.tokenizer.add_bos = True
        assert [w[1:] for w in windows(reader.tokenizer, TEXT, N_CTX)] == [w[1:] for w in found]
        assert {w[0] for w in windows(reader.tokenizer, TEXT, N_CTX)} == {reader.tokenizer.bos_id}
        with pytest.raises(ValueError, match=r"the text has \d tokens, and a window has 64"):
            windows(reader.tokenizer, "a short one", N_CTX)


@pytest.mark.parametrize("n_ctx", [16, N_CTX])
def test_the_second_half_of_each_window_is_scored(paths: tuple[Path, Path], n_ctx: int) -> None:
    seen: list[tuple[int, int]] = []
    with Reader(paths[0], n_ctx, precision="f32") as reader:
        texts = windows(reader.tokenizer, TEXT, n_ctx)
        score = perplexity(reader, texts, lambda done, total: seen.append((done, total)))
    expected = []
    for ids in texts:
        log = log_probs(paths[0], ids)
        expected += [-log[i, ids[i + 1]] for i in range(n_ctx // 2, n_ctx - 1)]
    assert score.losses == pytest.approx(np.array(expected), abs=1e-5)
    assert score.ppl == pytest.approx(math.exp(np.mean(expected)), rel=1e-5)
    assert score.ppl_stderr == pytest.approx(score.ppl * np.std(expected, ddof=1) / math.sqrt(len(expected)), rel=1e-4)
    assert seen == [(i + 1, len(texts)) for i in range(len(texts))]


def test_steps_do_not_matter(paths: tuple[Path, Path]) -> None:
    """A large vocabulary has fewer rows in a step."""
    with Reader(paths[0], N_CTX) as reader, Reader(paths[1], N_CTX) as base:
        texts = windows(reader.tokenizer, TEXT, N_CTX, 2)
        alone, both = perplexity(reader, texts), compare(reader, base, texts)
        reader.rows, base.rows = 3, 5
        assert np.array_equal(perplexity(reader, texts).losses, alone.losses)
        again = compare(reader, base, texts)
    assert np.array_equal(both.score.losses, alone.losses)
    assert np.array_equal(both.divergences, again.divergences)


def test_divergence_of_one_model_from_another(paths: tuple[Path, Path]) -> None:
    with Reader(paths[1], N_CTX, precision="f32") as reader, Reader(paths[0], N_CTX, precision="f32") as base:
        texts = windows(base.tokenizer, TEXT, N_CTX)
        found = compare(reader, base, texts)
    divergences, agrees = [], []
    for ids in texts:
        model, other = (log_probs(path, ids)[N_CTX // 2 : -1] for path in (paths[1], paths[0]))
        divergences.append((np.exp(other) * (other - model)).sum(axis=1))
        agrees.append(model.argmax(axis=1) == other.argmax(axis=1))
    assert found.divergences == pytest.approx(np.concatenate(divergences), rel=1e-3, abs=1e-6)
    assert np.array_equal(found.agrees, np.concatenate(agrees))
    assert 0.001 < found.kl_median < found.kl_mean < found.kl_p99  # these models are as far apart as that
    assert found.kl_mean_ci95[0] < found.kl_mean < found.kl_mean_ci95[1]
    assert found.top1_ci95[0] < found.top1 < found.top1_ci95[1]
    assert found.ppl_ratio == pytest.approx(found.score.ppl / found.base.ppl)
    assert found.ppl_ratio_ci95[0] < found.ppl_ratio < found.ppl_ratio_ci95[1]


def test_a_model_is_itself(paths: tuple[Path, Path]) -> None:
    with Reader(paths[0], N_CTX) as reader, Reader(paths[0], N_CTX) as base:
        found = compare(reader, base, windows(reader.tokenizer, TEXT, N_CTX, 1))
    assert (found.kl_mean, found.kl_p99, found.top1, found.ppl_ratio) == (0, 0, 1, 1)
    assert found.top1_ci95[0] > 0.85  # 31 tokens do not prove more
    assert found.top1_ci95[1] == pytest.approx(1)


def test_intervals_hold_what_they_say() -> None:
    """19 of 20 of them have the mean of what the values were drawn from."""
    rng = np.random.default_rng(5)
    n, hits = 400, np.zeros(3)
    for _ in range(n):
        base = rng.standard_normal(200)
        score, divergences = base + rng.normal(0.1, 0.5, 200), rng.exponential(0.3, 200)
        found = Comparison(Score(score), Score(base), divergences, rng.random(200) < 0.9)
        for i, (value, (low, high)) in enumerate(
            [(0.3, found.kl_mean_ci95), (0.9, found.top1_ci95), (math.exp(0.1), found.ppl_ratio_ci95)]
        ):
            hits[i] += low <= value <= high
    assert (np.abs(hits / n - 0.95) < 0.035).all()


def test_what_cannot_be_read(paths: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has a context of 512; take less"):
        Reader(paths[0], 1024)
    with pytest.raises(ValueError, match="a window has 8 to"):
        Reader(paths[0], 2)
    embeds = familygguf.write(tmp_path / "e.gguf", families.load("bert-mean"))
    with pytest.raises(ModelError, match="embeds texts"):
        Reader(embeds, 16)
    other = write_tiny_llama(tmp_path / "o.gguf", n_vocab=300)
    with (
        Reader(paths[0], N_CTX) as reader,
        Reader(other, N_CTX) as base,
        pytest.raises(ValueError, match="other tokens"),
    ):
        compare(reader, base, [[1] * N_CTX])
    broken = write_tiny_llama(tmp_path / "b.gguf", extra={"output_norm.weight": np.full(64, np.inf, np.float32)})
    with Reader(broken, N_CTX) as reader, pytest.raises(ModelError, match="not finite"):
        perplexity(reader, [[1] * N_CTX])


def test_command(paths: tuple[Path, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    asked = [str(paths[1]), str(text), "--ctx", "64", "--windows", "3"]
    result = program("perplexity", *asked, "--against", str(paths[0]), "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["tokens"] == 3 * 31
    assert {"ppl", "ppl_stderr", "kl_median", "kl_p99"} < set(facts)
    for name in ("kl_mean", "top1", "ppl_ratio"):
        low, high = facts[f"{name}_ci95"]
        assert low <= facts[name] <= high
    shown = program("perplexity", *asked)
    assert shown.stdout.startswith(f"perplexity     {facts['ppl']:.4f} +/- ")
    assert program("perplexity", str(paths[0]), "-", "--ctx", "64", given=TEXT).returncode == 0


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the text has 0 tokens, and a window has 512; give a longer text, or a smaller --ctx"),
        (b"Hello world", "tokens, and a window has 512"),
        (b"\xff", "byte 0 is not UTF-8"),
    ],
)
def test_texts_that_are_too_short_or_none(paths: tuple[Path, Path], tmp_path: Path, data: bytes, why: str) -> None:
    """B48: an error, and never a number that means nothing."""
    text = tmp_path / "text.txt"
    text.write_bytes(data)
    result = program("perplexity", str(paths[0]), str(text))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ")
    assert why in result.stderr
    assert result.stderr.count("\n") == 1
