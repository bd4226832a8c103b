"""The invariance rule (DESIGN 4), bit by bit: a token's logits depend on the model, its own sequence and the settings.

Each test runs sequences in some other way (batch, cuts, pages, threads, shared prefixes) and compares with the lone
run.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from corerun import MAX_SEQUENCES, Piece, Runner, some_tokens
from tinymodel import write_tiny_llama

from pyedge import _core

# The scalar set is the plainest and slowest: a shorter sequence, which still crosses a page and an attention chunk.
N_TOKENS = 70 if _core.active_isa() == "scalar" else 150
SETTINGS = {  # precision, KV type
    "f32": ("f32", "f32"),
    "fast": ("fast", "f16"),
    "fast-kv-f32": ("fast", "f32"),
    "fast-kv-q8_0": ("fast", "q8_0"),
    "fast-kv-q4_0": ("fast", "q4_0"),
}
# A matrix of every kernel class, 9 heads over 3.
TYPES = {"": "Q4_0", "attn_q": "Q4_1", "attn_k": "Q8_0", "attn_v": "F16", "ffn_gate": "BF16", "output": "Q6_K"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(
        tmp_path_factory.mktemp("tiny") / "m.gguf",
        **{"n_embd": 256, "n_head": 9, "n_kv": 3, "head_dim": 32, "n_ff": 160, "bias": True},
        types=TYPES | {"ffn_down": "F32"},
    )


def make(path: Path, setting: str, **kw: float) -> Runner:
    precision, kv_type = SETTINGS[setting]
    return Runner(path, precision=precision, kv_type=kv_type, **kw)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def runner(path: Path, setting: str) -> Runner:
    return make(path, setting)


@pytest.fixture(scope="module")
def tokens(runner: Runner) -> list[int]:
    return some_tokens(N_TOKENS, runner.model.n_vocab)


@pytest.fixture(scope="module")
def alone(runner: Runner, tokens: list[int]) -> np.ndarray:
    logits = runner.run(tokens)
    assert np.isfinite(logits).all()
    return logits


def assert_same(found: np.ndarray, expected: np.ndarray, what: object = "") -> None:
    differs = (found.view(np.uint32) != expected.view(np.uint32)).any(axis=-1)
    assert found.shape == expected.shape
    assert not differs.any(), f"{what}: rows {np.flatnonzero(differs)[:10]} differ"


def test_cut_at_every_point(runner: Runner, tokens: list[int], alone: np.ndarray) -> None:
    for cut in range(1, N_TOKENS):
        assert_same(runner.run(tokens, [cut]), alone, f"cut at {cut}")


@pytest.mark.parametrize("length", [1, 2, 3, 7, 16, 33, 64])
def test_cut_into_equal_pieces(runner: Runner, tokens: list[int], alone: np.ndarray, length: int) -> None:
    """Length 1 is decoding all the way."""
    assert_same(runner.run(tokens, range(length, N_TOKENS, length)), alone)


def test_beginnings(runner: Runner, tokens: list[int], alone: np.ndarray) -> None:
    """What follows a token does not reach it."""
    for n in (1, 2, 15, 16, 17, 63, 64, 65):
        assert_same(runner.run(tokens[:n]), alone[:n], f"{n} tokens")


def test_batched_with_others(runner: Runner) -> None:
    lengths = [1, 16, 65, 5, 17, N_TOKENS, 64, 33]
    sequences = [some_tokens(n, runner.model.n_vocab, seed) for seed, n in enumerate(lengths)]
    expected = [runner.run(s) for s in sequences]
    _give_pages(runner, lengths)
    pieces = [(slot, 0, n) for slot, n in enumerate(lengths)]
    for found, one, n in zip(runner.step(pieces, sequences), expected, lengths, strict=True):
        assert_same(found, one, f"{n} tokens")


@pytest.mark.parametrize("seed", range(6))
def test_prefill_and_decode_mixed(runner: Runner, seed: int) -> None:
    """Sequences that come at different times, each cut at random, any number of them in a step, in any order."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, N_TOKENS, MAX_SEQUENCES).tolist()
    sequences = [some_tokens(n, runner.model.n_vocab, 100 * seed + i) for i, n in enumerate(lengths)]
    expected = [runner.run(s) for s in sequences]
    _give_pages(runner, lengths, rng)
    done = [0] * len(sequences)
    while done != lengths:
        pieces: list[Piece] = []
        for slot in rng.permutation(MAX_SEQUENCES).tolist():
            left = lengths[slot] - done[slot]
            if left and rng.random() < 0.7:
                n = min(left, 1 if rng.random() < 0.5 else int(rng.integers(1, 50)))
                pieces.append((slot, done[slot], done[slot] + n))
        for (slot, start, end), found in zip(pieces, runner.step(pieces, sequences) if pieces else [], strict=True):
            assert_same(found, expected[slot][start:end], (slot, start, end))
            done[slot] = end


