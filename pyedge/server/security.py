"""Who may ask: the key, the name that the server was called by, and pages of other sites.

Owns these three checks. A page that somebody visits may send requests to this machine, and by changing what its own
name stands for it may even read the answers (DNS rebinding). So a request's Host must be an address, `localhost` or a
name that was allowed, since an address cannot be rebound; and an Origin, which only browsers send, must be the server's
own or one that was listed. A server with a key needs no check of Host: such a page does not know the key.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from flask import Flask, Response, request

from pyedge.server.errors import ApiError
from pyedge.server.settings import Settings

OPEN = ("/", "/health")  # and the page's own files: no secrets there


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def install(app: Flask, settings: Settings) -> None:
    origins = {origin.rstrip("/").lower() for origin in settings.cors_origins}
    names = {"localhost", settings.host.lower(), *(name.lower() for name in settings.allowed_hosts)}
    key = None if settings.api_key is None else settings.api_key.encode()

    @app.before_request
    def check() -> Response | None:
        if key is None:
            _check_host(request.host, names)
        origin = request.headers.get("Origin")
        if origin is not None:
            _check_origin(origin, request.host, origins)
            if request.method == "OPTIONS":  # asks what it may send; has no key yet
                return Response(status=204)
        if key is not None and request.path not in OPEN and not request.path.startswith("/static/"):
            _check_key(request.headers.get("Authorization", ""), key)
        return None

    @app.after_request
    def allow(response: Response) -> Response:
        origin = request.headers.get("Origin")
        response.headers["X-Content-Type-Options"] = "nosniff"
        if origin is None or not ("*" in origins or origin.lower() in origins):
            return response
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Vary"] = "Origin"
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = "GET, POST"
            response.headers["Access-Control-Allow-Headers"] = request.headers.get(
                "Access-Control-Request-Headers", "Authorization, Content-Type"
            )
            response.headers["Access-Control-Max-Age"] = "600"
        return response


def _check_key(header: str, key: bytes) -> None:
    scheme, _, given = header.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key):
        raise ApiError(
            401,
            "the API key is missing or wrong; send it as Authorization: Bearer KEY",
            code="invalid_api_key",
        )


def _check_host(host: str, names: set[str]) -> None:
    name = (urlsplit(f"//{host}").hostname or "").lower().removesuffix(".") if host else ""  # the root of all names
    if name in names or name.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise ApiError(
            403,
            f"Host {host[:100]!r}: this server does not go by that name; call it by its address, or start it with "
            "--allowed-host NAME",
            code="host_not_allowed",
        ) from None


def _check_origin(origin: str, host: str, allowed: set[str]) -> None:
    if "*" in allowed or origin.lower() in allowed:
        return
    if origin.lower() == f"http://{host.lower()}" or origin.lower() == f"https://{host.lower()}":
        return
    raise ApiError(
        403,
        f"a page of {origin[:100]} may not use this server; start it with --cors-origin {origin[:100]} to allow that",
        code="origin_not_allowed",
    )
