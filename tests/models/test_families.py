"""Every family and variant against transformers, in float32, beyond windows and original contexts.

The figures lie in families/; weights are drawn from names and written by the gguf package (tests/helpers).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import families
import familygguf
import numpy as np
import planref
import pytest
from corerun import Runner
from families import Case

from pyedge import LLM, _core
from pyedge.models import Plan, build_plan
from pyedge.models.plan import Op

NAMES = families.names()
TOLERANCE = 1e-4  # of logits that are 2 on average
PER_LAYER = 2e-6  # beyond: 46 layers make up to 1.3e-4 of float32 sums in another order
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes each file once."""
    folder = tmp_path_factory.mktemp("families")

    def write(name: str, types: str = "F32") -> Path:
        path = folder / f"{name}-{types}.gguf"
        return path if path.exists() else familygguf.write(path, families.load(name), types=types)

    return write


def open_case(case: Case, path: Path, precision: str = "f32", kv_type: str = "f32") -> Runner:
    return Runner(path, precision=precision, kv_type=kv_type, build=lambda gguf: build_plan(gguf, case.max_model_len))


def rows_of(case: Case, values: np.ndarray) -> np.ndarray:
    """Those that the fixture has: one of a text that is embedded."""
    return values[-1:] if case.pooling else values


@pytest.mark.parametrize("name", NAMES)
def test_logits(write: Write, name: str) -> None:
    case = families.load(name)
    runner = open_case(case, write(name))
    whole = runner.run(case.tokens)
    tolerance = TOLERANCE + PER_LAYER * case.config["num_hidden_layers"]
    assert np.abs(rows_of(case, whole) - case.values).max() < tolerance
    if runner.plan.pooling is None:
        assert np.array_equal(runner.run(case.tokens, cuts=range(1, len(case.tokens))), whole), "token by token"


@pytest.mark.parametrize(("name", "max_model_len"), [("phi3-short", 16), ("phi3-long", 17), ("phi3-long", None)])
def test_the_context_asked_for_chooses_rope_factors(tmp_path: Path, name: str, max_model_len: int | None) -> None:
    case, tokens = families.load(name), [*map(chr, range(33, 92)), "AB"]
    tokenizer = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": [1] * 60, "merges": ["A B"]}
    path = familygguf.write(tmp_path / "m.gguf", case, tokenizer=tokenizer)
    with LLM(path, max_model_len=max_model_len, precision="f32") as llm:
        few = case.tokens[:14]
        assert np.abs(llm.logits(few) - case.values[:14]).max() < TOLERANCE


