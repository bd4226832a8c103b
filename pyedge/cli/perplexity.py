"""`pyedge perplexity`: how well a model foretells a text, and how near it comes to another."""

from __future__ import annotations

from typing import Any

import click

from pyedge.cli import verbose
from pyedge.cli.options import locate, some_model_options
from pyedge.cli.streams import print_json, text_in
from pyedge.cli.terminal import count_bar

EXAMPLES = """\b
Examples:
  pyedge perplexity model-Q4_K_M.gguf text.txt
  pyedge perplexity model-Q4_K_M.gguf text.txt --against model-f16.gguf --windows 40 --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("text", type=click.Path(allow_dash=True))
@click.option("--ctx", default=512, metavar="N", type=click.IntRange(min=8), help="Tokens of a window. [512]")
@click.option("--windows", metavar="N", type=click.IntRange(min=1), help="Read the first N only. [all]")
@click.option("--against", metavar="BASE", help="Compare with this model, of the same tokens.")
@some_model_options("kv_type", "threads", "precision", "pre")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    model: str, text: str, ctx: int, windows: int | None, against: str | None, as_json: bool, **options: Any
) -> None:
    """Score TEXT, a file in UTF-8 (`-`: standard input), with MODEL: the lower its perplexity, the better it foretells.

    The text is read in windows; the second half of each is scored, as llama.cpp does it. With --against, the
    Kullback-Leibler divergence says how far the model's predictions are from the base's: that shows what a quantization
    costs long before the perplexity does.
    """
    given = text_in(text)
    paths = [locate(name) for name in (model, *((against,) if against else ()))]

    from pyedge.evaluation.perplexity import compare, perplexity
    from pyedge.evaluation.reader import Reader
    from pyedge.evaluation.reader import windows as windows_of

    settings = {name: value for name, value in options.items() if value is not None}
    readers = [Reader(path, ctx, **settings) for path in paths]
    found = windows_of(readers[0].tokenizer, given, ctx, windows)
    with count_bar(f"reading {text}") as progress:
        result = compare(readers[0], readers[1], found, progress) if against else None
        score = perplexity(readers[0], found, progress) if result is None else result.score

    if as_json:
        facts: dict[str, Any] = {"model": model, "ppl": score.ppl, "ppl_stderr": score.ppl_stderr}
        facts |= {"tokens": score.tokens, "windows": len(found), "ctx": ctx}
        if result is not None:
            facts |= {"against": against, "ppl_against": result.base.ppl}
            facts |= {name: value for name, value in vars(result).items() if isinstance(value, (float, tuple))}
        print_json(facts)
        return
    click.echo(
        f"perplexity     {score.ppl:.4f} +/- {score.ppl_stderr:.4f}, of {score.tokens} tokens: "
        f"the second halves of {len(found)} windows of {ctx}"
    )
    if result is not None:
        low, high = result.ppl_ratio_ci95
        click.echo(f"against        {result.base.ppl:.4f}; ratio {result.ppl_ratio:.4f} ({low:.4f} to {high:.4f})")
        low, high = result.kl_mean_ci95
        click.echo(
            f"KL divergence  {result.kl_mean:.5f} ({low:.5f} to {high:.5f}), median {result.kl_median:.5f}, "
            f"99 % below {result.kl_p99:.4f}"
        )
        low, high = result.top1_ci95
        click.echo(f"same likeliest {100 * result.top1:.2f} % ({100 * low:.2f} to {100 * high:.2f})")


verbose(command)
