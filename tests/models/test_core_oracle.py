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

# Over two attention chunks of 64 and a part of one; over one on the slow scalar set.
N_TOKENS = 70 if _core.active_isa() == "scalar" else 150

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


def difference(path: Path, precision: str = "f32", kv_type: str = "f32", page_size: int = 16) -> np.ndarray:
    """Of every logit from the oracle's, over their standard deviation (near 2 in these models)."""
    runner = Runner(path, precision=precision, kv_type=kv_type, page_size=page_size)
    tokens = some_tokens(N_TOKENS, runner.model.n_vocab)
    expected = planref.Oracle(runner.plan, path)(tokens, precision, kv_type).logits
    found = runner.run(tokens)
    assert found.shape == expected.shape
    assert np.isfinite(found).all()
    return np.abs(found - expected) / expected.std()


def test_the_oracle_knows_every_op() -> None:
    assert set(planref.OPS) == {info.name for info in _core.ops()}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_f32(write: Write, shape: str) -> None:
    assert difference(write(**SHAPES[shape])).max() < 5e-5


@pytest.mark.parametrize("page_size", [8, 16, 32])
@pytest.mark.parametrize("kv_type", _core.KV_TYPES)
def test_pages_and_cache_types(write: Write, page_size: int, kv_type: str) -> None:
    found = difference(write(**SHAPES["9-heads-3-kv-32"]), kv_type=kv_type, page_size=page_size)
    # A key on the edge between two steps of the cache may fall either way, and spreads to all that follows.
    assert found.max() < {"f32": 5e-5, "f16": 3e-3, "q8_0": 0.05, "q4_0": 0.5}[kv_type]
    assert np.sqrt((found**2).mean()) < {"f32": 1e-5, "f16": 3e-4, "q8_0": 3e-3, "q4_0": 0.03}[kv_type]


@pytest.mark.parametrize("kv_type", [t for t in _core.KV_TYPES if t != "f32"])
@pytest.mark.parametrize("shape", ["9-heads-3-kv-32", "head-dim-80", "width-no-multiple-of-32", "head-dim-256"])
def test_attention_over_every_cache_type(write: Write, shape: str, kv_type: str) -> None:
    """By itself, on the core's own q, k and v: a step apart is one key's weight, and most are the same step."""
    path = write(**SHAPES[shape])
    runner = Runner(path, kv_type=kv_type)
    oracle = planref.Oracle(runner.plan, path)
    tokens = some_tokens(N_TOKENS, runner.model.n_vocab)
    seen = runner.run_tapped(tokens)
    made = {i: values for op in runner.plan.ops for i, values in zip(op.outputs, seen[op.name], strict=True)}
    kinds = [info.name for info in _core.ops()]
    for op in (op for op in runner.plan.ops if kinds[op.kind] == "attention"):
        inputs = [made[i].astype(np.float64) for i in op.inputs]
        (expected,) = oracle.apply(op, inputs, tokens, "f32", kv_type)
        off = np.abs(made[op.outputs[0]] - expected) / expected.std()
        assert np.median(off) < 1e-5
        assert off.max() < (2e-3 if kv_type == "f16" else 0.03)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_f32(write: Write, name: str) -> None:
    assert difference(write(**WIDE, types=name)).max() < 5e-5


@pytest.mark.parametrize("mix", MIXES)
def test_mixes_f32(write: Write, mix: str) -> None:
    assert difference(write(**WIDE, types=MIXES[mix])).max() < 5e-5


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("name", [*FORMATS, *MIXES])
def test_every_op_by_itself(write: Write, name: str, precision: str) -> None:
    """Each op on the core's own inputs: 8-bit activations hide nothing here, since both round the same numbers."""
    path = write(**WIDE | {"n_layer": 1}, types=MIXES.get(name, name), bias=True, rope_factors=True)
    runner = Runner(path, precision=precision)
    oracle = planref.Oracle(runner.plan, path)
    tokens = some_tokens(N_TOKENS, runner.model.n_vocab)
    seen = runner.run_tapped(tokens)
    values, kinds = dict[int, np.ndarray](), [info.name for info in _core.ops()]
    for op in runner.plan.ops:
        # Rounded to 8 bits, a value within float32's error of the edge between two of the 127 steps may go either way.
        rounded = precision == "fast" and name not in planref.FLOAT_TYPES and kinds[op.kind] in ("linear", "logits")
        made = oracle.apply(op, [values[i] for i in op.inputs], tokens, precision)
        for i, found, expected in zip(op.outputs, seen[op.name], made, strict=True):
            worst_of_row = np.abs(found - expected).max(axis=-1) / expected.std()
            assert (worst_of_row > 2e-5).mean() <= (0.05 if rounded else 0), op.name
            assert worst_of_row.max() < 0.02, op.name
            # How the core lays out a table of cosines and sines is its own affair.
            values[i] = expected if op.name == "rope_table" else found.astype(np.float64)


@pytest.mark.parametrize("name", [*FORMATS, *MIXES])
def test_formats_fast(write: Write, name: str) -> None:
    """Rounding on an edge (see above) spreads from layer to layer, so a whole model agrees only this far; the oracle
    without rounding is three times as far away."""
    found = difference(write(**WIDE, types=MIXES.get(name, name)), precision="fast", kv_type="f16")
    assert np.sqrt((found**2).mean()) < 0.012
    assert found.max() < 0.12
