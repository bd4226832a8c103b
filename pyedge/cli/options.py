"""Options that several commands have, and what is made of them: a loaded model and its sampling rules.

Owns the names and meanings of these options. An option that was not given is None and never reaches the engine, so that
defaults live in one place, the Python API; what the core limits, it is asked about.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyedge.cli import in_options
from pyedge.cli.streams import text_of

if TYPE_CHECKING:
    from pyedge.engine.sampling_params import SamplingParams
    from pyedge.llm import LLM

F = TypeVar("F", bound=Callable[..., Any])


def _late(ask: Callable[[ModuleType], click.ParamType[Any]]) -> Callable[[str], Any]:
    """A type that the core has to be asked for. It is imported when a value comes: `--help` has no need of it."""

    def convert(value: str) -> Any:
        from pyedge import _core

        return ask(_core).convert(value, None, None)

    return convert


def _pre(value: str) -> str:
    """A name of the table that the tokenizers have, which `--help` has no need of."""
    from pyedge.tokenizers.pretokenizers import PRE_TOKENIZERS

    return click.Choice(sorted(PRE_TOKENIZERS)).convert(value, None, None)


pre_option = click.option(
    "--pre", type=_pre, metavar="NAME", help="How words are cut, as in tokenizer.ggml.pre. [as the file says]"
)
_MODEL = {
    "ctx": click.option(
        "--ctx", type=click.IntRange(min=2), metavar="N", help="Context length in tokens. [the model's own]"
    ),
    "kv_memory": click.option(
        "--kv-memory",
        metavar="SIZE",
        help="Memory of the KV cache: 512MB, 2GiB. [that of 4 contexts, at most 1/4 of what is free]",
    ),
    "kv_type": click.option(
        "--kv-type",
        type=_late(lambda core: click.Choice(core.KV_TYPES)),
        metavar="[f16|f32|q4_0|q8_0]",
        help="Type of the KV cache: q8_0 halves its memory; q4_0 quarters it, at a cost in quality. "
        "[f16; with --precision f32, f32]",
    ),
    "threads": click.option(
        "--threads",
        type=_late(lambda core: click.IntRange(1, core.MAX_THREADS)),
        metavar="N",
        help="Threads. [physical cores]",
    ),
    "device": click.option("--device", metavar="NAME", help="auto or cpu. [auto]"),
    "precision": click.option(
        "--precision",
        type=_late(lambda core: click.Choice(core.PRECISIONS)),
        metavar="[fast|f32]",
        help="f32: the float reference path. [fast]",
    ),
    "pre": pre_option,
}
_SAMPLING = [
    click.option(
        "-n", "--max-tokens", type=int, metavar="N", help="Tokens to write. [until the end, or a full context]"
    ),
    click.option("--temp", "--temperature", "temperature", type=float, metavar="X", help="0 is greedy. [0.8]"),
    click.option("--top-k", type=int, metavar="K", help="Choose among the K most likely tokens; 0: all. [40]"),
    click.option("--top-p", type=float, metavar="P", help="Choose among those that together reach P. [0.95]"),
    click.option("--min-p", type=float, metavar="P", help="Drop those below P times the most likely. [0.05]"),
    click.option("--repeat-penalty", type=float, metavar="X", help="Above 1 makes repetition less likely. [1]"),
    click.option("--seed", type=int, metavar="N", help="Equal seeds give equal answers. [random]"),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be given several times."),
]

_MODEL_NAMES = {  # of an option, and in the API
    "ctx": "max_model_len", "kv_type": "kv_type", "threads": "threads", "device": "device", "precision": "precision",
    "pre": "pre", "kv_memory": "kv_memory",
}  # fmt: skip
_SAMPLING_NAMES = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "stop", "logprobs",
)  # fmt: skip


def model_options(f: F) -> F:
    """--ctx --kv-memory --kv-type --threads --device --precision --pre"""
    return some_model_options(*_MODEL)(f)


def some_model_options(*names: str) -> Callable[[F], F]:
    """Those of `model_options` that bear these names."""

    def decorate(f: F) -> F:
        for name in reversed(names):
            f = _MODEL[name](f)
        return f

    return decorate


def sampling_options(f: F) -> F:
    """-n --temp --top-k --top-p --min-p --repeat-penalty --seed --stop"""
    for option in reversed(_SAMPLING):
        f = option(f)
    return f


def locate(model: str) -> Path:
    """The file of that path or name, fetched if need be, with a progress bar."""
    from pyedge import store
    from pyedge.cli.terminal import consent, download_bar

    with download_bar(model) as progress:
        return store.resolve(model, pull=True, progress=progress, consent=consent())


def load(path: Path, options: dict[str, Any]) -> LLM:
    """The model in that file, which generates, loaded as the command's options of `model_options` say."""
    llm = load_any(path, options)
    _ = llm.engine  # a model that only embeds is refused before anything else is said
    return llm


def check_file(path: Path, options: dict[str, Any]) -> None:
    """Raises what loading would raise of the file itself: whether it is whole, and holds a model that runs here."""
    from pyedge import _core
    from pyedge.models import build_plan

    with _core.Gguf(path) as gguf:
        build_plan(gguf, options["ctx"])


def load_any(path: Path, options: dict[str, Any], **others: Any) -> LLM:
    """The model in that file, whether it generates or embeds. others: as LLM has them."""
    from pyedge import LLM

    given = {api: options[name] for name, api in _MODEL_NAMES.items() if options[name] is not None}
    return LLM(path, **given, **others)


def sampling(options: dict[str, Any], **others: Any) -> SamplingParams:
    """The sampling rules that a command's options (and others) make. A bad value is wrong usage."""
    from pyedge import SamplingParams

    given = {name: options[name] for name in _SAMPLING_NAMES if options.get(name) not in (None, ())}
    if "stop" in given:
        given["stop"] = tuple(text_of(text, "--stop") for text in given["stop"])
    try:
        return SamplingParams(**given, **others)
    except ValueError as e:
        raise click.UsageError(in_options(str(e))) from e
