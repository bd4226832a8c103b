"""Keys of files from strangers, over all families: what is handled changes the plan, and what is not is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import families
import familygguf
import pytest
from familytable import TABLE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinymodel import write_tiny_llama

from pyedge import ModelError, _core
from pyedge.models import Plan, build_plan
from pyedge.models.hparams import windows
from pyedge.models.keys import CHANGES_OUTPUT, Keys
from pyedge.models.plan import Pooling

FIRST_OF_EACH = {v.architecture: v.fixture for v in reversed(TABLE)}

# Read, and rightly followed by doing nothing: it is what the family does anyway, or of no matter to such a file.
NOTHING_TO_DO = {
    ("stablelm", "use_parallel_residual"),
    ("bert", "attention.causal"),
    ("nomic-bert", "attention.causal"),
    ("gemma-embedding", "attention.causal"),
    ("gemma-embedding", "final_logit_softcapping"),
    ("olmo2", "rope.freq_base_swa"),
}


# Without them a model may be whole.
OPTIONAL = [
    *("*.bias", "output.weight", "rope_freqs.weight", "token_types.weight"),
    *("blk.?.attn_q_norm.weight", "blk.?.attn_k_norm.weight", "blk.?.attn_sinks.weight"),
]


class WithKeys:
    """A file, but for some keys, which are without the architecture (None: absent), and without some tensors."""

    def __init__(self, gguf: _core.Gguf, keys: dict[str, Any], drop: Sequence[str] = ()) -> None:
        self.path, self._gguf = gguf.path, gguf
        self.tensors = [t for t in gguf.tensors if t.name not in drop]
        self._names = [t.name for t in self.tensors]
        self._keys = {f"{gguf.get('general.architecture')}.{key}": value for key, value in keys.items()}

    def get(self, key: str) -> Any:
        return self._keys[key] if key in self._keys else self._gguf.get(key)

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def tensor_index(self, name: str) -> int:
        return self._names.index(name) if name in self._names else -1

    def length(self, key: str) -> int:
        value = self.get(key)
        return len(value) if isinstance(value, list) else 1


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, _core.Gguf]:
    """One of each family, by its architecture."""
    folder = tmp_path_factory.mktemp("keys")
    return {
        architecture: _core.Gguf(str(familygguf.write(folder / f"{fixture}.gguf", families.load(fixture))))
        for architecture, fixture in FIRST_OF_EACH.items()
    }


def plan_of(gguf: _core.Gguf, **keys: Any) -> Plan:
    return build_plan(cast(_core.Gguf, WithKeys(gguf, keys)))


@pytest.mark.parametrize("architecture", FIRST_OF_EACH)
def test_a_file_without_a_tensor_is_refused(files: dict[str, _core.Gguf], architecture: str) -> None:
    gguf = files[architecture]
    left_out = set[str]()
    for name in [t.name for t in gguf.tensors]:
        try:
            build_plan(cast(_core.Gguf, WithKeys(gguf, {}, [name])))
        except ModelError as e:
            assert re.search(r"\.weight: .*; ", str(e))  # noqa: PT017  (that one, or one beside it that makes no sense alone)
        else:
            left_out.add(name)
    assert {name for name in left_out if not any(fnmatchcase(name, p) for p in OPTIONAL)} == set()


@pytest.mark.parametrize("key", CHANGES_OUTPUT)
@pytest.mark.parametrize("architecture", FIRST_OF_EACH)
def test_keys_that_change_the_output_are_handled_or_refused(
    files: dict[str, _core.Gguf], architecture: str, key: str
) -> None:
    odd = {"attention.causal": False, "use_parallel_residual": True, "rope.dimension_sections": [1, 2]}
    try:
        after = plan_of(files[architecture], **{key: odd.get(key, 7)})
    except ModelError as e:
        refusal = str(e)
    else:
        assert after.ops != plan_of(files[architecture]).ops or (architecture, key) in NOTHING_TO_DO
        return
    assert f" {architecture}.{key}: " in refusal or key == "expert_count"  # of which tensors know better


@pytest.mark.parametrize("key", CHANGES_OUTPUT)
def test_keys_that_say_nothing_are_accepted(files: dict[str, _core.Gguf], key: str) -> None:
    before = plan_of(files["qwen3"])
    for value in CHANGES_OUTPUT[key]:
        assert plan_of(files["qwen3"], **{key: value}).ops == before.ops


@pytest.mark.parametrize(
    ("number", "pooling"), [(0, None), (1, Pooling.MEAN), (2, Pooling.FIRST), (3, Pooling.LAST), (None, None)]
)
def test_pooling(files: dict[str, _core.Gguf], number: int | None, pooling: Pooling | None) -> None:
    plan = plan_of(files["qwen3"], pooling_type=number)
    assert plan.pooling == pooling
    assert plan.ops[-1].name == ("output" if pooling is None else "pool")


def test_rerankers_are_refused(files: dict[str, _core.Gguf]) -> None:
    with pytest.raises(ModelError, match=r"qwen3\.pooling_type: 4 is not supported"):
        plan_of(files["qwen3"], pooling_type=4)


@pytest.mark.parametrize(
    ("pattern", "period", "expected"),
    [
        (None, 2, [8, 0, 8, 0, 8]),
        (None, 3, [8, 8, 0, 8, 8]),
        (None, 0, [8, 8, 8, 8, 8]),
        (None, 1, [0, 0, 0, 0, 0]),
        (2, 3, [8, 0, 8, 0, 8]),
        ([True, False, False, True, True], 3, [8, 0, 0, 8, 8]),
        ([1, 0, 0, 1, 1], 3, [8, 0, 0, 8, 8]),
        ([True] * 5, 3, [8] * 5),
    ],
)
def test_windows(tmp_path: Path, pattern: Any, period: int, expected: list[int]) -> None:
    keys = {"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": pattern}
    gguf = _core.Gguf(str(write_tiny_llama(tmp_path / "m.gguf", keys=keys)))
    assert windows(Keys(gguf, "llama"), 5, period=period) == tuple(expected)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [([True, False], "2 values for 5 layers"), ([0.5] * 5, "not a list of whole numbers"), ("all", "whole number")],
)
def test_patterns_that_make_no_sense(tmp_path: Path, pattern: Any, why: str) -> None:
    keys = {"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": pattern}
    gguf = _core.Gguf(str(write_tiny_llama(tmp_path / "m.gguf", keys=keys)))
    with pytest.raises(ModelError, match=rf"llama\.attention\.sliding_window_pattern: .*{why}"):
        windows(Keys(gguf, "llama"), 5, period=3)


KEYS = [
    *CHANGES_OUTPUT,
    *("attention.sliding_window_pattern", "rope.dimension_count", "rope.freq_base", "pooling_type"),
    *(f"rope.scaling.{k}" for k in ("type", "factor", "original_context_length", "attn_factor", "finetuned")),
    *(f"rope.scaling.yarn_{k}" for k in ("beta_fast", "beta_slow", "log_multiplier", "attn_factor", "ext_factor")),
    *("attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "feed_forward_length", "context_length"),
    *("expert_used_count", "expert_feed_forward_length", "expert_gating_func", "expert_weights_scale"),
]
ANY_NUMBER = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 64) | st.floats(width=32)
ANY_LIST = st.lists(st.integers(0, 9), min_size=1, max_size=8) | st.lists(st.booleans(), min_size=1, max_size=8)
ANY_VALUE = ANY_NUMBER | st.booleans() | st.sampled_from(["yarn", "linear", "longrope", "none", "x"]) | ANY_LIST


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([*FIRST_OF_EACH]), st.dictionaries(st.sampled_from(KEYS), ANY_VALUE, min_size=1, max_size=4))
def test_any_values_are_planned_or_refused(
    files: dict[str, _core.Gguf], architecture: str, keys: dict[str, Any]
) -> None:
    """Python refuses with one line that names the file and what to do; a plan that it makes, the core takes or refuses
    likewise."""
    refusal, gguf = "", files[architecture]
    try:
        plan = plan_of(gguf, **keys)
    except ModelError as e:
        plan, refusal = None, str(e)
    if plan is None:
        assert re.fullmatch(rf"{re.escape(gguf.path)}: [^\n]+; [^\n]+", refusal)
        return
    try:
        _core.Model(gguf, plan.ops, "f32", 1)
    except ModelError as e:
        refusal = str(e)
    assert not refusal or re.fullmatch(rf"{re.escape(gguf.path)}: [^\n]+", refusal)
