"""`/`: the chat page, and its files. No script of another origin, none within the page, and nothing may frame it."""

from __future__ import annotations

from pathlib import Path

from flask import Blueprint, Response, render_template, send_from_directory

import pyedge.web
from pyedge.server.routes import service

_FOLDER = Path(pyedge.web.__file__).parent
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

routes = Blueprint("page", __name__, template_folder=str(_FOLDER / "templates"))


@routes.get("/")
def page() -> Response:
    s = service()
    html = render_template(
        "index.html", model=s.name, embeds=s.started and s.embeds, key_needed=s.settings.api_key is not None
    )
    return _guarded(Response(html, content_type="text/html; charset=utf-8"))


@routes.get("/static/<path:name>")
def static(name: str) -> Response:
    return _guarded(send_from_directory(_FOLDER / "static", name))


def _guarded(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-cache"
    return response
