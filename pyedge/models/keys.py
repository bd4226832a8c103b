"""Typed access to a file's `{architecture}.*` keys.

Owns: types, ranges and defaults of single values, and the words of a refusal. Does not own: what a key means.
A file comes from a stranger: a value is in range before anything is computed from it, and a refusal names the key, the
value and the reason.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyedge.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyedge import _core

MAX_LAYERS = 4096
CONVERT = "convert the model again"  # what to do about a file that was badly made

# Keys that change the output of any model that has them, with the values that change nothing.
CHANGES_OUTPUT: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.key_length_swa": (),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "attention.value_length_swa": (),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_count": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.dimension_count_swa": (),
    "rope.dimension_sections": (),
    "rope.freq_base_swa": (),
    "rope.scaling.alpha": (0,),
    "use_parallel_residual": (False,),
}


class Keys:
    """Typed access to one architecture's keys: `keys.integer("block_count")` reads `llama.block_count`."""

    def __init__(self, gguf: _core.Gguf, architecture: str) -> None:
        self._gguf = gguf
        self.architecture = architecture

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def fail(self, key: str, value: object, why: str) -> ModelError:
        """Of a value that cannot be right."""
        return ModelError(f"{self.full(key)}: {_short(value)} {why}; {CONVERT}")

    def lacks(self, key: str, value: object, why: str = "is not supported") -> ModelError:
        """Of a value that may well be right, and that nothing here computes."""
        return ModelError(f"{self.full(key)}: {_short(value)} {why}; take another model, or a newer pyedge")

    def missing(self, key: str) -> ModelError:
        return ModelError(f"{self.full(key)}: missing, and every {self.architecture} model needs this key; {CONVERT}")

    def value(self, key: str) -> Any:
        """The raw value, None if absent. A list of equal values (one per layer) counts as that value."""
        value = self._raw(key)
        if isinstance(value, list):
            if not value or any(v != value[0] for v in value):
                raise self.lacks(key, value, "varies by layer, which is not supported")
            return value[0]
        return value

    def _raw(self, key: str) -> Any:
        name = self.full(key)
        if name in self._gguf and (n := self._gguf.length(name)) > MAX_LAYERS:
            raise ModelError(f"{name}: has {n} values, and no model has more than {MAX_LAYERS} layers; {CONVERT}")
        return self._gguf.get(name)

    def per_layer(self, key: str, n_layers: int) -> list[int] | None:
        """A whole number for each layer, where the file gives a list of them; None: it gives one number, or nothing."""
        values = self._raw(key)
        if not isinstance(values, list):
            return None
        if len(values) != n_layers:
            raise self.fail(key, values, f"has {len(values)} values for {n_layers} layers")
        numbers = [v for v in values if isinstance(v, int)]  # truth values are among them
        if len(numbers) != len(values):
            raise self.fail(key, values, "is not a list of whole numbers")
        return numbers

    def refuse(self, handled: Collection[str]) -> None:
        """Refuses keys that change what a model computes, unless the family handles them or they say nothing."""
        for key, neutral in CHANGES_OUTPUT.items():
            value = self._raw(key) if key not in handled else None
            if value is not None and value not in neutral:
                raise self.changes_output(key, value)

    def changes_output(self, key: str, value: object) -> ModelError:
        return self.lacks(key, value, f"is not supported for {self.architecture}, and changes its output")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.value(key)
        if value is None:
            if default is None:
                raise self.missing(key)
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
                raise self.missing(key)
            return default
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise self.fail(key, value, "is not a finite number")
        if not low < value <= high:
            raise self.fail(key, value, f"is out of range: above {low:g} and at most {high:g} is possible")
        return float(value)

    def multiplier(self, key: str, none: float = 1.0) -> float:
        """A factor, or `none` where the file has 0 or nothing."""
        if self.value(key) in (None, 0):
            return none
        return self.number(key, 0.0, 1e6)


def _short(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
