"""Gemma 2: every second layer sees a window, scores and logits are soft-capped, and what a block adds is normed too.

arXiv:2408.00118. Norm weights of GGUF files have the 1 added that the checkpoints leave out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import ATTENTION, GATED_FFN, Checkpoint, Config, layers, plus_one
from pyedge.models.hparams import HParams, read, windows
from pyedge.models.keys import Keys
from pyedge.models.plan import Activation, Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("gemma2",)
IGNORED = ()
_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_N_LAYERS_OF_27B = 46
GELU = {"hidden_activation": ("gelu_pytorch_tanh",)}


def names(**more: str) -> dict[str, Any]:
    """Of Gemma's checkpoints. more: norms that not all of them have."""
    ends = {"model.embed_tokens": "token_embd", **plus_one({"model.norm": "output_norm"}), "lm_head": "output"}
    return {**ends, **layers(ATTENTION, GATED_FFN, plus_one({**_NORMS, **more}))}


def checkpoint_scale(c: Config, n_layers_of_27b: int) -> dict[str, float]:
    """The scale of scores, where it is not what a file means that says nothing."""
    scalar = c.number("query_pre_attn_scalar")
    if scalar <= 0:
        raise c.fail("query_pre_attn_scalar", scalar, "above 0")
    heads_fill = c.integer("num_hidden_layers") == n_layers_of_27b
    assumed = c.integer("hidden_size") / max(c.integer("num_attention_heads"), 1) if heads_fill else float(c.head_dim)
    return {} if scalar == assumed else {"attention.scale": 1.0 / math.sqrt(scalar)}


def _keys(c: Config) -> dict[str, Any]:
    caps = {name: c.number(name) for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    return {**checkpoint_scale(c, _N_LAYERS_OF_27B), **caps}


CHECKPOINTS = (
    Checkpoint(
        "gemma2",
        ("Gemma2ForCausalLM",),
        names(),
        defaults={
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
            "tie_word_embeddings": True,
        },
        computed=GELU,
        keys=_keys,
        windows=2,
    ),
)
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
