"""SamplingParams: what is accepted is normal afterwards; what is not is refused in one line that names the field."""

import math
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from pyedge.engine.sampling_params import SamplingParams

NAN, INF = math.nan, math.inf
LARGE = np.zeros((100, 100))  # of whose text an error must not make many lines

REFUSED = {
    "temperature": [LARGE, 10**400, 10**5000, -1, -1e-9, NAN, INF, True, "1", None],
    "top_k": [LARGE, 10**5000, -2, 1.0, True, None, 2**31],
    "top_p": [-0.1, 1.1, NAN, "0.5"],
    "min_p": [-0.1, 1.1, NAN],
    "repeat_penalty": [0, -1, NAN, INF],
    "presence_penalty": [NAN, INF, "0", False],
    "frequency_penalty": [NAN, -INF],
    "repeat_last_n": [-2, 0.5, 2**20 + 1],
    "max_tokens": [-5, -1, 1.5, True, "3"],
    "min_tokens": [-1, None, 2.0],
    "seed": [1.0, "1", 2**64, -(2**63) - 1, True],
    "stop": [LARGE, [LARGE], "", [""], ["a", ""], [1], b"x", None, 3],
    "logprobs": [-1, 65, True, 1.0],
    "prompt_logprobs": [-1, 65, True, 1.0],
    "logit_bias": [
        LARGE,
        {1: LARGE},
        {1: -(10**400)},
        {10**5000: 1.0},
        {2**31: 1.0},
        [1],
        {"1": 1.0},
        {-1: 1.0},
        {True: 1.0},
        {1: NAN},
        {1: INF},
        {1: "x"},
        {1: 1e39},
    ],
    "ignore_eos": [LARGE, 0, None, "no"],
    "n": [LARGE, 0, -1, 129, 1.0, True, None],
    "grammar": [LARGE, "{}", {"type": "object"}, True],
}


def short(value: object) -> str:
    return value if isinstance(value, str) else type(value).__name__


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in REFUSED.items() for v in values], ids=short)
def test_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name.split("_")[0]) as e:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 160


def test_every_field_is_checked() -> None:
    assert set(REFUSED) == {f.name for f in fields(SamplingParams)}


def test_normal_form() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        stop="end",
        logit_bias={np.int32(7): 1, 8: -INF},  # type: ignore[dict-item]
        seed=-1,
    )
    assert (type(params.temperature), type(params.top_k)) == (float, int)
    assert params.stop == ("end",)
    assert params.logit_bias == {7: 1.0, 8: -INF}
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


def test_it_is_a_value() -> None:
    assert SamplingParams(seed=1, logit_bias={1: 2.0}) == SamplingParams(seed=1, logit_bias={1: 2})
    assert hash(SamplingParams(seed=1, logit_bias={1: 2.0})) == hash(SamplingParams(seed=1, logit_bias={1: 2}))
    with pytest.raises(FrozenInstanceError):
        SamplingParams().seed = 1  # type: ignore[misc]
    given = {1: 1.0}
    params = SamplingParams(logit_bias=given)
    given[2] = 1.0
    assert params.logit_bias == {1: 1.0}


def test_edges_are_allowed() -> None:
    SamplingParams(temperature=0, top_k=0, top_p=0, min_p=1, max_tokens=0, logprobs=0, repeat_last_n=-1, seed=2**64 - 1)
    SamplingParams(top_k=-1, max_tokens=None, min_tokens=3)
    with pytest.raises(ValueError, match="min_tokens"):
        SamplingParams(max_tokens=2, min_tokens=3)


def test_rules_of_one_of_several_answers() -> None:
    params = SamplingParams(n=3, seed=2**64 - 2, top_k=7)
    assert [params.of_answer(i) for i in range(3)] == [
        SamplingParams(seed=seed, top_k=7) for seed in (2**64 - 2, 2**64 - 1, 0)
    ]
    assert SamplingParams(n=2, seed=-1).of_answer(1).seed == 0
