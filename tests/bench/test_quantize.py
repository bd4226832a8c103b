"""The comparison with another quantizer: ratios, and what is said when the other one fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from program import environment, python
from tinymodel import write_tiny_llama

BENCH = str(Path(__file__).with_name("quantize.py"))

PEER = """\
import subprocess, sys
source, out, kind, threads = sys.argv[1:]
sys.exit(subprocess.call([sys.executable, "-m", "pyedge", "quantize", source, out, kind, "--threads", threads]))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_a_program_against_itself(tiny: Path, tmp_path: Path) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text(PEER)
    command = [
        BENCH,
        str(tiny),
        "--peer",
        f"{sys.executable} {peer}",
        "--types",
        "Q8_0,Q4_0",
        "--rounds",
        "1",
        "--json",
    ]
    outcome = python(*command, env=environment())
    assert outcome.returncode == 0, outcome.stderr
    results = json.loads(outcome.stdout)
    assert [r["type"] for r in results] == ["Q8_0", "Q4_0"]
    for r in results:
        assert 0.1 < r["ratio"] < 10
        assert set(r["errors"].values()) == {1.0}
        assert 1e7 < r["peak_bytes"] < 1e9


def test_a_peer_that_fails_is_told(tiny: Path) -> None:
    outcome = python(BENCH, str(tiny), "--peer", "false", "--types", "Q8_0", "--rounds", "1", env=environment())
    assert outcome.returncode == 1
    assert "ended with 1; its last words: nothing" in outcome.stderr
