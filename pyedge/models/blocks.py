"""What several families have in the same form: the gated feed-forward network, and the end of a plan.

Does not own: where norms and residuals go, which is what families differ in.
"""

from __future__ import annotations

from pyedge.models.hparams import HParams
from pyedge.models.plan import Activation, PlanBuilder, Value


def gated_ffn(b: PlanBuilder, x: Value, h: HParams, function: Activation = Activation.SILU) -> Value:
    """down(f(gate x) * up x)                                   Shazeer 2020, arXiv:2002.05202"""
    gate, up = b.linear(x, "ffn_gate", "ffn_up")
    b.require(gate, h.d_ff, "feed_forward_length")
    return b.linear(b.activation(function, gate, up), "ffn_down")


def end(p: PlanBuilder, x: Value, h: HParams, *, scale: float = 1.0, softcap: float = 0.0) -> None:
    """Logits of the normed x, or its pooled rows where the file holds a model that embeds."""
    if h.pooling is not None:
        p.pool(x, h.pooling)
    else:
        p.logits(x, "output", tied="token_embd", scale=scale, softcap=softcap)
