"""EmbeddingGemma: Gemma 3, in which a token sees the whole text or, in most layers, so many tokens on either side.

arXiv:2509.20354. The mean of all tokens goes through two linear layers. Here they stand before the mean, which is the
same, since they are linear: the last op of a plan that embeds is the pooling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyedge.models import gemma3
from pyedge.models.checkpoint import Checkpoint
from pyedge.models.gemma3 import Gemma3HParams
from pyedge.models.plan import PlanBuilder, Pooling

if TYPE_CHECKING:
    from pyedge import _core

ARCHITECTURES = ("gemma-embedding",)
IGNORED = ()
_DENSE = ("dense_2", "dense_3")
CHECKPOINTS = (
    Checkpoint(
        "gemma-embedding",
        ("Gemma3TextModel",),
        {**gemma3.NAMES, "2_Dense.linear": "dense_2", "3_Dense.linear": "dense_3"},
        defaults=gemma3.DEFAULTS,
        computed={**gemma3.COMPUTED, "use_bidirectional_attention": (True,)},
        keys=gemma3.keys,
        windows=6,
        sized=_DENSE,
    ),
)


@dataclass(frozen=True)
class GemmaEmbeddingHParams(Gemma3HParams):
    dense: tuple[str, ...]  # the linear layers, where the file has them


def hparams(gguf: _core.Gguf, architecture: str) -> GemmaEmbeddingHParams:
    h = gemma3.hparams(gguf, architecture, "attention.causal")
    pooling = Pooling.MEAN if h.pooling is None else h.pooling
    # The file counts the tokens on both sides together, without the one they are seen from.
    h = replace(h, windows=tuple(n // 2 + 1 if n else 0 for n in h.windows), pooling=pooling)
    has_dense = any(gguf.tensor_index(f"{name}.weight") >= 0 for name in _DENSE)
    return GemmaEmbeddingHParams(**vars(h), dense=_DENSE if has_dense else ())


def build(p: PlanBuilder, h: GemmaEmbeddingHParams) -> None:
    assert h.pooling is not None
    x = gemma3.body(p, h, causal=False)
    for name in h.dense:
        x = p.linear(x, name)
    p.pool(x, h.pooling)
