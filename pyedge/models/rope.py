"""Rotary embeddings as a file describes them, and the tables of cosines and sines that follow.

Owns: the `rope.*` keys, the kinds of scaling (linear, YaRN, factors by tensor) and their formulas. A kind that nothing
here computes is refused by name. Does not own: what the core makes of a Rope, nor which layers a family rotates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyedge.errors import ModelError
from pyedge.models.plan import Pairing, Rope

if TYPE_CHECKING:
    from pyedge import _core
    from pyedge.models.keys import Keys

MAX_HEAD_DIM = 2**12
_KINDS = ("none", "linear", "yarn", "longrope")
_LONG, _SHORT = "rope_factors_long", "rope_factors_short"


@dataclass(frozen=True)
class Yarn:
    """Peng et al. 2023, arXiv:2309.00071: fast pairs keep their frequency, slow ones are slowed, others mixed."""

    original_context: int
    beta_fast: float  # turns within the original context, from which a pair is left as it is
    beta_slow: float  # up to which it is slowed by the whole factor

    def ramp(self, n_rot: int, base: float, truncate: bool) -> tuple[float, float]:
        """The pairs between which the factor sets in; truncate: widened to whole ones."""
        low, high = (
            n_rot * math.log(self.original_context / (beta * 2 * math.pi)) / (2 * math.log(base))
            for beta in (self.beta_fast, self.beta_slow)
        )
        if truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0.0), min(high, n_rot - 1.0)
        return low, max(high, low + 0.001)  # a step, where both are the same


@dataclass(frozen=True)
class Rotary:
    """What a file says about rotary embeddings."""

    n_rot: int  # rotated dims of each head
    base: float
    scale: float  # positions are divided by it; 1: none
    magnitude: float  # of cosines and sines
    yarn: Yarn | None
    long_from: int | None  # two tensors of divisors, for contexts up to this length and above; None: at most one

    def factors(self, length: int) -> str:
        """The tensor of divisors that sequences of this length are rotated by."""
        if self.long_from is None:
            return "rope_freqs"
        return _LONG if length > self.long_from else _SHORT

    def unread(self, length: int) -> tuple[str, ...]:
        """Tensors that the file has for other lengths."""
        return () if self.long_from is None else (f"{_SHORT if self.factors(length) == _LONG else _LONG}.weight",)

    def rope(
        self, head_dim: int, length: int, pairing: Pairing, base: float | None, scaled: bool, truncate: bool
    ) -> Rope:
        base = self.base if base is None else base
        if not scaled:
            return Rope(head_dim, self.n_rot, base, pairing=pairing)
        ramp = self.yarn.ramp(self.n_rot, base, truncate) if self.yarn is not None else (0.0, 0.0)
        return Rope(head_dim, self.n_rot, base, self.scale, self.factors(length), pairing, self.magnitude, ramp)


def read(gguf: _core.Gguf, keys: Keys, head_dim: int, context_length: int) -> Rotary:
    """Reads and checks the `rope.*` keys; raises ModelError."""
    n_rot = keys.integer("rope.dimension_count", 1, MAX_HEAD_DIM, default=head_dim)
    if n_rot % 2:
        raise keys.fail("rope.dimension_count", n_rot, "is odd, and rotation works on pairs of dimensions")
    if n_rot > head_dim:
        raise keys.fail("rope.dimension_count", n_rot, f"is more than a head has, {head_dim}")
    base = keys.number("rope.freq_base", 0.0, 1e12, default=10000.0)
    kind = keys.value("rope.scaling.type")
    if kind is not None and kind not in _KINDS:
        raise keys.lacks("rope.scaling.type", kind, f"is not supported, only {', '.join(_KINDS)} are")
    # rope.scale_linear is what early files wrote.
    factor = keys.number("rope.scaling.factor", 0.0, 1e6, keys.number("rope.scale_linear", 0.0, 1e6, default=1.0))
    magnitude = keys.number("rope.scaling.attn_factor", 0.0, 1e6, default=1.0)
    yarn = None
    if kind == "yarn":
        if base <= 1.0:
            raise keys.fail("rope.freq_base", base, "is out of range: with yarn scaling it must be above 1")
        magnitude *= _yarn_magnitude(keys, factor)
        yarn = _yarn(keys, context_length)
    return Rotary(
        n_rot=n_rot,
        base=base,
        scale=factor if kind in (None, "linear", "yarn") else 1.0,
        magnitude=magnitude,
        yarn=yarn,
        long_from=_long_from(gguf, keys, kind, context_length),
    )


def _original_context(keys: Keys, context_length: int) -> int:
    return keys.integer("rope.scaling.original_context_length", 1, 2**30, default=context_length)


def _yarn(keys: Keys, context_length: int) -> Yarn:
    extrapolation = keys.number("rope.scaling.yarn_ext_factor", 0.0, 1e6, default=1.0)
    if extrapolation != 1.0:
        raise keys.lacks("rope.scaling.yarn_ext_factor", extrapolation, "is not supported, only 1 is")
    fast = keys.number("rope.scaling.yarn_beta_fast", 0.0, 1e6, default=32.0)
    slow = keys.number("rope.scaling.yarn_beta_slow", 0.0, 1e6, default=1.0)
    if slow > fast:
        raise keys.fail("rope.scaling.yarn_beta_slow", slow, f"is above yarn_beta_fast, {fast:g}")
    return Yarn(_original_context(keys, context_length), fast, slow)


def _yarn_magnitude(keys: Keys, factor: float) -> float:
    """Given, or from the factor: 0.1 ln(factor) + 1, over the same with a multiplier that was trained into q and k."""
    grown = 0.1 * math.log(max(factor, 1.0))
    in_weights = keys.value("rope.scaling.yarn_log_multiplier") or 0.0  # 0: none
    if in_weights:
        in_weights = keys.number("rope.scaling.yarn_log_multiplier", 0.0, 1e6)
    return keys.number("rope.scaling.yarn_attn_factor", 0.0, 1e6, default=(grown + 1.0) / (grown * in_weights + 1.0))


def _long_from(gguf: _core.Gguf, keys: Keys, kind: str | None, context_length: int) -> int | None:
    """LongRoPE (Ding et al. 2024, arXiv:2402.13753) comes as two tensors, which early files do not announce by kind."""
    names = (f"{_LONG}.weight", f"{_SHORT}.weight")
    missing = [name for name in names if gguf.tensor_index(name) < 0]
    if len(missing) == 2 and kind != "longrope":
        return None
    if missing:
        raise ModelError(
            f"{missing[0]}: tensor missing; longrope scaling needs both {' and '.join(names)}, get a complete file"
        )
    return _original_context(keys, context_length)
