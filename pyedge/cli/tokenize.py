"""`pyedge tokenize`: a text as a model's tokens."""

from __future__ import annotations

import click

from pyedge.cli import verbose
from pyedge.cli.options import locate, pre_option
from pyedge.cli.streams import print_json, read_input, text_of

EXAMPLES = """\b
Examples:
  pyedge tokenize smollm2:135m "What is the capital of France?"
  pyedge tokenize model.gguf --special "<|im_start|>user" --ids
  pyedge tokenize model.gguf - --json <text
"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("text")
@click.option("--ids", "only_ids", is_flag=True, help="Print the ids alone, in one line.")
@click.option("--special", is_flag=True, help="Parse control tokens that the text writes out; else they are text.")
@click.option("--no-bos", is_flag=True, help="Do not begin with the model's begin-of-text token.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document: ids and pieces.")
@pre_option
def command(model: str, text: str, only_ids: bool, special: bool, no_bos: bool, as_json: bool, pre: str | None) -> None:
    """Turn TEXT (`-`: standard input, every byte of it) into MODEL's tokens: one per line, its id and its text.

    Bytes of a piece that are no character by themselves are written as \\xNN.
    """
    if only_ids and as_json:
        raise click.UsageError("--ids and --json: take one of them; the JSON document has the ids")
    text = read_input() if text == "-" else text_of(text, "TEXT")
    path = locate(model)

    from pyedge import _core
    from pyedge.tokenizers import Tokenizer

    with _core.Gguf(path) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf, pre)
    ids = tokenizer.encode(text, special=special, bos=False if no_bos else None)
    if only_ids:
        click.echo(" ".join(map(str, ids)))
        return
    pieces = [tokenizer.token_bytes(i).decode("utf-8", "backslashreplace") for i in ids]
    if as_json:
        print_json({"ids": ids, "pieces": pieces})
        return
    for i, piece in zip(ids, pieces, strict=True):
        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in piece)
        click.echo(f"{i:7}  '{shown}'")


verbose(command)
