"""`pyedge quantize`: a smaller file of a model.

Owns the command's options, the progress bars and how the outcome is shown. What is done is tools/quantize.py's, and
where formats are chosen by measuring, pyedge/evaluation/target.py's.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import verbose
from pyedge.cli.options import locate
from pyedge.cli.streams import print_json, text_in
from pyedge.cli.terminal import count_bar, download_bar, in_bytes

if TYPE_CHECKING:
    from pyedge.evaluation.report import Command
    from pyedge.evaluation.target import Target, Task
    from pyedge.tools import quantize
    from pyedge.tools.imatrix_file import Imatrix
    from pyedge.tools.mixes import Wishes

EXAMPLES = """\b
Examples:
  pyedge quantize model-f16.gguf model.gguf Q4_K_M
  pyedge quantize model-f16.gguf model.gguf Q3_K_M --imatrix model.imatrix
  pyedge quantize model-f16.gguf model.gguf Q4_0 --tensor-type 'ffn_down=Q6_K' --dry-run
  pyedge quantize model-f16.gguf model.gguf --target-size 600MB --text what-i-do.txt
  pyedge quantize model-f16.gguf model.gguf --target-bpw 4.5 --report report

TYPE, largest first: F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1, Q4_0, IQ4_NL,
IQ4_XS, MXFP4, MXFP4_MOE, Q3_K_L, Q3_K_M, Q3_K_S, Q2_K. A mix (_S, _M, _L) gives the tensors that matter most a larger
format, as llama.cpp does; Q3_K, Q4_K and Q5_K are their _M.

