"""Qwen 3 with experts in every layer: 30B-A3B, 235B-A22B, Coder 30B-A3B. arXiv:2505.09388."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.models import experts
from pyedge.models.blocks import end
from pyedge.models.experts import Experts
from pyedge.models.hparams import HParams, read
from pyedge.models.keys import Keys
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("qwen3moe",)
IGNORED = ()


@dataclass(frozen=True)
class Qwen3MoeHParams(HParams):
    experts: Experts


def hparams(gguf: _core.Gguf, architecture: str) -> Qwen3MoeHParams:
    h = read(gguf, architecture, "expert_count")
    return Qwen3MoeHParams(**vars(h), experts=experts.read(Keys(gguf, architecture), h.d_ff))


def build(p: PlanBuilder, h: Qwen3MoeHParams) -> None:
    rope = h.rope(Pairing.HALVES)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        q = b.rope(b.rms_norm(q, "attn_q_norm", group=h.head_dim), rope)
        k = b.rope(b.rms_norm(k, "attn_k_norm", group=h.head_dim), rope)
        x = x + b.linear(b.attention(q, k, v), "attn_output")
        x = x + experts.moe(b, b.rms_norm(x, "ffn_norm"), h.experts)
    end(p, p.rms_norm(x, "output_norm"), h)
