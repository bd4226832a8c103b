"""`pyedge show`: what is known of a model without running it."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import verbose
from pyedge.cli.streams import print_json
from pyedge.cli.terminal import harmless, in_bytes
from pyedge.errors import ModelError

if TYPE_CHECKING:
    from pyedge import _core

# `general.file_type`, as its writers number the mixes.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


@click.command(epilog="\b\nExamples:\n  pyedge show smollm2:135m\n  pyedge show model.gguf --check --json")
@click.argument("model")
@click.option("--check", is_flag=True, help="Read the file, and compare its SHA-256 with the one it was kept with.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(model: str, check: bool, as_json: bool) -> None:
    """Show where MODEL comes from and what it is: a name of one that is kept, or a path to a GGUF."""
    from pyedge import _core, store

    kept = store.find(model) if store.is_name(model) else None
    path = store.resolve(model)
    facts: dict[str, Any] = {"model": model, "path": str(path), "source": None, "sha256": None, "licence": None}
    if kept is not None:
        facts |= {"source": kept.source, "origin": kept.origin, "sha256": kept.files[0].sha256}
        facts |= {"licence": kept.licence, "terms": kept.terms}
        facts["documents"] = [str(kept.folder / document) for document in kept.documents]
    with _core.Gguf(path) as gguf:
        facts |= _contents(gguf)
        facts["licence"] = facts["licence"] or _text(gguf, "general.license")
    if check:
        found = store.checksums(kept or path)
        if kept is not None and found != [file.sha256 for file in kept.files]:
            raise ModelError(f'{model}: the stored file is damaged; run "pyedge pull {model}", which fetches it again')
        facts["sha256"] = found[0]
    if as_json:
        print_json(facts)
        return
    types = ", ".join(f"{name} {in_bytes(size)}" for name, size in facts["types"].items())
    quantization = facts["quantization"]
    length = facts["context_length"]
    lines = {
        "source": f"{facts['source']} ({facts['origin']})" if kept is not None else None,
        "licence": facts["licence"] if kept is None or not kept.terms else f"{facts['licence']}: {kept.terms}",
        "kept with it": ", ".join(facts.get("documents") or []),
        "file": str(path),
        "size": in_bytes(facts["size"]),
        "sha256": facts["sha256"] and facts["sha256"] + (" (checked)" if check and kept is not None else ""),
        "name": facts["name"],
        "architecture": facts["architecture"],
        "parameters": f"{facts['parameters'] / 1e6:,.0f} million",
        "context": None if length is None else f"{length} tokens",
        "quantization": f"{quantization} ({types})" if quantization else types,
        "tokenizer": facts["tokenizer"],
        "embeds": "yes: it generates no text" if facts["embeds"] else None,
        "chat template": None if facts["embeds"] else "yes" if facts["chat_template"] else "no: it runs raw",
    }
    for label, value in lines.items():
        if value:
            click.echo(f"{label:13}  {harmless(str(value))}")


verbose(command)


def _contents(gguf: _core.Gguf) -> dict[str, Any]:
    """What the file says of its model. A stranger wrote it: what has a wrong type counts as not given."""
    architecture = _text(gguf, "general.architecture")
    length = gguf.get(f"{architecture}.context_length")
    pooling = gguf.get(f"{architecture}.pooling_type")
    file_type = gguf.get("general.file_type")
    types: Counter[str] = Counter()
    parameters = 0
    for tensor in gguf.tensors:
        types[tensor.type] += tensor.n_bytes
        parameters += math.prod(tensor.shape)
    return {
        "size": gguf.file_size,
        "name": _text(gguf, "general.name"),
        "architecture": architecture,
        "parameters": parameters,
        "context_length": length if isinstance(length, int) and not isinstance(length, bool) else None,
        "quantization": FILE_TYPES.get(file_type) if isinstance(file_type, int) else None,
        "types": dict(types.most_common()),
        "tokenizer": _text(gguf, "tokenizer.ggml.model"),
        "embeds": isinstance(pooling, int) and not isinstance(pooling, bool) and pooling > 0,
        "chat_template": _text(gguf, "tokenizer.chat_template") is not None,
    }


def _text(gguf: _core.Gguf, key: str) -> str | None:
    value = gguf.get(key)
    return value[:200] if isinstance(value, str) and value else None
