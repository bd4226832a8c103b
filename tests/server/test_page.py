"""The chat page: what it may load, what it inserts, and how its script reads a stream that is cut anywhere."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from serving import Server, serving

import pyedge.web

SCRIPT = Path(pyedge.web.__file__).parent / "static" / "chat.js"


def test_nothing_comes_from_elsewhere(server: Server) -> None:
    reply = server.get("/")
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert reply.headers["x-content-type-options"] == "nosniff"
    page = reply.data.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|https?://", page)
    for path in re.findall(r'(?:src|href)="(/[^"]*)"', page):
        file = server.get(path)
        assert file.status == 200
        assert file.headers["content-security-policy"] == reply.headers["content-security-policy"]
        assert file.headers["content-type"].split(";")[0] in ("text/javascript", "text/css")


def test_text_is_inserted_as_text() -> None:
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", SCRIPT.read_text()
    )


def test_a_models_name_is_no_markup(tiny_path: Path) -> None:
    with serving(tiny_path, settings={"name": '<img src=x onerror=alert(1)>"'}) as server:
        page = server.get("/").data.decode()
    assert "<img" not in page
    assert "&lt;img" in page


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_stream_cut_anywhere() -> None:
    lines = [
        ": ping",
        "",
        "data: 日本語 😀",
        "",
        "event: x",
        'data: {"a":',
        "data:1}",
        "",
        "data: [DONE]",
        "",
        "data: cut",
    ]
    streams = [list(newline.join(lines).encode()) for newline in ("\n", "\r\n", "\r")]
    program = f"""
        const {{ EventParser }} = require({json.dumps(str(SCRIPT))});
        for (const stream of {streams}) for (const size of [1, 2, 3, 1000]) {{
            const parser = new EventParser(), bytes = Uint8Array.from(stream), events = [];
            for (let i = 0; i < bytes.length; i += size) events.push(...parser.push(bytes.slice(i, i + size)));
            console.log(JSON.stringify(events));
        }}"""
    result = subprocess.run(["node", "-e", program], capture_output=True, text=True, timeout=20, check=True)
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert events == [["日本語 😀", '{"a":\n1}', "[DONE]"]] * 12
