"""`pyedge quantize`: a smaller file of a model.

Owns the command's options, the progress bar and how the outcome is shown. What is done is tools/quantize.py's.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import verbose
from pyedge.cli.options import locate
from pyedge.cli.streams import print_json
from pyedge.cli.terminal import download_bar, in_bytes

if TYPE_CHECKING:
    from pyedge.tools.mixes import Wishes

EXAMPLES = """\b
Examples:
  pyedge quantize model-f16.gguf model.gguf Q4_K_M
  pyedge quantize model-f16.gguf model.gguf Q3_K_M --imatrix model.imatrix
  pyedge quantize model-f16.gguf model.gguf Q4_0 --tensor-type 'ffn_down=Q6_K' --dry-run

TYPE, largest first: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1, Q4_0, IQ4_NL,
IQ4_XS, MXFP4, MXFP4_MOE, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K. A mix (_S, _M, _L) gives the tensors that matter most a larger
format, as llama.cpp does; Q3_K, Q4_K and Q5_K are their _M.
"""


@click.command(epilog=EXAMPLES)
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path())
@click.argument("mix", metavar="TYPE")
@click.option("--imatrix", metavar="FILE", help="Importance matrix (GGUF, or llama.cpp's .dat): which errors matter.")
@click.option(
    "--tensor-type",
    "tensor_types",
    multiple=True,
    metavar="REGEX=TYPE",
    help="The format of tensors whose names have REGEX in them; the first that fits counts. May be repeated.",
)
@click.option("--output-type", metavar="TYPE", help="The format of output.weight, or of the embedding in its place.")
@click.option("--token-embedding-type", "embedding_type", metavar="TYPE", help="The format of the token embedding.")
@click.option("--pure", is_flag=True, help="TYPE's format for all matrices, without a mix.")
@click.option("--allow-requantize", is_flag=True, help="Take a file that is quantized already, at a cost in quality.")
@click.option("--dry-run", is_flag=True, help="Show what each tensor would become, and write nothing.")
@click.option("--threads", type=click.IntRange(1, 255), metavar="N", help="[the machine's cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    source: str,
    out: str,
    mix: str,
    imatrix: str | None,
    tensor_types: tuple[str, ...],
    output_type: str | None,
    embedding_type: str | None,
    pure: bool,
    allow_requantize: bool,
    dry_run: bool,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write OUT: the model IN (a path to a GGUF, or a model's name) in TYPE, metadata kept.

    OUT is there only when it is whole. Where no block of a format divides a
    tensor's rows, it gets another one, with a note.
    """
    wishes = _wishes(mix, tensor_types, output_type, embedding_type, pure)
    path = locate(source)

    from pyedge import _core
    from pyedge.tools import imatrix_file, quantize

    importance = imatrix_file.read(imatrix) if imatrix is not None else None
    with _core.Gguf(path) as gguf:
        plan = quantize.plan(gguf, wishes, importance, requantize=allow_requantize)
        facts: dict[str, Any] = {"input": gguf.path, "output": out, "type": wishes.mix} | quantize.facts(plan, gguf)
        if not dry_run:
            start = time.monotonic()
            with download_bar(f"quantizing {source}") as progress:
                facts["file_bytes"] = quantize.quantize(gguf, out, plan, threads=threads or 0, progress=progress)
            facts["seconds"] = round(time.monotonic() - start, 3)
    if as_json:
        print_json(facts)
        return
    for note in facts["notes"]:
        click.echo(f"note: {note}", err=True)
    _show(facts, dry_run)


verbose(command)


def _wishes(
    mix: str, tensor_types: tuple[str, ...], output_type: str | None, embedding_type: str | None, pure: bool
) -> Wishes:
    """What was typed, checked: a wrong name is wrong usage, before a file is opened."""
    from pyedge.tools import mixes

    def named(text: str | None, option: str) -> str | None:
        try:
            return None if text is None else mixes.format_named(text)
        except ValueError as e:
            raise click.BadParameter(str(e), param_hint=option) from None

    pairs = []
    for text in tensor_types:
        pattern, sign, kind = text.rpartition("=")
        if not sign or not pattern:
            raise click.BadParameter(f"'{text}' is not REGEX=TYPE", param_hint="--tensor-type")
        try:
            compiled = re.compile(pattern)
        except re.error as e:
            raise click.BadParameter(f"'{pattern}' is no regular expression: {e}", param_hint="--tensor-type") from None
        format_name = named(kind, "--tensor-type")
        assert format_name is not None
        pairs.append((compiled, format_name))
    try:
        name = mixes.mix_named(mix)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="TYPE") from None
    return mixes.Wishes(
        name, pairs, named(output_type, "--output-type"), named(embedding_type, "--token-embedding-type"), pure
    )


def _show(facts: dict[str, Any], dry_run: bool) -> None:
    if dry_run:
        names = max((len(t["name"]) for t in facts["tensors"]), default=0)
        for t in facts["tensors"]:
            change = t["from"] if t["from"] == t["to"] else f"{t['from']} -> {t['to']}"
            shape = " x ".join(map(str, t["shape"]))
            click.echo(f"{t['name']:{names}}  {shape:>18}  {change:15}  {in_bytes(t['bytes']):>8}")
    bits = "" if facts["bits_per_weight"] is None else f", {facts['bits_per_weight']:.2f} bits per weight"
    sizes = f"{in_bytes(facts['bytes_before'])} -> {in_bytes(facts['bytes_after'])}{bits}"
    click.echo(f"would be {sizes}" if dry_run else f"{facts['output']}: {sizes}, in {facts['seconds']:.1f} s")
