"""Qwen 2 and 2.5: llama's blocks with biases on q, k and v. arXiv:2407.10671, arXiv:2412.15115."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import ATTENTION, ENDS, FULL_ATTENTION, GATED_FFN, NORMS, SILU, Checkpoint, layers
from pyedge.models.hparams import HParams, read
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("qwen2",)
IGNORED = ()
CHECKPOINTS = (
    Checkpoint(
        "qwen2",
        ("Qwen2ForCausalLM",),
        {**ENDS, **layers(ATTENTION, GATED_FFN, NORMS)},
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0},
        computed={**SILU, **FULL_ATTENTION},
    ),
)


def hparams(gguf: _core.Gguf, architecture: str) -> HParams:
    return read(gguf, architecture)


def build(p: PlanBuilder, h: HParams) -> None:
    rope = h.rope(Pairing.HALVES)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        x = x + b.linear(b.attention(b.rope(q, rope), b.rope(k, rope), v), "attn_output")
        x = x + gated_ffn(b, b.rms_norm(x, "ffn_norm"), h)
    end(p, p.rms_norm(x, "output_norm"), h)