With a target, the model is run, and each matrix gets the format that its predictions bear best within that size.
"""


@click.command(epilog=EXAMPLES)
@click.argument("source", metavar="IN")
@click.argument("out", metavar="OUT", type=click.Path())
@click.argument("mix", metavar="[TYPE]", required=False)
@click.option("--target-size", metavar="SIZE", help="In place of TYPE: at most 600MB, 1.5GiB, or so many bytes.")
@click.option("--target-bpw", metavar="BITS", help="In place of TYPE: at most so many bits per weight.")
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
@click.option(
    "--text",
    metavar="FILE",
    type=click.Path(allow_dash=True),
    help="What is measured on, for a target or a report, in UTF-8: the more like your use, the better. [a small one]",
)
@click.option(
    "--report",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Try other types too, and say there, in a page and in JSON, which one to take.",
)
@click.option("--threads", type=click.IntRange(1, 255), metavar="N", help="[the machine's cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    source: str,
    out: str,
    mix: str | None,
    target_size: str | None,
    target_bpw: str | None,
    imatrix: str | None,
    tensor_types: tuple[str, ...],
    output_type: str | None,
    embedding_type: str | None,
    pure: bool,
    allow_requantize: bool,
    dry_run: bool,
    text: str | None,
    folder: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write OUT: the model IN (a path to a GGUF, or a model's name) in TYPE, or of a size, metadata kept.

    OUT is there only when it is whole. Where no block of a format divides a
    tensor's rows, it gets another one, with a note.
    """
    target = _target(mix, target_size, target_bpw, pure)
    if dry_run and folder is not None:
        raise click.UsageError("--report and --dry-run: give one of them, as a report is written")
    if text is not None and target is None and folder is None:
        raise click.UsageError("--text: goes with --target-size, --target-bpw or --report")
    wishes = _wishes(mix or "Q8_0", tensor_types, output_type, embedding_type, pure)
    path = locate(source)
    given = None if text is None else text_in(text)

    from pyedge import _core
    from pyedge.tools import imatrix_file, quantize

    importance = imatrix_file.read(imatrix) if imatrix is not None else None
    with _core.Gguf(path) as gguf:
        name = wishes.mix if target is None else str(target)
        facts: dict[str, Any] = {"input": gguf.path, "output": out, "type": name}
        if target is None and folder is None:
            plan = quantize.plan(gguf, wishes, importance, requantize=allow_requantize)
        else:
            from pyedge.evaluation.target import Task

            task = Task(gguf, wishes, requantize=allow_requantize, threads=threads or 0)
            options = [f"--tensor-type {pair}" for pair in map(shlex.quote, tensor_types)]
            options += [f"--output-type {output_type}"] if output_type else []
            options += [f"--token-embedding-type {embedding_type}"] if embedding_type else []
            options += ["--allow-requantize"] if allow_requantize else []
            if not dry_run:  # before anything takes time
                size = target.file_bytes if target is not None else None
                quantize.check_output(gguf, out, (size or 0) * 9 // 10)  # at least so much of a size is used
            files = _Files(source, out, folder, imatrix, text, " ".join(options))
            plan, found, held_out = _measured(task, target, given, importance, files)
            facts |= found
        facts |= quantize.facts(plan, gguf)
        if not dry_run:
            start = time.monotonic()
            with download_bar(f"quantizing {source}") as progress:
                facts["file_bytes"] = quantize.quantize(gguf, out, plan, threads=threads or 0, progress=progress)
            facts["seconds"] = round(time.monotonic() - start, 3)
            if target is not None and folder is None:  # a report has measured it
                facts |= _judged(gguf.path, out, held_out, threads or 0)
    if as_json:
        print_json(facts)
        return
    for note in facts["notes"]:
        click.echo(f"note: {note}", err=True)
    _show(facts, dry_run)


verbose(command)


def _target(mix: str | None, size: str | None, bpw: str | None, pure: bool) -> Target | None:
    """Of TYPE and the two targets one is given; None: TYPE. Wrong usage is told before a file is opened."""
    given = [name for name, value in (("TYPE", mix), ("--target-size", size), ("--target-bpw", bpw)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{given[0]} and {given[1]}: give one of them")
    if not given:
        raise click.UsageError("Missing argument 'TYPE', or --target-size or --target-bpw in its place.")
    if mix:
        return None
    if pure:
        raise click.UsageError("--pure: goes with TYPE, as a target chooses for each matrix")
    from pyedge.evaluation.target import Target

    if size is not None:
        from pyedge.llm import bytes_of

        try:
            return Target(file_bytes=bytes_of("SIZE", int(size) if size.isdecimal() and len(size) < 20 else size))
        except ValueError as e:
            raise click.BadParameter(str(e), param_hint="--target-size") from None
    assert bpw is not None
    try:
        bits = float(bpw)
    except ValueError:
        bits = math.nan
    if not 0 < bits <= 32:
        raise click.BadParameter(f"'{bpw}' is no number of bits; take one such as 4.5", param_hint="--target-bpw")
    return Target(bits_per_weight=bits)


@dataclass(frozen=True)
class _Files:
    """As they were typed."""

    source: str
    out: str
    folder: Path | None  # of the report
    imatrix: str | None
    text: str | None
    options: str  # the others that a choice depends on


def _measured(
    task: Task, target: Target | None, given: str | None, importance: Imatrix | None, files: _Files
) -> tuple[quantize.Plan, dict[str, Any], Sequence[Sequence[int]]]:
    """Runs the model, and chooses: the plan, what is told of it, and windows that nothing was tuned on. given: the
    text."""
    from pyedge.evaluation import calibration
    from pyedge.evaluation.reader import Reader
    from pyedge.tools import output_file, quantize

    folder = files.folder
    if target is not None:
        task.check(target)  # before anything takes time
    if folder is not None:
        folder.mkdir(exist_ok=True)
        output_file.check_output(folder / "index.html")
    start = time.monotonic()
    with Reader(task.gguf.path, threads=task.threads, n_ctx=calibration.window(task.gguf)) as reader:
        text = calibration.Text.own() if given is None else calibration.Text(given, str(files.text))
        with count_bar("reading the text") as progress:
            found = calibration.calibrate(reader, text, importance, progress)
        if target is not None:
            task.check(target, found)
        with count_bar("measuring matrices") as progress:
            costs = task.measure(reader, found, progress)
        trials = task.trials(reader, found)
        facts: dict[str, Any] = {"text": found.name}
        if target is not None:
            with count_bar("trying choices") as progress:
                tried = task.best(target, costs, found, trials, progress)
            plan = tried[0].plan
            facts["tried"] = [{"name": t.name, "file_bytes": t.plan.file_bytes, "kl_mean": t.kl} for t in tried]
        else:
            plan = quantize.plan(task.gguf, task.wishes, found.imatrix, requantize=task.requantize)
        if folder is not None:
            from pyedge.evaluation import report, report_page
            from pyedge.tools.output_file import OutputFile

            wanted = (task.wishes.mix, task.wishes.mix, plan) if target is None else (target.name, target.option, plan)
            command = _command_of(files, folder, found.imatrix)
            with count_bar("measuring candidates") as progress:
                beside = os.path.dirname(os.path.abspath(files.out))
                original = (reader, trials)
                made = report.make(task, wanted, target is not None, original, costs, found, beside, command, progress)
            for name, content in (("report.json", json.dumps(made.facts())), ("index.html", report_page.page(made))):
                with OutputFile(folder / name) as file:
                    file.write(content.encode("utf-8", "backslashreplace"))
            facts |= {"report": str(folder / "index.html"), "advice": made.facts()["advice"]}
            facts |= next({k: c[k] for k in _JUDGED} for c in made.facts()["candidates"] if c["wanted"])
        facts["measuring_seconds"] = round(time.monotonic() - start, 3)
    return plan, facts, found.held_out


def _command_of(files: _Files, folder: Path, importance: Imatrix) -> Command:
    """What makes a report's candidates again. Importances that were collected go into its folder for that."""
    from pyedge.evaluation.report import Command
    from pyedge.tools import imatrix_file

    imatrix, text = files.imatrix, "" if files.text is None else f"--text {shlex.quote(files.text)} "
    if imatrix is None:
        imatrix = os.path.join(folder, "imatrix.gguf")
        imatrix_file.write(imatrix, importance)
    else:
        text += f"--imatrix {shlex.quote(imatrix)} "
    return Command(shlex.quote(files.source), f"--imatrix {shlex.quote(imatrix)} {files.options}", text + files.options)


_JUDGED = ("kl_mean", "kl_mean_ci95", "top1", "top1_ci95")


def _judged(base: str, out: str, windows: Sequence[Sequence[int]], threads: int) -> dict[str, Any]:
    """The file that was written, against the original."""
    from pyedge.evaluation.perplexity import compare
    from pyedge.evaluation.reader import Reader

    n_ctx = len(windows[0])
    with (
        Reader(base, n_ctx, threads=threads) as original,
        Reader(out, n_ctx, threads=threads) as made,
        count_bar("measuring the file") as progress,
    ):
        found = compare(made, original, windows, progress)
    return {name: getattr(found, name) for name in _JUDGED}


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
    for advice in facts.get("advice", ()):
        take = "no file" if advice["name"] is None else advice["name"]
        click.echo(f"{advice['need']}: {take}. {advice['why']}.")
    if "tried" in facts:
        best, *others = facts["tried"]
        than = "".join(f"; {other['name']}: {other['kl_mean']:.4f}" for other in others)
        click.echo(f"tried: {best['name']}: KL divergence {best['kl_mean']:.4f}{than}")
    if "kl_mean" in facts:
        low, high = facts["kl_mean_ci95"]
        click.echo(
            f"KL divergence from the original: {facts['kl_mean']:.4f} nats per token (95 %: {low:.4f} to {high:.4f});"
            f" the same likeliest token in {100 * facts['top1']:.1f} % of places"
        )
    if "report" in facts:
        click.echo(f"report: {facts['report']}")
    measured = f", measured in {facts['measuring_seconds']:.0f} s" if "measuring_seconds" in facts else ""
    if dry_run:
        click.echo(f"would be {sizes}{measured}")
    else:
        click.echo(f"{facts['output']}: {sizes}{measured}, written in {facts['seconds']:.1f} s")
