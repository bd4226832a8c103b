"""`pyedge bench`: how fast a model reads and writes on this machine.

Owns what is measured and how: the engine's steps are timed, without text or terminal. Every figure is a median over
runs; reading is timed to the first token, writing from it on. The words are arbitrary ids, new ones in each run, so
that no prefix cache helps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyedge.cli import synthetic, verbose
from pyedge.cli.options import load, model_options
from pyedge.cli.streams import print_json
from pyedge.cli.synthetic import file_of
from pyedge.cli.terminal import measuring_bar

if TYPE_CHECKING:
    from pyedge._core import TensorInfo
    from pyedge.engine.engine import Engine
    from pyedge.llm import LLM
    from pyedge.models.cost import Cost

T = TypeVar("T")

BATCH_PROMPT = 16  # tokens that each sequence of a batch begins with

EXAMPLES = """\b
Examples:
  pyedge bench smollm2:135m
  pyedge bench model.gguf -p 2048 -n 64 -b 1,8,32 --depth 0,4096 --threads 2 --json
  pyedge bench --synthetic llama-1b:Q4_0
"""


def _numbers(ctx: click.Context, option: click.Parameter, value: str | None) -> list[int]:
    """A list such as 1,8,32."""
    try:
        numbers = [int(n) for n in value.split(",")] if value else []
    except ValueError:
        raise click.BadParameter(f"{value!r} is no list of numbers such as 1,8,32") from None
    if numbers and min(numbers) < (1 if option.name == "batch" else 0):
        raise click.BadParameter(f"{min(numbers)} is too small")
    return numbers


@click.command(epilog=EXAMPLES)
@click.argument("model", required=False)
@click.option("-p", "prompt", type=click.IntRange(min=1), default=512, metavar="N", help="Tokens to read. [512]")
@click.option("-n", "n_gen", type=click.IntRange(min=1), default=128, metavar="N", help="Tokens to write. [128]")
@click.option("-b", "--batch", callback=_numbers, metavar="N,N,...", help="Also write for so many sequences at once.")
@click.option("--depth", callback=_numbers, metavar="N,N,...", help="Also write behind so many tokens.")
@click.option("--runs", type=click.IntRange(min=1), default=5, metavar="N", help="Runs of each measurement. [5]")
@synthetic.option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@model_options
def command(
    model: str | None,
    prompt: int,
    n_gen: int,
    batch: list[int],
    depth: list[int],
    runs: int,
    synthetic: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how fast MODEL reads a prompt and writes an answer, in tokens per second.

    This machine's limits are measured too, without a model: what share of them is reached says how much faster a
    program could be. `pyedge profile` tells more.
    """
    import psutil  # type: ignore[import-untyped]

    import pyedge.llm  # noqa: F401  Its imports are no part of loading a model
    from pyedge import _core
    from pyedge.engine.profile import Probe

    with file_of(model, synthetic) as (name, path):
        with _core.Gguf(path) as gguf:
            tensors = gguf.tensors
        start = time.perf_counter()
        llm = load(path, options)
        load_s = time.perf_counter() - start
    _check(llm, max(prompt, *depth, BATCH_PROMPT) + n_gen + 1, max(batch, default=1), n_gen)

    probe = Probe(llm.threads)
    with measuring_bar(runs * (1 + len(batch) + len(depth))) as advance:
        _alone(llm.engine, _words(llm, 8, seed=-1), 2)  # the first step touches memory that later ones find
        lone = _repeat(runs, advance, lambda run: _alone(llm.engine, _words(llm, prompt, run), n_gen))
        rss = psutil.Process().memory_info().rss
        batches = [_repeat(runs, advance, partial(_together, llm, b, n_gen)) for b in batch]
        depths = [_repeat(runs, advance, partial(_behind, llm, d, n_gen)) for d in depth]
    limits = probe.limits()
    rows = [
        (f"read {prompt} tokens", [read for read, _ in lone]),
        (f"write {n_gen} tokens", [written for _, written in lone]),
        *((f"write {n_gen} for {b} sequences", speeds) for b, speeds in zip(batch, batches, strict=True)),
        *((f"write {n_gen} behind {d}", speeds) for d, speeds in zip(depth, depths, strict=True)),
    ]
    read_s, write_s = prompt / median(rows[0][1]), n_gen / median(rows[1][1])
    reading, writing = _costs(llm, tensors, options["precision"] or "fast", prompt, n_gen)
    share = {
        "prompt_int8": reading.int8_macs / 1e9 / limits.int8_gmac_s / read_s,
        "prompt_f32": reading.f32_macs / 1e9 / limits.f32_gmac_s / read_s,
        "gen_read": writing.bytes / 1e9 / limits.read_gb_s / write_s,
    }
    if as_json:
        document = {
            "model": name,
            "threads": llm.threads,
            "isa": llm.isa,
            "prompt_tokens": prompt,
            "gen_tokens": n_gen,
            "prompt_tok_s": median(rows[0][1]),
            "gen_tok_s": median(rows[1][1]),
            "batch": [{"sequences": b, "tok_s": median(s)} for b, s in zip(batch, batches, strict=True)],
            "depth": [{"depth": d, "gen_tok_s": median(s)} for d, s in zip(depth, depths, strict=True)],
            "runs": {"prompt_tok_s": rows[0][1], "gen_tok_s": rows[1][1]},
            "load_s": load_s,
            "rss_bytes": rss,
            "probe": asdict(limits),
            "share": share,
        }
        print_json(document)
        return
    click.echo(f"{name}: {llm.threads} thread{'s' * (llm.threads != 1)} of {llm.isa}", nl=False)
    click.echo(f", loaded in {load_s:.2f} s, {rss / 1e6:.0f} MB resident")
    click.echo(f"{'tokens per second':28} {'min':>9} {'median':>9} {'max':>9}")
    for label, speeds in rows:
        click.echo(f"{label:28} {min(speeds):9.1f} {median(speeds):9.1f} {max(speeds):9.1f}")
    click.echo(
        f"reading computes {reading.int8_macs / 1e9 / read_s:.1f} GMAC/s of int8: {share['prompt_int8']:.0%} of the "
        f"{limits.int8_gmac_s:.0f} measured here; and of float32 {share['prompt_f32']:.0%} of {limits.f32_gmac_s:.0f}"
    )
    click.echo(
        f"writing reads {writing.bytes / 1e9 / write_s:.1f} GB/s: {share['gen_read']:.0%} of the "
        f"{limits.read_gb_s:.1f} measured here"
    )


