"""Gemma 2: every second layer sees a window, scores and logits are soft-capped, and what a block adds is normed too.

arXiv:2408.00118. Norm weights of GGUF files have the 1 added that the checkpoints leave out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.hparams import HParams, read, windows
from pyedge.models.keys import Keys
from pyedge.models.plan import Activation, Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("gemma2",)
IGNORED = ()
_N_LAYERS_OF_27B = 46


@dataclass(frozen=True)
class Gemma2HParams(HParams):
    windows: tuple[int, ...]
    scale: float  # of scores
    softcap: float  # of scores
    logit_softcap: float


def query_scale(keys: Keys, h: HParams, n_layers_of_27b: int) -> float:
    """Files do not say it: the largest model divides by the width that heads would have if they filled d_model."""
    heads_fill = h.n_layers == n_layers_of_27b
    default = 1.0 / math.sqrt(h.d_model / h.n_heads if heads_fill else h.head_dim)
    return keys.number("attention.scale", 0.0, 1e6, default=default)


def hparams(gguf: _core.Gguf, architecture: str) -> Gemma2HParams:
    h = read(
        *(gguf, architecture, "attention.sliding_window", "attention.scale"),
        *("attn_logit_softcapping", "final_logit_softcapping"),
    )
    keys = Keys(gguf, architecture)
    return Gemma2HParams(
        **vars(h),
        windows=windows(keys, h.n_layers, period=2, default=4096),
        scale=query_scale(keys, h, _N_LAYERS_OF_27B),
        softcap=keys.number("attn_logit_softcapping", 0.0, 1e6, default=50.0),
        logit_softcap=keys.number("final_logit_softcapping", 0.0, 1e6, default=30.0),
    )


def build(p: PlanBuilder, h: Gemma2HParams) -> None:
    rope = h.rope(Pairing.HALVES)
    x = p.scale(p.embed("token_embd"), math.sqrt(h.d_model))
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        attended = b.attention(b.rope(q, rope), b.rope(k, rope), v, h.scale, window=h.windows[i], softcap=h.softcap)
        x = x + b.rms_norm(b.linear(attended, "attn_output"), "post_attention_norm")
        ffn = gated_ffn(b, b.rms_norm(x, "ffn_norm"), h, Activation.GELU_TANH)
        x = x + b.rms_norm(ffn, "post_ffw_norm")
    end(p, p.rms_norm(x, "output_norm"), h, softcap=h.logit_softcap)
