"""`/health` and `/metrics`: for whoever watches over the server."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from pyedge.server.errors import ApiError
from pyedge.server.routes import service

routes = Blueprint("health", __name__)


@routes.get("/health")
def health() -> Response:
    if (trouble := service().trouble) is not None:
        raise ApiError(503, trouble, code="unavailable", retry_after=5)
    return jsonify({"status": "ok"})


@routes.get("/metrics")
def metrics() -> Response:
    return Response(service().metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")
