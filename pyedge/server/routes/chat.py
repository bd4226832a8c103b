"""`/v1/chat/completions` and `/apply-template`: conversations, by the model's chat template."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flask import Blueprint, Response, jsonify

from pyedge.engine.request import Request, TokenEvent
from pyedge.server import logprobs
from pyedge.server.constraints import chat_form, tools_of
from pyedge.server.generation import make_requests, refusals
from pyedge.server.message import MessageParser, merge
from pyedge.server.routes import service
from pyedge.server.schemas import ChatBody, ChatRequest, read_body
from pyedge.server.service import Service
from pyedge.server.streaming import Chunk, answer, usage

routes = Blueprint("chat", __name__)


@routes.post("/v1/chat/completions")
def chat_completions() -> Response:
    s, body = service(), read_body(ChatRequest)
    s.check_model(body.model)
    body.check_stream()
    _ = s.loop  # an embedding model is refused first
    params, tokenizer = body.chat_params(), s.llm.tokenizer
    tools = tools_of(body, tokenizer)
    prompt = prompt_ids(s, body, None if tools is None else tools.given)
    grammar, parsers = chat_form(body, tools, tokenizer, prompt)
    requests = make_requests(s, body, [prompt], replace(params, grammar=grammar))
    content = ChatAnswer(s, body, requests, parsers)
    return answer(s, requests, content, stream=bool(body.stream))


@routes.post("/apply-template")
def apply_template() -> Response:
    s, body = service(), read_body(ChatBody)
    s.check_model(body.model)
    with _template_refusals(s):
        prompt = s.llm.tokenizer.render_chat_template(
            body.plain_messages(), body.tools, body.add_generation_prompt is not False, **body.template_variables()
        )
    return jsonify({"prompt": prompt})


def prompt_ids(s: Service, body: ChatBody, tools: list[dict[str, Any]] | None) -> list[int]:
    with _template_refusals(s):
        return s.llm.encode_chat(
            body.plain_messages(), tools, body.add_generation_prompt is not False, **body.template_variables()
        )


@contextmanager
def _template_refusals(s: Service) -> Iterator[None]:
    """As all refusals, and without the place of the model's file, which is no business of a client's."""
    with refusals("messages"):
        try:
            yield
        except ValueError as error:
            raise ValueError(str(error).removeprefix(f"{s.llm.path}: ")) from None


class ChatAnswer:
    """One or several messages, as chunks and as a whole."""

    def __init__(self, s: Service, body: ChatRequest, requests: list[Request], parsers: list[MessageParser]) -> None:
        self._tokenizer = s.llm.tokenizer
        self._requests = requests
        self._parsers = parsers
        self._wants_logprobs = bool(body.logprobs)
        self._include_usage = body.include_usage
        self._messages: list[dict[str, Any]] = [{"role": "assistant", "content": None} for _ in requests]
        self._reasons: list[str | None] = [None] * len(requests)
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in requests]
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": s.name,
            "system_fingerprint": s.fingerprint,
        }
        self._chunk_head = {**self._head, "object": "chat.completion.chunk"}

    def begin(self) -> Iterator[Chunk]:
        for index in range(len(self._requests)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def take(self, index: int, event: TokenEvent) -> Iterator[Chunk]:
        parser = self._parsers[index]
        delta, entries = parser.push(event.text), []
        if self._wants_logprobs and event.logprob is not None:
            entries = [logprobs.of_chat(self._tokenizer, event)]
            self._logprobs[index] += entries
        merge(self._messages[index], delta)
        if delta or entries:
            yield self._chunk(index, delta, entries)
        if event.finish_reason is not None:
            rest, reason = parser.finish(event.finish_reason)
            merge(self._messages[index], rest)
            self._reasons[index] = reason
            if rest:
                yield self._chunk(index, rest)
            yield self._chunk(index, {}, reason=reason)

    def end(self) -> Iterator[Chunk]:
        if self._include_usage:
            yield {**self._chunk_head, "choices": [], "usage": usage(self._requests)}

    def whole(self) -> Chunk:
        choices = [self._choice(i) for i in range(len(self._requests))]
        return {**self._head, "choices": choices, "usage": usage(self._requests)}

    def _choice(self, i: int) -> dict[str, Any]:
        message = self._messages[i]
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        return {
            "index": i,
            "message": {**message, "refusal": None},
            "logprobs": {"content": self._logprobs[i], "refusal": None} if self._wants_logprobs else None,
            "finish_reason": self._reasons[i],
        }

    def _chunk(
        self, index: int, delta: dict[str, Any], entries: list[dict[str, Any]] | None = None, reason: str | None = None
    ) -> Chunk:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": entries, "refusal": None} if entries else None,
            "finish_reason": reason,
        }
        chunk = {**self._chunk_head, "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk
