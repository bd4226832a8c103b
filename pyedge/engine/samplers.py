"""The core's samplers, which requests draw their tokens with, and are told by how likely those of their prompts are.

Owns what of SamplingParams the core is given, and when an end of text may not come yet. A sampler is made when it is
first needed: it may be as large as the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from pyedge.engine.request import Request

if TYPE_CHECKING:
    from pyedge import _core


class Samplers:
    def __init__(self, make: Callable[..., _core.Sampler], n_vocab: int, end_ids: Collection[int]) -> None:
        self._make = make
        self._n_vocab = n_vocab
        self._end_ids = end_ids

    def drawing(self, request: Request) -> _core.Sampler:
        if request.sampler is not None:
            return request.sampler
        params = request.params
        bias = dict(params.logit_bias or {})
        if request.matcher is None and self.holds_end(request):  # a matcher's mask sees to it
            bias.update(dict.fromkeys(self._end_ids, -math.inf))
        sampler = self._make(
            self._n_vocab,
            temperature=params.temperature,
            top_k=max(params.top_k, 0),
            top_p=params.top_p,
            min_p=params.min_p,
            repeat_penalty=params.repeat_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repeat_last_n=params.repeat_last_n,
            seed=params.seed or 0,
            n_logprobs=-1 if params.logprobs is None else params.logprobs,
            logit_bias=bias,
            masked=request.matcher is not None,
        )
        sampler.accept(request.prompt_token_ids, False)
        sampler.accept(request.output_token_ids, True)
        request.sampler = sampler
        return sampler

    def scoring(self, request: Request) -> _core.Sampler:
        """Of the prompt's tokens: no rule matters."""
        if request.scorer is None:
            request.scorer = self._make(self._n_vocab, seed=0, logit_bias={}, n_logprobs=request.params.prompt_logprobs)
        return request.scorer

    @staticmethod
    def holds_end(request: Request) -> bool:
        return request.params.ignore_eos or request.n_output < request.params.min_tokens
