"""Every op and every variant of one, in small plans built by hand: against the float64 oracle, and bit for bit the same
however a sequence is cut. What families make of them is tests/models/test_families.py's."""

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
from pyedge.models import Plan
from pyedge.models.hparams import read
from pyedge.models.plan import Activation, Index, PlanBuilder, Pooling, Rope, Value

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 64, 4, 2, 16
EXPERTS, USED, EXPERT_WIDTH = 5, 2, 96
N_TOKENS = 70 if _core.active_isa() == "scalar" else 150

Body = Callable[[PlanBuilder, PlanBuilder, Value], Value]  # (builder, scope blk.0, embeddings): what the logits are of


def experts(kind: str = "F32", bias: bool = False, width: int = EXPERT_WIDTH, d_model: int = WIDTH) -> dict[str, Any]:
    rng = np.random.default_rng(7)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) / np.sqrt(shape[-1])

    tensors: dict[str, Any] = {"ffn_gate_inp.weight": 3 * draw(EXPERTS, d_model)}
    for name, shape in (("gate", (width, d_model)), ("up", (width, d_model)), ("down", (d_model, width))):
        tensors[f"ffn_{name}_exps.weight"] = (2 * draw(EXPERTS, *shape), kind)
        if bias:
            tensors[f"ffn_{name}_exps.bias"] = 3 * draw(EXPERTS, shape[0])
    if bias:
        tensors["ffn_gate_inp.bias"] = draw(EXPERTS) * 3
    return {f"blk.0.{name}": values for name, values in tensors.items()}


def moe(function: Activation = Activation.SILU, chosen: bool = True, width: int = EXPERT_WIDTH) -> Body:
    return lambda p, b, x: x + b.moe(x, EXPERTS, USED, width, function, chosen=chosen)


PLAIN = Rope(HEAD_DIM, HEAD_DIM, 1e4)


def attention(rope: Rope | None = PLAIN, **options: Any) -> Body:
    def body(p: PlanBuilder, b: PlanBuilder, x: Value) -> Value:
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        if rope is not None:
            q, k = b.rope(q, rope), b.rope(k, rope)
        return x + b.linear(b.attention(q, k, v, **options), "attn_output")

    return body


def heads_normed(p: PlanBuilder, b: PlanBuilder, x: Value) -> Value:
    q, k, v = b.linear(x, "attn_q", "attn_k", "attn_v")
    q, k = b.rms_norm(q, "attn_q_norm", HEAD_DIM), b.layer_norm(k, "attn_k_norm", HEAD_DIM)
    return x + b.linear(b.attention(q, k, v), "attn_output")


def split_in(n: int) -> Body:
    widths = {2: {"ffn_gate": 16, "ffn_up": 80}, 3: {"attn_q": 32, "attn_k": 8, "attn_v": 56}}[n]

    def body(p: PlanBuilder, b: PlanBuilder, x: Value) -> Value:
        parts = b.split(b.linear(x, "ffn_up"), **widths)
        return b.linear(b.activation(Activation.RELU, parts[1]), "mixed")

    return body


def activated(function: Activation, gated: bool) -> Body:
    def body(p: PlanBuilder, b: PlanBuilder, x: Value) -> Value:
        gate, up = b.linear(x, "ffn_gate", "ffn_up")
        return b.linear(b.activation(function, gate, up if gated else None), "ffn_down")

    return body


def vector(n: int) -> np.ndarray:
    return 1 + 0.3 * np.random.default_rng(n).standard_normal(n)


