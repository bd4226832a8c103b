"""`pyedge imatrix`: what goes into a model's matrices while it reads a text."""

from __future__ import annotations

import hashlib
import logging
import time
from pathlib import Path
from typing import Any

import click

from pyedge.cli import verbose
from pyedge.cli.options import locate, some_model_options
from pyedge.cli.streams import print_json, text_in
from pyedge.cli.terminal import count_bar

log = logging.getLogger(__name__)

SAVED_EVERY = 60.0  # seconds

EXAMPLES = """\b
Examples:
  pyedge imatrix model-f16.gguf calibration.txt -o model.imatrix.gguf
  pyedge imatrix model-f16.gguf calibration.txt -o model.imatrix.gguf --from model.imatrix.gguf
"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("text", type=click.Path(allow_dash=True))
@click.option("-o", "--output", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The file.")
@click.option(
    "--from",
    "before",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Go on from there, or add what it has seen of other texts; may be given several times.",
)
@click.option("--ctx", default=512, metavar="N", type=click.IntRange(min=8), help="Tokens of a window. [512]")
@click.option("--windows", metavar="N", type=click.IntRange(min=1), help="Read the first N only. [all]")
@some_model_options("threads", "precision", "pre")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    model: str,
    text: str,
    output: Path,
    before: tuple[Path, ...],
    ctx: int,
    windows: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Collect MODEL's importance matrix on TEXT, a file in UTF-8 (`-`: standard input), for `quantize --imatrix`.

    The file is llama.cpp's. It is written each minute and when this is interrupted: `--from` that file goes on with
    the same text where it stopped.
    """
    given = text_in(text)
    path = locate(model)

    from pyedge.evaluation.imatrix import collect
    from pyedge.evaluation.reader import Reader
    from pyedge.evaluation.reader import windows as windows_of
    from pyedge.tools import imatrix_file

    start = imatrix_file.merged(before)
    sha256 = hashlib.sha256(given.encode()).hexdigest()
    done = start.last[1] if start.last[0] == sha256 and start.n_ctx == ctx else 0
    settings = {name: value for name, value in options.items() if value is not None}
    with Reader(path, ctx, **settings) as reader:
        found = windows_of(reader.tokenizer, given, ctx, windows)[done:]

        def save(collected: imatrix_file.Imatrix) -> imatrix_file.Imatrix:
            whole = imatrix_file.Imatrix(n_ctx=ctx)
            whole.add(start)
            collected.texts = [text]
            collected.last = (sha256, done + collected.n_windows)
            whole.add(collected)
            imatrix_file.write(output, whole)
            return whole

        result, latest, saved = start, None, time.monotonic()
        try:
            with count_bar(f"reading {text}") as progress:
                for latest in collect(reader, found, progress):
                    if time.monotonic() - saved > SAVED_EVERY:
                        save(latest)
                        saved = time.monotonic()
        finally:
            if latest is not None:
                result = save(latest)
    if not found:
        imatrix_file.write(output, result)
        log.warning("%s has been read to its end already: nothing was added", text)
    if unseen := result.unseen():
        log.warning("%d matrices of experts saw no token; a longer or more varied text would reach them", unseen)
    if as_json:
        facts = {"file": str(output), "tensors": len(result.sums), "windows": result.n_windows, "unseen": unseen}
        print_json({"model": model, **facts, "texts": result.texts})
        return
    click.echo(f"{output}: {len(result.sums)} tensors, {result.n_windows} windows of {ctx} tokens")


verbose(command)
