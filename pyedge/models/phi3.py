"""Phi 3, 3.5 and 4: q, k and v in one weight, gate and up in another, and long contexts by two sets of rope factors.

arXiv:2404.14219, arXiv:2412.08905. Part of a head may be rotated (Phi 4 mini).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyedge.models.blocks import end
from pyedge.models.checkpoint import ENDS, NORMS, SILU, Checkpoint, Config, layers
from pyedge.models.hparams import HParams, read, windows
from pyedge.models.keys import Keys
from pyedge.models.plan import Activation, Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("phi3",)
IGNORED = ()
_FUSED = {
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _keys(c: Config) -> dict[str, Any]:
    """A window of 0 tells Phi 4 from the others, which have one where nothing is said."""
    window = c.integer("sliding_window", default=0)
    original = c.integer("original_max_position_embeddings", default=c.integer("max_position_embeddings"))
    return {"attention.sliding_window": window, "rope.scaling.original_context_length": original}


CHECKPOINTS = (
    Checkpoint(
        "phi3",
        ("Phi3ForCausalLM",),
        {**ENDS, **layers(_FUSED, NORMS)},
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4096},
        computed=SILU,
        keys=_keys,
        windows=0,
    ),
)


@dataclass(frozen=True)
class Phi3HParams(HParams):
    windows: tuple[int, ...]


def hparams(gguf: _core.Gguf, architecture: str) -> Phi3HParams:
    h = read(gguf, architecture, "attention.sliding_window")
    return Phi3HParams(**vars(h), windows=windows(Keys(gguf, architecture), h.n_layers, period=0))


def build(p: PlanBuilder, h: Phi3HParams) -> None:
    rope = h.rope(Pairing.HALVES)
    n_q, n_kv = h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim
    x = p.embed("token_embd")
    for i, window in enumerate(h.windows):
        b = p.scope(f"blk.{i}")
        qkv = b.linear(b.rms_norm(x, "attn_norm"), "attn_qkv")
        q, k, v = b.split(qkv, attn_q=n_q, attn_k=n_kv, attn_v=n_kv)
        x = x + b.linear(b.attention(b.rope(q, rope), b.rope(k, rope), v, window=window), "attn_output")
        gate, up = b.split(b.linear(b.rms_norm(x, "ffn_norm"), "ffn_up"), ffn_gate=h.d_ff, ffn_up=h.d_ff)
        x = x + b.linear(b.activation(Activation.SILU, gate, up), "ffn_down")
    end(p, p.rms_norm(x, "output_norm"), h)
