"""StableLM 2 (and 3B): layer norms with biases, part of each head rotated.

arXiv:2402.17834. The 12B model norms every head of q and k by its own weights, and its feed-forward network reads what
attention reads (a parallel residual). Whether it does is told by the absence of ffn_norm: files that say
use_parallel_residual need not mean it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import ATTENTION, ENDS, GATED_FFN, NORMS, SILU, Checkpoint, layers
from pyedge.models.hparams import HParams, read
from pyedge.models.keys import Keys
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("stablelm",)
IGNORED = ()
_HEAD_NORMS = {
    "self_attn.q_layernorm.norms.{e}": "attn_q_norm",
    "self_attn.k_layernorm.norms.{e}": "attn_k_norm",
}
CHECKPOINTS = (
    Checkpoint(
        "stablelm",
        ("StableLmForCausalLM",),
        {**ENDS, **layers(ATTENTION, GATED_FFN, NORMS, _HEAD_NORMS)},
        defaults={"layer_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        computed=SILU,
        keys=lambda c: {"use_parallel_residual": c.flag("use_parallel_residual")},
    ),
)


@dataclass(frozen=True)
class StableLmHParams(HParams):
    parallel: bool
    qk_norm: bool


def hparams(gguf: _core.Gguf, architecture: str) -> StableLmHParams:
    h = read(gguf, architecture, "use_parallel_residual", eps="attention.layer_norm_epsilon")
    says_parallel = Keys(gguf, architecture).value("use_parallel_residual") is not False
    return StableLmHParams(
        **vars(h),
        parallel=says_parallel and gguf.tensor_index("blk.0.ffn_norm.weight") < 0,
        qk_norm=gguf.tensor_index("blk.0.attn_q_norm.weight") >= 0,
    )


def build(p: PlanBuilder, h: StableLmHParams) -> None:
    rope = h.rope(Pairing.HALVES)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        normed = b.layer_norm(x, "attn_norm")
        q, k, v = b.linear(normed, "attn_q", "attn_k", "attn_v")
        if h.qk_norm:
            q = b.layer_norm(q, "attn_q_norm", group=h.head_dim)
            k = b.layer_norm(k, "attn_k_norm", group=h.head_dim)
        x = x + b.linear(b.attention(b.rope(q, rope), b.rope(k, rope), v), "attn_output")
        x = x + gated_ffn(b, normed if h.parallel else b.layer_norm(x, "ffn_norm"), h)
    end(p, p.layer_norm(x, "output_norm"), h)
