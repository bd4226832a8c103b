"""`pyedge capacity`: how many chats fit at the speed that is asked for, what limits them and what would change it.

Owns how that is shown, the changes that are tried, and the check against chats that are run; measuring and reckoning
are engine/capacity.py's.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import synthetic, verbose
from pyedge.cli.options import load_any, model_options
from pyedge.cli.streams import print_json
from pyedge.cli.synthetic import file_of
from pyedge.cli.terminal import in_bytes, measuring_bar

if TYPE_CHECKING:
    from pyedge.engine.capacity import Capacity, Chat, Cost, Measured, Times
    from pyedge.engine.pace import StepCost
    from pyedge.llm import LLM

FEW_BITS = 4.5  # of a weight
SMALLER = {"f32": ("f16", "q8_0"), "f16": ("q8_0", "q4_0"), "q8_0": ("q4_0",), "q4_0": ()}

EXAMPLES = """\b
Examples:
  pyedge capacity smollm2:135m
  pyedge capacity model.gguf --prompt 1000 --output 200 --ttft 3 --tpot 0.05 --kv-memory 2GB
  pyedge capacity model.gguf --chats 16 --check --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", required=False)
@click.option("--prompt", type=click.IntRange(min=1), default=512, metavar="N", help="Tokens that a chat sends. [512]")
@click.option("--output", type=click.IntRange(min=1), default=128, metavar="N", help="Tokens it gets back. [128]")
@click.option("--ttft", type=click.FloatRange(min=0), default=5.0, metavar="S", help="Time to first token. [5 s]")
@click.option("--tpot", type=click.FloatRange(min=0), default=0.1, metavar="S", help="Time per token then. [0.1 s]")
@click.option("--chats", type=click.IntRange(min=1), metavar="N", help="Say what so many would come to.")
@click.option("--max-sequences", type=click.IntRange(1, 1024), metavar="N", help="That run at once. [64]")
@click.option("--check", is_flag=True, help="Run the chats, and show what was measured beside it.")
@synthetic.option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@model_options
def command(
    model: str | None,
    prompt: int,
    output: int,
    ttft: float,
    tpot: float,
    chats: int | None,
    max_sequences: int | None,
    check: bool,
    synthetic: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Say how many chats MODEL holds at once on this machine, so that none waits longer than asked.

    All of them send a prompt at the same moment, and the prompts have nothing in common: --ttft is for the one that
    waits longest, --tpot for the slowest. What steps cost is measured first; it takes some seconds.
    """
    import pyedge.llm  # noqa: F401
    from pyedge import _core
    from pyedge.engine.capacity import Chat, capacity, measure, n_measures, play
    from pyedge.engine.profile import expected

    others = {} if max_sequences is None else {"max_sequences": max_sequences}
    with file_of(model, synthetic) as (name, path):
        with _core.Gguf(path) as gguf:
            tensors = gguf.tensors
        llm = load_any(path, options, **others)
        loading, config, chat = _peak_bytes(), llm.engine.config, Chat(prompt, output)
        if prompt + output > llm.max_model_len:
            raise ValueError(
                f"{prompt} and {output} tokens do not fit the context of {llm.max_model_len}; ask for fewer, or give "
                "--ctx or --kv-memory"
            )
        with measuring_bar(n_measures(config, chat)) as advance:
            measured = measure(llm.weights, llm.tokenizer, config, chat, advance)
        prior = expected(llm.plan, tensors, options["precision"] or "fast", config.kv_type)
        found = capacity(measured.seconds, config, chat, ttft, tpot, prior)
        n = found.chats if chats is None else chats
        times = play(measured.seconds, config, chat, n, prior) if n else None
        page_bytes = _core.page_bytes(llm.weights, config.page_size, config.kv_type)
        kv_bytes = min(n * -(-chat.tokens // config.page_size), config.n_pages) * page_bytes
        resident = int(measured.resident(min(n, config.max_sequences)))
        answer = Answer(llm, chat, found, n, times, page_bytes / config.page_size, kv_bytes, resident, loading)
        changes = _changes(answer, measured, ttft, tpot, prior, tensors)
        really = _run(llm, chat, n, prior, loading) if check and n else None
    if as_json:
        print_json(
            {
                "model": name,
                "chats": found.chats,
                "limited_by": found.limited_by,
                "kv_bytes_per_token": page_bytes / config.page_size,
                "total_bytes": answer.total_bytes,
                "weight_bytes": llm.weight_bytes,
                "kv_bytes": kv_bytes,
                "prompt": prompt,
                "output": output,
                "fit": asdict(found),
                "for_chats": n,
                "ttft_s": times and times.ttft,
                "tpot_s": times and times.tpot,
                "asked": {"chats": chats, "ttft_s": ttft, "tpot_s": tpot},
                "changes": [{"change": what, "chats": count} for what, count in changes],
                **({"measured": really} if really else {}),
            }
        )
        return
    _print(name, answer, changes, chats, really)


verbose(command)


@dataclass(frozen=True)
class Answer:
    llm: LLM
    chat: Chat
    found: Capacity
    n: int  # chats that times and memory are of
    times: Times | None
    kv_bytes_per_token: float
    kv_bytes: int
    resident_bytes: int
    loading_bytes: int  # at the peak of loading the model

    @property
    def total_bytes(self) -> int:
        """Of the process, at its peak."""
        return max(self.loading_bytes, self.resident_bytes + self.kv_bytes)


def _changes(
    answer: Answer, measured: Measured, ttft: float, tpot: float, prior: StepCost, tensors: Any
) -> list[tuple[str, int]]:
    """What would let more chats fit, and how many then."""
    from pyedge import _core
    from pyedge.engine.capacity import capacity
    from pyedge.engine.profile import weight_bits

    llm, chat, config = answer.llm, answer.chat, answer.llm.engine.config

    def count(cost: Cost = measured.seconds, chat: Chat = chat, **changed: Any) -> int:
        return capacity(cost, replace(config, **changed), chat, ttft, tpot, prior).chats

    tried: list[tuple[str, int]] = []
    if answer.found.limited_by == "memory":
        page = _core.page_bytes(llm.weights, config.page_size, config.kv_type)
        for kind in SMALLER[config.kv_type]:
            smaller = _core.page_bytes(llm.weights, config.page_size, kind)
            tried.append((f"--kv-type {kind}", count(n_pages=config.n_pages * page // smaller)))
        more = 2 * config.n_pages * page
        tried.append((f"--kv-memory {more}, twice as much", count(n_pages=2 * config.n_pages)))
    if answer.found.limited_by == "sequences":
        more = 2 * config.max_sequences
        tried.append((f"--max-sequences {more}", count(max_sequences=more, max_tokens=max(config.max_tokens, more))))
    if answer.found.limited_by in ("reading", "writing") and (bits := weight_bits(llm.plan, tensors)) > FEW_BITS + 0.5:
        lighter = FEW_BITS / bits
        cost = partial(measured.seconds, step_factor=lighter)
        tried.append((f"weights of {FEW_BITS} bits, and not {bits:.1f}", count(cost)))
    if chat.prompt > 1:
        half = replace(chat, prompt=chat.prompt // 2)
        tried.append((f"prompts of {half.prompt} tokens", count(chat=half)))
    return [(what, n) for what, n in tried if n > answer.found.chats]


def _run(llm: LLM, chat: Chat, chats: int, prior: StepCost, loading: int) -> dict[str, float]:
    """So many chats, started at the same moment."""
    from pyedge import SamplingParams
    from pyedge.engine.engine import Engine

    engine = Engine(llm.weights, llm.tokenizer, llm.engine.config, prior=lambda: prior)
    rules = SamplingParams(seed=1, max_tokens=chat.output, ignore_eos=True)
    prompts = [[(7919 * (i + 3) + 31 * t) % engine.n_vocab for t in range(chat.prompt)] for i in range(chats)]
    requests = [engine.request(prompt, rules) for prompt in prompts]
    _forget_peak()
    start = time.perf_counter()
    for request in requests:
        request.metrics.arrival = start
        engine.add(request)
    while engine.has_work:
        engine.step()
    return {
        "ttft_s": max(request.metrics.ttft or 0.0 for request in requests),
        "tpot_s": max(request.metrics.tpot or 0.0 for request in requests),
        "peak_bytes": max(loading, _peak_bytes()),
    }


def _forget_peak() -> None:
    """Of what was measured, which had more sequences at once; as far as the system lets it."""
    import ctypes
    from contextlib import suppress
    from pathlib import Path

    with suppress(OSError, AttributeError):  # glibc keeps what was freed
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # Linux counts the peak from here on
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """Of this process. On Linux ru_maxrss begins with what the process that started it had."""
    import resource
    from pathlib import Path

    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) * 1024 for line in status.read_text().splitlines() if "VmHWM" in line)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes


def _print(
    name: str, answer: Answer, changes: list[tuple[str, int]], chats: int | None, really: dict[str, float] | None
) -> None:
    found, chat, config = answer.found, answer.chat, answer.llm.engine.config
    why = {
        "memory": f"the KV cache, {config.n_pages * config.page_size} tokens of {config.kv_type}",
        "reading": "the time to first token",
        "writing": "the time per token",
        "sequences": "the sequences that run at once (--max-sequences)",
    }
    click.echo(
        f"{name}: {found.chats} chats of {chat.prompt} tokens and {chat.output} back, limited by {found.limited_by}: "
        f"{why[found.limited_by]}"
    )
    alone = ", ".join(f"{what} {n}" for what, n in asdict(found).items())
    click.echo(f"  what would fit by each alone: {alone}")
    if answer.times is not None:
        per_token = in_bytes(round(answer.kv_bytes_per_token))
        click.echo(
            f"  {answer.n} chats: first token after {answer.times.ttft:.2f} s at the latest, then one in "
            f"{1e3 * answer.times.tpot:.0f} ms; {in_bytes(answer.total_bytes)} in all, {in_bytes(answer.kv_bytes)} of "
            f"them keys and values ({per_token} a token)"
        )
    if really is not None:
        click.echo(
            f"  measured: {really['ttft_s']:.2f} s, {1e3 * really['tpot_s']:.0f} ms, "
            f"{in_bytes(int(really['peak_bytes']))} at the peak"
        )
    if chats is not None:
        click.echo(f"  {chats} chats {'fit' if chats <= found.chats else 'do not fit'}")
    for what, n in changes:
        click.echo(f"  with {what}: {n} chats")
