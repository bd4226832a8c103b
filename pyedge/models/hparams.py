"""Hyper-parameters of a model, read from the `{architecture}.*` keys of its GGUF and checked.

Owns: what the families have in common, and the checks of one key against another or against the file's tensors. Does
not own: typed access (keys.py), rotary embeddings (rope.py), what a family does with all this, the tokenizer's keys.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.errors import ModelError
from pyedge.models import rope
from pyedge.models.keys import CONVERT, MAX_LAYERS, Keys
from pyedge.models.plan import Pairing, Pooling, Rope
from pyedge.models.rope import MAX_HEAD_DIM, Rotary

if TYPE_CHECKING:
    from pyedge import _core

log = logging.getLogger("pyedge.models")

DEFAULT_CONTEXT = 2048  # for a file that says 0 or nothing
MAX_WINDOW = 2**30
_MAX_CONTEXT = 2**30  # positions are 32-bit numbers in the core
_MAX_WIDTH = 2**20
_MAX_D_FF = 2**24
_MAX_HEADS = 2**16
_POOLINGS = {0: None, 1: Pooling.MEAN, 2: Pooling.FIRST, 3: Pooling.LAST}  # by the file's numbers


@dataclass(frozen=True)
class HParams:
    """What the families of transformers have in common; a family reads its own extra keys itself."""

    architecture: str
    n_vocab: int  # rows of the embedding: the tokenizer may know fewer tokens (padding), never more
    n_layers: int
    context_length: int  # tokens the model was made for
    max_model_len: int  # tokens it is to be used for: decides between two sets of rope factors
    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    rotary: Rotary
    pooling: Pooling | None  # of a model that embeds; None: it generates

    def rope(self, pairing: Pairing, *, base: float | None = None, scaled: bool = True, truncate: bool = True) -> Rope:
        """base: None for the file's. scaled: False for layers that the file's scaling does not concern. truncate:
        whether YaRN's ramp begins and ends at whole pairs."""
        return self.rotary.rope(self.head_dim, self.max_model_len, pairing, base, scaled, truncate)


def read(
    gguf: _core.Gguf,
    architecture: str,
    *handled: str,
    eps: str = "attention.layer_norm_rms_epsilon",
) -> HParams:
    """Reads and checks the common hyper-parameters; raises ModelError.

    handled: keys that change the output, and that the family reads itself; others of that kind are refused by name."""
    keys = Keys(gguf, architecture)
    d_model = keys.integer("embedding_length", 1, _MAX_WIDTH)
    n_heads = keys.integer("attention.head_count", 1, _MAX_HEADS)
    n_kv_heads = keys.integer("attention.head_count_kv", 1, _MAX_HEADS, default=n_heads)
    if n_heads % n_kv_heads:
        raise keys.fail(
            "attention.head_count_kv", n_kv_heads, f"does not divide {keys.full('attention.head_count')}, {n_heads}"
        )
    head_dim = _head_dim(keys, d_model, n_heads)
    context_length = _context_length(keys)
    keys.refuse(handled)
    return HParams(
        architecture=architecture,
        n_vocab=_n_vocab(gguf, keys, d_model),
        n_layers=_n_layers(gguf, keys),
        context_length=context_length,
        max_model_len=context_length,
        d_model=d_model,
        d_ff=keys.integer("feed_forward_length", 1, _MAX_D_FF),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        norm_eps=keys.number(eps, 0.0, 0.5),
        rotary=rope.read(gguf, keys, head_dim, context_length),
        pooling=_pooling(keys),
    )


def windows(keys: Keys, n_layers: int, *, period: int, default: int = 0) -> tuple[int, ...]:
    """The sliding window of each layer, 0 where all keys are seen.

    The pattern is a truth value for each layer, or a period, of which the last layer has no window (0: every layer has
    one). period, default: where the file says nothing."""
    window = keys.integer("attention.sliding_window", 0, MAX_WINDOW, default=default)
    pattern = keys.per_layer("attention.sliding_window_pattern", n_layers)
    if pattern is None:
        period = keys.integer("attention.sliding_window_pattern", 0, MAX_LAYERS, default=period)
        pattern = [period == 0 or i % period < period - 1 for i in range(n_layers)]
    return tuple(window if windowed else 0 for windowed in pattern)


def _pooling(keys: Keys) -> Pooling | None:
    kind = keys.integer("pooling_type", 0, 2**31, default=0)
    if kind not in _POOLINGS:
        raise keys.lacks("pooling_type", kind, "is not supported, only 0 (none), 1 (mean), 2 (first) and 3 (last) are")
    return _POOLINGS[kind]


def _head_dim(keys: Keys, d_model: int, n_heads: int) -> int:
    if keys.value("attention.key_length") is None and d_model % n_heads:
        raise keys.fail(
            "attention.head_count",
            n_heads,
            f"does not divide {keys.full('embedding_length')}, {d_model}, and there is no attention.key_length",
        )
    head_dim = keys.integer("attention.key_length", 1, MAX_HEAD_DIM, default=d_model // n_heads)
    value_dim = keys.integer("attention.value_length", 1, MAX_HEAD_DIM, default=head_dim)
    if value_dim != head_dim:
        raise keys.lacks(
            "attention.value_length", value_dim, f"differs from key_length, {head_dim}, which is not supported"
        )
    return head_dim


def _n_vocab(gguf: _core.Gguf, keys: Keys, d_model: int) -> int:
    index = gguf.tensor_index("token_embd.weight")
    if index < 0:
        raise ModelError("token_embd.weight: tensor missing, so this is no language model; give one")
    columns, rows = (*gguf.tensors[index].shape, 1)[:2]
    if columns != d_model:
        raise keys.fail("embedding_length", d_model, f"is not the width of token_embd.weight, {columns}")
    key = "tokenizer.ggml.tokens"
    n_tokens = gguf.length(key) if key in gguf else 0  # what they are, the tokenizer checks
    if n_tokens > rows:
        raise ModelError(f"{key}: {n_tokens} tokens, but token_embd.weight has only {rows} rows; {CONVERT}")
    return rows


def _n_layers(gguf: _core.Gguf, keys: Keys) -> int:
    n_layers = keys.integer("block_count", 1, MAX_LAYERS)
    found = [int(m[1]) for t in gguf.tensors if (m := re.match(r"blk\.(\d+)\.", t.name))]
    in_file = max(found, default=-1) + 1
    if n_layers != in_file:
        raise keys.fail("block_count", n_layers, f"does not fit the file, which has tensors of {in_file} blocks")
    return n_layers


def _context_length(keys: Keys) -> int:
    length = keys.integer("context_length", 0, _MAX_CONTEXT, default=0)
    if length == 0:
        log.warning("%s: not given; a context of %d is assumed", keys.full("context_length"), DEFAULT_CONTEXT)
        return DEFAULT_CONTEXT
    return length
