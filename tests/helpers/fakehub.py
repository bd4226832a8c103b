"""A stand-in for a model hub, on loopback: lists a repository's files, serves them with ranges, and fails as told."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "org/repo"


class Hub(ThreadingHTTPServer):
    """What it has, and how it fails. Faults hold for the next requests of a file, one each; None: answers well."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.lfs = True  # whether files have a SHA-256, or Git's own checksum
        self.wanted_token: str | None = None
        self.gated = False
        self.ranges = True
        self.listing: bytes | None = None  # in place of the right one
        self.faults: list[Any] = []  # ("cut", bytes), ("short", bytes), ("slow", seconds), ("status", code), "flip"
        self.asked: list[tuple[str, str | None]] = []  # (path, Range)
        self.sent = 0  # bytes of files

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that goes away


@contextmanager
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((path, self.headers.get("Range")))
        wanted = self.server.wanted_token and f"Bearer {self.server.wanted_token}"
        if wanted and self.headers.get("Authorization") != wanted:
            code = "GatedRepo" if self.server.gated else "RepoNotFound"
            return self._say(401, b"{}", {"X-Error-Code": code, "X-Error-Message": "no"})
        if path.startswith(f"/api/models/{REPO}"):
            listing = self.server.listing
            listing = json.dumps(self._listing()).encode() if listing is None else listing
            return self._say(200, listing, {"Content-Type": "application/json"})
        if path.startswith("/api/models/"):
            return self._say(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no"})
        if path.startswith(f"/{REPO}/resolve/{COMMIT}/"):
            name = path.removeprefix(f"/{REPO}/resolve/{COMMIT}/")
            if name not in self.server.files:
                return self._say(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "no"})
            return self._say(302, b"", {"Location": f"{self.server.url}/cdn/{name}"})
        if path.startswith("/cdn/"):
            return self._file(self.server.files[path.removeprefix("/cdn/")])
        return self._say(404, b"", {})

    def _listing(self) -> dict[str, object]:
        siblings = []
        for name, data in self.server.files.items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob}
            if self.server.lfs:
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 130}
            siblings.append(entry)
        return {
            "_id": "0", "id": REPO, "modelId": REPO, "sha": COMMIT, "private": False, "gated": False, "disabled": False,
            "downloads": 0, "likes": 0, "tags": ["gguf", "license:apache-2.0"], "siblings": siblings,
        }  # fmt: skip

    def _file(self, data: bytes) -> None:
        fault = self.server.faults.pop(0) if self.server.faults else None
        start, status = 0, 200
        headers = {}
        if self.server.ranges and (match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")):
            start, status = int(match[1]), 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        body = data[start:]
        if fault == "flip":
            body = bytes([body[0] ^ 1]) + body[1:]
        elif fault is not None and fault[0] == "status":
            return self._say(fault[1], b"", {})
        elif fault is not None and fault[0] == "short":  # and says that this is all
            body = body[: fault[1]]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if fault is not None and fault[0] == "cut":
            body = body[: fault[1]]
        pause = fault[1] / 8 if fault is not None and fault[0] == "slow" else 0
        step = max(1, len(body) // 8) if pause else len(body)
        for at in range(0, len(body), step or 1):
            self.wfile.write(body[at : at + step])
            self.wfile.flush()
            self.server.sent += len(body[at : at + step])
            time.sleep(pause)
        if fault is not None and fault[0] == "cut":
            self.close_connection = True

    def _say(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
