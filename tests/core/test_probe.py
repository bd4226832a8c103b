"""The probe of this machine's limits, and the time of each op: sense, not speed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from program import environment, python
from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.models import build_plan

ISAS = [name for name, supported in _core.isas() if supported]
SCRIPT = "import json, pyedge._core as c; print(json.dumps(c.probe(1)))"


@pytest.mark.parametrize("isa", ISAS)
def test_limits_are_those_of_the_set_that_runs(isa: str) -> None:
    found = json.loads(python("-c", SCRIPT, env=environment(PYEDGE_ISA=isa)).stdout)
    assert found["isa"] == isa
    assert found["threads"] == 1
    assert found["read_streams"] in (1, 2, 4, 8)
    assert 0.05 < found["read_gb_s"] < 2000
    assert 0.01 < found["int8_gmac_s"] < 20000  # no processor: the work would have been optimized away
    assert 0.01 < found["f32_gmac_s"] < 5000
    if isa != "scalar":
        assert found["int8_gmac_s"] > found["f32_gmac_s"] / 4  # two to four times it, on a machine at rest


def test_probe_refuses_what_is_no_number_of_threads() -> None:
    for threads in (-1, _core.MAX_THREADS + 1):
        with pytest.raises(ValueError, match="threads is"):
            _core.probe(threads)


def test_times_of_ops(tmp_path: Path) -> None:
    with _core.Gguf(write_tiny_llama(tmp_path / "tiny.gguf")) as gguf:
        plan = build_plan(gguf)
        model = _core.Model(gguf, plan.ops)
    engine = _core.Engine(
        model,
        page_size=16,
        n_pages=2,
        max_tokens=32,
        max_pieces=1,
        max_rows=1,
        max_sequences=1,
        max_pages_per_sequence=2,
        kv_type="f16",
        threads=1,
    )
    engine.set_pages(0, 0, [0, 1])

    def step() -> None:
        engine.step([(0, 0, 32)], list(range(32)), [31])

    step()
    with pytest.raises(ValueError, match="not counted"):
        engine.op_times()
    engine.profile(True)
    assert engine.op_times() == [0] * len(plan.ops)
    step()
    once = engine.op_times()
    assert len(once) == len(plan.ops)
    assert all(time > 0 for time in once)
    step()
    assert all(b > a for a, b in zip(once, engine.op_times(), strict=True))  # they add up
    engine.profile(True)  # from zero
    assert engine.op_times() == [0] * len(plan.ops)
    engine.profile(False)
    with pytest.raises(ValueError, match="not counted"):
        engine.op_times()
