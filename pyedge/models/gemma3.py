"""Gemma 3: five layers of six see a window and rotate by a base of their own; q and k are normed by heads.

arXiv:2503.19786. The file's rope scaling concerns the layers without a window only. Norm weights of GGUF files have the
1 added that the checkpoints leave out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import Checkpoint, Config
from pyedge.models.gemma2 import GELU, checkpoint_scale, names, query_scale
from pyedge.models.hparams import HParams, read, windows
from pyedge.models.keys import Keys
from pyedge.models.plan import Activation, Pairing, PlanBuilder, Value

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("gemma3",)
IGNORED = ()
_N_LAYERS_OF_27B = 62
DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
NAMES = names(**{"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"})
COMPUTED = {**GELU, "attn_logit_softcapping": (0,)}


def keys(c: Config) -> dict[str, Any]:
    """Those of a config."""
    cap = c.number("final_logit_softcapping", default=0.0)
    return {**checkpoint_scale(c, _N_LAYERS_OF_27B), **({"final_logit_softcapping": cap} if cap else {})}


CHECKPOINTS = (
    Checkpoint(
        "gemma3",
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        NAMES,
        defaults=DEFAULTS,
        computed={**COMPUTED, "use_bidirectional_attention": (False,)},
        keys=keys,
        windows=6,
        prefixes=("language_model.", "model.language_model."),
        ignored=("*vision_tower.*", "*multi_modal_projector.*"),
    ),
)
_N_LAYERS_OF_27B = 62


@dataclass(frozen=True)
class Gemma3HParams(HParams):
    windows: tuple[int, ...]
    local_base: float  # of rope in layers with a window
    scale: float  # of scores
    logit_softcap: float


def hparams(gguf: _core.Gguf, architecture: str, *handled: str) -> Gemma3HParams:
    own = ("attention.sliding_window", "attention.scale", "rope.freq_base_swa", "final_logit_softcapping")
    h = read(gguf, architecture, *own, *handled)
    keys = Keys(gguf, architecture)
    return Gemma3HParams(
        **vars(h),
        windows=windows(keys, h.n_layers, period=6),
        local_base=keys.number("rope.freq_base_swa", 0.0, 1e12, default=10000.0),
        scale=query_scale(keys, h, _N_LAYERS_OF_27B),
        logit_softcap=keys.multiplier("final_logit_softcapping", none=0.0),
    )


def body(p: PlanBuilder, h: Gemma3HParams, *, causal: bool) -> Value:
    """All layers, and the norm behind them."""
    everywhere = h.rope(Pairing.HALVES)
    local = h.rope(Pairing.HALVES, base=h.local_base, scaled=False)
    x = p.scale(p.embed("token_embd"), math.sqrt(h.d_model))
    for i, window in enumerate(h.windows):
        b, rope = p.scope(f"blk.{i}"), local if window else everywhere
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        q = b.rope(b.rms_norm(q, "attn_q_norm", group=h.head_dim), rope)
        k = b.rope(b.rms_norm(k, "attn_k_norm", group=h.head_dim), rope)
        attended = b.linear(b.attention(q, k, v, h.scale, causal=causal, window=window), "attn_output")
        x = x + b.rms_norm(attended, "post_attention_norm")
        ffn = gated_ffn(b, b.rms_norm(x, "ffn_norm"), h, Activation.GELU_TANH)
        x = x + b.rms_norm(ffn, "post_ffw_norm")
    return p.rms_norm(x, "output_norm")


def build(p: PlanBuilder, h: Gemma3HParams) -> None:
    end(p, body(p, h, causal=True), h, softcap=h.logit_softcap)
