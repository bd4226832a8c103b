"""Qwen 3: a norm over each head of q and k, and with `qwen3moe` (30B-A3B, 235B-A22B) experts in every layer.

arXiv:2505.09388. Files of Qwen 3 Embedding say how they pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.models import experts
from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import (
    ATTENTION,
    ENDS,
    FULL_ATTENTION,
    GATED_FFN,
    NORMS,
    QK_NORMS,
    SILU,
    Checkpoint,
    layers,
)
from pyedge.models.experts import Experts
from pyedge.models.hparams import HParams, read
from pyedge.models.keys import Keys
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("qwen3", "qwen3moe")
IGNORED = ()
CHECKPOINTS = (
    Checkpoint(
        "qwen3",
        ("Qwen3ForCausalLM", "Qwen3Model"),
        {**ENDS, **layers(ATTENTION, QK_NORMS, GATED_FFN, NORMS)},
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "head_dim": 128},
        computed={**SILU, **FULL_ATTENTION},
    ),
    Checkpoint(
        "qwen3moe",
        ("Qwen3MoeForCausalLM",),
        {**ENDS, **layers(ATTENTION, QK_NORMS, experts.QWEN, NORMS)},
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "norm_topk_prob": False},
        computed={
            **SILU,
            **FULL_ATTENTION,
            "norm_topk_prob": (True,),
            "decoder_sparse_step": (1,),
            "mlp_only_layers": ([],),
        },
        keys=lambda c: {**experts.keys(c), "expert_feed_forward_length": c.integer("moe_intermediate_size")},
    ),
)


@dataclass(frozen=True)
class Qwen3HParams(HParams):
    experts: Experts | None


def hparams(gguf: _core.Gguf, architecture: str) -> Qwen3HParams:
    if architecture == "qwen3":
        return Qwen3HParams(**vars(read(gguf, architecture)), experts=None)
    h = read(gguf, architecture, "expert_count")
    return Qwen3HParams(**vars(h), experts=experts.read(Keys(gguf, architecture), h.d_ff))


def build(p: PlanBuilder, h: Qwen3HParams) -> None:
    rope = h.rope(Pairing.HALVES)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        q = b.rope(b.rms_norm(q, "attn_q_norm", group=h.head_dim), rope)
        k = b.rope(b.rms_norm(k, "attn_k_norm", group=h.head_dim), rope)
        x = x + b.linear(b.attention(q, k, v), "attn_output")
        normed = b.rms_norm(x, "ffn_norm")
        x = x + (gated_ffn(b, normed, h) if h.experts is None else experts.moe(b, normed, h.experts))
    end(p, p.rms_norm(x, "output_norm"), h)
