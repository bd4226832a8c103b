"""What ops cost, against counts made by hand on tiny models of known shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.models import Plan, build_plan, cost
from pyedge.models.cost import Batch, Cost

N_EMBD, N_HEAD, N_KV, HEAD_DIM, N_FF, N_VOCAB = 64, 4, 2, 16, 96, 281
Q8 = 34 / 32  # bytes per weight


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, list[_core.TensorInfo]]:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_llama(path, n_embd=N_EMBD, n_head=N_HEAD, n_kv=N_KV, n_ff=N_FF, types={"": "Q8_0", "output": "F16"})
    with _core.Gguf(path) as gguf:
        return build_plan(gguf), gguf.tensors


def by_name(tiny: tuple[Plan, list[_core.TensorInfo]], batch: Batch, **options: str) -> dict[str, Cost]:
    plan, tensors = tiny
    found = cost.costs(plan, tensors, batch, **options)
    return {op.name: c for op, c in zip(plan.ops, found, strict=True)}


def test_every_kind_of_op_has_a_cost() -> None:
    assert set(cost.KINDS) == {info.name for info in _core.ops()}


def test_matrices(tiny: tuple[Plan, list[_core.TensorInfo]]) -> None:
    found = by_name(tiny, Batch([(0, 10)], 1))
    qkv = (N_HEAD + 2 * N_KV) * HEAD_DIM * N_EMBD
    assert found["blk.0.attn_q"] == Cost(qkv * Q8, 10 * qkv, 10 * qkv / 16)  # two multiply-adds scale a sum of 32
    assert found["blk.1.ffn_gate"] == Cost(2 * N_FF * N_EMBD * Q8, 20 * N_FF * N_EMBD, 20 * N_FF * N_EMBD / 16)
    assert found["output"] == Cost(2 * N_VOCAB * N_EMBD, 0, N_VOCAB * N_EMBD)  # float weights, one row
    assert found["token_embd"] == Cost(10 * N_EMBD * Q8, 0, 10 * N_EMBD)  # the rows of its tokens
    assert found["blk.0.attn_norm"].bytes == 4 * N_EMBD
    assert by_name(tiny, Batch([(0, 10)], 0))["output"] == Cost()
    twice = by_name(tiny, Batch([(0, 20)], 1))
    assert twice["blk.0.attn_q"] == Cost(qkv * Q8, 20 * qkv, 20 * qkv / 16)  # weights are read once for all tokens
    as_float = by_name(tiny, Batch([(0, 10)], 1), precision="f32")
    assert as_float["blk.0.attn_q"] == Cost(qkv * Q8, 0, 10 * qkv)


def test_attention_reads_what_its_tokens_see(tiny: tuple[Plan, list[_core.TensorInfo]]) -> None:
    def attention(*pieces: tuple[int, int], kv_type: str = "f16") -> Cost:
        return by_name(tiny, Batch(pieces, 1), kv_type=kv_type)["blk.1.attn"]

    one = attention((0, 1))
    assert one.bytes == 2 * N_KV * HEAD_DIM * 2  # a key and a value, two bytes each
    assert attention((99, 100)) == Cost(100 * one.bytes, 0, 100 * one.f32_macs)
    assert attention((0, 4)) == Cost(4 * one.bytes, 0, (1 + 2 + 3 + 4) * one.f32_macs)
    assert attention((0, 4), (7, 9)).f32_macs == (1 + 2 + 3 + 4 + 8 + 9) * one.f32_macs
    assert attention((99, 100), kv_type="f32").bytes == 2 * attention((99, 100)).bytes
    assert one.f32_macs >= N_HEAD * 2 * HEAD_DIM


def windowed(tmp_path: Path, window: int) -> tuple[Plan, list[_core.TensorInfo]]:
    keys = {"llama.attention.sliding_window": window}
    with _core.Gguf(write_tiny_llama(tmp_path / f"{window}.gguf", keys=keys)) as gguf:
        return build_plan(gguf), gguf.tensors


def test_windows(tmp_path: Path) -> None:
    narrow, wide = windowed(tmp_path, 8), windowed(tmp_path, 500)

    def ratio(start: int, end: int) -> tuple[float, float]:
        a, b = (by_name(model, Batch([(start, end)], 1))["blk.0.attn"] for model in (narrow, wide))
        return a.bytes / b.bytes, a.f32_macs / b.f32_macs

    assert ratio(0, 8) == (1, 1)
    assert ratio(99, 100) == (8 / 100, 8 / 100)
    assert ratio(96, 100) == (11 / 100, 32 / (97 + 98 + 99 + 100))  # the first of four sees three more keys


def experts(tmp_path: Path, n_experts: int, n_used: int) -> tuple[Plan, list[_core.TensorInfo]]:
    import numpy as np

    rng = np.random.default_rng(0)
    extra = {}
    for i in range(2):
        extra[f"blk.{i}.ffn_gate_inp.weight"] = rng.standard_normal((n_experts, 64)).astype(np.float32)
        for name, shape in (("gate", (96, 64)), ("up", (96, 64)), ("down", (64, 96))):
            extra[f"blk.{i}.ffn_{name}_exps.weight"] = rng.standard_normal((n_experts, *shape)).astype(np.float32)
    drop = [f"blk.{i}.ffn_{name}.weight" for i in range(2) for name in ("gate", "up", "down")]
    keys = {"llama.expert_count": n_experts, "llama.expert_used_count": n_used}
    path = write_tiny_llama(tmp_path / f"{n_experts}-{n_used}.gguf", keys=keys, drop=drop, extra=extra)
    with _core.Gguf(path) as gguf:
        return build_plan(gguf), gguf.tensors


def test_experts_that_are_read(tmp_path: Path) -> None:
    model = experts(tmp_path, 8, 2)
    matrices, router = 3 * 96 * 64 * 4, 8 * 64 * 4
    one = by_name(model, Batch([(0, 1)], 1))["blk.0.ffn_moe"]
    assert one.bytes == pytest.approx(2 * matrices + router)  # its two experts
    assert one.int8_macs == 0
    many = by_name(model, Batch([(0, 200)], 1))["blk.0.ffn_moe"]
    assert many.bytes == pytest.approx(8 * matrices + router, rel=1e-3)  # all of them
    assert many.f32_macs == pytest.approx(200 * one.f32_macs)
    few = by_name(model, Batch([(0, 2)], 1))["blk.0.ffn_moe"]
    assert few.bytes == pytest.approx((2 + 2 * 6 / 8) * matrices + router)


@pytest.mark.parametrize("kv_type", _core.KV_TYPES)
def test_keys_and_values_are_those_of_a_page(tmp_path: Path, kv_type: str) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", n_layer=1, head_dim=32, n_kv=2)
    with _core.Gguf(path) as gguf:
        plan = build_plan(gguf)
        model = _core.Model(gguf, plan.ops)
        found = by_name((plan, gguf.tensors), Batch([(15, 16)], 1), kv_type=kv_type)
    assert found["blk.0.attn"].bytes == _core.page_bytes(model, 16, kv_type)
