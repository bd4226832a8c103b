"""gpt-oss 20B and 120B: sinks, windows, and experts in every layer.

arXiv:2508.10925. Every other layer, from the first on, sees a window only, and each head has a sink. The experts,
usually in MXFP4, have biases and a clamped activation. Its YaRN leaves the ends of the ramp between dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.models import experts
from pyedge.models.blocks import end
from pyedge.models.checkpoint import ATTENTION, ENDS, SILU, Checkpoint, layers
from pyedge.models.experts import Experts
from pyedge.models.hparams import HParams, read, windows
from pyedge.models.keys import Keys
from pyedge.models.plan import Activation, Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("gpt-oss",)
IGNORED = ()
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
CHECKPOINTS = (
    Checkpoint(
        "gpt-oss",
        ("GptOssForCausalLM",),
        {**ENDS, **layers(ATTENTION, {"self_attn.sinks": "attn_sinks.weight"}, experts.GPT_OSS, _NORMS)},
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 150000.0, "head_dim": 64, "sliding_window": 128},
        computed={**SILU, "swiglu_limit": (7.0,), "swiglu_alpha": (1.702,)},
        keys=lambda c: {**experts.keys(c), "expert_feed_forward_length": c.integer("intermediate_size")},
        windows=2,
        yarn_truncates=False,
    ),
)


@dataclass(frozen=True)
class GptOssHParams(HParams):
    experts: Experts
    windows: tuple[int, ...]  # of each layer; 0: none


def hparams(gguf: _core.Gguf, architecture: str) -> GptOssHParams:
    h, keys = read(gguf, architecture, "expert_count", "attention.sliding_window"), Keys(gguf, architecture)
    return GptOssHParams(
        **vars(h), experts=experts.read(keys, h.d_ff), windows=windows(keys, h.n_layers, period=2, default=128)
    )


def build(p: PlanBuilder, h: GptOssHParams) -> None:
    rope = h.rope(Pairing.HALVES, truncate=False)
    x = p.embed("token_embd")
    for i, window in enumerate(h.windows):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        seen = b.attention(b.rope(q, rope), b.rope(k, rope), v, window=window, sinks="attn_sinks")
        x = x + b.linear(seen, "attn_output")
        x = x + experts.moe(b, b.rms_norm(x, "post_attention_norm"), h.experts, Activation.SWIGLU_CLAMPED)
    end(p, p.rms_norm(x, "output_norm"), h)
