"""`/tokenize` and `/detokenize`: what a text costs, and what tokens say."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify

from pyedge.server.errors import ApiError
from pyedge.server.generation import refusals
from pyedge.server.routes import chat, service
from pyedge.server.schemas import ChatBody, DetokenizeRequest, TokenizeRequest, read_body

routes = Blueprint("tokens", __name__)


@routes.post("/tokenize")
def tokenize() -> Response:
    s, body = service(), read_body(TokenizeRequest)
    s.check_model(body.model)
    tokenizer = s.llm.tokenizer
    text = body.prompt if body.prompt is not None else body.content
    if text is None:
        conversation = read_body(ChatBody)
        ids = chat.prompt_ids(s, conversation, conversation.tools)
    else:
        special = body.add_special_tokens if body.add_special_tokens is not None else body.add_special
        with refusals("prompt"):
            ids = tokenizer.encode(
                text, special=body.parse_special is not False, bos=None if special is not False else False
            )
    pieces = [tokenizer.decode([i], continues=True) for i in ids] if body.return_token_strs or body.with_pieces else []
    tokens: list[Any] = list(ids)
    if body.with_pieces:
        tokens = [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]
    answer = {"tokens": tokens, "count": len(ids), "max_model_len": s.llm.max_model_len}
    return jsonify({**answer, "token_strs": pieces} if body.return_token_strs else answer)


@routes.post("/detokenize")
def detokenize() -> Response:
    s, body = service(), read_body(DetokenizeRequest)
    s.check_model(body.model)
    try:
        text = s.llm.tokenizer.decode(body.tokens)
    except ValueError as error:
        raise ApiError(400, f"tokens: {error}", param="tokens") from None
    return jsonify({"prompt": text, "content": text})
