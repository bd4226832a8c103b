"""/metrics adds up, and the access log has a line for each request without a word of what was said."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serving import Server, serving

CHAT = "/v1/chat/completions"
LONG = {"messages": [{"role": "user", "content": "the other and " * 12}], "max_tokens": 4, "ignore_eos": True}


def numbers(server: Server) -> dict[str, float]:
    families = text_string_to_metric_families(server.get("/metrics").data.decode())
    return {
        s.name + ("{" + ",".join(s.labels.values()) + "}" if s.labels else ""): s.value
        for f in families
        for s in f.samples
    }


def test_it_adds_up(tiny_path: Path) -> None:
    with serving(tiny_path, kv_memory="4MB") as server:
        before = numbers(server)
        assert before["pyedge_generation_tokens_total"] == 0
        answers = [server.post(CHAT, LONG).json["usage"] for _ in range(2)]
        answers.append(server.post(CHAT, {**LONG, "n": 2}).json["usage"])
        server.post(CHAT, {"messages": []})
        server.check()
        after = numbers(server)
    cached = [a["prompt_tokens_details"]["cached_tokens"] for a in answers]
    assert cached[0] == 0
    assert cached[1] == cached[2] > 50
    assert after["pyedge_prompt_tokens_total"] == sum(a["prompt_tokens"] for a in answers)
    assert after["pyedge_generation_tokens_total"] == sum(a["completion_tokens"] for a in answers) == 16
    assert after["pyedge_cached_prompt_tokens_total"] == sum(cached)
    assert after["pyedge_preemptions_total"] == 0
    for name in ("time_to_first_token", "time_per_output_token", "queue_time", "request_duration"):
        assert after[f"pyedge_{name}_seconds_count"] == 4
    assert after["pyedge_time_to_first_token_seconds_sum"] >= after["pyedge_queue_time_seconds_sum"]
    assert after["pyedge_sequences_total{length}"] == 4
    assert after[f"pyedge_http_requests_total{{{CHAT},200}}"] == 3
    assert after[f"pyedge_http_requests_total{{{CHAT},400}}"] == 1
    assert after["pyedge_requests_running"] == after["pyedge_requests_waiting"] == after["pyedge_kv_pages_used"] == 0
    assert 0 < after["pyedge_kv_pages_cached"] <= after["pyedge_kv_pages_total"]


def test_what_strangers_type_makes_no_series(server: Server) -> None:
    for i in range(5):
        server.get(f"/wp-admin/{i}")
    text = server.get("/metrics").data.decode()
    assert "wp-admin" not in text
    assert 'path="(none)",status="404"' in text


def test_the_access_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pyedge")
    secret = "zebra crossing"
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": secret}],
        "max_tokens": 3,
        "ignore_eos": True,
        "user": secret,
    }
    reply = server.post(CHAT, body)
    server.post(CHAT, {**body, "stream": True, "n": 2})
    server.post(CHAT, {**body, "messages": [{"role": secret, "content": secret}]})
    server.post("/v1/completions", {"prompt": secret, "max_tokens": 1})
    server.get(f"/{secret.replace(' ', '%20')}")
    server.check()
    lines = [r.getMessage() for r in caplog.records if r.name == "pyedge.server.access"]
    first, second, third, *_ = (line for line in lines if f"path={CHAT}" in line)
    assert re.fullmatch(
        r"id=req_[0-9a-f]{16} client=127\.0\.0\.1 "
        r"method=POST path=/v1/chat/completions status=200 seconds=[\d.]+ prompt_tokens=\d+ "
        r"cached_tokens=\d+ output_tokens=3 queue=[\d.]+ ttft=[\d.]+ tpot=[\d.]+ preemptions=0 finish=length",
        first,
    )
    assert first.startswith(f"id={reply.headers['x-request-id']} ")
    assert "output_tokens=6" in second
    assert "status=400" in third
    assert "zebra" not in caplog.text
