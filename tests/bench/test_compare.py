"""The comparison with another program: turns, ratios, and what is said when the other one fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from program import environment, python
from tinymodel import write_tiny_llama

COMPARE = str(Path(__file__).with_name("compare.py"))

PEER = """\
import json, pathlib, sys
log = pathlib.Path(sys.argv[1])
log.write_text((log.read_text() if log.exists() else "") + sys.argv[2] + "\\n")
print("loading ...")
for speed in (50, 100, 900):
    print(json.dumps({"prompt_tok_s": speed, "gen_tok_s": speed / 10, "threads": 1}))
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def test_ratios(tiny: Path, tmp_path: Path) -> None:
    peer, log = tmp_path / "peer.py", tmp_path / "log"
    peer.write_text(PEER)
    line = [str(tiny), "--peer", f"{sys.executable} {peer} {log} {{}}", "--rounds", "2", "-p", "8", "-n", "2", "--json"]
    done = python(COMPARE, *line, env=environment())
    assert done.returncode == 0, done.stderr
    assert log.read_text() == f"{tiny}\n" * 2  # once in each round
    results = json.loads(done.stdout)
    assert [(r["model"], r["field"]) for r in results] == [(str(tiny), "prompt_tok_s"), (str(tiny), "gen_tok_s")]
    for r, theirs in zip(results, (100, 10), strict=True):
        assert r["theirs"] == [theirs, theirs]  # the median of what the peer printed
        assert r["ratios"] == pytest.approx([ours / theirs for ours in r["ours"]])
        assert r["ratio"] == pytest.approx(sum(r["ratios"]) / 2)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit('no such model')", "ended with 1; its last words: no such model"),
        ("print('hello')", "printed no JSON with prompt_tok_s and gen_tok_s; its last words: hello"),
    ],
)
def test_a_peer_that_fails_is_told_of(tiny: Path, tmp_path: Path, code: str, said: str) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text(code)
    line = [str(tiny), "--peer", f"{sys.executable} {peer}", "--rounds", "1", "-p", "8", "-n", "2"]
    done = python(COMPARE, *line, env=environment())
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"error: {sys.executable} ")
    assert said in done.stderr
    assert done.stdout == ""


def test_a_peer_that_is_not_there(tiny: Path) -> None:
    done = python(
        COMPARE, str(tiny), "--peer", "no-such-program", "--rounds", "1", "-p", "8", "-n", "2", env=environment()
    )
    assert done.returncode == 1
    assert "error: no-such-program: No such file or directory; check --peer" in done.stderr
