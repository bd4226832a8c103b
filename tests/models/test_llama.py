"""The llama family: what its plan reads from the file, and variants that it refuses rather than runs wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinymodel import write_tiny_llama

from pyedge import ModelError, _core
from pyedge.models import Plan, build_plan


def plan_of(tmp_path: Path, **kw: Any) -> tuple[_core.Gguf, Plan]:
    gguf = _core.Gguf(str(write_tiny_llama(tmp_path / "m.gguf", **kw)))
    return gguf, build_plan(gguf)


def numbers(plan: Plan, name: str) -> dict[str, int | float]:
    (op,) = [op for op in plan.ops if op.name == name]
    names = [p.partition(":")[2] for p in _core.ops()[op.kind].parameters.split()]
    return dict(zip(names, op.parameters, strict=True))


def test_rope_is_interleaved_and_scaled(tmp_path: Path) -> None:
    _, plan = plan_of(tmp_path, n_embd=64, n_head=4, n_kv=2, n_rot=8, rope_base=5e5, linear_scale=4.0)
    table = numbers(plan, "rope_table")
    assert table == {"n_rot": 8, "base": 5e5, "scale": 4.0, "magnitude": 1.0, "ramp_low": 0.0, "ramp_high": 0.0}
    assert numbers(plan, "blk.0.rope_q") == {"n_heads": 4, "head_dim": 16, "n_rot": 8, "pairing": 0}
    assert numbers(plan, "blk.0.rope_k")["n_heads"] == 2


def test_rope_factors_are_read(tmp_path: Path) -> None:
    for rope_factors in (True, False):
        gguf, plan = plan_of(tmp_path, rope_factors=rope_factors)
        (op,) = [op for op in plan.ops if op.name == "rope_table"]
        assert op.weights == [gguf.tensor_index("rope_freqs.weight")]
        assert (op.weights == [-1]) is not rope_factors


def test_attention_shape(tmp_path: Path) -> None:
    _, plan = plan_of(tmp_path, n_embd=72, n_head=9, n_kv=3, head_dim=16)
    shape = {"layer": 1, "n_heads": 9, "n_kv_heads": 3, "head_dim": 16, "scale": 0.25}
    assert numbers(plan, "blk.1.attn") == shape | {"causal": 1, "window": 0, "softcap": 0.0}


def test_every_tensor_of_a_full_file_is_read(tmp_path: Path) -> None:
    gguf, plan = plan_of(tmp_path, bias=True, rope_factors=True)
    assert sorted({w for op in plan.ops for w in op.weights if w >= 0}) == list(range(len(gguf.tensors)))


def test_sliding_window_is_of_every_layer(tmp_path: Path) -> None:
    for window in (100, 0, None):
        _, plan = plan_of(tmp_path, context=512, keys={"llama.attention.sliding_window": window})
        assert plan.hparams.context_length == 512
        assert [numbers(plan, f"blk.{i}.attn")["window"] for i in (0, 1)] == [window or 0] * 2


def test_experts_are_those_the_keys_tell_of(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"blk.0.ffn_gate_inp.weight: the llama family does not read this tensor"):
        plan_of(tmp_path, extra={"blk.0.ffn_gate_inp.weight": np.ones((4, 64))})
    with pytest.raises(ModelError, match=r"blk.0.ffn_gate_inp.weight: tensor missing"):
        plan_of(tmp_path, keys={"llama.expert_count": 8, "llama.expert_used_count": 2})
    with pytest.raises(ModelError, match=r"blk.0.ffn_gate.0.weight: experts in tensors of their own"):
        plan_of(tmp_path, extra={"blk.0.ffn_gate.0.weight": np.ones((96, 64))})
    plan_of(tmp_path, keys={"llama.expert_count": 0})
