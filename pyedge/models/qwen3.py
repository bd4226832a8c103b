"""Qwen 3, and Qwen 3 Embedding (whose files say how they pool): a norm over each head of q and k. arXiv:2505.09388."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.hparams import HParams, read
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("qwen3",)
IGNORED = ()


def hparams(gguf: _core.Gguf, architecture: str) -> HParams:
    return read(gguf, architecture)


def build(p: PlanBuilder, h: HParams) -> None:
    rope = h.rope(Pairing.HALVES)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        q = b.rope(b.rms_norm(q, "attn_q_norm", group=h.head_dim), rope)
        k = b.rope(b.rms_norm(k, "attn_k_norm", group=h.head_dim), rope)
        x = x + b.linear(b.attention(q, k, v), "attn_output")
        x = x + gated_ffn(b, b.rms_norm(x, "ffn_norm"), h)
    end(p, p.rms_norm(x, "output_norm"), h)
