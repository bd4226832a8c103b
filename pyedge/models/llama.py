"""The llama family: Llama 1 to 3, SmolLM2, Mistral, Mixtral and the many models converted as `llama`.

Llama 2: arXiv:2307.09288; Llama 3: arXiv:2407.21783; Mistral: arXiv:2310.06825; Mixtral, which has experts:
arXiv:2401.04088. GGUF files of this family hold q and k with their rows permuted so that rope pairs neighbouring dims,
whatever the checkpoint did. Llama 3's rope scaling comes as the tensor rope_freqs.weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.errors import ModelError
from pyedge.models import experts
from pyedge.models.blocks import end, gated_ffn
from pyedge.models.checkpoint import ENDS, GATED_FFN, INTERLEAVED, NORMS, SILU, Checkpoint, layers
from pyedge.models.experts import Experts
from pyedge.models.hparams import HParams, read, windows
from pyedge.models.keys import CONVERT, Keys
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("llama",)
IGNORED = ("blk.*.attn_rot_embd.weight",)  # early files: the plain inverse frequencies, which rope computes anyway
CHECKPOINTS = (
    Checkpoint(
        "llama",
        ("LlamaForCausalLM", "MistralForCausalLM"),
        {**ENDS, **layers(INTERLEAVED, GATED_FFN, NORMS)},
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 10000.0},
        computed=SILU,
        windows=0,
    ),
    Checkpoint(
        "llama",
        ("MixtralForCausalLM",),
        {**ENDS, **layers(INTERLEAVED, experts.MIXTRAL, NORMS)},
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6},
        computed=SILU,
        keys=experts.keys,
        windows=0,
    ),
)


@dataclass(frozen=True)
class LlamaHParams(HParams):
    windows: tuple[int, ...]
    experts: Experts | None


def hparams(gguf: _core.Gguf, architecture: str) -> LlamaHParams:
    h = read(gguf, architecture, "expert_count", "attention.sliding_window")
    keys = Keys(gguf, architecture)
    if gguf.tensor_index("blk.0.ffn_gate.0.weight") >= 0:
        raise ModelError(
            f"blk.0.ffn_gate.0.weight: experts in tensors of their own, as files of 2023 have them; {CONVERT}"
        )
    return LlamaHParams(
        **vars(h),
        windows=windows(keys, h.n_layers, period=0),
        experts=experts.read(keys, h.d_ff) if keys.value("expert_count") else None,
    )


def build(p: PlanBuilder, h: LlamaHParams) -> None:
    rope = h.rope(Pairing.INTERLEAVED)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        attended = b.attention(b.rope(q, rope), b.rope(k, rope), v, window=h.windows[i])
        x = x + b.linear(attended, "attn_output")
        normed = b.rms_norm(x, "ffn_norm")
        x = x + (gated_ffn(b, normed, h) if h.experts is None else experts.moe(b, normed, h.experts))
    end(p, p.rms_norm(x, "output_norm"), h)
