"""`pyedge inspect`: what a file holds, whether it can run here, and what is wrong with it.

Owns the questions to the layers that know (tools/inspect.py for the file, models and tokenizers for the meaning), and
how the answers are shown.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import one_line, verbose
from pyedge.cli.options import locate
from pyedge.cli.streams import print_json
from pyedge.cli.terminal import download_bar, in_bytes

if TYPE_CHECKING:
    from pyedge import _core
    from pyedge.models import Plan

CONTEXTS = (4096, 32768)  # tokens that memory is estimated for
TOOLS = [  # that a template for tools is tried with
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}}}
]
_WIDE = 100  # characters of a value that are shown

EXAMPLES = """\b
Examples:
  pyedge inspect model.gguf
  pyedge inspect smollm2:135m --json
  pyedge inspect huge-00001-of-00004.gguf --quick
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", metavar="FILE")
@click.option("--quick", is_flag=True, help="Do not read the weights in search of NaN, infinity and zeros.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(model: str, quick: bool, as_json: bool) -> None:
    """Show what FILE (a path to a GGUF, or a model's name) holds: metadata, tensors, sizes, and problems found.

    A file that this version cannot run is shown too, with the reason among the problems.
    """
    path = locate(model)

    from pyedge import _core
    from pyedge.tools import inspect

    with _core.Gguf(path) as gguf:
        facts: dict[str, Any] = {
            "file": gguf.path,
            "version": gguf.version,
            "metadata": inspect.metadata(gguf),
            "tensors": inspect.tensors(gguf),
            "sizes": inspect.sizes(gguf),
        }
        problems = inspect.metadata_problems(gguf) + inspect.id_problems(gguf) + inspect.unknown_formats(gguf)
        with _warnings(problems):
            plan = _plan(gguf, problems)
            facts["tokenizer"] = _tokenizer(gguf, problems)
        facts["memory"] = None if plan is None else _memory(plan, facts["sizes"]["weight_bytes"])
        if not quick:
            with download_bar(f"reading {model}") as progress:
                problems += inspect.weight_problems(gguf, progress)
        facts["problems"] = [_plain(problem.removeprefix(f"{gguf.path}: ")) for problem in problems]
    if as_json:
        print_json(_finite(facts))
    else:
        _show(facts)


# ---- what the model is to this version -------------------------------------------------------------------------------


@contextmanager
def _warnings(problems: list[str]) -> Iterator[None]:
    """What the layers warn of meanwhile is a problem of the file, and is said once."""

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                problems.append(record.getMessage())

    root = logging.getLogger("pyedge")
    before, root.handlers[:] = list(root.handlers), [Collect()]
    try:
        yield
    finally:
        root.handlers[:] = before


def _plan(gguf: _core.Gguf, problems: list[str]) -> Plan | None:
    from pyedge.errors import ModelError
    from pyedge.models import build_plan

    try:
        return build_plan(gguf)
    except (ModelError, ValueError) as e:
        problems.append(one_line(e))
        return None


def _tokenizer(gguf: _core.Gguf, problems: list[str]) -> dict[str, Any] | None:
    from pyedge.errors import ModelError
    from pyedge.tokenizers import Tokenizer

    if "tokenizer.ggml.model" not in gguf and gguf.get("general.type") not in (None, "model"):
        return None  # an adapter or an importance matrix needs none
    try:
        tokenizer = Tokenizer.from_gguf(gguf)
    except (ModelError, ValueError) as e:
        problems.append(one_line(e))
        return None
    for name, key, tools in (("default", "", None), ("tool_use", ".tool_use", TOOLS)):
        if name in tokenizer.chat_templates:
            try:
                tokenizer.apply_chat_template([{"role": "user", "content": "Hello"}], tools)
            except ValueError as e:  # a ChatTemplateError is one
                problems.append(f"tokenizer.chat_template{key}: {one_line(e).removeprefix(f'{gguf.path}: ')}")
    return {
        "model": gguf.get("tokenizer.ggml.model"),
        "pre": gguf.get("tokenizer.ggml.pre"),
        "tokens": tokenizer.n_vocab,
        "bos": tokenizer.bos_id,
        "eos": tokenizer.eos_id,
        "end_ids": sorted(tokenizer.end_ids),
        "add_bos": tokenizer.add_bos,
        "chat_templates": sorted(tokenizer.chat_templates),
    }


def _memory(plan: Plan, weight_bytes: int) -> dict[str, Any]:
    """Bytes that a conversation takes, as long as CONTEXTS say or as the model can be used. Weights are packed into
    nearly their size in the file."""
    from pyedge.models.cost import kv_bytes_per_token

    limit = plan.hparams.context_length
    per_token = round(kv_bytes_per_token(plan))
    return {
        "context_length": limit,
        "kv_bytes_per_token": per_token,
        "bytes_at_context": {str(n): weight_bytes + n * per_token for n in sorted({min(n, limit) for n in CONTEXTS})},
    }


def _finite(value: Any) -> Any:
    """For JSON, which has no NaN and no infinity: their names."""
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


# ---- how it is shown -------------------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """A stranger's text in one printable line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        first = value["first"]
        if isinstance(first, str):
            return f"{_shown(first)} ({value['length']} characters)"
        return f"{_cut(_plain(', '.join(map(repr, first))))}, ... ({value['length']} elements)"
    if isinstance(value, str):
        return _cut(_plain(repr(value)))
    return _cut(_plain(repr(value)))


def _cut(text: str) -> str:
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."


def _show(facts: dict[str, Any]) -> None:
    lines = [_plain(f"{facts['file']}: GGUF version {facts['version']}"), "", "metadata"]
    lines += [f"  {_cut(_plain(key))} = {_shown(value)}" for key, value in facts["metadata"].items()]
    lines += ["", "tensors"]
    rows = [
        (_plain(t["name"]), t["type"], " x ".join(map(str, t["shape"])), in_bytes(t["bytes"]), t.get("file", ""))
        for t in facts["tensors"]
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    for name, kind, shape, size, file in rows:
        line = f"  {name:{widths[0]}}  {kind:{widths[1]}}  {shape:{widths[2]}}  {size:>{widths[3]}}  {_plain(file)}"
        lines.append(line.rstrip())
    sizes, memory, tokenizer = facts["sizes"], facts["memory"], facts["tokenizer"]
    lines += ["", "sizes"]
    parts = "" if sizes["files"] == 1 else f" in {sizes['files']} files"
    lines.append(f"  file        {in_bytes(sizes['file_bytes'])}{parts}")
    if sizes["parameters"]:
        by_type = ", ".join(f"{kind} {in_bytes(n)}" for kind, n in sizes["bytes_by_type"].items())
        lines.append(
            f"  parameters  {sizes['parameters'] / 1e6:,.1f} million, {sizes['bits_per_weight']:.2f} bits each"
        )
        lines.append(f"  weights     {in_bytes(sizes['weight_bytes'])}: {by_type}")
    if memory is not None:
        lines.append(
            f"  context     {memory['context_length']} tokens, {in_bytes(memory['kv_bytes_per_token'])} each (f16)"
        )
        for n, size in memory["bytes_at_context"].items():
            lines.append(f"  memory      about {in_bytes(size)} with {n} tokens")
    if tokenizer is not None:
        templates = ", ".join(map(_plain, tokenizer["chat_templates"])) or "none: it runs raw"
        lines += ["", "tokenizer", f"  tokens      {tokenizer['tokens']}, {_shown(tokenizer['model'])}"]
        lines.append(f"  bos, eos    {tokenizer['bos']}, {tokenizer['eos']}; ends at {tokenizer['end_ids']}")
        lines.append(f"  templates   {templates}")
    lines += ["", f"problems: {len(facts['problems']) or 'none found'}"]
    lines += [f"  {problem}" for problem in facts["problems"]]
    click.echo("\n".join(lines))


verbose(command)