@pytest.mark.parametrize("types", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", NAMES)
def test_fast_path(write: Write, name: str, types: str) -> None:
    """Against float activations on the same quantized weights."""
    case = families.load(name)
    path = write(name, types)
    found, expected = (
        rows_of(case, open_case(case, path, precision, kv_type).run(case.tokens))
        for precision, kv_type in (("fast", "f16"), ("f32", "f32"))
    )
    of_tokens = np.sqrt(np.mean((found - expected) ** 2, axis=1)) / expected.std()
    # Where two experts are close, rounding decides, and moves that token far off; the others tell.
    has_experts = "num_experts_per_tok" in case.config
    difference = np.median(of_tokens) if has_experts else np.sqrt(np.mean(of_tokens**2))
    assert difference < 0.05 + 0.002 * case.config["num_hidden_layers"]


# ---- The fixtures can tell -------------------------------------------------------------------------------------------

NEUTRAL: dict[tuple[str, str], float] = {
    ("attention", "window"): 0,
    ("attention", "softcap"): 0.0,
    ("rope_table", "scale"): 1.0,
    ("rope_table", "magnitude"): 1.0,
    ("rope_table", "ramp_low"): 0.0,
    ("rope_table", "ramp_high"): 0.0,
    ("add", "factor"): 1.0,
    ("scale", "factor"): 1.0,
    ("logits", "scale"): 1.0,
    ("logits", "softcap"): 0.0,
    ("moe", "chosen"): 0,
}
OTHERWISE: dict[tuple[str, str], Callable[[dict[str, Any]], float]] = {
    ("attention", "scale"): lambda p: 1 / math.sqrt(p["head_dim"]),
    ("attention", "causal"): lambda p: 1 - p["causal"],
    ("attention", "window"): lambda p: p["window"] + (p["window"] > 0),
    ("rope", "pairing"): lambda p: 1 - p["pairing"],
    ("embed", "by"): lambda p: 2 if p["by"] == 1 else p["by"],
    ("activation", "function"): lambda p: 3,
    ("moe", "function"): lambda p: 3,
    ("moe", "n_used"): lambda p: p["n_used"] - 1,
    ("pool", "pooling"): lambda p: (p["pooling"] + 1) % 3,
}


def changes(plan: Plan) -> Iterator[tuple[str, list[Op]]]:
    """The plan's ops with one thing left out or done otherwise, and what."""
    kinds = _core.ops()

    def each(kind: str, change: Callable[[Op, dict[str, Any]], Op]) -> list[Op]:
        made = []
        for op in plan.ops:
            names = [p.partition(":")[2] for p in kinds[op.kind].parameters.split()]
            made.append(change(op, dict(zip(names, op.parameters, strict=True))) if kinds[op.kind].name == kind else op)
        return made

    def vary(kind: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[Op]:
        return each(kind, lambda op, p: op._replace(parameters=[*{**p, **change(p)}.values()]))

    for (kind, name), value in NEUTRAL.items():
        yield f"{kind}.{name}", vary(kind, lambda p: {name: value})  # noqa: B023
    for (kind, name), change in OTHERWISE.items():
        yield f"{kind}.{name} otherwise", vary(kind, lambda p: {name: change(p)})  # noqa: B023
    floor, ceil = (lambda p: math.floor(p["ramp_low"])), (lambda p: math.ceil(p["ramp_high"]))
    yield "rope_table.ramp at whole pairs", vary("rope_table", lambda p: {"ramp_low": floor(p), "ramp_high": ceil(p)})
    yield "rope_table.factors", each("rope_table", lambda op, p: without(op, [0]))
    tables = [op.outputs[0] for op in plan.ops if kinds[op.kind].name == "rope_table"]
    yield "rope_table", each("rope", lambda op, p: op._replace(inputs=[op.inputs[0], tables[0]]))
    for kind in ("linear", "layer_norm", "moe"):  # each bias stands behind its matrix
        yield f"{kind}.bias", each(kind, lambda op, p: without(op, range(1, len(op.weights), 2)))
    yield "attention.sinks", each("attention", lambda op, p: without(op, [0]))


def without(op: Op, weights: Iterable[int]) -> Op:
    return op._replace(weights=[-1 if i in weights else w for i, w in enumerate(op.weights)])


@pytest.mark.parametrize("name", NAMES)
def test_fixtures_tell_every_setting(write: Write, name: str) -> None:
    """A plan that leaves out a window, a cap, a scale or a factor is far from the figures."""
    case, path = families.load(name), write(name)
    plan = open_case(case, path).plan
    told = 0
    for what, ops in changes(plan):
        if ops == plan.ops:
            continue
        found = planref.Oracle(replace(plan, ops=ops), path)(case.tokens).logits
        assert np.abs(rows_of(case, found) - case.values).max() > 100 * TOLERANCE, what
        told += 1
    assert told > 0


@pytest.mark.parametrize("name", ["bert-mean", "bert-cls"])
def test_gelu_is_not_its_approximation(write: Write, name: str) -> None:
    case, path = families.load(name), write(name)
    plan = open_case(case, path).plan
    kind = next(i for i, info in enumerate(_core.ops()) if info.name == "activation")
    ops = [op._replace(parameters=[1, op.parameters[1]]) if op.kind == kind else op for op in plan.ops]
    found = planref.Oracle(replace(plan, ops=ops), path)(case.tokens).logits
    assert np.abs(rows_of(case, found) - case.values).max() > 3 * TOLERANCE