def _give_pages(runner: Runner, lengths: list[int], rng: np.random.Generator | None = None) -> None:
    """Emptied pages for every slot; scattered if rng is given."""
    pages = list(range(runner.n_pages)) if rng is None else rng.permutation(runner.n_pages).tolist()
    runner.fill(pages)
    starts = np.cumsum([0, *map(runner.pages_for, lengths)]).tolist()
    for slot, (a, b) in enumerate(pairwise(starts)):
        runner.engine.set_pages(slot, 0, pages[a:b])


@pytest.mark.parametrize("seed", range(4))
def test_pages_anywhere(runner: Runner, tokens: list[int], alone: np.ndarray, seed: int) -> None:
    pages = np.random.default_rng(seed).permutation(runner.n_pages).tolist()[: runner.pages_for(N_TOKENS)]
    assert_same(runner.run(tokens, [40], pages), alone)


def test_pages_with_an_earlier_sequence_in_them(runner: Runner, tokens: list[int], alone: np.ndarray) -> None:
    runner.run(some_tokens(N_TOKENS, runner.model.n_vocab, 9))
    assert_same(np.concatenate([runner.step([(0, a, b)], [tokens])[0] for a, b in ((0, 40), (40, N_TOKENS))]), alone)


@pytest.mark.parametrize("fill", [0.0, 60000.0, -np.inf])
def test_free_slots_may_hold_anything(
    path: Path, setting: str, tokens: list[int], alone: np.ndarray, fill: float
) -> None:
    """The lone run had NaN in them."""
    other = make(path, setting)
    other.fill(range(other.n_pages), fill)
    other.engine.set_pages(0, 0, range(other.pages_for(N_TOKENS)))
    for a, b in ((0, 41), (41, 42), (42, N_TOKENS)):
        assert_same(other.step([(0, a, b)], [tokens])[0], alone[a:b])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(path: Path, setting: str, tokens: list[int], alone: np.ndarray, threads: int) -> None:
    other = make(path, setting, threads=threads)
    assert_same(other.run(tokens), alone)
    assert_same(other.run(tokens, [1, 65, 66]), alone)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_decodes_of_unlike_depth(tmp_path_factory: pytest.TempPathFactory, setting: str, threads: int) -> None:
    """A step of single tokens, one of them deep, cuts all their contexts into chunks, by the deepest. One KV head, so
    that the engine does so for four sequences with any number of threads."""
    path = write_tiny_llama(
        tmp_path_factory.mktemp("tiny") / "m.gguf", n_head=2, n_kv=1, n_layer=1, context=1024, types="Q8_0"
    )
    runner = make(path, setting, threads=threads)
    depths = [900, 513, 70, 1]
    sequences = [some_tokens(n, runner.model.n_vocab, seed) for seed, n in enumerate(depths)]
    # Alone, the last token comes with those before it, so that nothing is cut.
    expected = [runner.run(s, [400] if len(s) > 512 else [])[-1:] for s in sequences]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [0, 3], [2, 3]):
        _give_pages(runner, depths)
        for slot in order:
            n = depths[slot] - 1
            for start in range(0, n, 512):
                runner.step([(slot, start, min(start + 512, n))], sequences)
        found = runner.step([(slot, depths[slot] - 1, depths[slot]) for slot in order], sequences)
        for slot, one in zip(order, found, strict=True):
            assert_same(one, expected[slot], f"depth {depths[slot]} of {[depths[i] for i in order]}")


def test_prefix_pages_shared(runner: Runner, tokens: list[int]) -> None:
    """Two sequences that begin alike: the second reads the first one's full pages, also in the same step."""
    size = runner.page_size
    shared = 3
    other = tokens[: shared * size] + some_tokens(30, runner.model.n_vocab, 5)
    expected = runner.run(other)
    first = runner.run(tokens)  # on pages 0, 1, 2, ...
    own = list(range(50, 50 + runner.pages_for(len(other)) - shared))
    runner.fill(own)
    runner.engine.set_pages(1, 0, [*range(shared), *own])
    pieces = [(0, N_TOKENS - 1, N_TOKENS), (1, shared * size, len(other))]
    again, found = runner.step(pieces, [tokens, other])
    assert_same(found, expected[shared * size :])
    assert_same(again, first[-1:])


def test_rows_asked_for(runner: Runner, tokens: list[int], alone: np.ndarray) -> None:
    """Logits of some rows are those of all rows."""
    runner.run(tokens)
    for rows in ([N_TOKENS - 1], [0], [3, 4, 40, 66]):
        runner.engine.step([(0, 0, N_TOKENS)], tokens, rows)
        assert_same(runner.engine.logits(), alone[rows], rows)
