"""Models made in memory: sound files of the right shape and size, quickly made."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from pyedge import LLM, _core
from pyedge.cli import cli, synthetic
from pyedge.cli.synthetic import MIXES, SHAPES, TYPES, Shape

SMALL = Shape("llama", 512, 768, 8, 8, 2, 64, 2048, True)
QWEN = Shape("qwen3", 320, 512, 2, 4, 2, 128, 1024, False)  # columns that a K-quant cannot have, and head norms


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "small", SMALL)
    monkeypatch.setitem(SHAPES, "qwen", QWEN)


def test_every_format_that_runs_is_made() -> None:
    assert set(TYPES) == {f.name for f in _core.formats() if f.runs}


@pytest.mark.parametrize("kind", [*TYPES, *MIXES])
def test_weights_are_sound(kind: str) -> None:
    with synthetic.made(f"small:{kind}") as path, _core.Gguf(path) as file:
        for name, columns in (("blk.0.ffn_down.weight", 768), ("blk.1.attn_q.weight", 512)):
            values = file.dequantize(name)
            assert values.shape[1] == columns
            assert values.std() == pytest.approx(columns**-0.5, rel=0.35)  # MXFP4's scales are powers of two
            assert abs(values.mean()) < 0.15 * values.std()  # Q4_0 has one value more below zero


@pytest.mark.parametrize("spec", ["small:q4_k_m", "qwen:Q4_K_M"])
def test_it_runs(spec: str) -> None:
    with synthetic.made(spec) as path:
        llm = LLM(path, max_model_len=64, threads=1)
    logits = llm.logits([5, 300, 7])
    assert np.isfinite(logits).all()
    assert 0.3 < logits.std() < 3


def test_mixes_are_as_in_files() -> None:
    """Which tensors of a Q4_K_M have more bits, and what a K-quant's columns become that are no multiple of 256."""
    with synthetic.made("small:Q4_K_M") as path, _core.Gguf(path) as file:
        types = {t.name: t.type for t in file.tensors}
    assert types["token_embd.weight"] == "Q6_K"  # it is the output's matrix
    more = [i for i in range(SMALL.n_layers) if types[f"blk.{i}.attn_v.weight"] == "Q6_K"]
    assert more == [i for i in range(SMALL.n_layers) if types[f"blk.{i}.ffn_down.weight"] == "Q6_K"] == [0, 3, 6, 7]
    assert {types[f"blk.{i}.{n}.weight"] for i in range(8) for n in ("attn_q", "ffn_up")} == {"Q4_K"}
    with synthetic.made("qwen:Q4_K_M") as path, _core.Gguf(path) as file:
        types = {t.name: t.type for t in file.tensors}
    assert types["output.weight"] == "Q8_0"
    assert types["token_embd.weight"] == types["blk.0.attn_q.weight"] == "Q5_0"
    assert types["blk.0.attn_output.weight"] == "Q4_K"  # 512 columns


def test_the_file_is_one_that_others_read_and_goes_away(tmp_path: Path) -> None:
    with synthetic.made("small:Q8_0") as path:
        copy = tmp_path / "copy.gguf"
        copy.write_bytes(path.read_bytes())
    assert not path.exists()
    reader = gguf.GGUFReader(copy)
    with _core.Gguf(copy) as file:
        assert [t.name for t in file.tensors] == [t.name for t in reader.tensors]
        assert {t.n_bytes for t in file.tensors} == {t.n_bytes for t in reader.tensors}
        assert file.get("llama.block_count") == SMALL.n_layers


def test_bench() -> None:
    line = ["bench", "--synthetic", "small:Q4_0", "-p", "16", "-n", "2", "--runs", "1", "--json"]
    result = CliRunner().invoke(cli, line)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["model"] == "small:Q4_0"
    assert document["gen_tok_s"] > 0


@pytest.mark.parametrize("command", ["bench", "profile"])
@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--synthetic", "llama-2b:Q4_0"], "llama-1b"),
        (["--synthetic", "llama-1b"], "a format is missing"),
        (["--synthetic", "llama-1b:Q9"], "'Q9' is no format that is made here; choose from F32"),
        (["--synthetic", "llama-1b:Q4_0", "model.gguf"], "in its place"),
        ([], "in its place"),
    ],
)
def test_what_is_not_known_is_refused(command: str, args: list[str], part: str) -> None:
    result = CliRunner().invoke(cli, [command, *args])
    assert result.exit_code == 2
    assert part in " ".join(result.stderr.split())
    assert result.stdout == ""


def test_what_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "machine", lambda: {"memory_available": 10**9})
    result = CliRunner().invoke(cli, ["bench", "--synthetic", "llama-8b:Q8_0"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: llama-8b:Q8_0 takes 19")
    assert "1.0 GB are free" in result.stderr
    assert len(result.stderr.splitlines()) == 1
