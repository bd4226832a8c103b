"""Standard streams that are closed, full, or in another encoding: the program itself, started by a shell."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from program import ELSEWHERE, PROGRAM, environment
from tinymodel import write_tiny_llama

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


def shell(tiny: Path, line: str, given: bytes = b"", **changes: str) -> "subprocess.CompletedProcess[bytes]":
    """A shell's line, in which `pyedge` is the program and M the model."""
    script = f'pyedge() {{ {" ".join(PROGRAM)} "$@"; }}; M={tiny}; {line}'
    env = environment(**changes)
    return subprocess.run(["sh", "-c", script], env=env, cwd=ELSEWHERE, input=given, capture_output=True, timeout=60)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("pyedge run $M hi -n 3 --temp 0 2>&-", 0, ""),
        ("pyedge run $M hi -n 3 >&-", 1, "error: standard output: is closed\n"),
        ("pyedge run $M hi -n 3 --json >&-", 1, "error: standard output: is closed\n"),
        ("pyedge --help >&-", 1, "error: standard output: is closed\n"),
        ("pyedge run $M - <&-", 1, "error: standard input: is closed\n"),
        ("pyedge chat $M <&-", 1, "error: standard input: is closed\n"),
        ("pyedge chat $M <&- >&- 2>&-", 1, ""),
    ],
)
def test_closed(tiny: Path, line: str, code: int, said: str) -> None:
    result = shell(tiny, line)
    assert (result.returncode, result.stderr.decode()) == (code, said)
    if code == 0:
        assert result.stdout == shell(tiny, line.replace("2>&-", "")).stdout != b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("line", ["run $M hi -n 3", "run $M hi -n 3 --json", "--help", "bench $M -p 4 -n 4 --runs 1"])
def test_full(tiny: Path, line: str) -> None:
    result = shell(tiny, f"pyedge {line} >/dev/full")
    assert (result.returncode, result.stderr) == (1, b"error: standard output: No space left on device\n")


def test_arguments_in_the_c_locale(tiny: Path) -> None:
    line = "pyedge run $M 日本語 --system ü --stop é -n 3 --temp 0 --json"
    plain, c = shell(tiny, line), shell(tiny, line, **C_LOCALE)
    assert c.stderr == b""
    assert json.loads(c.stdout)["prompt_token_ids"] == json.loads(plain.stdout)["prompt_token_ids"]
    for wrong in ("run $M \"$(printf '\\351')\"", "run $M x --stop \"$(printf '\\351')\""):
        result = shell(tiny, f"pyedge {wrong}")
        assert result.returncode == 2
        assert b"character 0 is not valid UTF-8" in result.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_answer_can_be_written(tiny: Path, encoding: str) -> None:
    result = shell(tiny, "pyedge run $M 日本語 -n 40 --seed 1 --temp 5", PYTHONIOENCODING=encoding)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_chat_in_another_encoding(tiny: Path) -> None:
    result = shell(tiny, "pyedge chat $M -n 3", b"h\xe9\nhi\n")
    lines = result.stderr.decode().splitlines()
    assert lines[0] == "error: standard input: character 1 of the line is not UTF-8; give text in that encoding"
    assert shell(tiny, "pyedge chat $M -n 3", "日本語\n".encode(), **C_LOCALE).returncode == 0


def test_a_models_name_may_be_any_bytes(tiny: Path, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.gguf"
    try:
        os.symlink(tiny, path)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    for changes in ({}, C_LOCALE):
        result = shell(tiny, f"cd {tmp_path} && pyedge run caf*.gguf hi -n 3 --json", **changes)
        assert json.loads(result.stdout)["model"] == "caf\udce9.gguf"
