"""Rotary embeddings of files from strangers: every kind of scaling, how it is chosen, and what is refused by name."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinymodel import write_tiny_llama

from pyedge import ModelError, _core
from pyedge.models import build_plan
from pyedge.models.hparams import HParams, read
from pyedge.models.plan import Pairing, Rope

PLAIN = {"head_dim": 32, "n_rot": 32, "base": 10000.0}


def hparams_of(tmp_path: Path, factors: tuple[str, ...] = (), **keys: Any) -> HParams:
    """Of a file with `llama.rope.scaling.KEY` and tensors of rope factors."""
    path = write_tiny_llama(
        tmp_path / "m.gguf",
        n_head=2,
        n_embd=64,
        context=256,
        keys={f"llama.rope.scaling.{key}": value for key, value in keys.items()},
        extra={f"rope_factors_{name}.weight": np.ones(16) for name in factors},
    )
    return read(_core.Gguf(str(path)), "llama")


def yarn_of(tmp_path: Path, **keys: Any) -> Rope:
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 64, **keys}
    return hparams_of(tmp_path, **keys).rope(Pairing.HALVES)


def test_without_scaling(tmp_path: Path) -> None:
    assert hparams_of(tmp_path).rope(Pairing.HALVES) == Rope(**PLAIN, factors="rope_freqs", pairing=Pairing.HALVES)


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_layers_that_scaling_does_not_concern(tmp_path: Path, kind: str) -> None:
    h = hparams_of(tmp_path, type=kind, factor=4.0, attn_factor=1.5)
    assert h.rope(Pairing.HALVES).scale == 4.0
    assert h.rope(Pairing.HALVES, base=500.0, scaled=False) == Rope(32, 32, 500.0, pairing=Pairing.HALVES)


def test_yarn_ramp(tmp_path: Path) -> None:
    """Between the pairs that turn 32 times and once within the original context."""
    h = hparams_of(tmp_path, type="yarn", factor=4.0, original_context_length=1024)
    # A pair i turns 1024 / (2 pi 10000^(i/16)) times.
    low, high = (16 * math.log(1024 / (2 * math.pi * turns), 10000.0) for turns in (32, 1))
    assert h.rope(Pairing.HALVES, truncate=False).ramp == pytest.approx((low, high))
    assert h.rope(Pairing.HALVES).ramp == (math.floor(low), math.ceil(high))
    assert h.rope(Pairing.HALVES).scale == 4.0


def test_yarn_ramp_is_never_empty(tmp_path: Path) -> None:
    """A ramp of no width would say that the factor holds for all pairs."""
    low, high = yarn_of(tmp_path, original_context_length=1).ramp
    assert 0 == low < high


def test_yarn_original_context_defaults_to_the_models(tmp_path: Path) -> None:
    assert yarn_of(tmp_path, original_context_length=None) == yarn_of(tmp_path, original_context_length=256)


@pytest.mark.parametrize(
    ("keys", "magnitude"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"factor": 1.0}, 1.0),
        ({"factor": 0.5}, 1.0),
        ({"yarn_attn_factor": 1.25}, 1.25),
        ({"yarn_log_multiplier": 0.5}, (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
        ({"yarn_log_multiplier": 0.0}, 0.1 * math.log(4) + 1),
        ({"attn_factor": 2.0}, 2 * (0.1 * math.log(4) + 1)),
    ],
)
def test_yarn_magnitude(tmp_path: Path, keys: dict[str, float], magnitude: float) -> None:
    assert yarn_of(tmp_path, **keys).magnitude == pytest.approx(magnitude)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("yarn_ext_factor", 0.5, "only 1 is"),
        ("yarn_beta_slow", 64.0, "above yarn_beta_fast, 32"),
        ("yarn_beta_fast", 0.0, "out of range"),
        ("yarn_log_multiplier", -1.0, "out of range"),
        ("yarn_log_multiplier", "much", "not a finite number"),
        ("yarn_attn_factor", float("nan"), "not a finite number"),
        ("original_context_length", 0, "out of range"),
    ],
)
def test_yarn_that_is_refused(tmp_path: Path, key: str, value: Any, why: str) -> None:
    with pytest.raises(ModelError, match=rf"^llama\.rope\.scaling\.{key}: .*{why}"):
        yarn_of(tmp_path, **{key: value})


@pytest.mark.parametrize("kind", ["longrope", None])
def test_long_factors_are_for_long_contexts(tmp_path: Path, kind: str | None) -> None:
    """Early files do not say that they have them. The set that is not used is not missed."""
    h = hparams_of(tmp_path, ("long", "short"), type=kind, original_context_length=64, attn_factor=1.19)
    assert h.rope(Pairing.HALVES) == Rope(
        **PLAIN, factors="rope_factors_long", pairing=Pairing.HALVES, magnitude=pytest.approx(1.19)
    )
    for length, factors in ((64, "rope_factors_short"), (65, "rope_factors_long")):
        assert replace(h, max_model_len=length).rope(Pairing.HALVES).factors == factors
        with _core.Gguf(str(tmp_path / "m.gguf")) as file:
            assert any(factors in name for name in build_plan(file, length).tensors.values())


@pytest.mark.parametrize(
    ("kind", "factors", "missing"),
    [("longrope", (), "long"), ("longrope", ("long",), "short"), (None, ("short",), "long")],
)
def test_long_factors_come_in_twos(tmp_path: Path, kind: str | None, factors: tuple[str, ...], missing: str) -> None:
    with pytest.raises(ModelError, match=f"^rope_factors_{missing}.weight: tensor missing; longrope"):
        hparams_of(tmp_path, factors, type=kind)
