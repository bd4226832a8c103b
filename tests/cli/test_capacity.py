"""`pyedge capacity` on a tiny model: its fields, what limits, what would change it, and the check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tinymodel import write_tiny_llama

from pyedge.cli import cli

PROMPT, OUTPUT, PAGE = 100, 20, 16
EACH = -(-(PROMPT + OUTPUT - 1) // PAGE)  # pages
PAGE_BYTES = 2 * 2 * 64 * 2 * PAGE  # keys and values, layers, numbers, bytes, tokens


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", types="Q8_0")


def capacity(*args: object) -> Result:
    common = ("--prompt", PROMPT, "--output", OUTPUT, "--threads", 1)
    return CliRunner().invoke(cli, ["capacity", *map(str, (*args, *common))])


def test_limited_by_memory_and_checked(tiny: Path) -> None:
    slow = ("--ttft", 1000, "--tpot", 1000)
    result = capacity(tiny, *slow, "--kv-memory", PAGE_BYTES * (3 * EACH + 1), "--check", "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert (document["chats"], document["limited_by"]) == (3, "memory")
    assert document["fit"] == {"memory": 3, "sequences": 64, "reading": 64, "writing": 64}
    assert document["kv_bytes_per_token"] == PAGE_BYTES / PAGE
    assert document["kv_bytes"] == 3 * EACH * PAGE_BYTES
    assert document["weight_bytes"] + document["kv_bytes"] < document["total_bytes"] < 1e9
    changes = {change["change"]: change["chats"] for change in document["changes"]}
    assert changes["--kv-type q8_0"] >= 5
    assert changes["--kv-type q4_0"] >= 10
    assert changes["prompts of 50 tokens"] == (3 * EACH + 1) // 5
    measured = document["measured"]
    assert 0.1 < document["ttft_s"] / measured["ttft_s"] < 10  # whether it is near is for a quiet machine to tell
    assert 0.1 < document["tpot_s"] / measured["tpot_s"] < 10
    assert 0.5 < document["total_bytes"] / measured["peak_bytes"] < 1.5


def test_limited_by_time(tiny: Path) -> None:
    result = capacity(tiny, "--ttft", 0, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["chats"], document["limited_by"], document["ttft_s"]) == (0, "reading", None)
    result = capacity(tiny, "--tpot", 1e-9, "--ttft", 1000, "--chats", 2)
    assert result.exit_code == 0, result.output
    assert "0 chats of 100 tokens and 20 back, limited by writing: the time per token" in result.stdout
    assert "2 chats: first token after" in result.stdout
    assert "2 chats do not fit" in result.stdout


def test_limited_by_sequences(tiny: Path) -> None:
    result = capacity(tiny, "--ttft", 1000, "--tpot", 1000, "--max-sequences", 2)
    assert result.exit_code == 0, result.output
    assert "limited by sequences" in result.stdout
    assert "with --max-sequences 4: 4 chats" in result.stdout


def test_what_cannot_fit_at_all(tiny: Path) -> None:
    result = capacity(tiny, "--prompt", 600)  # the last one counts, so this is overridden
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(cli, ["capacity", str(tiny), "--prompt", "600"])
    assert result.exit_code == 1
    assert (
        "600 and 128 tokens do not fit the context of 512; ask for fewer, or give --ctx or --kv-memory" in result.stderr
    )
    assert CliRunner().invoke(cli, ["capacity"]).exit_code == 2
