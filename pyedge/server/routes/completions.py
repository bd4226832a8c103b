"""`/v1/completions`: the continuation of texts, or of token ids."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flask import Blueprint, Response

from pyedge.engine.request import Request, TokenEvent
from pyedge.server import access, logprobs
from pyedge.server.constraints import grammar_of
from pyedge.server.engine_loop import POLL, ClientGoneError
from pyedge.server.errors import ApiError
from pyedge.server.generation import make_requests, refusals
from pyedge.server.routes import service
from pyedge.server.schemas import CompletionRequest, read_body
from pyedge.server.service import Service
from pyedge.server.streaming import Chunk, answer, client_gone, ends, usage

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

routes = Blueprint("completions", __name__)

MAX_PROMPT_LOGITS = 256 << 20  # bytes of them, for the log-probabilities of an echoed prompt
_ECHOES = threading.BoundedSemaphore(2)  # prompts whose logits are held at once, whatever number of clients asks


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
    content = CompletionAnswer(s, body, requests)
    if body.echo:
        content.echo(given)
    return answer(s, requests, content, stream=bool(body.stream))


class CompletionAnswer:
    """One or several continuations, as chunks and as a whole."""

    def __init__(self, s: Service, body: CompletionRequest, requests: list[Request]) -> None:
        self._service = s
        self._requests = requests
        self._include_usage = body.include_usage
        self._n_top = body.logprobs
        self._texts = [""] * len(requests)
        self._reasons: list[str | None] = [None] * len(requests)
        as_ids = bool(body.return_tokens_as_token_ids)
        self._spelling = [logprobs.Completion(s.llm.tokenizer, as_ids=as_ids) for _ in requests]
        self._logprobs = [spelling.empty() for spelling in self._spelling]
        self._echoed: list[Chunk] = []
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": s.name,
            "system_fingerprint": s.fingerprint,
        }

    def echo(self, given: list[str | list[int]]) -> None:
        """Puts each prompt before its continuations."""
        n = len(self._requests) // len(given)
        for i, prompt in enumerate(given):
            requests = range(i * n, (i + 1) * n)
            ids = self._requests[i * n].prompt_token_ids
            text = prompt if isinstance(prompt, str) else self._service.llm.tokenizer.decode(ids)
            known = None if self._n_top is None else _prompt_logprobs(self._service, ids, self._n_top)
            for index in requests:
                entries = self._spelling[index].empty()
                if known is not None:
                    detokenizer = self._service.llm.tokenizer.detokenizer(False, continues=False)
                    for token, (logprob, top) in zip(ids, known, strict=True):
                        added = len(detokenizer.push(token)) if token < self._service.llm.tokenizer.n_vocab else 0
                        self._spelling[index].add(entries, token, logprob, top, added)
                self._note(index, text, entries)
                self._echoed.append(self._chunk(index, text, entries))

    def begin(self) -> Iterator[Chunk]:
        yield from self._echoed

    def take(self, index: int, event: TokenEvent) -> Iterator[Chunk]:
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


_Known = tuple["float | None", "list[tuple[int, float]] | None"]


def _prompt_logprobs(s: Service, ids: list[int], n_top: int) -> list[_Known]:
    """Of each of a prompt's tokens: its log-probability, and the n_top most likely ones in its place."""
    if len(ids) * s.loop.engine.n_vocab * 4 > MAX_PROMPT_LOGITS:
        most = MAX_PROMPT_LOGITS // (s.loop.engine.n_vocab * 4)
        raise ApiError(
            400, f"echo with logprobs: {len(ids)} tokens of prompt, and at most {most} may have them", param="echo"
        )
    if len(ids) < 2:
        return [(None, None)] * len(ids)
    gone = client_gone()
    with ends(access.record()):
        while not _ECHOES.acquire(timeout=POLL):
            if gone():
                raise ClientGoneError
        try:
            logits = s.loop.run(lambda: s.loop.engine.logits(ids[:-1]), gone)
            return [(None, None), *(_row(row, token, n_top) for row, token in zip(logits, ids[1:], strict=True))]
        finally:
            _ECHOES.release()


def _row(logits: npt.NDArray[np.float32], token: int, n_top: int) -> _Known:
    import numpy as np

    x = logits.astype(np.float64)
    x -= x.max()
    x -= np.log(np.exp(x).sum())
    if (n_top := min(n_top, len(x))) == 0:
        return float(x[token]), []
    likely = np.flatnonzero(x >= np.partition(x, -n_top)[-n_top])  # sorting all takes longer than the model
    best = likely[np.argsort(-x[likely], kind="stable")][:n_top]
    return float(x[token]), [(int(t), float(x[t])) for t in best]
