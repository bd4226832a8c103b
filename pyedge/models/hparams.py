"""Hyper-parameters of a model, read from the `{architecture}.*` keys of its GGUF and checked.

Owns: names, types, ranges and defaults of the keys, and the checks of one key against another or against the file's
tensors. Does not own: what a family does with them, nor the tokenizer's keys. A file comes from a stranger: every value
is in a sane range before anything is computed from it, and a refusal names the key, the value and the reason.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyedge.errors import ModelError

if TYPE_CHECKING:
    from pyedge import _core

log = logging.getLogger("pyedge.models")

DEFAULT_CONTEXT = 2048  # for a file that says 0 or nothing
_MAX_CONTEXT = 2**30  # positions are 32-bit numbers in the core
_MAX_LAYERS = 4096
_MAX_WIDTH = 2**20
_MAX_D_FF = 2**24
_MAX_HEADS = 2**16
_MAX_HEAD_DIM = 2**12


@dataclass(frozen=True)
class HParams:
    """What the families of decoder-only transformers have in common; a family reads its own extra keys itself."""

    architecture: str
    n_vocab: int  # rows of the embedding: the tokenizer may know fewer tokens (padding), never more
    n_layers: int
    context_length: int  # tokens the model was made for
    d_model: int
    d_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm_eps: float
    n_rot: int  # rotated dims of each head
    rope_base: float
    rope_scale: float  # linear scaling: positions are divided by it; 1: none


class Keys:
    """Typed access to one architecture's keys: `keys.integer("block_count")` reads `llama.block_count`."""

    def __init__(self, gguf: _core.Gguf, architecture: str) -> None:
        self._gguf = gguf
        self.architecture = architecture

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def fail(self, key: str, value: object, why: str) -> ModelError:
        return ModelError(f"{self.full(key)}: {_short(value)} {why}")

    def value(self, key: str) -> Any:
        """The raw value, None if absent. A list of equal values (one per layer) counts as that value."""
        name = self.full(key)
        if name in self._gguf and (n := self._gguf.length(name)) > _MAX_LAYERS:
            raise ModelError(f"{name}: has {n} values, and no model has more than {_MAX_LAYERS} layers")
        value = self._gguf.get(name)
        if isinstance(value, list):
            if not value or any(v != value[0] for v in value):
                raise self.fail(key, value, "varies by layer, which is not supported")
            return value[0]
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.value(key)
        if value is None:
            if default is None:
                raise ModelError(f"{self.full(key)}: missing; every {self.architecture} model needs this key")
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fail(key, value, "is not a whole number")
        if not low <= value <= high:
            raise self.fail(key, value, f"is out of range: {low} to {high} is possible")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A float strictly above `low` and at most `high`."""
        value = self.value(key)
        if value is None:
            if default is None:
                raise ModelError(f"{self.full(key)}: missing; every {self.architecture} model needs this key")
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise self.fail(key, value, "is not a finite number")
        if not low < value <= high:
            raise self.fail(key, value, f"is out of range: above {low:g} and at most {high:g} is possible")
        return float(value)


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def read(gguf: _core.Gguf, architecture: str) -> HParams:
    """Reads and checks the common hyper-parameters; raises ModelError."""
    keys = Keys(gguf, architecture)
    d_model = keys.integer("embedding_length", 1, _MAX_WIDTH)
    n_heads = keys.integer("attention.head_count", 1, _MAX_HEADS)
    n_kv_heads = keys.integer("attention.head_count_kv", 1, _MAX_HEADS, default=n_heads)
    if n_heads % n_kv_heads:
        raise keys.fail(
            "attention.head_count_kv", n_kv_heads, f"does not divide {keys.full('attention.head_count')}, {n_heads}"
        )
    head_dim = _head_dim(keys, d_model, n_heads)
    n_rot = keys.integer("rope.dimension_count", 1, _MAX_HEAD_DIM, default=head_dim)
    if n_rot % 2:
        raise keys.fail("rope.dimension_count", n_rot, "is odd; rotation works on pairs of dimensions")
    if n_rot > head_dim:
        raise keys.fail("rope.dimension_count", n_rot, f"is more than a head has, {head_dim}")
    return HParams(
        architecture=architecture,
        n_vocab=_n_vocab(gguf, keys, d_model),
        n_layers=_n_layers(gguf, keys),
        context_length=_context_length(keys),
        d_model=d_model,
        d_ff=keys.integer("feed_forward_length", 1, _MAX_D_FF),
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        n_rot=n_rot,
        rope_base=keys.number("rope.freq_base", 0.0, 1e12, default=10000.0),
        rope_scale=_rope_scale(keys),
    )


def _head_dim(keys: Keys, d_model: int, n_heads: int) -> int:
    if keys.value("attention.key_length") is None and d_model % n_heads:
        raise keys.fail(
            "attention.head_count",
            n_heads,
            f"does not divide {keys.full('embedding_length')}, {d_model}, and there is no attention.key_length",
        )
    head_dim = keys.integer("attention.key_length", 1, _MAX_HEAD_DIM, default=d_model // n_heads)
    value_dim = keys.integer("attention.value_length", 1, _MAX_HEAD_DIM, default=head_dim)
    if value_dim != head_dim:
        raise keys.fail(
            "attention.value_length", value_dim, f"differs from key_length, {head_dim}, which is not supported"
        )
    return head_dim


def _n_vocab(gguf: _core.Gguf, keys: Keys, d_model: int) -> int:
    index = gguf.tensor_index("token_embd.weight")
    if index < 0:
        raise ModelError("token_embd.weight: tensor missing from the file; it holds no language model")
    columns, rows = (*gguf.tensors[index].shape, 1)[:2]
    if columns != d_model:
        raise keys.fail("embedding_length", d_model, f"is not the width of token_embd.weight, {columns}")
    key = "tokenizer.ggml.tokens"
    n_tokens = gguf.length(key) if key in gguf else 0  # what they are, the tokenizer checks
    if n_tokens > rows:
        raise ModelError(f"{key}: {n_tokens} tokens, but token_embd.weight has only {rows} rows")
    return rows


def _n_layers(gguf: _core.Gguf, keys: Keys) -> int:
    n_layers = keys.integer("block_count", 1, _MAX_LAYERS)
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


def _rope_scale(keys: Keys) -> float:
    """Linear scaling. Any other kind changes the frequencies in ways nothing here computes, so it is refused by name.
    (Llama 3's kind comes as the tensor rope_freqs.weight and needs no key.)"""
    kind = keys.value("rope.scaling.type")
    if kind not in (None, "none", "linear"):
        raise keys.fail("rope.scaling.type", kind, "is not supported; none and linear are")
    attention_factor = keys.number("rope.scaling.attn_factor", 0.0, 1e6, default=1.0)
    if attention_factor != 1.0:
        raise keys.fail("rope.scaling.attn_factor", attention_factor, "is not supported; only 1 is")
    # rope.scale_linear is what early files wrote.
    factor = keys.number("rope.scaling.factor", 0.0, 1e6, keys.number("rope.scale_linear", 0.0, 1e6, default=1.0))
    return 1.0 if kind == "none" else factor
