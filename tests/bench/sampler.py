"""Times the sampler in each of its modes: `python tests/bench/sampler.py [--vocab 262144]`.

Prints the median time of one call in milliseconds, and the time of one pass over memory for the same row (numpy's max),
for three kinds of logits: `peaked` as a model that knows what comes next, `usual` (normal, spread 3) and `flat`
(normal, spread 1), where half of the vocabulary has a say.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pyedge._core import Sampler

MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "top_k 40": {"temperature": 0.8, "top_k": 40},
    "top_p 0.95": {"temperature": 1.0, "top_p": 0.95},
    "top_p 0.95 at 0.8": {"temperature": 0.8, "top_p": 0.95},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "penalty": {"temperature": 0.8, "top_k": 40, "repeat_penalty": 1.1},
    "logprobs 5": {"temperature": 0.0, "n_logprobs": 5},
    "top_p, logprobs 20": {"temperature": 0.8, "top_p": 0.95, "n_logprobs": 20},
}


def rows(n: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    rng = np.random.default_rng(0)
    usual = (rng.standard_normal(n) * 3).astype(np.float32)
    peaked = usual.copy()
    peaked[rng.integers(0, n, 20)] += np.linspace(15, 22, 20, dtype=np.float32)
    return {"peaked": peaked, "usual": usual, "flat": rng.standard_normal(n).astype(np.float32)}


def median_ms(call: Callable[[int], object], runs: int) -> float:
    times = []
    for i in range(runs):
        start = time.perf_counter()
        call(i)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=262144)
    parser.add_argument("--runs", type=int, default=101)
    args = parser.parse_args()
    logits = rows(args.vocab)
    print(f"{'ms per call':20}" + "".join(f"{kind:>9}" for kind in logits))
    passes = [median_ms(lambda _, x=x: x.max(), args.runs) for x in logits.values()]
    print(f"{'one pass (numpy)':20}" + "".join(f"{t:9.3f}" for t in passes))
    for name, settings in MODES.items():
        sampler = Sampler(args.vocab, **settings)
        sampler.accept([1, 2, 3, 2], True)
        times = [median_ms(partial(sampler.sample, x), args.runs) for x in logits.values()]
        print(f"{name:20}" + "".join(f"{t:9.3f}" for t in times))


if __name__ == "__main__":
    main()
