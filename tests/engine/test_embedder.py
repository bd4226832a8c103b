"""Embedder on tiny models: which texts run together makes no difference, to the bit; threads, Ctrl-C and forks; numbers
that are none."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import families
import familygguf
import numpy as np
import pytest
from corerun import some_tokens
from forkrun import in_child
from tinymodel import write_tiny_llama

from pyedge import ModelError, _core
from pyedge.engine.embedder import Embedder
from pyedge.engine.engine import EngineConfig
from pyedge.models import build_plan
from pyedge.models.plan import Plan

CONFIG = EngineConfig(n_pages=16, max_model_len=64, page_size=8, max_tokens=64, max_sequences=5, threads=1)
LENGTHS = [1, 40, 7, 8, 9, 64, 2, 2, 2, 2, 2, 2, 33, 31, 5]


def load(path: Path, precision: str = "fast") -> tuple[_core.Model, Plan]:
    with _core.Gguf(str(path)) as gguf:
        plan = build_plan(gguf)
        return _core.Model(gguf, plan.ops, precision, 1), plan


def make(path: Path, precision: str = "fast", core: Any = None, **config: Any) -> Embedder:
    return Embedder(*load(path, precision), EngineConfig(**{**vars(CONFIG), **config}), core)


def texts(lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    return [some_tokens(n, 64, seed) for seed, n in enumerate(lengths)]


def assert_same(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.isfinite(found).all()
    assert found.dtype == expected.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), expected.view(np.uint32))


@pytest.fixture(scope="module", params=["bert-mean", "bert-cls", "nomic-bert", "gemma-embedding", "qwen3-embedding"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights in Q8_0, where their rows are long enough."""
    target = tmp_path_factory.mktemp("model") / "m.gguf"
    return familygguf.write(target, families.load(request.param), types="Q8_0")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return familygguf.write(tmp_path_factory.mktemp("model") / "m.gguf", families.load("bert-mean"))


@pytest.mark.parametrize("precision", ["fast", "f32"])
def test_a_text_does_not_depend_on_others(path: Path, precision: str) -> None:
    all_texts = texts()
    embedder = make(path, precision)
    alone = np.concatenate([make(path, precision).embed([text]) for text in all_texts])
    assert_same(embedder.embed(all_texts), alone)
    assert_same(np.concatenate([embedder.embed([text]) for text in all_texts]), alone)
    assert len(np.unique(alone.round(4), axis=0)) == len(all_texts)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(all_texts))
        assert_same(embedder.embed([all_texts[i] for i in order]), alone[order])


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(path: Path, threads: int) -> None:
    assert_same(make(path, threads=threads).embed(texts()), make(path).embed(texts()))


@pytest.mark.parametrize(
    "config",
    [{"page_size": 32, "n_pages": 8}, {"n_pages": 8}, {"max_sequences": 1}, {"max_tokens": 200, "n_pages": 40}],
)
def test_sizes_make_no_difference(path: Path, config: dict[str, Any]) -> None:
    assert_same(make(path, **config).embed(texts()), make(path).embed(texts()))


def test_a_long_text_is_read_in_parts_where_the_last_token_is_all(tmp_path: Path) -> None:
    keys = {"llama.pooling_type": 3}
    path = write_tiny_llama(tmp_path / "m.gguf", keys=keys, tied=True, types="Q8_0")
    lengths = [400, 3, 64, 65, 300, 1]
    whole = make(path, max_model_len=512, n_pages=80, max_tokens=512)
    parts = make(path, max_model_len=512, n_pages=80, max_tokens=64)
    assert_same(parts.embed(texts(lengths)), whole.embed(texts(lengths)))


