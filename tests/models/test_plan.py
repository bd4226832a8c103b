"""The plan builder: numbering, names, look-up of weights, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinymodel import write_tiny_llama

from pyedge import ModelError, _core
from pyedge.models import Plan, build_plan
from pyedge.models.plan import Op, Pairing, PlanBuilder, Rope

KINDS = [info.name for info in _core.ops()]


def plan_of(tmp_path: Path, **kw: Any) -> Plan:
    return build_plan(_core.Gguf(str(write_tiny_llama(tmp_path / "m.gguf", **kw))))


def builder(tmp_path: Path, **kw: Any) -> PlanBuilder:
    """A builder over a file, before any op."""
    gguf = _core.Gguf(str(write_tiny_llama(tmp_path / "m.gguf", **kw)))
    return PlanBuilder(gguf, build_plan(gguf).hparams)


def ops_of(plan: Plan, kind: str) -> list[Op]:
    return [op for op in plan.ops if KINDS[op.kind] == kind]


def op(plan: Plan, name: str) -> Op:
    (found,) = [op for op in plan.ops if op.name == name]
    return found


def test_values_are_numbered_in_order_and_made_before_use(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    made: list[int] = []
    for o in plan.ops:
        assert all(i in made for i in o.inputs), o.name
        made += o.outputs
    assert made == list(range(len(plan.widths)))


def test_arity_is_what_the_core_lists(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, bias=True, rope_factors=True)
    for o in plan.ops:
        info = _core.ops()[o.kind]
        per_row = [w for w in info.weights.split() if w != "..."]
        rows = len(o.outputs) if "..." in info.weights else 1
        assert info.min_inputs <= len(o.inputs) <= info.max_inputs, o.name
        assert info.min_outputs <= len(o.outputs) <= info.max_outputs, o.name
        assert len(o.weights) == rows * len(per_row), o.name
        assert len(o.parameters) == len(info.parameters.split()), o.name
        for text, value in zip(info.parameters.split(), o.parameters, strict=True):
            assert isinstance(value, int if text.startswith("i:") else float), (o.name, text)


def test_op_names(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, n_layer=2)
    names = [o.name for o in plan.ops]
    assert len(set(names)) == len(names)
    assert all(len(n.encode()) <= 63 for n in names)
    block = [
        *("attn_norm", "attn_q", "rope_q", "rope_k", "attn", "attn_output", "attn_output_add"),
        *("ffn_norm", "ffn_gate", "silu_mul", "ffn_down", "ffn_down_add"),
    ]
    assert [n for n in names if n.startswith("blk.1.")] == [f"blk.1.{n}" for n in block]
    assert [n for n in names if not n.startswith("blk.")] == ["token_embd", "rope_table", "output_norm", "output"]
    assert plan.ops[-1].name == "output"


def test_layers_of_attention_are_counted(tmp_path: Path) -> None:
    assert [o.parameters[0] for o in ops_of(plan_of(tmp_path, n_layer=3), "attention")] == [0, 1, 2]


def test_rope_tables_are_shared_by_configuration(tmp_path: Path) -> None:
    p = builder(tmp_path, n_embd=64, rope_factors=True)
    x = p.embed("token_embd")
    configurations = [
        Rope(16, 16, 1e4),
        Rope(16, 16, 1e6),
        Rope(16, 16, 1e4),
        Rope(16, 16, 1e4, factors="rope_freqs"),
        Rope(32, 16, 1e4, factors="no_such_tensor", pairing=Pairing.HALVES),  # the table itself is the first one's
    ]
    norms = ["blk.0.attn_norm", "blk.0.ffn_norm", "blk.1.attn_norm", "blk.1.ffn_norm", "output_norm"]
    ropes = [p.rope(p.rms_norm(x, name), rope) for name, rope in zip(norms, configurations, strict=True)]
    plan = p.finish(["*"])
    used = [op(plan, rope.name).inputs[1] for rope in ropes]
    tables = ops_of(plan, "rope_table")
    assert [o.name for o in tables] == ["rope_table", "rope_table_1", "rope_table_2"]
    assert used == [tables[i].outputs[0] for i in (0, 1, 0, 2, 0)]


def test_one_rope_table_serves_all_layers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, n_layer=3)
    (table,) = ops_of(plan, "rope_table")
    assert all(o.inputs[1] == table.outputs[0] for o in ops_of(plan, "rope"))
    assert len(ops_of(plan, "rope")) == 6


def test_biases_are_found(tmp_path: Path) -> None:
    gguf = _core.Gguf(str(write_tiny_llama(tmp_path / "b.gguf", bias=True)))
    weights = op(build_plan(gguf), "blk.0.attn_q").weights
    assert [gguf.tensors[w].name for w in weights] == [
        f"blk.0.attn_{part}.{kind}" for part in "qkv" for kind in ("weight", "bias")
    ]
    assert op(plan_of(tmp_path), "blk.0.attn_q").weights[1::2] == [-1, -1, -1]


def test_tied_output_reads_the_embedding(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, tied=True)
    assert op(plan, "output").weights == [op(plan, "token_embd").weights[0], -1]
    plan = plan_of(tmp_path, tied=False)
    assert op(plan, "output").weights[0] != op(plan, "token_embd").weights[0]


def test_text_has_one_op_a_line(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, n_layer=1, types="Q8_0")
    lines = str(plan).splitlines()
    assert len(lines) == len(plan.ops)
    last = "output logits(%17) -> %18 [rows, 281] n_vocab=281 scale=1 softcap=0 output.weight Q8_0 [281, 64]"
    assert " ".join(lines[-1].split()) == last
    assert all(o.name in line for o, line in zip(plan.ops, lines, strict=True))


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["token_embd.weight", "blk.1.ffn_up.weight", "blk.0.attn_norm.weight", "output_norm.weight"]
)
def test_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=rf"m\.gguf: {name}: tensor missing"):
        plan_of(tmp_path, drop=[name])


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.1.ffn_gate.bias2", "blk.0.attn_sinks.weight"])
def test_tensor_that_nobody_reads_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=f"{name}: the llama family does not read this tensor"):
        plan_of(tmp_path, extra={name: np.ones(64)})


def test_several_unread_tensors_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"a\.weight \(and 2 more\): "):
        plan_of(tmp_path, extra={f"{c}.weight": np.ones(4) for c in "abc"})


def test_ignored_tensors_are_accepted(tmp_path: Path) -> None:
    plan_of(tmp_path, extra={"blk.0.attn_rot_embd.weight": np.ones(8)})


@pytest.mark.parametrize(
    ("replaced", "shape", "message"),
    [
        ("blk.0.attn_norm.weight", (65,), r"shape \[1, 65\], where a vector of 64"),
        ("blk.0.attn_norm.weight", (2, 64), r"shape \[2, 64\], where a vector of 64"),
        ("blk.0.attn_k.weight", (64, 48), r"48 columns, but blk.0.attn_norm is 64 wide"),
        ("blk.0.attn_k.weight", (48, 64), r"blk.0.rope_k: 48 wide, but llama.attention.head_count_kv is 4"),
        ("blk.0.attn_v.weight", (32, 64), r"blk.0.attn_v: 32 wide, but llama.attention.head_count_kv is 4"),
        ("blk.0.attn_q.weight", (60, 64), r"blk.0.attn_q: 60 wide, but heads are 16 wide"),
        ("blk.0.attn_output.weight", (60, 64), r"blk.0.attn_output: 60 wide, but token_embd is 64 wide"),
        ("blk.1.ffn_gate.weight", (80, 64), r"blk.1.ffn_gate: 80 wide, but llama.feed_forward_length is 96"),
        ("blk.1.ffn_up.weight", (80, 64), r"blk.1.ffn_up: 80 wide, but blk.1.ffn_gate is 96 wide"),
        ("blk.1.ffn_down.weight", (64, 80), r"80 columns, but blk.1.silu_mul is 96 wide"),
        ("output.weight", (280, 64), r"output.weight: 280 rows, but the vocabulary has 281"),
        ("output.weight", (281, 60), r"output.weight: 60 columns, but output_norm is 64 wide"),
        (
            "token_embd.weight",
            (281, 2, 64),
            r"tokenizer.ggml.tokens: 281 tokens, but token_embd.weight has only 2",
        ),
        ("blk.0.attn_q.weight", (64, 2, 64), r"blk.0.attn_q.weight: 3 dimensions"),
        ("blk.0.attn_q.bias", (63,), r"blk.0.attn_q.bias: shape \[1, 63\], where a vector of 64"),
        ("rope_freqs.weight", (7,), r"rope_freqs.weight: shape \[1, 7\], where a vector of 8"),
    ],
)
def test_wrong_shape_is_named(tmp_path: Path, replaced: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        plan_of(tmp_path, extra={replaced: np.ones(shape)})


def test_wrong_use_by_a_family_is_a_bug_not_a_bad_model(tmp_path: Path) -> None:
    p = builder(tmp_path)
    x = p.embed("token_embd")
    with pytest.raises(ValueError, match="unique"):
        p.embed("token_embd")
    with pytest.raises(TypeError, match="op add takes"):
        p._emit("add", "sum", [x, x], [x.width], wrong=1)


def test_refusals_are_one_line(tmp_path: Path) -> None:
    for kw in (
        {"drop": ["output_norm.weight"]},
        {"extra": {"a.weight": np.ones(3)}},
        {"keys": {"llama.block_count": 9}},
    ):
        with pytest.raises(ModelError) as e:
            plan_of(tmp_path, **kw)
        assert "\n" not in str(e.value)
        assert len(str(e.value)) < 400


def test_pairs_of_layers_chain(tmp_path: Path) -> None:
    """The residual stream: each block adds to what the one before left."""
    adds = ops_of(plan_of(tmp_path, n_layer=3), "add")
    assert all(later.inputs[0] == earlier.outputs[0] for earlier, later in pairwise(adds))