verbose(command)


def _costs(llm: LLM, tensors: Sequence[TensorInfo], precision: str, prompt: int, n_gen: int) -> tuple[Cost, Cost]:
    """Of reading the prompt, and of writing n_gen tokens behind it."""
    from pyedge.models.cost import Batch, Cost, costs

    config = llm.engine.config

    def cost(steps: Iterable[tuple[int, int]]) -> Cost:
        each = (
            costs(llm.plan, tensors, Batch([(start, end)], int(end >= prompt)), precision, config.kv_type)
            for start, end in steps
        )
        return sum((c for step in each for c in step), Cost())

    cuts = range(0, prompt, config.max_tokens)
    reading = cost((start, min(start + config.max_tokens, prompt)) for start in cuts)
    return reading, cost((at, at + 1) for at in range(prompt, prompt + n_gen))


def _check(llm: LLM, longest: int, sequences: int, n_gen: int) -> None:
    """Refuses what the engine would cut short or do one after the other, since figures of that mislead."""
    config = llm.engine.config
    if longest > llm.max_model_len:
        raise ValueError(
            f"{longest} tokens do not fit the context of {llm.max_model_len}; measure shorter, or give --ctx"
        )
    room = min(config.max_sequences, config.n_pages // -(-(BATCH_PROMPT + n_gen + 1) // config.page_size))
    if sequences > room:
        raise ValueError(f"-b {sequences}: the engine holds {room} sequences of that length at once; take fewer")


def _words(llm: LLM, n: int, seed: int) -> list[int]:
    """Token ids that differ from seed to seed from the first one on."""
    n_vocab = llm.engine.n_vocab
    return [(7919 * (seed + 3) + 31 * i) % n_vocab for i in range(n)]


def _params(n_gen: int) -> Any:
    from pyedge import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=n_gen + 1, ignore_eos=True)  # one token ends the reading


def _alone(engine: Engine, words: list[int], n_gen: int) -> tuple[float, float]:
    """Tokens per second of reading `words`, and of writing n_gen tokens."""
    request = engine.request(words, _params(n_gen))
    engine.add(request)
    start = time.perf_counter()
    while engine.has_work:
        _raise_errors(engine.step())
    first, last = request.metrics.first_token, request.metrics.last_token
    assert first is not None
    assert last is not None
    return len(words) / (first - start), n_gen / (last - first)


def _together(llm: LLM, sequences: int, n_gen: int, run: int) -> float:
    """Tokens per second of several sequences that write at once, all of them counted."""
    engine, seed = llm.engine, 1000 * (run + 1)
    requests = [engine.request(_words(llm, BATCH_PROMPT, seed + i), _params(n_gen)) for i in range(sequences)]
    for request in requests:
        engine.add(request)
    while any(request.metrics.first_token is None for request in requests):
        _raise_errors(engine.step())
    start, n = time.perf_counter(), 0
    while engine.has_work:
        events = engine.step()
        _raise_errors(events)
        n += len(events)
    return n / (time.perf_counter() - start)


def _behind(llm: LLM, depth: int, n_gen: int, run: int) -> float:
    """Tokens per second of writing behind `depth` tokens: the same ones in every run, for the prefix cache to keep."""
    return _alone(llm.engine, _words(llm, max(1, depth), seed=-2), n_gen)[1]


def _raise_errors(events: Sequence[Any]) -> None:
    for event in events:
        if event.error is not None:
            raise event.error


def _repeat(runs: int, advance: Callable[[], None], measure: Callable[[int], T]) -> list[T]:
    results: list[T] = []
    for run in range(runs):
        results.append(measure(run))
        advance()
    return results