PER_HEAD = {"blk.0.attn_q_norm.weight": vector(HEAD_DIM), "blk.0.attn_k_norm.weight": vector(KV_HEADS * HEAD_DIM)}
SHAPED = PER_HEAD | {"blk.0.attn_k_norm.weight": vector(KV_HEADS * HEAD_DIM).reshape(KV_HEADS, HEAD_DIM)}
SINKS = {"blk.0.attn_sinks.weight": np.array([0.5, -2.0, 3.0, 0.0])}
NORM = {"blk.0.norm.weight": vector(WIDTH), "blk.0.norm.bias": vector(WIDTH) - 1}
FACTORS = {"rope_freqs.weight": np.linspace(1, 8, HEAD_DIM // 2)}
POSITIONS = {"position_embd.weight": np.random.default_rng(1).standard_normal((N_TOKENS + 3, WIDTH))}
YARN = Rope(HEAD_DIM, HEAD_DIM, 1e4, scale=8.0, factors="rope_freqs", magnitude=1.2, ramp=(1.5, 5.25))
MIXED = {width: {"blk.0.mixed.weight": np.random.default_rng(2).standard_normal((WIDTH, width))} for width in (80, 8)}

# name -> what is done with the embeddings, and the tensors that this needs
CASES: dict[str, tuple[Body, dict[str, Any]]] = {
    "layer norm": (lambda p, b, x: b.layer_norm(x, "norm"), NORM),
    "layer norm without bias": (lambda p, b, x: b.layer_norm(x, "norm"), {"blk.0.norm.weight": vector(WIDTH)}),
    "norms by heads": (heads_normed, PER_HEAD),
    "norms by heads, weights in rows": (heads_normed, SHAPED),
    "embedding by position": (lambda p, b, x: x + p.embed("position_embd", Index.POSITION), POSITIONS),
    "embedding by row 0": (lambda p, b, x: x + p.embed("position_embd", Index.ZERO), POSITIONS),
    "split in 2": (split_in(2), MIXED[80]),
    "split in 3": (split_in(3), MIXED[8]),
    "scale": (lambda p, b, x: p.scale(x, 0.37), {}),
    "add by factor": (lambda p, b, x: p.add(x, b.rms_norm(x, "attn_norm"), -0.25), {}),
    "no rope": (attention(None), {}),
    "yarn": (attention(YARN), FACTORS),
    "window": (attention(window=9), {}),
    "window of one": (attention(window=1), {}),
    "window over a chunk": (attention(window=67), {}),
    "score cap": (attention(softcap=2.0, scale=0.5), {}),
    "sinks": (attention(sinks="attn_sinks"), SINKS),
    "sinks and window": (attention(sinks="attn_sinks", window=20), SINKS),
    "both ways": (attention(causal=False), {}),
    "both ways in a window": (attention(causal=False, window=11), {}),
    "experts": (moe(), experts()),
    "experts, weights of all": (moe(chosen=False), experts()),
    "experts with biases": (moe(Activation.SWIGLU_CLAMPED), experts(bias=True)),
    "experts of 7": (moe(Activation.GELU, width=7), experts(width=7)),
    **{f"{f.name} gated": (activated(f, True), {}) for f in Activation},
    **{f.name: (activated(f, False), {}) for f in Activation if f is not Activation.SWIGLU_CLAMPED},
}


def planner(body: Body, end: Callable[[PlanBuilder, Value], Value] | None = None) -> Callable[[_core.Gguf], Plan]:
    def build(gguf: _core.Gguf) -> Plan:
        p = PlanBuilder(gguf, read(gguf, "llama"))
        x = body(p, p.scope("blk.0"), p.embed("token_embd"))
        if end is not None:
            end(p, x)
        else:
            p.logits(x, "output", scale=0.5, softcap=4.0)
        return p.finish(ignored=["*"])

    return build


def write(path: Path, extra: dict[str, Any], **kw: Any) -> Path:
    shape = {"n_embd": WIDTH, "n_head": HEADS, "n_kv": KV_HEADS, "head_dim": HEAD_DIM, "n_layer": 1}
    return write_tiny_llama(path, **shape | kw, extra=extra)


def compare(runner: Runner, path: Path, precision: str = "f32") -> None:
    """Each op on the core's own inputs."""
    oracle = planref.Oracle(runner.plan, path)
    tokens = some_tokens(N_TOKENS, runner.model.n_vocab)
    seen = runner.run_tapped(tokens)
    values, kinds = dict[int, np.ndarray](), [info.name for info in _core.ops()]
    for op in runner.plan.ops:
        made = oracle.apply(op, [values[i] for i in op.inputs], tokens, precision)
        for i, found, expected in zip(op.outputs, seen[op.name], made, strict=True):
            worst = np.abs(found - expected).max(axis=-1) / expected.std()
            rounded = precision == "fast" and kinds[op.kind] in ("linear", "logits", "moe")
            assert (worst > 3e-5).mean() <= (0.1 if rounded else 0), op.name
            assert worst.max() < 0.03, op.name
            values[i] = expected if kinds[op.kind] == "rope_table" else found.astype(np.float64)


@pytest.mark.parametrize("name", CASES)
def test_ops_compute_what_the_oracle_does(tmp_path: Path, name: str) -> None:
    body, tensors = CASES[name]
    path = write(tmp_path / "m.gguf", tensors)
    compare(Runner(path, build=planner(body)), path)


@pytest.mark.parametrize("kind", [f.name for f in _core.formats() if f.runs])
@pytest.mark.parametrize("precision", ["f32", "fast"])
def test_experts_of_every_format(tmp_path: Path, kind: str, precision: str) -> None:
    tensors = experts(kind, bias=True, width=256, d_model=256)
    path = write(tmp_path / "m.gguf", tensors, n_embd=256, n_ff=256)
    compare(Runner(path, build=planner(moe(width=256)), precision=precision), path, precision)


@pytest.mark.parametrize("precision", ["f32", "fast"])
@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_cuts_and_neighbours(tmp_path: Path, name: str, precision: str) -> None:
    body, tensors = CASES[name]
    path = write(tmp_path / "m.gguf", tensors, types="Q8_0")
    runner = Runner(path, build=planner(body), precision=precision, kv_type="f16", threads=2)
    tokens = some_tokens(N_TOKENS, runner.model.n_vocab)
    whole = runner.run(tokens)
    assert np.isfinite(whole).all()
    if runner.plan.causal:
        for cuts in ([1], [63, 64, 65], range(1, N_TOKENS)):
            assert np.array_equal(runner.run(tokens, cuts), whole)
    others = [some_tokens(n, runner.model.n_vocab, seed=n) for n in (3, 40)]
    used, sequences = 0, [others[0], tokens, others[1]]
    runner.fill(range(runner.n_pages))
    for slot, sequence in enumerate(sequences):
        n = runner.pages_for(len(sequence))
        runner.engine.set_pages(slot, 0, range(used, used + n))
        used += n
    found = runner.step([(slot, 0, len(s)) for slot, s in enumerate(sequences)], sequences)
    assert np.array_equal(found[1], whole)
    for other, rows in zip(others, (found[0], found[2]), strict=True):
        assert np.array_equal(runner.run(other), rows)


@pytest.mark.parametrize("pooling", Pooling)
def test_pooling(tmp_path: Path, pooling: Pooling) -> None:
    path = write(tmp_path / "m.gguf", {})
    build = planner(attention(causal=False), lambda p, x: p.pool(x, pooling))
    runner = Runner(path, build=build)
    assert runner.model.n_outputs == WIDTH
    compare(runner, path)
    tokens = some_tokens(40, runner.model.n_vocab)
    whole = runner.run(tokens)
    runner.engine.step([(0, 0, 40)], tokens, [39])
    assert np.array_equal(runner.engine.logits(), whole[-1:])


def test_an_encoder_takes_a_sequence_whole_and_has_so_many_positions(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {})
    runner = Runner(path, build=planner(attention(causal=False)))
    with pytest.raises(ValueError, match=r"slot 0: this model takes a sequence whole, not from position 4"):
        runner.run(some_tokens(8, 200), [4])
    body, tensors = CASES["embedding by position"]
    runner = Runner(write(tmp_path / "m.gguf", tensors), build=planner(body))
    runner.run(some_tokens(N_TOKENS + 3, 200))
    with pytest.raises(ValueError, match=rf"slot 0: position {N_TOKENS + 3}: the model has {N_TOKENS + 3}"):
        runner.run(some_tokens(N_TOKENS + 4, 200))


def test_a_nan_among_the_routers_scores_is_not_lost(tmp_path: Path) -> None:
    tensors = experts()
    tensors["blk.0.ffn_gate_inp.weight"][3, 5] = np.nan
    runner = Runner(write(tmp_path / "m.gguf", tensors), build=planner(moe()))
    assert np.isnan(runner.run(some_tokens(5, 200))).all()
