"""The Flask application: who may ask, the routes, and what an error looks like.

Owns nothing of any one route: each module of `routes` has a Blueprint called `routes`, and is found by its being there.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from pyedge.errors import ModelError
from pyedge.server import access, routes, security
from pyedge.server.errors import MISTAKE, ApiError, error_body
from pyedge.server.service import Service

log = logging.getLogger(__name__)


@cache
def _modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(routes.__path__))


def create_app(service: Service) -> Flask:
    app = Flask("pyedge.server", static_folder=None)
    app.extensions["pyedge"] = service
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.ensure_ascii = False  # type: ignore[attr-defined]
    app.url_map.strict_slashes = False
    app.wsgi_app = _one_slash(app.wsgi_app)  # type: ignore[method-assign]
    access.install(app, service)
    security.install(app, service.settings)

    @app.before_request
    def refuse_at_the_end() -> None:
        """A connection that was open when the server began to end may send more."""
        if service.draining and request.method == "POST":
            raise ApiError(503, "the server is shutting down", code="unavailable", retry_after=5)

    for name in _modules():
        app.register_blueprint(importlib.import_module(f"{routes.__name__}.{name}").routes)
    app.register_error_handler(ApiError, _api_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(ModelError, _model_error)
    app.register_error_handler(Exception, _bug)
    return app


def _one_slash(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """A base URL that ends with a slash makes two of it, which Flask would answer with a redirection to a page."""

    def merged(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ["PATH_INFO"] = re.sub("/{2,}", "/", environ.get("PATH_INFO", ""))
        return app(environ, start_response)

    return merged


def _answer(status: int, body: object, headers: dict[str, str] | None = None) -> Response:
    response = jsonify(body)
    response.status_code = status
    response.headers.update(headers or {})
    return response


def _api_error(error: ApiError) -> Response:
    access.record().error = str(error)
    return _answer(error.status, error.body, error.headers)


def _http_error(error: HTTPException) -> Response:
    """Flask's own: no such path, not with this method."""
    status, headers = error.code or 500, {}
    if status == 404:
        what = f"{request.method} {request.path[:200]}: there is no such path; see /v1/models, /v1/chat/completions"
    elif isinstance(error, MethodNotAllowed):
        headers["Allow"] = methods = ", ".join(sorted(error.valid_methods or ()))
        what = f"{request.method} is not for {request.path[:200]}; use {methods}"
    else:
        what = error.description or error.name
    return _answer(status, error_body(status, what), headers)


def _model_error(error: ModelError) -> Response:
    """The model made numbers that are none: the fault is the file's, and no other request suffers."""
    access.record().error = str(error)
    return _answer(503, error_body(503, str(error), code="model_error"))


def _bug(error: Exception) -> Response:
    log.exception("%s %s failed", request.method, request.path)
    return _answer(500, error_body(500, MISTAKE))
