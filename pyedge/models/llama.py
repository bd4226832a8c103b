"""The llama family: Llama 1 to 3, SmolLM2, Mistral and the many models converted as `llama`.

Llama 2: arXiv:2307.09288; Llama 3: arXiv:2407.21783; Mistral: arXiv:2310.06825. GGUF files of this family hold q and k
with their rows permuted so that rope pairs neighbouring dims, whatever the checkpoint did. Llama 3's rope scaling comes
as the tensor rope_freqs.weight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyedge.errors import ModelError
from pyedge.models.hparams import HParams, Keys, read
from pyedge.models.plan import Activation, Pairing, PlanBuilder, Rope

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("llama",)
IGNORED = ("blk.*.attn_rot_embd.weight",)  # early files: the plain inverse frequencies, which rope computes anyway


def hparams(gguf: _core.Gguf, architecture: str) -> HParams:
    h = read(gguf, architecture)
    keys = Keys(gguf, architecture)
    router = next((t.name for t in gguf.tensors if t.name.endswith(".ffn_gate_inp.weight")), None)
    if router is not None or keys.integer("expert_count", 0, 2**16, default=0) > 0:
        where = router or keys.full("expert_count")
        raise ModelError(f"{where}: this is a mixture-of-experts model, which is not supported yet")
    # Within the window of Mistral 7B v0.1 plain causal attention is the same thing; past it, it would not be.
    window = keys.integer("attention.sliding_window", 0, 2**30, default=0)
    return replace(h, context_length=min(h.context_length, window)) if window else h


def build(p: PlanBuilder, h: HParams) -> None:
    rope = Rope(h.head_dim, h.n_rot, h.rope_base, h.rope_scale, factors="rope_freqs", pairing=Pairing.INTERLEAVED)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        x = x + b.linear(b.attention(b.rope(q, rope), b.rope(k, rope), v), "attn_output")
        gate, up = b.linear(b.rms_norm(x, "ffn_norm"), "ffn_gate", "ffn_up")
        b.require(gate, h.d_ff, "feed_forward_length")
        x = x + b.linear(p.activation(Activation.SILU, gate, up), "ffn_down")
    p.logits(p.rms_norm(x, "output_norm"), "output", tied="token_embd")
