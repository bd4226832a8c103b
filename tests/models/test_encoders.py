"""Encoders: what their plans say, and files that are refused rather than run wrongly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import families
import familygguf
import pytest

from pyedge import ModelError, _core
from pyedge.models import Plan, build_plan
from pyedge.models.plan import Pooling


def plan_of(tmp_path: Path, name: str, **kw: Any) -> Plan:
    with _core.Gguf(str(familygguf.write(tmp_path / "m.gguf", families.load(name), **kw))) as gguf:
        return build_plan(gguf)


def windows(plan: Plan) -> list[int | float]:
    names = [info.name for info in _core.ops()]
    info = _core.ops()[names.index("attention")]
    at = [p.partition(":")[2] for p in info.parameters.split()].index("window")
    return [op.parameters[at] for op in plan.ops if names[op.kind] == "attention"]


@pytest.mark.parametrize("name", ["bert-mean", "bert-cls", "nomic-bert", "gemma-embedding"])
def test_a_text_is_read_as_a_whole(tmp_path: Path, name: str) -> None:
    plan = plan_of(tmp_path, name)
    assert not plan.causal
    assert plan.pooling is (Pooling.FIRST if name == "bert-cls" else Pooling.MEAN)


def test_pooling_is_what_the_file_says(tmp_path: Path) -> None:
    for number, pooling in ((1, Pooling.MEAN), (2, Pooling.FIRST), (3, Pooling.LAST)):
        for name in ("bert-mean", "gemma-embedding"):
            assert plan_of(tmp_path, name, keys={"pooling_type": number}).pooling is pooling
    with pytest.raises(ModelError, match="pooling_type: 4 is not supported"):
        plan_of(tmp_path, "bert-mean", keys={"pooling_type": 4})


@pytest.mark.parametrize("number", [0, None])
def test_pooling_that_is_not_given_is_the_mean(
    tmp_path: Path, number: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="pyedge.models"):
        assert plan_of(tmp_path, "bert-cls", keys={"pooling_type": number}).pooling is Pooling.MEAN
    assert "bert.pooling_type" in caplog.text
    assert plan_of(tmp_path, "gemma-embedding", keys={"pooling_type": number}).pooling is Pooling.MEAN


def test_windows_of_embedding_gemma(tmp_path: Path) -> None:
    """The file's 16 are 8 on either side; the plan counts the token itself, too."""
    assert windows(plan_of(tmp_path, "gemma-embedding")) == [9] * 5 + [0, 9]


def test_what_a_file_may_lack(tmp_path: Path) -> None:
    names = [op.name for op in plan_of(tmp_path, "bert-mean", drop=("token_types.weight",)).ops]
    assert "token_embd" in names
    assert "token_types" not in names
    names = [op.name for op in plan_of(tmp_path, "gemma-embedding", drop=("dense_2.weight", "dense_3.weight")).ops]
    assert names[-2:] == ["output_norm", "pool"]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"attention.causal": True}, "attention.causal: True is not supported"),
        ({"context_length": 65}, "bert.context_length: 65 is more than position_embd.weight has rows, 64"),
        ({"feed_forward_length": 64}, "ffn_up: 96 wide, but bert.feed_forward_length is 64"),
        ({"attention.layer_norm_epsilon": None}, "attention.layer_norm_epsilon: missing"),
        ({"attention.sliding_window": 8}, "attention.sliding_window: 8 is not supported"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        plan_of(tmp_path, "bert-mean", keys=keys)


def test_missing_tensors(tmp_path: Path) -> None:
    for name in ("position_embd.weight", "blk.1.layer_output_norm.weight", "blk.0.attn_k.weight"):
        with pytest.raises(ModelError, match=f"{name}: tensor missing"):
            plan_of(tmp_path, "bert-mean", drop=(name,))
    with pytest.raises(ModelError, match=r"dense_2.weight: tensor missing"):
        plan_of(tmp_path, "gemma-embedding", drop=("dense_2.weight",))
