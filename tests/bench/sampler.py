"""Times the sampler in each of its modes: `python tests/bench/sampler.py [--vocab 262144]`.

Prints the median time of one call in milliseconds, at three temperatures for four kinds of logits: `peaked` as a model
that knows what comes next, `spread` (normal, deviation 3), `flat` (normal, deviation 1), where half of the vocabulary
has a say, and `level` (deviation 0.01), where all of it has. Before it the time of one pass over memory for the same
row (numpy's max), and after it the slowest of all.
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

TEMPERATURES = (0.2, 0.8, 1.5)
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "top_k 40": {"top_k": 40},
    **{f"top_p {p}": {"top_p": p} for p in (0.5, 0.8, 0.9, 0.95, 0.99)},
    "min_p 0.05": {"min_p": 0.05},
    "top_p 0.95, min_p 0.05": {"top_p": 0.95, "min_p": 0.05},
    "top_k 40, top_p 0.95": {"top_k": 40, "top_p": 0.95},
    "  and min_p 0.05": {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    "  and a penalty": {"top_k": 40, "top_p": 0.95, "repeat_penalty": 1.1},
    "penalty": {"repeat_penalty": 1.1},
    "penalty, top_p 0.95": {"top_p": 0.95, "repeat_penalty": 1.1},
    "penalty, top_p 0.5": {"top_p": 0.5, "repeat_penalty": 1.1},
    "top_p 0.95, logprobs 20": {"top_p": 0.95, "n_logprobs": 20},
}


def rows(n: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    rng = np.random.default_rng(0)
    spread = (rng.standard_normal(n) * 3).astype(np.float32)
    peaked = spread.copy()
    peaked[rng.integers(0, n, 20)] += np.linspace(15, 22, 20, dtype=np.float32)
    flat = rng.standard_normal(n).astype(np.float32)
    return {"peaked": peaked, "spread": spread, "flat": flat, "level": flat * np.float32(0.01)}


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
    recent = np.random.default_rng(1).integers(0, args.vocab, 500).tolist()

    def times(settings: dict[str, Any], x: np.ndarray[Any, np.dtype[np.float32]]) -> float:
        sampler = Sampler(args.vocab, **settings)
        sampler.accept(recent, True)
        return median_ms(partial(sampler.sample, x), args.runs)

    print(f"{'ms per call':24}" + "".join(f"{kind:>22}" for kind in logits))
    passes = [median_ms(lambda _, x=x: x.max(), args.runs) for x in logits.values()]
    print(f"{'one pass (numpy)':24}" + "".join(f"{t:22.3f}" for t in passes))
    print(f"{'greedy':24}" + "".join(f"{times({'temperature': 0.0}, x):22.3f}" for x in logits.values()))
    print(f"{'  at temperature':24}" + f"{TEMPERATURES[0]:8}{TEMPERATURES[1]:7}{TEMPERATURES[2]:7}" * len(logits))
    slowest = 0.0
    for name, mode in MODES.items():
        table = [[times({**mode, "temperature": t}, x) for t in TEMPERATURES] for x in logits.values()]
        slowest = max(slowest, *(max(row) for row in table))
        print(f"{name:24}" + "".join(f"{row[0]:8.3f}{row[1]:7.3f}{row[2]:7.3f}" for row in table))
    print(f"the slowest took {slowest:.3f} ms")


if __name__ == "__main__":
    main()
