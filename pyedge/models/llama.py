"""The llama family: Llama 1 to 3, SmolLM2, Mistral and the many models converted as `llama`.

Llama 2: arXiv:2307.09288; Llama 3: arXiv:2407.21783; Mistral: arXiv:2310.06825. GGUF files of this family hold q and k
with their rows permuted so that rope pairs neighbouring dims, whatever the checkpoint did. Llama 3's rope scaling comes
as the tensor rope_freqs.weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.errors import ModelError
from pyedge.models.blocks import end, gated_ffn
from pyedge.models.hparams import HParams, read, windows
from pyedge.models.keys import Keys
from pyedge.models.plan import Pairing, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("llama",)
IGNORED = ("blk.*.attn_rot_embd.weight",)  # early files: the plain inverse frequencies, which rope computes anyway


@dataclass(frozen=True)
class LlamaHParams(HParams):
    windows: tuple[int, ...]


def hparams(gguf: _core.Gguf, architecture: str) -> LlamaHParams:
    h = read(gguf, architecture, "expert_count", "attention.sliding_window")
    keys = Keys(gguf, architecture)
    router = next((t.name for t in gguf.tensors if t.name.endswith(".ffn_gate_inp.weight")), None)
    if router is not None or keys.integer("expert_count", 0, 2**16, default=0) > 0:
        where = router or keys.full("expert_count")
        raise ModelError(f"{where}: this is a mixture-of-experts model, which is not supported yet")
    return LlamaHParams(**vars(h), windows=windows(keys, h.n_layers, period=0))


def build(p: PlanBuilder, h: LlamaHParams) -> None:
    rope = h.rope(Pairing.INTERLEAVED)
    x = p.embed("token_embd")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = b.linear(b.rms_norm(x, "attn_norm"), "attn_q", "attn_k", "attn_v")
        attended = b.attention(b.rope(q, rope), b.rope(k, rope), v, window=h.windows[i])
        x = x + b.linear(attended, "attn_output")
        x = x + gated_ffn(b, b.rms_norm(x, "ffn_norm"), h)
    end(p, p.rms_norm(x, "output_norm"), h)
