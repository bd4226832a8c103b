"""`pyedge profile` on tiny models: sums that add up, fields, and what is concluded from made-up times."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from families import load
from familygguf import write
from tinymodel import write_tiny_llama

from pyedge.cli import cli
from pyedge.cli.profile import conclude, slow_half
from pyedge.engine.profile import Half, Limits, Row
from pyedge.models.cost import Cost


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf", types="Q8_0")


def profile(*args: object) -> Result:
    return CliRunner().invoke(cli, ["profile", *map(str, args)])


def test_json(tiny: Path) -> None:
    result = profile(tiny, "-p", 48, "-n", 4, "--depth", 32, "--runs", 2, "--threads", 1, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document["model"] == str(tiny)
    assert document["threads"] == 1
    assert document["depth"] == 32
    assert all(limit > 0 for limit in document["probe"].values())
    assert document["slow_half"] in ("reading", "writing")
    for what, tokens in (("reading", 48), ("writing", 4)):
        half = document[what]
        assert half["tokens"] == tokens
        assert half["tok_s"] == pytest.approx(tokens / half["total"]["time_s"])
        for key in ("time_s", "bytes", "int8_macs", "f32_macs"):
            of_ops = sum(op[key] for op in half["ops"])
            assert sum(group[key] for group in half["groups"]) == pytest.approx(of_ops)
            if key == "time_s":  # ops are all of the step but for what lies between them
                assert 0 < of_ops <= half["total"][key]
            else:
                assert of_ops == pytest.approx(half["total"][key])
        for row in (half["total"], *half["groups"], *half["ops"]):
            assert row["time_s"] > 0
            assert 0 <= row["memory_share"] < 100  # an op of a tiny model has its weights in a cache
            assert 0 <= row["arithmetic_share"] < 1.2
        assert 0 < half["total"]["memory_share"] < 1.2
        assert 0 < half["total"]["arithmetic_share"] < 1.2
        assert half["limit"] in ("memory", "arithmetic", "neither")
        assert half["helps"]
        assert half["does_not_help"]
    names = [group["name"] for group in document["writing"]["groups"]]
    assert {"attn_q/k/v", "attn", "attn_output", "ffn_gate/up", "ffn_down", "output"} <= set(names)
    assert len(names) == len(set(names))
    assert len(document["reading"]["ops"]) > len(names)  # of every layer


def test_table(tiny: Path) -> None:
    result = profile(tiny, "-p", 16, "-n", 2, "--runs", 1)
    assert result.exit_code == 0
    text = result.stdout
    assert text.startswith(f"{tiny}: ")
    assert "\nreading 16 tokens: " in text
    assert "\nwriting a token behind 16: " in text
    assert text.count("\nattn_q/k/v ") == 2
    assert "blk.1" not in text
    assert "is the slow half." in text
    assert text.count("Would help:") == text.count("Would not:") == 2
    every = profile(tiny, "-p", 16, "-n", 2, "--runs", 1, "--all").stdout
    assert every.count("\nblk.1.attn_q ") == 2


def test_prompt_of_several_steps(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "long.gguf", context=2048)
    ops = {}
    for n in (512, 1024):
        document = json.loads(profile(path, "-p", n, "-n", 1, "--runs", 1, "--json").stdout)
        ops[n] = {op["name"]: op for op in document["reading"]["ops"]}
    assert ops[1024]["blk.0.attn_q"]["bytes"] == 2 * ops[512]["blk.0.attn_q"]["bytes"]  # each step reads the weights
    assert ops[1024]["output"]["f32_macs"] == ops[512]["output"]["f32_macs"]  # sampled at the end alone


def test_a_model_that_embeds_is_read_only(tmp_path: Path) -> None:
    path = write(tmp_path / "bert.gguf", load("bert-mean"))
    document = json.loads(profile(path, "-p", 16, "--runs", 1, "--json").stdout)
    assert document["slow_half"] == "reading"
    assert "writing" not in document
    assert any(op["name"] == "pool" for op in document["reading"]["ops"])


def test_what_does_not_fit_is_refused(tiny: Path) -> None:
    for args in (["-p", 600], ["--depth", 510]):
        result = profile(tiny, *args)
        assert result.exit_code == 1
        assert result.stderr.startswith("error: ")
        assert "do not fit the model's context of 512" in result.stderr
        assert len(result.stderr.splitlines()) == 1


# ---- conclusions -----------------------------------------------------------------------------------------------------

LIMITS = Limits(read_gb_s=10.0, int8_gmac_s=100.0, f32_gmac_s=50.0)


def half(time_s: float, cost: Cost, tokens: int = 1, kv_bytes: float = 0.0) -> Half:
    return Half(tokens, time_s, [Row("blk.0.ffn_up", time_s, cost)], kv_bytes)


def test_shares() -> None:
    assert Row("x", 2.0, Cost(5e9, 50e9, 25e9)).shares(LIMITS) == (0.25, 0.5)
    assert LIMITS.better(Limits(5.0, 200.0, 50.0)) == Limits(10.0, 200.0, 50.0)


def test_memory_is_the_limit() -> None:
    found = conclude("writing", half(1.0, Cost(8e9, 1e9)), LIMITS, 8.5, threads=2, processors=4)
    assert (found.limit, found.share) == ("memory", 0.8)
    assert found.why == "Writing waits for memory: it reads 8.0 GB/s, 80% of what this machine gives."
    helps, not_ = " ".join(found.helps), " ".join(found.does_not_help)
    assert "fewer bits per weight (8.5 now" in helps
    assert "several answers at once" in helps
    assert "more threads" in not_  # the memory is what they would wait for
    assert "a shorter prompt" in not_
    deep = conclude("writing", half(1.0, Cost(6e9, 1e9), kv_bytes=3e9), LIMITS, 8.5, threads=2, processors=4)
    assert "a shorter prompt (keys and values are 50%" in " ".join(deep.helps)
    assert "more threads (2 of 4" in " ".join(deep.helps)  # at 60 % they may find some


def test_arithmetic_is_the_limit() -> None:
    found = conclude("reading", half(1.0, Cost(1e9, 60e9), tokens=512), LIMITS, 8.5, threads=2, processors=2)
    assert (found.limit, found.share) == ("arithmetic", 0.6)
    helps, not_ = " ".join(found.helps), " ".join(found.does_not_help)
    assert "a shorter prompt" in helps
    assert "fewer bits" in not_
    assert "a bigger batch" in not_
    assert "more threads (all processors are used)" in not_
    slow = conclude("writing", half(1.0, Cost(1e9, 60e9)), LIMITS, 8.5, threads=2, processors=2)  # slow instructions
    assert slow.helps == ["a smaller model"]


def test_neither_is_near() -> None:
    found = conclude("writing", half(1.0, Cost(1e9, 1e9)), LIMITS, 4.5, threads=1, processors=2)
    assert found.limit == "neither"
    assert found.why == "Writing is far from both limits: 10% of what memory gives, 1% of the arithmetic."
    assert "more threads (1 of 2" in found.helps[0]
    # A prompt read by tiles is at 18 to 26 % on a machine that does nothing else, and below half of that beside others.
    limits = {
        share: conclude("reading", half(1.0, Cost(0, share * 1e11)), LIMITS, 4.5, 2, 2).limit for share in (0.1, 0.18)
    }
    assert limits == {0.1: "neither", 0.18: "arithmetic"}


def test_the_slow_half() -> None:
    cost = Cost(1e9, 1e9)
    slow, text = slow_half({"reading": half(2.0, cost, 512), "writing": half(0.5, cost, 10)})
    assert slow == "writing"  # 128 tokens take 6.4 s
    assert "2.00 s to read and 6.40 s to write" in text
    assert slow_half({"reading": half(7.0, cost, 512), "writing": half(0.5, cost, 10)})[0] == "reading"
