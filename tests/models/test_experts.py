"""Families with experts: what their plans say, and files that are refused rather than run wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import familygguf
import pytest

from pyedge import ModelError, _core
from pyedge.models import Plan, build_plan


def plan_of(tmp_path: Path, name: str, **kw: Any) -> Plan:
    with _core.Gguf(str(familygguf.write(tmp_path / "m.gguf", families.load(name), **kw))) as gguf:
        return build_plan(gguf)


def numbers(plan: Plan, kind: str) -> list[dict[str, int | float]]:
    """The parameters of every op of a kind."""
    info = next(info for info in _core.ops() if info.name == kind)
    names = [p.partition(":")[2] for p in info.parameters.split()]
    row = [i.name for i in _core.ops()].index(kind)
    return [dict(zip(names, op.parameters, strict=True)) for op in plan.ops if op.kind == row]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mixtral", {"n_experts": 6, "n_used": 2, "d_ff": 96, "function": 0, "chosen": 1}),
        ("qwen3moe", {"n_experts": 8, "n_used": 3, "d_ff": 48, "function": 0, "chosen": 1}),
        ("gpt-oss", {"n_experts": 6, "n_used": 3, "d_ff": 96, "function": 4, "chosen": 1}),
    ],
)
def test_experts_of_every_layer(tmp_path: Path, name: str, expected: dict[str, int]) -> None:
    plan = plan_of(tmp_path, name)
    assert numbers(plan, "moe") == [expected] * plan.hparams.n_layers


def test_windows_of_gpt_oss(tmp_path: Path) -> None:
    assert [a["window"] for a in numbers(plan_of(tmp_path, "gpt-oss"), "attention")] == [8, 0, 8, 0]
    keys = {"attention.sliding_window": None}
    assert [a["window"] for a in numbers(plan_of(tmp_path, "gpt-oss", keys=keys), "attention")] == [128, 0, 128, 0]


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("expert_count", 0, "out of range"),
        ("expert_count", 2**20, "out of range"),
        ("expert_count", 7, "ffn_gate_inp.weight: .*7 experts"),
        ("expert_count", None, "missing"),
        ("expert_used_count", 0, "out of range"),
        ("expert_used_count", 9, "out of range: 1 to 8"),
        ("expert_used_count", None, "missing"),
        ("expert_feed_forward_length", 64, r"ffn_gate_exps.weight: shape \[8, 48, 64\], where \[8, 64, 64\] is"),
        ("expert_gating_func", 2, "is not supported"),
        ("expert_weights_norm", False, "is not supported"),
        ("expert_weights_scale", 2.5, "is not supported"),
        ("expert_shared_count", 1, "is not supported"),
        ("expert_group_count", 2, "is not supported"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(tmp_path: Path, key: str, value: Any, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        plan_of(tmp_path, "qwen3moe", keys={key: value})


def test_what_says_nothing_is_not(tmp_path: Path) -> None:
    keys = {"expert_gating_func": 1, "expert_weights_norm": True, "expert_weights_scale": 1.0, "expert_shared_count": 0}
    assert plan_of(tmp_path, "qwen3moe", keys=keys).ops == plan_of(tmp_path, "qwen3moe").ops


def test_missing_tensors(tmp_path: Path) -> None:
    for name in ("ffn_up_exps.weight", "ffn_gate_inp.weight", "attn_sinks.weight"):
        with pytest.raises(ModelError, match=f"blk.1.{name}: tensor missing"):
            plan_of(tmp_path, "gpt-oss", drop=(f"blk.1.{name}",))
