"""`/v1/completions`: the continuation of texts, or of token ids."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flask import Blueprint, Response

from pyedge.engine.request import Request, TokenEvent
from pyedge.server import logprobs
from pyedge.server.constraints import grammar_of
from pyedge.server.errors import ApiError
from pyedge.server.generation import make_requests, refusals
from pyedge.server.routes import service
from pyedge.server.schemas import CompletionRequest, read_body
from pyedge.server.service import Service
from pyedge.server.streaming import Chunk, answer, usage

routes = Blueprint("completions", __name__)

MAX_ECHOED = 1 << 18  # log-probabilities of prompts in an answer: 20 MB of JSON


@routes.post("/v1/completions")
def completions() -> Response:
    s, body = service(), read_body(CompletionRequest)
    s.check_model(body.model)
    body.check_stream()
    params = replace(body.completion_params(), grammar=grammar_of(body))
    _ = s.loop  # an embedding model is refused first
    given = body.prompts()
    with refusals("prompt"):
        prompts = [s.llm.encode(p if isinstance(p, str) else {"prompt_token_ids": p}) for p in given]
    requests = make_requests(s, body, prompts, params)
    if body.echo and body.logprobs is not None:
        each = min(body.logprobs, s.loop.engine.n_vocab) + 1
        if (n := sum(len(r.prompt_token_ids) for r in requests) * each) > MAX_ECHOED:
            raise ApiError(
                400,
                f"echo: the prompts have {n} log-probabilities with logprobs {body.logprobs}, and an answer at most "
                f"{MAX_ECHOED}; ask for fewer logprobs, or send shorter prompts",
                param="echo",
            )
    content = CompletionAnswer(s, body, requests, given if body.echo else None)
    return answer(s, requests, content, stream=bool(body.stream))


class CompletionAnswer:
    """One or several continuations, as chunks and as a whole."""

    def __init__(
        self, s: Service, body: CompletionRequest, requests: list[Request], echoed: list[str | list[int]] | None
    ) -> None:
        """echoed: prompts that are said before their continuations."""
        self._service = s
        self._requests = requests
        self._include_usage = body.include_usage
        self._n_top = body.logprobs
        self._texts = [""] * len(requests)
        self._reasons: list[str | None] = [None] * len(requests)
        as_ids = bool(body.return_tokens_as_token_ids)
        self._spelling = [logprobs.Completion(s.llm.tokenizer, as_ids=as_ids) for _ in requests]
        self._logprobs = [spelling.empty() for spelling in self._spelling]
        n = 1 if echoed is None else len(requests) // len(echoed)
        self._echoed = {} if echoed is None else {i: echoed[i // n] for i in range(len(requests))}
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": s.name,
            "system_fingerprint": s.fingerprint,
        }

    def begin(self) -> Iterator[Chunk]:
        yield from ()

    def take(self, index: int, event: TokenEvent) -> Iterator[Chunk]:
        if index in self._echoed:  # with the first event, for its log-probabilities are there by then
            yield self._echo(index, self._echoed.pop(index))
        entries = self._spelling[index].empty()
        if self._n_top is not None and event.token_id is not None:
            self._spelling[index].add(entries, event.token_id, event.logprob, event.top_logprobs, len(event.text))
        self._note(index, event.text, entries)
        self._reasons[index] = event.finish_reason
        if event.text or entries["tokens"] or event.finish_reason is not None:
            yield self._chunk(index, event.text, entries, event.finish_reason)

    def end(self) -> Iterator[Chunk]:
        if self._include_usage:
            yield {**self._head, "choices": [], "usage": usage(self._requests)}

    def whole(self) -> Chunk:
        choices = [
            {
                "index": i,
                "text": self._texts[i],
                "logprobs": None if self._n_top is None else self._logprobs[i],
                "finish_reason": self._reasons[i],
            }
            for i in range(len(self._requests))
        ]
        return {**self._head, "choices": choices, "usage": usage(self._requests)}

    def _echo(self, index: int, prompt: str | list[int]) -> Chunk:
        request, tokenizer, spelling = self._requests[index], self._service.llm.tokenizer, self._spelling[index]
        text = prompt if isinstance(prompt, str) else tokenizer.decode(request.prompt_token_ids)
        entries = spelling.empty()
        if request.prompt_rows is not None:
            detokenizer = tokenizer.detokenizer(False, continues=False)
            for token, row in zip(request.prompt_token_ids, (None, *request.prompt_rows), strict=True):
                added = len(detokenizer.push(token)) if token < tokenizer.n_vocab else 0
                logprob, top = (None, None) if row is None else (row.logprob, row.top)
                spelling.add(entries, token, logprob, top, added)
        self._note(index, text, entries)
        return self._chunk(index, text, entries)

    def _note(self, index: int, text: str, entries: dict[str, Any]) -> None:
        self._texts[index] += text
        for key, values in self._logprobs[index].items():
            values += entries[key]

    def _chunk(self, index: int, text: str, entries: dict[str, Any], reason: str | None = None) -> Chunk:
        choice = {
            "index": index,
            "text": text,
            "logprobs": entries if self._n_top is not None and entries["tokens"] else None,
            "finish_reason": reason,
        }
        chunk = {**self._head, "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk
