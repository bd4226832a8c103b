"""`pyedge convert`'s files against what transformers computes, and against files that the gguf package wrote.

Checkpoints are tiny and of every family (tests/models/families), and say their settings in both of the ways that
config.json has known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import familygguf
import hfcheckpoint
import numpy as np
import pytest
from corerun import Runner

from pyedge import _core
from pyedge.models import build_plan
from pyedge.tools.convert import convert

NAMES = families.names()
TOLERANCE = 1e-4  # of logits that are 2 on average; tests/models/test_families.py
PER_LAYER = 2e-6

# What a converter may say or leave out: readers take the same for it.
OPTIONAL = {
    "attention.key_length", "attention.value_length", "attention.head_count_kv", "rope.dimension_count",
    "rope.freq_base", "rope.freq_base_swa", "vocab_size", "rope.scaling.type", "rope.scaling.original_context_length",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.scale", "final_logit_softcapping",
    "rope.scaling.yarn_attn_factor", "attention.layer_norm_rms_epsilon", "use_parallel_residual",
    "expert_feed_forward_length",
}  # fmt: skip


def keys_of(gguf: _core.Gguf, architecture: str) -> dict[str, Any]:
    prefix = f"{architecture}."
    return {key.removeprefix(prefix): gguf.get(key) for key in gguf.keys() if key.startswith(prefix)}  # noqa: SIM118


@pytest.mark.parametrize("name", NAMES)
def test_every_family(tmp_path: Path, name: str) -> None:
    case = families.load(name)
    path = tmp_path / "m.gguf"
    facts = convert(hfcheckpoint.write(tmp_path / name, case), path)
    assert (facts["architecture"], facts["type"], facts["file_bytes"]) == (
        case.architecture,
        "f32",
        path.stat().st_size,
    )
    runner = Runner(path, build=lambda gguf: build_plan(gguf, case.max_model_len))
    found = runner.run(case.tokens)
    tolerance = TOLERANCE + PER_LAYER * case.config["num_hidden_layers"]
    assert np.abs((found[-1:] if case.pooling else found) - case.values).max() < tolerance

    # Both ways of writing a config say the same.
    older = tmp_path / "older.gguf"
    convert(hfcheckpoint.write(tmp_path / "older", case, older=True), older)
    with _core.Gguf(str(path)) as ours, _core.Gguf(str(older)) as other:
        keys, others = keys_of(ours, case.architecture), keys_of(other, case.architecture)
        if name == "olmo3":  # layers with a window have the same base, which goes without saying
            others["rope.freq_base_swa"] = others["rope.freq_base"]
        assert keys == others
        # And another converter's file has the same weights, to the bit, and nothing that ours has otherwise.
        with _core.Gguf(str(familygguf.write(tmp_path / "other.gguf", case))) as theirs:
            for key, value in keys_of(theirs, case.architecture).items():
                assert key in keys or key in OPTIONAL, key
                assert keys.get(key, value) == pytest.approx(value), key
            assert {t.name for t in ours.tensors} == {t.name for t in theirs.tensors}
            for t in ours.tensors:
                assert np.allclose(ours.dequantize(t.name), theirs.dequantize(t.name), rtol=1e-6, atol=0), t.name
                assert t.type == theirs.tensors[theirs.tensor_index(t.name)].type