class RecordingCore:
    """pyedge._core with its steps written down."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int, int]]] = []
        self.made_with: dict[str, Any] = {}

    def Engine(self, model: _core.Model, **options: Any) -> Any:
        self.made_with, engine, steps = options, _core.Engine(model, **options), self.steps

        class Recorder:
            set_pages, logits = engine.set_pages, engine.logits

            @staticmethod
            def step(pieces: Any, tokens: Any, rows: Any) -> None:
                steps.append(list(pieces))
                engine.step(pieces, tokens, rows)

        return Recorder()


def test_steps_are_filled_with_whole_texts(encoder: Path) -> None:
    core = RecordingCore()
    embedder = make(encoder, core=core, max_tokens=20)
    assert core.made_with["max_tokens"] == embedder.capacity == 64  # the longest text fits in one step
    embedder.embed(texts([30, 34, 1, 60, 2, 2, 2, 2, 2, 2]))
    # By 64 tokens, then by 5 texts.
    assert core.steps == [
        [(0, 0, 30), (1, 0, 34)],
        [(0, 0, 1), (1, 0, 60), (2, 0, 2)],
        [(0, 0, 2), (1, 0, 2), (2, 0, 2), (3, 0, 2), (4, 0, 2)],
    ]
    core.steps.clear()
    make(encoder, core=core, n_pages=9).embed(texts([1, 57, 9, 40, 1]))  # by 9 pages of 8
    assert core.steps == [[(0, 0, 1), (1, 0, 57)], [(0, 0, 9), (1, 0, 40), (2, 0, 1)]]


def test_few_pages_bound_the_length(encoder: Path) -> None:
    embedder = make(encoder, n_pages=3)
    assert embedder.capacity == 24
    assert embedder.embed(texts([24])).shape == (1, 64)
    assert make(encoder).embed([]).shape == (0, 64)


def test_threads_take_turns(encoder: Path) -> None:
    embedder, wanted = make(encoder, threads=2), make(encoder).embed(texts())
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(embedder.embed(texts()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    for rows in found:
        assert_same(rows, wanted)


def test_ctrl_c_leaves_nothing_behind(encoder: Path) -> None:
    embedder, wanted = make(encoder), make(encoder).embed(texts())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    embedder._core.tap("blk.0.attn", interrupt)
    with pytest.raises(KeyboardInterrupt):
        embedder.embed(texts())
    embedder._core.tap(None)
    assert_same(embedder.embed(texts()), wanted)


def test_from_within_its_own_step(encoder: Path) -> None:
    embedder = make(encoder)
    embedder._core.tap("blk.0.attn", lambda *_: embedder.embed(texts()))
    with pytest.raises(RuntimeError, match="from within its own step"):
        embedder.embed(texts())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forks(encoder: Path) -> None:
    embedder = make(encoder, threads=2)
    wanted = embedder.embed(texts())
    assert in_child(lambda: embedder.embed(texts()).tobytes().hex()[:64]) == wanted.tobytes().hex()[:64]
    inside, go = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        inside.set()
        assert go.wait(60)

    embedder._core.tap("blk.0.attn", wait)
    thread = threading.Thread(target=lambda: embedder.embed(texts([3])), daemon=True)
    thread.start()
    assert inside.wait(30)
    said = in_child(lambda: embedder.embed(texts()))
    go.set()
    thread.join(30)
    embedder._core.tap(None)
    assert said.startswith("RuntimeError: this process was forked while the model was at work")
    assert_same(embedder.embed(texts()), wanted)


def test_numbers_that_are_none(tmp_path: Path) -> None:
    """The row of one token's embedding is damaged: texts with it are named, others are not at fault."""
    table = np.random.default_rng(0).standard_normal((281, 64))
    table[7] = np.nan
    keys = {"llama.pooling_type": 3}
    embedder = make(write_tiny_llama(tmp_path / "m.gguf", keys=keys, tied=True, extra={"token_embd.weight": table}))
    assert np.isfinite(embedder.embed([[1, 2], [3]])).all()
    with pytest.raises(ModelError, match=r"text 2: its embedding is not finite"):
        embedder.embed([[1, 2], [3], [4, 7], [7]])
