"""`pyedge run`: one answer, streamed to standard output."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import verbose
from pyedge.cli.options import load, locate, model_options, sampling, sampling_options
from pyedge.cli.streams import print_json, read_input, text_of

if TYPE_CHECKING:
    from pyedge.engine.request import TokenEvent
    from pyedge.engine.sampling_params import SamplingParams
    from pyedge.llm import LLM

log = logging.getLogger(__name__)

EXAMPLES = """\b
Examples:
  pyedge run smollm2:135m "What is the capital of France?" --temp 0 -n 64
  git diff | pyedge run smollm2:135m - --system "Describe this change in one line." -n 64
  pyedge run smollm2:135m "Invent a person." --json-schema person.json
  pyedge run model.gguf "Once upon a time" --raw -n 64 --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.argument("prompt")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without the model's chat template.")
@click.option("--system", metavar="TEXT", help="The system message.")
@sampling_options
@click.option("--logprobs", type=int, metavar="K", help="Also the K most likely tokens at each step.")
@click.option("--json-schema", metavar="SCHEMA", help="The answer is JSON that fits this schema: a file, or its text.")
@click.option("--grammar", metavar="GRAMMAR", help="The answer fits this grammar (GBNF, Lark): a file, or its text.")
@click.option("--regex", metavar="PATTERN", help="The answer is what this regular expression matches.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document when the answer is done.")
@model_options
def command(model: str, prompt: str, raw: bool, system: str | None, as_json: bool, **options: Any) -> None:
    """Answer PROMPT (`-`: standard input) with MODEL: a path to a GGUF, or a name such as smollm2:135m.

    The answer is streamed. A model without a chat template runs raw, which a note says.
    """
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, and --raw goes without; put the text into the prompt")
    params = sampling(options, **_form(options))
    # a shell's output ends in a newline that nobody meant
    prompt = read_input().removesuffix("\n") if prompt == "-" else text_of(prompt, "PROMPT")
    system = None if system is None else text_of(system, "--system")
    llm = load(locate(model), options)
    if not raw and not llm.tokenizer.chat_template:
        log.warning("%s has no chat template, so the prompt runs raw%s", model, ", without --system" if system else "")
        raw = True
    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})

    if as_json:
        out = llm.generate(prompt, params)[0] if raw else llm.chat(messages, params)
        document = {
            "model": model,
            "text": out.text,
            "finish_reason": out.finish_reason,
            "token_ids": list(out.token_ids),
            "prompt_token_ids": list(out.prompt_token_ids),
            "logprobs": None if out.logprobs is None else _steps(llm, out.token_ids, out.logprobs, params.logprobs),
            "ttft_s": out.metrics.ttft,
            "tpot_s": out.metrics.tpot,
            "cached_tokens": out.metrics.cached_tokens,
        }
        print_json(document)
    else:
        _write(llm, llm.stream(prompt, params) if raw else llm.stream_chat(messages, params), params)


def _form(options: dict[str, Any]) -> dict[str, Any]:
    """What the answer must be, as one of three options says."""
    given = {name: options.pop(name) for name in ("json_schema", "grammar", "regex")}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return {}
    if len(given) > 1:
        raise click.UsageError("--json-schema, --grammar and --regex say what the answer is; give one of them")
    from pyedge import Grammar

    ((name, value),) = given.items()
    option = f"--{name.replace('_', '-')}"
    text = text_of(value, option)
    path = Path(text)
    try:
        # A schema or a grammar is no file name: it has brackets, or an arrow.
        if name != "regex" and not any(mark in text for mark in ("{", "=", "\n")):
            text = path.read_text(encoding="utf-8")
        return {"grammar": getattr(Grammar, name)(text)}
    except OSError as error:
        raise click.UsageError(f"{option}: {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise click.UsageError(f"{option}: {error}") from None


def _write(llm: LLM, events: Iterable[TokenEvent], params: SamplingParams) -> None:
    """Text as it comes, then what standard error is told: log-probabilities, and why the answer ends early."""
    from pyedge.cli.terminal import harmless

    plain = not sys.stdout.isatty()
    steps: list[dict[str, Any]] = []
    text, reason, n_tokens = "", None, 0
    try:
        for event in events:
            if event.text:
                text = event.text
                sys.stdout.write(text if plain else harmless(text))
                sys.stdout.flush()
            if event.token_id is not None:
                n_tokens += 1
                if event.logprob is not None:
                    steps.append(_step(llm, event.token_id, event.logprob, event.top_logprobs or []))
            reason = event.finish_reason
    finally:
        if not text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
    for step in steps:
        top = "  ".join(f"{t['text']!r} {t['logprob']:.3f}" for t in step["top"])
        click.echo(f"{step['logprob']:9.4f}  {step['text']!r:16} {top}", err=True)
    as_asked = n_tokens == params.max_tokens  # which a script knows
    if reason == "length" and (not as_asked or sys.stderr.isatty()):
        click.secho(f"note: {_why_cut(llm, n_tokens, params)}", dim=True, err=True)


def _why_cut(llm: LLM, n_tokens: int, params: SamplingParams) -> str:
    if n_tokens == params.max_tokens:
        return f"cut at {n_tokens} tokens, which is what -n allows"
    n, most = llm.max_model_len, llm.plan.hparams.context_length
    more = f"; --ctx {most} gives more" if n < most else ""
    return f"the context of {n} tokens is full, so the answer ends here{more}"


def _step(llm: LLM, token: int, logprob: float, top: list[tuple[int, float]]) -> dict[str, Any]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        return {"token_id": token, "text": llm.tokenizer.decode([token], continues=True), "logprob": logprob}

    return {**one(token, logprob), "top": [one(t, p) for t, p in top]}


def _steps(llm: LLM, tokens: list[int], logprobs: list[dict[int, float]], k: int | None) -> list[dict[str, Any]]:
    """Per token written, what a stream's events say: its log-probability and the k most likely ones, highest first. An
    output's `logprobs` have the token itself among those in any case."""
    return [
        _step(llm, token, step[token], sorted(step.items(), key=lambda item: -item[1])[:k])
        for token, step in zip(tokens, logprobs, strict=True)
    ]


verbose(command)
