"""How a request's tokens are chosen and when they end. Checked here, once, so that nothing below has to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

from pyedge.engine.grammar import Grammar

MAX_N = 128
MAX_LOGPROBS = 64  # the core reports at most this many
_MAX_LAST_N = 2**20  # and keeps a window of at most this many
_MAX_BIAS = 1e38  # it computes in float32


def shown(value: object) -> str:
    """A wrong value in an error's one line."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # an integer of thousands of digits
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class SamplingParams:
    """Sampling and stopping rules of one request; the defaults are llama.cpp's.

    temperature        0 is greedy
    top_k              keep the k most likely tokens; 0 or -1: all
    top_p              keep the most likely tokens that together reach this probability; at least one is kept
    min_p              drop tokens less likely than this share of the most likely one
    repeat_penalty     divides positive and multiplies negative logits of the last `repeat_last_n` tokens (prompt
                       included; -1: all); 1 is off
    presence_penalty   subtracted once from the logits of generated tokens
    frequency_penalty  subtracted once per occurrence among the generated tokens
    max_tokens         None: until the model ends its answer or the context is full; 0 generates nothing
    min_tokens         end-of-text tokens and stop strings are held off until this many tokens are generated
    seed               equal seeds give equal draws, whatever else runs; None: drawn anew for each request, and recorded
    stop               generation ends before any of these texts; they are not part of the output
    logprobs           report the log-probability of each token and of the n most likely ones (0: of the token alone)
    prompt_logprobs    the same of the prompt's tokens, which are then all computed, and none found in the prefix cache
    logit_bias         {token id: added to its logit}; minus infinity bans a token
    ignore_eos         end-of-text tokens are never chosen
    n                  so many answers to one prompt, which is read once: answer i is that of a request of its own with
                       the seed `seed` + i
    grammar            what the text must be: Grammar.json_object(), .json_schema(...), .regex(...), .grammar(...). It
                       ends, with "stop", when the grammar is complete and nothing may follow; ignore_eos and min_tokens
                       hold off the end only as long as the grammar lets something else follow. A stop string, and
                       max_tokens, may cut the text short.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    max_tokens: int | None = None
    min_tokens: int = 0
    seed: int | None = None
    stop: Sequence[str] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    ignore_eos: bool = False
    n: int = 1
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        self._real("temperature", 0, 100)
        self._integer("top_k", -1)
        self._real("top_p", 0, 1)
        self._real("min_p", 0, 1)
        self._real("repeat_penalty", 0, 100)
        if self.repeat_penalty == 0:
            raise ValueError("repeat_penalty must be above 0, since logits are divided by it; 1 turns it off")
        self._real("presence_penalty", -100, 100)
        self._real("frequency_penalty", -100, 100)
        self._integer("repeat_last_n", -1, _MAX_LAST_N)
        self._integer("max_tokens", 0, optional=True)
        self._integer("min_tokens", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) must be at most max_tokens ({self.max_tokens})")
        self._integer("seed", -(2**63), 2**64 - 1, optional=True)
        self._integer("logprobs", 0, MAX_LOGPROBS, optional=True)
        self._integer("prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos must be True or False, not {shown(self.ignore_eos)}")
        self._integer("n", 1, MAX_N)
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise ValueError(f"grammar must be a pyedge.Grammar or None, not {shown(self.grammar)}")
        self._set("stop", _stop_strings(self.stop))
        self._set("logit_bias", _biases(self.logit_bias))

    def of_answer(self, index: int) -> SamplingParams:
        """The rules of one of n answers. The seed is there, and they count round from its end."""
        assert self.seed is not None
        seed = self.seed + index
        return replace(self, n=1, seed=seed if seed < 2**64 else seed - 2**64)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _real(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name} must be a number, not {shown(value)}")
        if not low <= _float(value) <= high:  # false for NaN
            raise ValueError(f"{name} must be from {low} to {high}, not {shown(value)}")
        self._set(name, float(value))

    def _integer(self, name: str, low: int, high: int = 2**31 - 1, *, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"{name} must be an integer{' or None' if optional else ''}, not {shown(value)}")
        if not low <= int(value) <= high:
            raise ValueError(f"{name} must be from {low} to {high}, not {shown(value)}")
        self._set(name, int(value))


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer, larger than any float
        return math.nan


def _stop_strings(stop: Any) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Sequence) or isinstance(texts, (bytes, bytearray)):
        raise ValueError(f"stop must be a string or a list of strings, not {shown(stop)}")
    for text in texts:
        if not isinstance(text, str) or not text:
            raise ValueError(f"every stop string must be a string of at least one character, not {shown(text)}")
    return tuple(texts)


def _biases(biases: Any) -> dict[int, float] | None:
    if biases is None:
        return None
    if not isinstance(biases, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, not be {shown(biases)}")
    checked: dict[int, float] = {}
    for token, value in biases.items():
        if isinstance(token, bool) or not isinstance(token, Integral) or not 0 <= int(token) < 2**31:
            raise ValueError(f"a token id in logit_bias must be an integer from 0 up, not {shown(token)}")
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"logit_bias of token {int(token)} must be a number, not {shown(value)}")
        if not (abs(_float(value)) <= _MAX_BIAS or _float(value) == -math.inf):  # NaN is neither
            raise ValueError(f"logit_bias of token {int(token)} must be finite or minus infinity, not {shown(value)}")
        checked[int(token)] = float(value)
    return checked
