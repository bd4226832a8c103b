"""Granite 3 and 4 (dense): llama's blocks with four multipliers.

They scale the embedding, the attention scores, what each block adds, and (as a divisor) the logits; the maximal update
parametrization: Yang et al. 2022, arXiv:2203.03466.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import ENDS, GATED_FFN, INTERLEAVED, NORMS, SILU, Checkpoint, Config, layers
from pyedge.models.hparams import HParams, read
from pyedge.models.keys import Keys
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("granite",)
IGNORED = ()
_MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def _keys(c: Config) -> dict[str, float]:
    return {key: c.number(name, default=1.0) for key, name in _MULTIPLIERS.items()}


CHECKPOINTS = (
    Checkpoint(
        "granite",
        ("GraniteForCausalLM",),
        {**ENDS, **layers(INTERLEAVED, GATED_FFN, NORMS)},
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0},
        computed=SILU,
        keys=_keys,
    ),
)


@dataclass(frozen=True)
class GraniteHParams(HParams):
    embedding_scale: float
    attention_scale: float | None  # None: by the width of a head
    residual_scale: float
    logit_scale: float


def hparams(gguf: _core.Gguf, architecture: str) -> GraniteHParams:
    h = read(gguf, architecture, "attention.scale", "embedding_scale", "residual_scale", "logit_scale")
    keys = Keys(gguf, architecture)
    if keys.value("rope.scaling.finetuned") is False:  # how converters spell it
        raise keys.lacks("rope.scaling.finetuned", False, "says that nothing is rotated, which is not supported")
    attention = keys.multiplier("attention.scale", none=0.0)
    return GraniteHParams(
        **vars(h),
        embedding_scale=keys.multiplier("embedding_scale"),
        attention_scale=attention or None,
        residual_scale=keys.multiplier("residual_scale"),
        logit_scale=1.0 / keys.multiplier("logit_scale"),
    )


def build(p: PlanBuilder, h: GraniteHParams) -> None:
    rope = h.rope(Pairing.INTERLEAVED)
    x = p.scale(p.embed("token_embd"), h.embedding_scale)
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        attended = b.attention(b.rope(q, rope), b.rope(k, rope), v, h.attention_scale)
        x = p.add(x, b.linear(attended, "attn_output"), h.residual_scale)
        x = p.add(x, gated_ffn(b, b.rms_norm(x, "ffn_norm"), h), h.residual_scale)
    end(p, p.rms_norm(x, "output_norm"), h, scale=h.logit_scale)
