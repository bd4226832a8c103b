"""What a long prompt costs those who are being answered meanwhile: the gaps between their tokens, before it comes and
while it is read.

    python tests/bench/gaps.py [MODEL] [--streams 4] [--context 500] [--prompt 4000] [--rounds 3]

The streams have `context` tokens each when it begins, and grow by one with each step while the prompt is read: streams
that begin with few are several times as long when it ends, and their own steps the slower. So the quiet median of
streams as long as they are then, and nothing else to do, is printed beside the one before.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

from pyedge import LLM, SamplingParams
from pyedge.engine.engine import Engine
from pyedge.engine.pace import CHUNK
from pyedge.engine.request import Request

QUIET = 60  # tokens of each stream, before and after


class Stamps(deque[Any]):
    """A request's queue of events, which notes when each came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def append(self, event: Any) -> None:
        self.times.append(time.perf_counter())


def new_request(engine: Engine, seed: int, n_tokens: int, n_output: int) -> Request:
    ids = [(7919 * (seed + 3) + 31 * k) % engine.n_vocab for k in range(n_tokens)]  # that share no page
    return engine.request(ids, SamplingParams(temperature=0, max_tokens=n_output, ignore_eos=True))


def run(engine: Engine, until: Callable[[], bool]) -> None:
    while not until():
        if not engine.has_work:
            raise SystemExit("error: gaps.py: a stream has ended; give it a shorter prompt")
        engine.step()


def one_round(engine: Engine, n_streams: int, context: int, n_prompt: int) -> str:
    streams = [new_request(engine, i, context, 100_000) for i in range(n_streams)]
    stamps = [Stamps() for _ in streams]
    for request, stamp in zip(streams, stamps, strict=True):
        engine.add(request, stamp)
    run(engine, lambda: min(len(s.times) for s in stamps) >= QUIET)
    begin = time.perf_counter()
    prompt, first = new_request(engine, n_streams, n_prompt, 1), Stamps()
    engine.add(prompt, first)
    run(engine, lambda: bool(first.times))
    end = time.perf_counter()
    grown = min(r.n_tokens for r in streams)
    n = len(stamps[0].times) + QUIET
    run(engine, lambda: len(stamps[0].times) >= n)
    engine.abort(*streams)

    gaps: dict[str, list[float]] = {"before": [], "while": [], "after": []}
    for stamp in stamps:
        for a, b in pairwise(stamp.times[10:]):
            gaps["before" if b <= begin else "while" if a >= begin and b <= end else "after"].append(1e3 * (b - a))
    before, worst = median(gaps["before"]), sorted(gaps["while"])[int(0.99 * len(gaps["while"]))]
    return (
        f"{n_streams} streams of {context} to {grown} tokens: quiet {before:.1f} ms before, "
        f"{median(gaps['after']):.1f} after; while {n_prompt} tokens were read in {end - begin:.1f} s: "
        f"median {median(gaps['while']):.1f}, 99th percentile {worst:.1f} = {worst / before:.2f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--context", type=int, default=500)
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--kv-memory", default="1GB")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    length = args.context + args.prompt + args.prompt // CHUNK + 4 * QUIET  # CHUNK tokens are read in a step, or more
    with LLM(args.model, max_model_len=length, kv_memory=args.kv_memory, prefix_cache=False) as llm:
        for _ in range(args.rounds):
            print(one_round(llm.engine, args.streams, args.context, args.prompt), flush=True)


if __name__ == "__main__":
    main()
