"""`pyedge profile`: where the time goes, op by op, for reading and for writing, and what would help.

Owns how that is shown and what is concluded from it; the measuring is engine/profile.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import synthetic, verbose
from pyedge.cli.options import some_model_options
from pyedge.cli.streams import print_json
from pyedge.cli.synthetic import file_of

if TYPE_CHECKING:
    from pyedge.engine.profile import Half, Limits, Row

ANSWER = 128  # tokens of the answer by which the halves are weighed against each other
NEAR = 0.75  # of a limit: more threads do not help beyond it
FAR = 0.15  # of a limit: something else than the machine holds the ops up; a prompt by tiles is at 0.18 and more

EXAMPLES = """\b
Examples:
  pyedge profile smollm2:135m
  pyedge profile model.gguf -p 2048 --all --threads 2
  pyedge profile --synthetic llama-1b:Q4_0 --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", required=False)
@click.option("-p", "prompt", type=click.IntRange(min=1), default=512, metavar="N", help="Tokens to read. [512]")
@click.option("-n", "n_gen", type=click.IntRange(min=1), default=16, metavar="N", help="Tokens to write. [16]")
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Write behind so many tokens. [those read]")
@click.option("--runs", type=click.IntRange(min=1), default=3, metavar="N", help="Runs of each; the middle counts. [3]")
@click.option("--all", "every", is_flag=True, help="Show every op of every layer, in the order in which they run.")
@synthetic.option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@some_model_options("kv_type", "threads", "precision")
def command(
    model: str | None,
    prompt: int,
    n_gen: int,
    depth: int | None,
    runs: int,
    every: bool,
    synthetic: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure where MODEL's time goes: per op and in sum, for reading a prompt and for writing behind it.

    Bytes are what must come from memory (weights, keys and values), multiply-adds what must be computed; the shares
    tell how much of an op's time this machine, at its measured best, would need for each of the two; above 100 % of
    memory, caches helped.
    """
    from pyedge import _core
    from pyedge.engine.profile import Probe, Profiler, as_dict, labels, weight_bits
    from pyedge.models import build_plan

    depth = prompt if depth is None else depth
    length = max(prompt, depth + n_gen)
    precision = options["precision"] or "fast"
    threads = options["threads"] or _core.machine()["default_threads"]
    with file_of(model, synthetic) as (name, path), _core.Gguf(path) as gguf:
        tensors, plan = gguf.tensors, build_plan(gguf)
        if length > plan.hparams.context_length:
            raise ValueError(
                f"{length} tokens do not fit the model's context of {plan.hparams.context_length}; measure shorter"
            )
        weights = _core.Model(gguf, plan.ops, precision, threads)
    profiler = Profiler(
        weights,
        plan,
        tensors,
        capacity=length,
        kv_type=options["kv_type"] or ("f32" if precision == "f32" else "f16"),
        precision=precision,
        threads=threads,
    )
    probe = Probe(threads)
    profiler.read(min(prompt, 32), 1)  # the first step touches memory that later ones find
    halves = {"reading": profiler.read(prompt, runs)}
    if plan.pooling is None:
        if depth > prompt:
            profiler.read(depth, 1)  # the keys and values that are written behind
        halves["writing"] = profiler.write(n_gen, depth, runs)
    limits = probe.limits()

    names = labels(plan, tensors)
    bits, processors = weight_bits(plan, tensors), _core.machine()["cpu_limit"]
    found = {what: conclude(what, half, limits, bits, threads, processors) for what, half in halves.items()}
    slow, exchange = slow_half(halves)
    if as_json:
        shown = {
            what: {
                "tokens": half.tokens,
                "tok_s": half.tokens / half.time_s,
                "total": as_dict(half.total, limits),
                "groups": [as_dict(row, limits) for row in half.groups(names)],
                "ops": [as_dict(row, limits) for row in half.rows],
                **asdict(found[what]),
            }
            for what, half in halves.items()
        }
        facts = {"model": name, "threads": threads, "isa": weights.isa, "depth": depth, "probe": asdict(limits)}
        print_json({**facts, **shown, "slow_half": slow})
        return
    click.echo(f"{name}: {threads} thread{'s' * (threads != 1)} of {weights.isa}. This machine reads", nl=False)
    click.echo(f" {limits.read_gb_s:.1f} GB/s, computes {limits.int8_gmac_s:.0f} GMAC/s of int8", nl=False)
    click.echo(f" and {limits.f32_gmac_s:.0f} of float32.")
    for what, half in halves.items():
        per = half.tokens if what == "writing" else 1  # of writing, a token is shown
        where = f"a token behind {depth}" if what == "writing" else f"{half.tokens} tokens"
        click.echo(f"\n{what} {where}: {half.tokens / half.time_s:.1f} tokens/s")
        _table(half.rows if every else half.groups(names), half, limits, per)
    click.echo(f"\n{exchange}")
    for what in halves:
        click.echo(f"\n{found[what].why}")
        for word, items in (("Would help", found[what].helps), ("Would not", found[what].does_not_help)):
            click.echo(f"  {word + ':':12} {'; '.join(items)}.")


verbose(command)


def _table(rows: Sequence[Row], half: Half, limits: Limits, per: int) -> None:
    from pyedge.engine.profile import Row

    total = half.total
    between = Row("between ops", max(0.0, total.time_s - sum(row.time_s for row in rows)), type(total.cost)())
    shown = [*rows, between, total]
    width = max(len(row.name) for row in shown)
    click.echo(f"{'':{width}} {'ms':>10} {'time':>6} {'MB':>10} {'MMAC':>10} {'memory':>7} {'arithmetic':>11}")
    for row in shown:
        memory, arithmetic = row.shares(limits)
        figures = f"{1e3 * row.time_s / per:10.3f} {row.time_s / total.time_s:6.1%}"
        work = f"{row.cost.bytes / 1e6 / per:10.2f} {row.cost.macs / 1e6 / per:10.1f}"
        click.echo(f"{row.name:{width}} {figures} {work} {memory:7.0%} {arithmetic:11.0%}")


# ---- conclusions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Conclusion:
    limit: str  # "memory", "arithmetic", or "neither": far from both
    share: float  # of the limit that is nearer
    why: str
    helps: list[str]
    does_not_help: list[str]


def slow_half(halves: dict[str, Half]) -> tuple[str, str]:
    """Which half an exchange waits for, and a sentence that says so."""
    reading = halves["reading"]
    if "writing" not in halves:
        return "reading", f"This model embeds: a text of {reading.tokens} tokens takes {reading.time_s:.2f} s."
    answer = ANSWER * halves["writing"].time_s / halves["writing"].tokens
    slow = "writing" if answer > reading.time_s else "reading"
    text = (
        f"A prompt of {reading.tokens} tokens and an answer of {ANSWER} take {reading.time_s:.2f} s to read and "
        f"{answer:.2f} s to write: {slow} is the slow half."
    )
    return slow, text


def conclude(what: str, half: Half, limits: Limits, bits: float, threads: int, processors: int) -> Conclusion:
    """What holds a half up, and what would and would not make it faster. bits: of a weight."""
    total = half.total
    memory, arithmetic = total.shares(limits)
    share = max(memory, arithmetic)
    nearer = "memory" if memory >= arithmetic else "arithmetic"
    limit = nearer if share >= FAR else "neither"
    verb = {"reading": "Reading", "writing": "Writing"}[what]
    if limit == "neither":
        why = f"{verb} is far from both limits: {memory:.0%} of what memory gives, {arithmetic:.0%} of the arithmetic."
    elif limit == "memory":
        speed = total.cost.bytes / 1e9 / total.time_s
        why = f"{verb} waits for memory: it reads {speed:.1f} GB/s, {memory:.0%} of what this machine gives."
    else:
        speed = total.cost.macs / 1e9 / total.time_s
        why = f"{verb} waits for arithmetic: {speed:.1f} GMAC/s are {arithmetic:.0%} of what this machine computes."

    helps: list[str] = []
    not_: list[str] = []
    more_threads = f"more threads ({threads} of {processors} processors are used)"
    if threads < processors and share < NEAR:
        helps.append(more_threads)
    else:
        not_.append("more threads" + (" (all processors are used)" if threads >= processors else ""))
    if limit == "neither":
        helps.append("other programs that rest meanwhile, if any run")
    kept = half.kv_bytes / (total.cost.bytes or 1.0)
    if nearer == "memory":
        not_.append(f"faster arithmetic ({arithmetic:.0%} of it is used)")
        if bits > 5:
            helps.append(f"fewer bits per weight ({bits:.1f} now: 4.5 would read {4.5 / bits:.0%} of the weights)")
        else:
            helps.append(f"fewer bits per weight, but {bits:.1f} now are few already; or a smaller model")
        if what == "writing":
            helps.append("several answers at once, which share each read of the weights")
        if kept > 0.2:
            helps.append(f"a shorter prompt (keys and values are {kept:.0%} of what is read)")
        else:
            not_.append(f"a shorter prompt (keys and values are {kept:.0%} of what is read)")
        return Conclusion(limit, share, why, helps, not_)
    not_.append("fewer bits per weight (the multiply-adds stay as many)")
    not_.append("a bigger batch (each token has its own multiply-adds)")
    if what == "reading":
        helps.append("a shorter prompt, or one that begins like an earlier one")
    helps.append("a smaller model")
    return Conclusion(limit, share, why, helps, not_)
