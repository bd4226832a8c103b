"""What pages are worth: the same requests over the same KV memory, with pages taken as they fill, and with the longest
possible sequence reserved for each request, as servers did before vLLM (arXiv:2309.06180):

    python tests/bench/paging.py [MODEL] [--kv-tokens 8192] [--max-model-len 2048] [--requests 64] [--rounds 3]

Prompts and answers have random lengths, many short ones and some long. Both policies run in each round, in turn, over
one model; what is compared are the requests that run at once, the share of held KV memory without a token in it, and
all tokens per second. Below that, the waste of 16 requests of 500 tokens each, from their first token to their last.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import mean, median

from pyedge import LLM, SamplingParams
from pyedge.engine.engine import Engine, EngineConfig
from pyedge.engine.pages import PagePool
from pyedge.engine.request import Request
from pyedge.engine.scheduler import Scheduler

Lengths = Sequence[tuple[int, int]]  # of a prompt and its answer


class Reserving(Scheduler):
    """Gives a request the pages of the longest sequence when it begins, or lets it wait."""

    def _admit(self, request: Request) -> bool:
        longest = self.pool.pages_for(self.max_model_len)
        if self.pool.n_free < longest or not super()._admit(request):
            return False
        request.pages += [self.pool.allocate() for _ in range(longest - len(request.pages))]
        return True


@dataclass
class Result:
    """Of one run. Lists have an entry for each step."""

    running: list[int] = field(default_factory=list)
    waste: list[float] = field(default_factory=list)  # of the memory that is held
    tokens: int = 0
    seconds: float = 0.0

    @property
    def tok_s(self) -> float:
        return self.tokens / self.seconds


def make_engine(llm: LLM, policy: type[Scheduler], kv_tokens: int, max_model_len: int) -> Engine:
    """An engine with a KV cache of its own. No prefix cache: prompts have nothing in common, and pages are counted."""
    size = 16
    n_pages = kv_tokens // size
    config = EngineConfig(n_pages, max_model_len, page_size=size, threads=llm.threads, prefix_cache=False)
    engine = Engine(llm.weights, llm.tokenizer, config)
    engine.scheduler = policy(
        PagePool(n_pages, size),
        max_model_len=max_model_len,
        max_sequences=config.max_sequences,
        max_tokens=config.max_tokens,
        prefix_cache=False,
        copy_page=engine._core.copy_page,
    )
    return engine


def run(engine: Engine, lengths: Lengths) -> Result:
    """All requests at once, to the end."""
    requests = [
        engine.request(
            [(7919 * (i + 3) + 31 * t) % engine.n_vocab for t in range(prompt)],
            SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True),
            watched=False,
        )
        for i, (prompt, output) in enumerate(lengths)
    ]
    for request in requests:
        engine.add(request)
    result = Result(tokens=sum(p + n for p, n in lengths))
    size = engine.config.page_size
    start = time.perf_counter()
    while engine.has_work:
        for event in engine.step():
            if event.error is not None:
                raise event.error
        running = engine.scheduler.running
        if running and all(r.n_output for r in running):  # what is still to be read has its pages, and no tokens yet
            held = size * engine.scheduler.pool.n_used
            result.running.append(len(running))
            result.waste.append(1 - sum(r.n_computed for r in running) / held)
    result.seconds = time.perf_counter() - start
    engine.check_integrity()
    assert engine.scheduler.pool.n_used == 0
    return result


def workload(n: int, max_model_len: int, seed: int) -> list[tuple[int, int]]:
    """Log-normal lengths, as people's are: half are under 60 and 100 tokens, and a few many times as long."""
    random = Random(seed)
    longest = max_model_len // 2

    def length(middle: float) -> int:
        return min(longest, max(4, round(random.lognormvariate(0, 0.9) * middle)))

    return [(length(60), length(100)) for _ in range(n)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2:135m")
    parser.add_argument("--kv-tokens", type=int, default=8192, help="that the KV cache holds [8192]")
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)

    with LLM(options.model, kv_memory="8MB") as llm:
        lengths = workload(options.requests, options.max_model_len, options.seed)
        policies = {"reserved": Reserving, "pages": Scheduler}
        results: dict[str, list[Result]] = {name: [] for name in policies}
        for _ in range(options.rounds):
            for name, policy in policies.items():
                engine = make_engine(llm, policy, options.kv_tokens, options.max_model_len)
                results[name].append(run(engine, lengths))
        print(
            f"{options.requests} requests, {options.kv_tokens} tokens of KV cache, at most {options.max_model_len} each"
        )
        print(f"{'':10} {'at once':>8} {'most':>6} {'waste':>7} {'tokens/s':>9}")
        for name, rounds in results.items():
            one = rounds[0]  # the others are the same but for their time
            speed = median(r.tok_s for r in rounds)
            print(f"{name:10} {mean(one.running):8.1f} {max(one.running):6} {mean(one.waste):7.1%} {speed:9.1f}")
        ratios = sorted(b.tok_s / a.tok_s for a, b in zip(results["reserved"], results["pages"], strict=True))
        print(f"pages are {median(ratios):.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})")
        waste = run(make_engine(llm, Scheduler, 16 * 528, 512), [(372, 128)] * 16).waste
        print(f"16 requests of 500 tokens: {mean(waste):.1%} waste ({waste[-1]:.1%} at the end)")


if __name__ == "__main__":
    main()
