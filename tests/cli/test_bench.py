"""`pyedge bench` on a tiny model: fields and sense, not speed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from program import program
from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.cli import cli
from pyedge.models import build_plan


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


def bench(*args: object) -> Result:
    return CliRunner().invoke(cli, ["bench", *map(str, args)])


def test_json(tiny: Path) -> None:
    result = bench(tiny, "-p", 32, "-n", 4, "-b", "1,3", "--depth", "0,40", "--runs", 2, "--threads", 1, "--json")
    assert result.exit_code == 0
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document["model"] == str(tiny)
    assert document["threads"] == 1
    assert dict(_core.isas())[document["isa"]]
    assert document["rss_bytes"] > 1 << 20
    assert document["load_s"] > 0
    assert [b["sequences"] for b in document["batch"]] == [1, 3]
    assert [d["depth"] for d in document["depth"]] == [0, 40]
    assert len(document["runs"]["gen_tok_s"]) == len(document["runs"]["prompt_tok_s"]) == 2
    speeds = [document["prompt_tok_s"], document["gen_tok_s"]]
    speeds += [b["tok_s"] for b in document["batch"]] + [d["gen_tok_s"] for d in document["depth"]]
    assert all(speed > 0 for speed in speeds)


def test_table(tiny: Path) -> None:
    result = bench(tiny, "-p", 32, "-n", 4, "-b", "2", "--runs", 3)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{tiny}: ")
    assert lines[0].endswith(" MB resident")
    assert lines[1].split() == ["tokens", "per", "second", "min", "median", "max"]
    assert [line[:28].strip() for line in lines[2:5]] == ["read 32 tokens", "write 4 tokens", "write 4 for 2 sequences"]
    assert lines[5].startswith("reading computes 0.0 GMAC/s of int8: 0% of the ")
    assert lines[6].startswith("writing reads ")
    for line in lines[2:5]:
        low, middle, high = map(float, line[28:].split())
        assert 0 < low <= middle <= high


def test_shares_of_the_limits(tiny: Path) -> None:
    document = json.loads(bench(tiny, "-p", 64, "-n", 8, "--runs", 2, "--json").stdout)
    assert set(document["probe"]) == {"read_gb_s", "int8_gmac_s", "f32_gmac_s"}
    assert all(limit > 0 for limit in document["probe"].values())
    assert set(document["share"]) == {"prompt_int8", "prompt_f32", "gen_read"}
    assert document["share"]["prompt_int8"] == 0  # its weights are float
    assert 0 < document["share"]["prompt_f32"] < 1.2
    assert 0 < document["share"]["gen_read"] < 1.2
    # A token reads each weight once: [281, 64] for the logits, and of 2 layers 4 of [64, 64] and 3 of [96, 64], in F32.
    n_weights = 64 * (281 + 2 * (4 * 64 + 3 * 96))
    read = document["share"]["gen_read"] * document["probe"]["read_gb_s"] * 1e9 / document["gen_tok_s"]
    assert 1 <= read / (4 * n_weights) < 1.25  # keys and values come on top


def test_shares_of_int8(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "q.gguf", types="Q8_0")
    document = json.loads(bench(path, "-p", 64, "-n", 4, "--runs", 1, "--json").stdout)
    assert 0 < document["share"]["prompt_int8"] < 1.2
    n_weights = 64 * 2 * (4 * 64 + 3 * 96) + 64 * 281 / 64  # logits of one token
    macs = document["share"]["prompt_int8"] * document["probe"]["int8_gmac_s"] * 1e9 / document["prompt_tok_s"]
    assert macs == pytest.approx(n_weights)


@pytest.mark.slow
def test_the_default_model_is_not_much_larger_in_memory_than_on_disk(smollm2_path: Path) -> None:
    document = json.loads(program("bench", str(smollm2_path), "-p", "32", "-n", "8", "--runs", "1", "--json").stdout)
    with _core.Gguf(smollm2_path) as gguf:
        page = _core.page_bytes(_core.Model(gguf, build_plan(gguf).ops), 16, "f16")
    in_use = 5 * page  # 32 + 9 tokens, and 8 + 3 before that
    assert document["rss_bytes"] <= 1.10 * smollm2_path.stat().st_size + in_use + 120e6


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (["-p", "600"], 1, "do not fit the context of 512"),
        (["--depth", "510"], 1, "do not fit the context of 512"),
        (["-p", "8", "-b", "1000", "-n", "4"], 1, "sequences of that length at once"),
        (["-b", "0"], 2, "too small"),
        (["--depth", "x"], 2, "no list of numbers"),
        (["--runs", "0"], 2, "runs"),
        (["--synthetic", "llama-1b:Q4_0"], 2, "in its place"),
    ],
)
def test_what_cannot_be_measured_is_refused(tiny: Path, args: list[str], code: int, part: str) -> None:
    result = bench(tiny, *args)
    assert result.exit_code == code
    assert part in result.stderr
    assert result.stdout == ""
