"""The core against the float64 oracle, over head shapes, formats, page sizes and cache types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import planref
import pytest
from corerun import Runner, some_tokens
from tinymodel import write_tiny_llama

from pyedge import _core

N_TOKENS = 150  # over two attention chunks of 64, and a part of one

# name -> write_tiny_llama's arguments
SHAPES: dict[str, dict[str, Any]] = {
    "9-heads-3-kv-32": {"n_embd": 96, "n_head": 9, "n_kv": 3, "head_dim": 32},
    "4-heads-4-kv-64": {"n_embd": 64, "n_head": 4, "n_kv": 4, "head_dim": 64},
    "8-heads-1-kv-32": {"n_embd": 64, "n_head": 8, "n_kv": 1, "head_dim": 32},
    "head-dim-80": {"n_embd": 64, "n_head": 2, "n_kv": 1, "head_dim": 80},
    "head-dim-96": {"n_embd": 96, "n_head": 2, "n_kv": 2, "head_dim": 96},
    "head-dim-128": {"n_embd": 64, "n_head": 4, "n_kv": 2, "head_dim": 128},
    "head-dim-256": {"n_embd": 64, "n_head": 2, "n_kv": 1, "head_dim": 256},
    "width-no-multiple-of-32": {"n_embd": 72, "n_head": 9, "n_kv": 3, "head_dim": 8, "n_ff": 100},
    "part-of-head-rotated": {"n_head": 4, "head_dim": 32, "n_rot": 12},
    "biases": {"bias": True, "n_kv": 2},
    "rope-factors": {"rope_factors": True},
    "linear-scaling": {"linear_scale": 4.0},
    "tied": {"tied": True},
    "padded-vocabulary": {"n_vocab": 300},
}
# Every format that runs, in every role of a matrix; rows of 256 so that all of them fit.
WIDE: dict[str, Any] = {"n_embd": 256, "n_head": 4, "n_kv": 2, "head_dim": 64, "n_ff": 256, "n_layer": 2}
FORMATS = [f.name for f in _core.formats() if f.runs]
MIXES: dict[str, dict[str, str]] = {
    "q4_0-with-q6_k-output": {"": "Q4_0", "output": "Q6_K"},
    "q4_1-with-q8_0-embedding": {"": "Q4_1", "token_embd": "Q8_0"},
    "qkv-of-three-formats": {"": "Q4_0", "attn_k": "Q8_0", "attn_v": "F16", "ffn_up": "Q6_K"},
}

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes each file once."""
    folder, known = tmp_path_factory.mktemp("tiny"), dict[str, Path]()

    def write(**kw: Any) -> Path:
        key = repr(sorted(kw.items()))
        if key not in known:
            known[key] = write_tiny_llama(folder / f"{len(known)}.gguf", **kw)
        return known[key]

    return write


def worst(path: Path, precision: str = "f32", kv_type: str = "f32", page_size: int = 16) -> float:
    """The largest difference of a logit from the oracle's, over their standard deviation (near 2 in these models)."""
    runner = Runner(path, precision=precision, kv_type=kv_type, page_size=page_size)
    tokens = some_tokens(N_TOKENS, runner.model.n_vocab)
    expected = planref.Oracle(runner.plan, path)(tokens, precision, kv_type).logits
    found = runner.run(tokens)
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return float(np.abs(found - expected).max() / expected.std())


def test_the_oracle_knows_every_op() -> None:
    assert set(planref.OPS) == {info.name for info in _core.ops()}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_f32(write: Write, shape: str) -> None:
    assert worst(write(**SHAPES[shape])) < 1e-4


@pytest.mark.parametrize("page_size", [8, 16, 32])
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_pages_and_cache_types(write: Write, page_size: int, kv_type: str) -> None:
    # A float32 key on the edge between two float16 numbers may fall either way, hence the second tolerance.
    limit = 1e-4 if kv_type == "f32" else 1e-2
    assert worst(write(**SHAPES["9-heads-3-kv-32"]), kv_type=kv_type, page_size=page_size) < limit


@pytest.mark.parametrize("name", FORMATS)
def test_formats_f32(write: Write, name: str) -> None:
    assert worst(write(**WIDE, types=name)) < 1e-4


@pytest.mark.parametrize("mix", MIXES)
def test_mixes_f32(write: Write, mix: str) -> None:
    assert worst(write(**WIDE, types=MIXES[mix])) < 1e-4


@pytest.mark.parametrize("name", [*FORMATS, *MIXES])
def test_formats_fast(write: Write, name: str) -> None:
    # The oracle rounds activations to 8 bits as the core does; what is left are values on the edge between two steps.
    assert worst(write(**WIDE, types=MIXES.get(name, name)), precision="fast", kv_type="f16") < 0.05
