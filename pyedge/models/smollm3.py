"""SmolLM3: llama's blocks, but every fourth layer has no positions (NoPE). Yang et al. 2025, arXiv:2501.18795."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import (
    ENDS,
    FULL_ATTENTION,
    GATED_FFN,
    INTERLEAVED,
    NORMS,
    SILU,
    Checkpoint,
    Config,
    layers,
)
from pyedge.models.hparams import HParams, read
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("smollm3",)
IGNORED = ()
_PERIOD = 4  # of layers, the last one without positions; files do not say it


def _keys(c: Config) -> dict[str, Any]:
    rotated = c.value("no_rope_layers")  # 1 where there are positions
    period = [int(i % _PERIOD != _PERIOD - 1) for i in range(c.integer("num_hidden_layers"))]
    if rotated is not None and rotated != period:
        raise c.fail("no_rope_layers", rotated, f"every fourth, as files of {ARCHITECTURES[0]} have it")
    return {}


CHECKPOINTS = (
    Checkpoint(
        "smollm3",
        ("SmolLM3ForCausalLM",),
        {**ENDS, **layers(INTERLEAVED, GATED_FFN, NORMS)},
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 2e6, "tie_word_embeddings": True},
        computed={**SILU, **FULL_ATTENTION, "no_rope_layer_interval": (_PERIOD,)},
        keys=_keys,
    ),
)


def hparams(gguf: _core.Gguf, architecture: str) -> HParams:
    return read(gguf, architecture)


def build(p: PlanBuilder, h: HParams) -> None:
    rope = h.rope(Pairing.INTERLEAVED)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        if i % _PERIOD != _PERIOD - 1:
            q, k = b.rope(q, rope), b.rope(k, rope)
        x = x + b.linear(b.attention(q, k, v), "attn_output")
        x = x + gated_ffn(b, b.rms_norm(x, "ffn_norm"), h)
    end(p, p.rms_norm(x, "output_norm"), h)
