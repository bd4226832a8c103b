"""Encoders that embed texts: `bert` (MiniLM, bge, e5, gte) and `nomic-bert` (nomic-embed-text v1 and v1.5).

BERT: arXiv:1810.04805; RoBERTa, which counts positions otherwise, and XLM-R (bge-m3, multilingual e5):
arXiv:1907.11692, 1911.02116; Nomic Embed: arXiv:2402.01613. A token sees the whole text, and norms stand behind the
sums. BERT has biases and learned positions; Nomic's rotates queries and keys, and gates its feed-forward network.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyedge.models.blocks import gated_ffn
from pyedge.models.checkpoint import Checkpoint, Config, Names, To, layers
from pyedge.models.hparams import HParams, read
from pyedge.models.keys import Keys
from pyedge.models.plan import Activation, Index, Pairing, PlanBuilder, Pooling, Value

if TYPE_CHECKING:
    from pyedge import _core

log = logging.getLogger("pyedge.models")

ARCHITECTURES = ("bert", "nomic-bert")
IGNORED = ()
_EMBEDDINGS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.token_type_embeddings": "token_types",
}
_BERT = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_NOMIC = {
    "attn.Wqkv": "attn_qkv",
    "attn.out_proj": "attn_output",
    "norm1": "attn_output_norm",
    "norm2": "layer_output_norm",
    "mlp.fc11": "ffn_up",
    "mlp.fc12": "ffn_gate",
    "mlp.fc2": "ffn_down",
}


_POSITIONS = "embeddings.position_embeddings"
_NAMES: Names = {
    **_EMBEDDINGS,
    _POSITIONS: "position_embd",
    "embeddings.LayerNorm": "token_embd_norm",
    **layers(_BERT, prefix="encoder.layer"),
}
_COMPUTED = {"hidden_act": ("gelu",), "position_embedding_type": ("absolute",), "is_decoder": (False,)}
_HEADS = ("embeddings.position_ids", "pooler.*", "cls.*", "lm_head.*")
_PAD = 1  # RoBERTa's: positions are counted from the next number on


def _keys(c: Config) -> dict[str, Any]:
    """A config may give a number of heads of k and v, which no BERT heeds."""
    return {"attention.causal": False, "attention.head_count_kv": c.integer("num_attention_heads", "n_head")}


def _roberta_keys(c: Config) -> dict[str, Any]:
    return {**_keys(c), "context_length": max(c.integer("max_position_embeddings") - _PAD - 1, 0)}


CHECKPOINTS = (
    Checkpoint(
        "bert",
        ("BertModel", "BertForMaskedLM"),
        _NAMES,
        defaults={"layer_norm_eps": 1e-12},
        computed=_COMPUTED,
        keys=_keys,
        prefixes=("bert.",),
        ignored=_HEADS,
    ),
    Checkpoint(
        "bert",
        ("XLMRobertaModel", "XLMRobertaForMaskedLM", "RobertaModel", "RobertaForMaskedLM"),
        {**_NAMES, _POSITIONS: To("position_embd", rows=(_PAD + 1, 1))},
        defaults={"layer_norm_eps": 1e-12, "pad_token_id": _PAD},
        computed={**_COMPUTED, "pad_token_id": (_PAD,)},
        keys=_roberta_keys,
        prefixes=("roberta.",),
        ignored=_HEADS,
    ),
    Checkpoint(
        "nomic-bert",
        ("NomicBertModel",),
        {**_EMBEDDINGS, "emb_ln": "token_embd_norm", **layers(_NOMIC, prefix="encoder.layers")},
        defaults={"layer_norm_eps": 1e-12, "rope_theta": 1000.0},
        computed={
            "hidden_act": ("silu",),
            "activation_function": ("swiglu",),
            "prenorm": (False,),
            "causal": (False,),
            "rotary_emb_fraction": (1.0,),
            "rotary_emb_interleaved": (False,),
            "moe_every_n_layers": (0,),
        },
        keys=_keys,
        ignored=("pooler.*",),
    ),
)


@dataclass(frozen=True)
class BertHParams(HParams):
    token_types: bool
    fused_qkv: bool

    @property
    def rotated(self) -> bool:
        return self.architecture == "nomic-bert"


def hparams(gguf: _core.Gguf, architecture: str) -> BertHParams:
    h = read(gguf, architecture, "attention.causal", eps="attention.layer_norm_epsilon")
    keys = Keys(gguf, architecture)
    if keys.value("attention.causal") is True:
        raise keys.lacks("attention.causal", True, "is not supported for an encoder, whose tokens see the whole text")
    if h.pooling is None:
        log.warning("%s: not given; the mean over all tokens is assumed", keys.full("pooling_type"))
        h = replace(h, pooling=Pooling.MEAN)
    positions = gguf.tensor_index("position_embd.weight")
    if positions >= 0 and (rows := (*gguf.tensors[positions].shape, 1)[1]) < h.context_length:
        raise keys.fail("context_length", h.context_length, f"is more than position_embd.weight has rows, {rows}")
    return BertHParams(
        **vars(h),
        token_types=gguf.tensor_index("token_types.weight") >= 0,
        fused_qkv=gguf.tensor_index("blk.0.attn_qkv.weight") >= 0,
    )


def build(p: PlanBuilder, h: BertHParams) -> None:
    assert h.pooling is not None
    rope = h.rope(Pairing.HALVES)
    x = p.embed("token_embd")
    if h.token_types:
        x = x + p.embed("token_types", Index.ZERO)
    if not h.rotated:
        x = x + p.embed("position_embd", Index.POSITION)
    x = p.layer_norm(x, "token_embd_norm")
    for i in range(h.n_layers):
        b = p.scope(f"blk.{i}")
        q, k, v = _qkv(b, x, h)
        if h.rotated:
            q, k = b.rope(q, rope), b.rope(k, rope)
        x = b.layer_norm(x + b.linear(b.attention(q, k, v, causal=False), "attn_output"), "attn_output_norm")
        x = b.layer_norm(x + _ffn(b, x, h), "layer_output_norm")
    p.pool(x, h.pooling)


def _qkv(b: PlanBuilder, x: Value, h: BertHParams) -> tuple[Value, ...]:
    if not h.fused_qkv:
        return b.linear(x, "attn_q", "attn_k", "attn_v")
    n, n_kv = h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim
    return b.split(b.linear(x, "attn_qkv"), attn_q=n, attn_k=n_kv, attn_v=n_kv)


def _ffn(b: PlanBuilder, x: Value, h: BertHParams) -> Value:
    if h.rotated:
        return gated_ffn(b, x, h)
    up = b.linear(x, "ffn_up")
    b.require(up, h.d_ff, "feed_forward_length")
    return b.linear(b.activation(Activation.GELU, up), "ffn_down")
