"""Hyper-parameters of files from strangers: defaults, and absurd values refused by name in one line."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinymodel import write_tiny_llama

from pyedge import ModelError, _core
from pyedge.models import HParams, build_plan
from pyedge.models.hparams import DEFAULT_CONTEXT


def hparams_of(tmp_path: Path, **kw: Any) -> HParams:
    return build_plan(_core.Gguf(str(write_tiny_llama(tmp_path / "m.gguf", **kw)))).hparams


def test_what_a_file_says(tmp_path: Path) -> None:
    h = hparams_of(tmp_path, n_embd=72, n_head=9, n_kv=3, head_dim=8, n_layer=3, n_ff=100, context=333, rope_base=5e5)
    assert (h.d_model, h.n_heads, h.n_kv_heads, h.head_dim, h.n_layers, h.d_ff) == (72, 9, 3, 8, 3, 100)
    assert (h.context_length, h.max_model_len, h.n_vocab, h.pooling) == (333, 333, 281, None)
    assert (h.rotary.base, h.rotary.n_rot, h.rotary.scale) == (5e5, 8, 1.0)
    assert h.norm_eps == pytest.approx(1e-5)


def test_defaults(tmp_path: Path) -> None:
    names = [
        *("attention.head_count_kv", "attention.key_length", "attention.value_length"),
        *("rope.dimension_count", "rope.freq_base"),
    ]
    h = hparams_of(tmp_path, n_embd=64, n_head=4, drop=[f"llama.{n}" for n in names])
    assert (h.n_kv_heads, h.head_dim, h.rotary.n_rot, h.rotary.base) == (4, 16, 16, 10000.0)


def test_lists_of_one_value_per_layer(tmp_path: Path) -> None:
    assert hparams_of(tmp_path, keys={"llama.feed_forward_length": [96, 96]}).d_ff == 96
    with pytest.raises(ModelError, match=r"llama.feed_forward_length: \[96, 80\] varies by layer"):
        hparams_of(tmp_path, keys={"llama.feed_forward_length": [96, 80]})


@pytest.mark.parametrize("length", [0, None])
def test_no_context_length_gets_a_default_and_says_so(
    tmp_path: Path, length: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pyedge.models"):
        assert hparams_of(tmp_path, keys={"llama.context_length": length}).context_length == DEFAULT_CONTEXT
    assert "llama.context_length" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("block_count", 2**31, "out of range"),
        ("block_count", 0, "out of range"),
        ("block_count", 600, "tensors of 2 blocks"),
        ("block_count", 1, "tensors of 2 blocks"),
        ("attention.head_count", 0, "out of range"),
        ("attention.head_count", -3, "out of range"),
        ("attention.head_count", "many", "not a whole number"),
        ("attention.head_count", 9.0, "not a whole number"),
        ("attention.head_count", True, "not a whole number"),
        ("attention.head_count_kv", 0, "out of range"),
        ("attention.head_count_kv", 2, "does not divide llama.attention.head_count, 9"),
        ("attention.head_count_kv", 18, "does not divide"),
        ("embedding_length", 0, "out of range"),
        ("embedding_length", 64, "not the width of token_embd.weight, 72"),
        ("feed_forward_length", 2**32 - 1, "out of range"),
        ("feed_forward_length", 2**33, "out of range"),
        ("feed_forward_length", 95, "llama.feed_forward_length is 95"),
        ("rope.dimension_count", 7, "odd"),
        ("rope.dimension_count", 16, "more than a head has, 8"),
        ("rope.dimension_count", 0, "out of range"),
        ("rope.freq_base", 0.0, "out of range"),
        ("rope.freq_base", float("nan"), "not a finite number"),
        ("rope.freq_base", float("inf"), "not a finite number"),
        ("attention.layer_norm_rms_epsilon", 0.0, "out of range"),
        ("attention.layer_norm_rms_epsilon", float("nan"), "not a finite number"),
        ("attention.key_length", 2**31, "out of range"),
        ("attention.value_length", 4, "differs from key_length, 8"),
        ("context_length", 2**40, "out of range"),
        ("rope.scaling.type", "dynamic", "not supported, only none, linear, yarn, longrope are"),
        ("rope.scaling.type", 3, "not supported"),
        ("rope.scaling.attn_factor", -1.0, "out of range"),
        ("rope.scaling.factor", -2.0, "out of range"),
    ],
)
def test_absurd_values_are_refused_by_name(tmp_path: Path, key: str, value: Any, why: str) -> None:
    with pytest.raises(ModelError) as e:
        hparams_of(tmp_path, n_embd=72, n_head=9, n_kv=3, head_dim=8, keys={f"llama.{key}": value})
    message = str(e.value)
    assert why in message
    assert f"llama.{key}" in message
    assert message.startswith(str(tmp_path / "m.gguf"))
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize(
    "key",
    [
        *("block_count", "embedding_length", "feed_forward_length", "attention.head_count"),
        "attention.layer_norm_rms_epsilon",
    ],
)
def test_keys_every_model_needs(tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelError, match=f"llama.{key}: missing"):
        hparams_of(tmp_path, drop=[f"llama.{key}"])


def test_heads_that_do_not_divide_the_width_need_a_key_length(tmp_path: Path) -> None:
    lengths = ["llama.attention.key_length", "llama.attention.value_length"]
    with pytest.raises(ModelError, match=r"llama.attention.head_count: 3 does not divide llama.embedding_length, 64"):
        hparams_of(tmp_path, n_embd=64, n_head=3, head_dim=8, drop=lengths)
    assert hparams_of(tmp_path, n_embd=64, n_head=3, head_dim=8).head_dim == 8


def test_more_tokens_than_rows_are_refused_and_fewer_are_padding(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tokenizer.ggml.tokens: 281 tokens, but token_embd.weight has only 280 rows"):
        hparams_of(tmp_path, n_vocab=280)
    assert hparams_of(tmp_path, n_vocab=300).n_vocab == 300


def test_what_the_tokens_are_is_the_tokenizers_affair(tmp_path: Path) -> None:
    assert hparams_of(tmp_path, keys={"tokenizer.ggml.tokens": [1, 2, 3]}).n_vocab == 281


def test_arrays_longer_than_any_model_are_refused_unread(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"m\.gguf: llama\.feed_forward_length: has 5000 values"):
        hparams_of(tmp_path, keys={"llama.feed_forward_length": [96] * 5000})


def test_a_file_without_a_tokenizer_can_be_planned(tmp_path: Path) -> None:
    assert hparams_of(tmp_path, tokenizer=False).n_vocab == 281


@pytest.mark.parametrize(
    ("kind", "factor", "scale"),
    [(None, None, 1.0), (None, 4.0, 4.0), ("none", 4.0, 1.0), ("linear", 4.0, 4.0), ("linear", None, 1.0)],
)
def test_linear_rope_scaling(tmp_path: Path, kind: str | None, factor: float | None, scale: float) -> None:
    keys = {"llama.rope.scaling.type": kind, "llama.rope.scaling.factor": factor}
    assert hparams_of(tmp_path, keys=keys).rotary.scale == scale


def test_early_key_of_linear_scaling(tmp_path: Path) -> None:
    assert hparams_of(tmp_path, keys={"llama.rope.scale_linear": 2.0}).rotary.scale == 2.0


def test_architecture_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"m.gguf: general.architecture: 'nosuch' is not supported; supported: .*llama"
    ):
        hparams_of(tmp_path, keys={"general.architecture": "nosuch"})
    with pytest.raises(ModelError, match=r"general.architecture: '\.\./x"):
        hparams_of(tmp_path, keys={"general.architecture": "../x" * 1000})


@pytest.mark.parametrize("name", ["plan", "hparams", "__init__", "build"])
def test_modules_that_are_no_families_are_no_architectures(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="not supported"):
        hparams_of(tmp_path, keys={"general.architecture": name})


def test_extra_tensors_of_one_more_block_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"llama.block_count: 2 does not fit the file, which has tensors of 10 blocks"):
        hparams_of(tmp_path, extra={"blk.9.attn_norm.weight": np.ones(64)})


KEYS = [
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "expert_count"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "attention.sliding_window", "rope.dimension_count", "rope.freq_base"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scale_linear"),
]
ANY_NUMBER = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200) | st.floats(width=32)
ANY_VALUE = ANY_NUMBER | st.booleans() | st.text(max_size=9) | st.lists(st.integers(0, 99), min_size=1, max_size=3)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(KEYS), ANY_VALUE, min_size=1, max_size=3))
def test_any_values_are_planned_or_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    """Nothing but ModelError comes out, and what is accepted is in range."""
    h, refusal = None, ""
    try:
        h = hparams_of(tmp_path, keys={f"llama.{key}": value for key, value in values.items()})
    except ModelError as e:
        refusal = str(e)
    assert "\n" not in refusal
    if h is not None:
        assert h.n_heads * h.head_dim == h.d_model == 64
        assert 0 < h.rotary.n_rot <= h.head_dim
        assert h.context_length > 0
