"""How a checkpoint in Hugging Face's form becomes a GGUF file of a family.

Owns the form of the tables that the families have (their CHECKPOINTS), the names that most decoders share, and typed
access to a config.json. Does not own: reading a checkpoint, positions, tokenizers, or writing a file (pyedge.tools).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyedge.errors import ModelError

_LARGEST = 1e30  # of numbers that are computed with, so that nothing overflows


class Config:
    """A config.json, which comes from a stranger: values are checked when they are read. None counts as not given."""

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self._values, self._defaults = values, defaults or {}

    def value(self, *names: str, default: Any = None) -> Any:
        """That of the first of the names that is given, else the family's default for one of them."""
        for values in (self._values, self._defaults):
            for name in names:
                if values.get(name) is not None:
                    return values[name]
        return default

    def _given(self, names: tuple[str, ...]) -> str:
        """The one that `value` takes."""
        both = (self._values, self._defaults)
        return next((n for values in both for n in names if values.get(n) is not None), names[0])

    def integer(self, *names: str, default: int | None = None) -> int:
        value = self.value(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
            raise self.fail(self._given(names), value, "a whole number")
        return value

    def number(self, *names: str, default: float | None = None) -> float:
        value = self.value(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LARGEST:
            raise self.fail(self._given(names), value, "a number that is possible")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.value(name, default=default)
        if not isinstance(value, bool):
            raise self.fail(name, value, "true or false")
        return value

    def within(self, name: str) -> Config:
        """The object of that name; an empty one where there is none."""
        value = self.value(name, default={})
        if not isinstance(value, dict):
            raise self.fail(name, value, "an object")
        return Config(value)

    def names(self) -> list[str]:
        return list(self._values)

    @property
    def head_dim(self) -> int:
        heads = self.integer("num_attention_heads", "n_head")
        return self.integer("head_dim", default=self.integer("hidden_size", "n_embd") // max(heads, 1))

    @staticmethod
    def fail(name: str, value: object, wanted: str) -> ModelError:
        what = "missing" if value is None else f"{value!r:.60} is not {wanted}"
        return ModelError(f"config.json: {name}: {what}; get the checkpoint's own config.json")


@dataclass(frozen=True)
class To:
    """Where a tensor of a checkpoint goes, and what is done to it on the way.

    A name's `{i}` is the layer, and tensors that differ in `{e}` alone are stacked in its order. A name without
    .weight or .bias at its end takes that of the checkpoint's name."""

    name: str
    heads: str | None = None  # what config.json calls their number: the halves that rope pairs become neighbours
    plus: float = 0.0  # added to every value
    rows: tuple[int, int] = (0, 1)  # those that are taken: the first, and how many from one to the next
    transposed: bool = False  # rows are columns
    scales: str | None = None  # the tensor that has them: blocks of MXFP4


Names = Mapping[str, "str | To | Sequence[To]"]  # of a checkpoint -> in the file; (): not needed


@dataclass(frozen=True)
class Checkpoint:
    """One kind of checkpoint."""

    architecture: str  # general.architecture
    classes: tuple[str, ...]  # of config.json's `architectures`
    tensors: Names
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of config.json, where it says nothing
    computed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # what of a setting the family computes
    keys: Callable[[Config], Mapping[str, Any]] = lambda config: {}  # the family's own, without the architecture
    windows: int | None = None  # one layer of so many has no sliding window; 0: all have it; None: none has
    prefixes: tuple[str, ...] = ()  # that names may begin with
    ignored: tuple[str, ...] = ()  # patterns of names that are no part of what is run
    sized: tuple[str, ...] = ()  # tensors whose widths are keys too: `NAME_feat_in` and `NAME_feat_out`
    yarn_truncates: bool = True  # its ramp begins and ends at whole pairs


def layers(*names: Names, prefix: str = "model.layers") -> Names:
    """Names of one layer, with where the layer stands."""

    def within(to: str | To | Sequence[To]) -> To | tuple[To, ...]:
        if isinstance(to, (str, To)):
            return replace(to, name=f"blk.{{i}}.{to.name}") if isinstance(to, To) else To(f"blk.{{i}}.{to}")
        return tuple(replace(one, name=f"blk.{{i}}.{one.name}") for one in to)

    return {f"{prefix}.{{i}}.{name}": within(to) for part in names for name, to in part.items()}


def plus_one(names: Mapping[str, str]) -> Names:
    """Of norms whose weights a checkpoint has less 1."""
    return {name: To(to, plus=1.0) for name, to in names.items()}


ENDS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
INTERLEAVED: Names = {  # files of some families pair neighbouring dims, where all checkpoints pair halves
    **ATTENTION,
    "self_attn.q_proj": To("attn_q", heads="num_attention_heads"),
    "self_attn.k_proj": To("attn_k", heads="num_key_value_heads"),
}
QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
GATED_FFN = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}

SILU = {"hidden_act": ("silu",)}
FULL_ATTENTION = {"use_sliding_window": (False,)}
