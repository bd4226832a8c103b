"""Mixture-of-experts layers: the keys that the families with experts have in common, and the op they share.

Owns `{architecture}.expert_*` and the choice of the op's parameters. Does not own: what the op computes (the core), nor
what stands around it (the families).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyedge.models.keys import Keys
from pyedge.models.plan import Activation, PlanBuilder, Value

_MAX_EXPERTS = 2**14
_MAX_D_FF = 2**24

# What a file may say of how experts are chosen and summed: nothing else is computed here. Softmax is 1, and 3 is that
# of the chosen ones only: with weights that are made to sum to 1, both are the same. 0: not said.
_COMPUTED: dict[str, tuple[Any, ...]] = {
    "expert_gating_func": (0, 1, 3),
    "expert_group_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0, 1),
}


@dataclass(frozen=True)
class Experts:
    n_experts: int
    n_used: int  # for each token
    d_ff: int  # of one expert


def read(keys: Keys, d_ff: int) -> Experts:
    """The keys, checked. d_ff: for files that do not give the experts a width of their own."""
    for key, computed in _COMPUTED.items():
        value = keys.value(key)
        if value is not None and value not in computed:
            raise keys.changes_output(key, value)
    n_experts = keys.integer("expert_count", 1, _MAX_EXPERTS)
    n_used = keys.integer("expert_used_count", 1, n_experts)
    return Experts(n_experts, n_used, keys.integer("expert_feed_forward_length", 1, _MAX_D_FF, default=d_ff))


def moe(b: PlanBuilder, x: Value, e: Experts, function: Activation = Activation.SILU) -> Value:
    """The weights of the chosen experts sum to 1."""
    return b.moe(x, e.n_experts, e.n_used, e.d_ff, function, chosen=True)
