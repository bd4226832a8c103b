"""OLMo 2 and 3: what a block adds is normed, not what it reads, and so are whole rows of q and k.

OLMo 2: arXiv:2501.00656. OLMo 3 comes under the same name, with a window in three layers of four, where the file's rope
scaling does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import ATTENTION, ENDS, GATED_FFN, QK_NORMS, SILU, Checkpoint, layers
from pyedge.models.hparams import HParams, read, windows
from pyedge.models.keys import Keys
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("olmo2",)
IGNORED = ()
_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_NAMES = {**ENDS, **layers(ATTENTION, QK_NORMS, GATED_FFN, _NORMS)}
CHECKPOINTS = (
    Checkpoint(
        "olmo2",
        ("Olmo2ForCausalLM",),
        _NAMES,
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0},
        computed=SILU,
    ),
    Checkpoint(
        "olmo2",
        ("Olmo3ForCausalLM",),
        _NAMES,
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096},
        computed=SILU,
        windows=4,
    ),
)


@dataclass(frozen=True)
class Olmo2HParams(HParams):
    windows: tuple[int, ...]
    local_base: float  # of rope in layers with a window


def hparams(gguf: _core.Gguf, architecture: str) -> Olmo2HParams:
    h = read(gguf, architecture, "attention.sliding_window", "rope.freq_base_swa")
    keys = Keys(gguf, architecture)
    return Olmo2HParams(
        **vars(h),
        windows=windows(keys, h.n_layers, period=4),
        local_base=keys.number("rope.freq_base_swa", 0.0, 1e12, default=h.rotary.base),
    )


def build(p: PlanBuilder, h: Olmo2HParams) -> None:
    everywhere = h.rope(Pairing.HALVES)
    local = h.rope(Pairing.HALVES, base=h.local_base, scaled=False)
    x = p.embed("token_embd")
    for i, window in enumerate(h.windows):
        b, rope = p.scope(f"blk.{i}"), local if window else everywhere
        q, k, v = b.linear(x, "attn_q", "attn_k", "attn_v")
        q, k = b.rope(b.rms_norm(q, "attn_q_norm"), rope), b.rope(b.rms_norm(k, "attn_k_norm"), rope)
        attended = b.linear(b.attention(q, k, v, window=window), "attn_output")
        x = x + b.rms_norm(attended, "post_attention_norm")
        x = x + b.rms_norm(gated_ffn(b, x, h), "post_ffw_norm")
    end(p, p.rms_norm(x, "output_norm"), h)
