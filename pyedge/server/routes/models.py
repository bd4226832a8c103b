"""`/v1/models`: the one model that is served."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify

from pyedge.server.routes import service

routes = Blueprint("models", __name__)


@routes.get("/v1/models")
def models() -> Response:
    return jsonify({"object": "list", "data": [_model()]})


@routes.get("/v1/models/<path:name>")
def model(name: str) -> Response:
    service().check_model(name)
    return jsonify(_model())


def _model() -> dict[str, Any]:
    s = service()
    return {
        "id": s.name,
        "object": "model",
        "created": s.created,
        "owned_by": "pyedge",
        "max_model_len": s.llm.max_model_len,
    }
