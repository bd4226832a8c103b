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
    assert document["isa"] in ("scalar", "avx2", "avx512", "neon")
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
    assert [line[:28].strip() for line in lines[2:]] == ["read 32 tokens", "write 4 tokens", "write 4 for 2 sequences"]
    for line in lines[2:]:
        low, middle, high = map(float, line[28:].split())
        assert 0 < low <= middle <= high


def test_help_says_what_is_not_measured_yet(tiny: Path) -> None:
    shown = " ".join(bench("--help").output.split())
    document = json.loads(bench(tiny, "-p", 8, "-n", 2, "--runs", 1, "--json").stdout)
    missing = {"probe", "share"} - document.keys()
    assert missing == {word for word in ("probe", "share") if f"`{word}`" in shown.partition("Not yet")[2]}
    assert ("--synthetic" in shown.partition("Not yet")[2]) is (bench("--synthetic", "llama-1b:Q4_0").exit_code == 2)


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
    ],
)
def test_what_cannot_be_measured_is_refused(tiny: Path, args: list[str], code: int, part: str) -> None:
    result = bench(tiny, *args)
    assert result.exit_code == code
    assert part in result.stderr
    assert result.stdout == ""
