"""Who may ask: keys, names of the server, pages of other sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import Server, serving

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
PATHS = ("/v1/models", "/metrics", "/v1/models/tiny")


@pytest.fixture(scope="module")
def guarded(tiny_path: Path) -> Iterator[Server]:
    settings = {"api_key": "secret-1", "cors_origins": ("https://app.example",)}
    with serving(tiny_path, settings=settings) as server:
        yield server
        server.check()


@pytest.mark.parametrize(
    "header",
    [None, "", "secret-1", "Bearer", "Bearer ", "Bearer secret-2", "Bearer secret-11", "Basic secret-1", "Bearer é"],
)
def test_a_wrong_key(guarded: Server, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for reply in [guarded.post(CHAT, BODY, **headers), *(guarded.get(path, **headers) for path in PATHS)]:
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"
        assert b"secret" not in reply.data


def test_the_right_key(guarded: Server) -> None:
    for scheme in ("Bearer", "bearer"):
        assert guarded.post(CHAT, BODY, Authorization=f"{scheme} secret-1").status == 200
    assert guarded.get("/metrics", Authorization="Bearer secret-1").status == 200


def test_what_needs_no_key(guarded: Server) -> None:
    for path in ("/", "/health", "/static/chat.js"):
        assert guarded.get(path).status == 200
    assert guarded.get("/health", Host="any.example").status == 200  # who has no key learns nothing by rebinding


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "", "[", "a b"]
)
def test_a_name_that_is_not_the_servers(server: Server, host: str) -> None:
    for reply in (server.get("/health", Host=host), server.post(CHAT, BODY, Host=host)):
        assert reply.status in (400, 403)
        assert reply.error["message"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:99",
        "localhost.",
        "LOCALHOST.:99",
        "127.0.0.1",
        "127.0.0.1:8080",
        "[::1]:8080",
        "192.168.1.5",
        "LOCALHOST",
        "a.localhost",
    ],
)
def test_names_that_are(server: Server, host: str) -> None:
    assert server.get("/health", Host=host).status == 200


def test_a_name_that_was_allowed(tiny_path: Path) -> None:
    with serving(tiny_path, settings={"max_sequences": 1, "allowed_hosts": ("Box.lan",)}) as server:
        assert server.get("/health", Host="box.lan:80").status == 200
        assert server.get("/health", Host="other.lan").status == 403


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "file://", "http://127.0.0.1"]
)
def test_a_page_of_another_site(server: Server, origin: str) -> None:
    for reply in (server.post(CHAT, BODY, Origin=origin), server.get("/v1/models", Origin=origin)):
        assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")
        assert "access-control-allow-origin" not in reply.headers
    preflight = server.call("OPTIONS", CHAT, Origin=origin, **{"Access-Control-Request-Method": "POST"})
    assert preflight.status == 403
    assert "access-control-allow-origin" not in preflight.headers


def test_its_own_page(server: Server) -> None:
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{server.port}"
        assert server.post(CHAT, BODY, Host=host, Origin=f"http://{host}").status == 200


def test_a_page_that_was_listed(guarded: Server) -> None:
    origin = "https://app.example"
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    preflight = guarded.call("OPTIONS", CHAT, Origin=origin, **wanted)
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == origin
    assert preflight.headers["access-control-allow-headers"] == "authorization, content-type"
    assert "POST" in preflight.headers["access-control-allow-methods"]
    reply = guarded.post(CHAT, BODY, Origin=origin, Authorization="Bearer secret-1")
    assert reply.status == 200
    assert (reply.headers["access-control-allow-origin"], reply.headers["vary"]) == (origin, "Origin")
    assert guarded.post(CHAT, BODY, Origin=origin).status == 401
    assert guarded.post(CHAT, BODY, Origin="https://app.example.evil", Authorization="Bearer secret-1").status == 403
