"""`pyedge convert`: a checkpoint in Hugging Face's form becomes a GGUF file.

Owns the options, and what is said of the result. What is done, tools/convert.py knows.
"""

from __future__ import annotations

from pathlib import Path

import click

from pyedge.cli import verbose
from pyedge.cli.options import pre_option
from pyedge.cli.streams import print_json
from pyedge.cli.terminal import download_bar, in_bytes

EXAMPLES = """\b
Examples:
  pyedge convert SmolLM2-135M-Instruct -o smollm2.gguf
  pyedge convert Qwen3-0.6B -o qwen3-q8_0.gguf --type q8_0
"""


@click.command(epilog=EXAMPLES)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, metavar="OUT.gguf", type=click.Path(path_type=Path), help="The file.")
@click.option(
    "--type",
    "file_type",
    type=click.Choice(["f32", "f16", "bf16", "q8_0"]),
    help="Of matrices. [what the checkpoint has most of]",
)
@pre_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(folder: Path, output: Path, file_type: str | None, pre: str | None, as_json: bool) -> None:
    """Convert DIR, a model's folder with config.json, *.safetensors and a tokenizer, to a GGUF file.

    What would run wrongly is refused, and nothing is written.
    """
    from pyedge.tools import convert

    with download_bar(f"writing {output.name}") as progress:
        facts = convert.convert(folder, output, file_type, pre=pre, progress=progress)
    if as_json:
        print_json({"file": str(output), **facts})
        return
    what, size = f"{facts['architecture']}, {facts['type']}, {facts['tensors']} tensors", in_bytes(facts["file_bytes"])
    click.echo(f"{output}: {what}, {size}")


verbose(command)
