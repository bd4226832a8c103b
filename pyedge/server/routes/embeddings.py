"""`/v1/embeddings` and `/v1/rerank`: texts as vectors, and documents by how near they are to a query."""

from __future__ import annotations

import base64
import secrets
from typing import Any

from flask import Blueprint, Response, jsonify

from pyedge.server.embedding import embed
from pyedge.server.errors import unsupported
from pyedge.server.routes import service
from pyedge.server.schemas import EmbeddingRequest, RerankRequest, read_body

routes = Blueprint("embeddings", __name__)


@routes.post("/v1/embeddings")
def embeddings() -> Response:
    s, body = service(), read_body(EmbeddingRequest)
    s.check_model(body.model)
    vectors, n_tokens = embed(s, body.texts(), "input")
    width = vectors.shape[1]
    if body.dimensions not in (None, width):
        raise unsupported("dimensions", f"this model's vectors have {width} numbers, and are not cut; leave it out")
    if body.encoding_format == "base64":
        data: list[Any] = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in vectors]
    else:
        data = vectors.tolist()
    return jsonify(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(data)],
            "model": s.name,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )


@routes.post("/v1/rerank")
@routes.post("/rerank")
def rerank() -> Response:
    """Scores are cosines of embeddings: no model of this server reads query and document together."""
    s, body = service(), read_body(RerankRequest)
    s.check_model(body.model)
    documents = body.texts()
    vectors, n_tokens = embed(s, [body.query, *documents], "documents")
    scores = (vectors[1:] @ vectors[0]).tolist()
    best = sorted(range(len(documents)), key=lambda i: -scores[i])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in best]
    if body.return_documents is not False:
        for result in results:
            result["document"] = {"text": documents[result["index"]]}
    return jsonify(
        {
            "id": f"rerank-{secrets.token_hex(12)}",
            "model": s.name,
            "usage": {"total_tokens": n_tokens},
            "results": results,
        }
    )
