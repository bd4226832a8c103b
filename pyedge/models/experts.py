"""Mixture-of-experts layers: the keys that the families with experts have in common, and the op they share.

Owns `{architecture}.expert_*` and the choice of the op's parameters. Does not own: what the op computes (the core), nor
what stands around it (the families).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyedge.models.checkpoint import Config, Names, To
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

# Names in checkpoints, of one layer. An expert's matrices stand alone or, with gpt-oss, stacked and, when they are not
# in MXFP4, with the input first; there, rows of gates and of ups take turns.
MIXTRAL: Names = {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.{e}.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.{e}.w3": "ffn_up_exps",
    "block_sparse_moe.experts.{e}.w2": "ffn_down_exps",
}
QWEN: Names = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.{e}.gate_proj": "ffn_gate_exps",
    "mlp.experts.{e}.up_proj": "ffn_up_exps",
    "mlp.experts.{e}.down_proj": "ffn_down_exps",
}
_FIRST, _SECOND = (0, 2), (1, 2)
GPT_OSS: Names = {
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_up_proj": (
        To("ffn_gate_exps.weight", rows=_FIRST, transposed=True),
        To("ffn_up_exps.weight", rows=_SECOND, transposed=True),
    ),
    "mlp.experts.gate_up_proj_bias": (
        To("ffn_gate_exps.bias", rows=_FIRST),
        To("ffn_up_exps.bias", rows=_SECOND),
    ),
    "mlp.experts.gate_up_proj_blocks": (
        To("ffn_gate_exps.weight", rows=_FIRST, scales="mlp.experts.gate_up_proj_scales"),
        To("ffn_up_exps.weight", rows=_SECOND, scales="mlp.experts.gate_up_proj_scales"),
    ),
    "mlp.experts.gate_up_proj_scales": (),
    "mlp.experts.down_proj": To("ffn_down_exps.weight", transposed=True),
    "mlp.experts.down_proj_bias": To("ffn_down_exps.bias"),
    "mlp.experts.down_proj_blocks": To("ffn_down_exps.weight", scales="mlp.experts.down_proj_scales"),
    "mlp.experts.down_proj_scales": (),
}


def keys(c: Config) -> dict[str, Any]:
    """Those of a config that all families with experts have."""
    return {
        "expert_count": c.integer("num_local_experts", "num_experts"),
        "expert_used_count": c.integer("num_experts_per_tok"),
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
