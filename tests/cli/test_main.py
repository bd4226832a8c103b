"""What is the same for all commands: help, exit codes, errors in one line; and a checkout that was not built."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from program import ELSEWHERE, environment, program, python

import pyedge
from pyedge import _core
from pyedge.cli import COMMANDS, Commands, cli, one_line
from pyedge.errors import ModelError
from pyedge.llm import DEVICES


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_an_example(command: str) -> None:
    result = CliRunner().invoke(cli, [command, "--help"])
    assert result.exit_code == 0
    assert f"  pyedge {command}" in result.output
    assert "Example" in result.output


def test_help_is_quick() -> None:
    def seconds() -> float:
        start = time.perf_counter()
        result = program("--help")
        assert result.returncode == 0
        assert all(name in result.stdout for name in COMMANDS)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.2


def test_help_imports_nothing_heavy() -> None:
    heavy = {"numpy", "rich", "jinja2", "prompt_toolkit", "psutil", "pyedge._core", "pyedge.llm"}

    def imported(arguments: list[str], wanted: set[str]) -> str:
        code = (
            f"import sys\nfrom pyedge.cli import main\nsys.argv = {['pyedge', *arguments, '--help']}\n"
            f"try: main()\nexcept SystemExit: pass\nprint(sorted(sys.modules.keys() & {wanted}))"
        )
        return python("-c", code).stdout.splitlines()[-1]

    assert imported([], heavy | {"logging", "json"}) == "[]"
    for command in COMMANDS:
        assert imported([command], heavy) == "[]", command


def test_version() -> None:
    try:
        expected = version("pyedge")
    except PackageNotFoundError:
        expected = "0+not.installed"
    result = program("--version")
    assert (result.returncode, result.stdout) == (0, f"pyedge {expected}\n")
    assert pyedge.__version__ == expected


def test_the_readme_lists_the_commands() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8").splitlines()
    (works,) = (line.split("|")[2] for line in readme if line.startswith("| commands |"))
    assert re.findall(r"`([^`]+)`", works) == list(COMMANDS)


def test_help_spells_what_the_core_offers() -> None:
    spelled = {
        "--kv-type": "[" + "|".join(sorted(_core.KV_TYPES)) + "]",
        "--precision": "[" + "|".join(_core.PRECISIONS) + "]",
        "--device": " or ".join(DEVICES),
    }
    for command in ("chat", "run", "bench"):
        shown = CliRunner().invoke(cli, [command, "--help"]).output
        for option, words in spelled.items():
            assert re.search(rf"{option} .*{re.escape(words)}", shown), (command, option)


@pytest.mark.parametrize(
    ("option", "allowed", "refused"),
    [
        ("--threads", [1, _core.MAX_THREADS], [0, -1, _core.MAX_THREADS + 1, 1024, "x", 1.5]),
        ("--kv-type", _core.KV_TYPES, ["q9", "F16", ""]),
        ("--precision", _core.PRECISIONS, ["f16", ""]),
    ],
)
@pytest.mark.parametrize("command", [["chat"], ["run", "missing.gguf", "x"], ["bench", "missing.gguf"]])
def test_limits_are_the_cores(
    command: list[str], option: str, allowed: Sequence[object], refused: Sequence[object]
) -> None:
    for value in refused:
        result = CliRunner().invoke(cli, [*command, option, str(value)])
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"Invalid value for '{option}'" in result.stderr
    for value in allowed:
        result = CliRunner().invoke(cli, [command[0], "missing.gguf", *command[2:], option, str(value)])
        assert result.exit_code == 1
        assert result.stderr.startswith("error: missing.gguf: there is no such file")


@pytest.mark.parametrize(
    "args", [["nope"], ["run"], ["run", "m.gguf", "x", "--kv-type", "q9"], ["bench", "m.gguf", "-b", "1,x"], ["--nope"]]
)
def test_wrong_usage_is_2(args: list[str]) -> None:
    result = program(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert "Error: " in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["pull", "llama:70b"],
        ["pull", "missing.gguf"],
        ["pull", "hf:repo"],
        ["run", "missing.gguf", "x"],
        ["run", "llama:70b", "x", "--json"],
        ["chat", "pypi:a/b"],
        ["bench", "missing.gguf", "--json"],
    ],
)
def test_an_error_for_a_person_is_1_and_one_line(args: list[str]) -> None:
    result = program(*args)
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {args[1]}: ")
    assert result.stderr.count("\n") == 1


def test_a_log_is_written_when_asked_for() -> None:
    for args in (["-v", "run", "missing.gguf", "x"], ["run", "-v", "missing.gguf", "x"]):
        result = program(*args)
        assert result.returncode == 1
        assert " ms pyedge." in result.stderr
        assert "Traceback" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("error: missing.gguf: ")


def test_a_reader_that_leaves_is_no_error() -> None:
    result = subprocess.run(
        f"{sys.executable} -m pyedge run --help | true",
        shell=True,
        env=environment(),
        cwd=ELSEWHERE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModelError("m.gguf: is broken;\n mend it"), 1, "error: m.gguf: is broken; mend it"),
        (ValueError("temperature must be a number"), 1, "error: --temp must be a number"),
        (
            MemoryError(),
            1,
            "error: not enough memory; close other programs, take a smaller model, or give a smaller --ctx",
        ),
        (MemoryError("12 GB are needed, 8 GB are free"), 1, "error: 12 GB are needed, 8 GB are free"),
        (
            FileNotFoundError(2, "No such file or directory", "a\x1b[2Jb"),
            1,
            "error: a\\x1b[2Jb: No such file or directory",
        ),
        (ValueError("max_model_len 9 is beyond, raise kv_memory"), 1, "error: --ctx 9 is beyond, raise --kv-memory"),
        (ValueError("seed is the seed"), 1, "error: --seed is the seed"),
        (ModelError("max_model_len.gguf: is broken"), 1, "error: max_model_len.gguf: is broken"),
        (OSError(28, "No space left on device"), 1, "error: No space left on device"),
        (ValueError(), 1, "error: ValueError"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_exceptions_become_exit_codes(error: BaseException, code: int, line: str) -> None:
    def fails() -> None:
        raise error

    class Failing(Commands):
        def get_command(self, ctx: click.Context, name: str) -> click.Command:
            return click.Command(name, callback=fails)

    result = CliRunner().invoke(Failing(), ["x"])
    assert result.exit_code == code
    assert result.output.strip() == line


def test_a_bug_keeps_its_traceback() -> None:
    class Buggy(Commands):
        def get_command(self, ctx: click.Context, name: str) -> click.Command:
            return click.Command(name, callback=lambda: [][0])

    with pytest.raises(IndexError):
        CliRunner().invoke(Buggy(), ["x"], catch_exceptions=False)


def test_one_line_keeps_other_scripts() -> None:
    assert one_line(ValueError("日本語\tund  ü")) == "日本語 und ü"


# ---- an unbuilt checkout ---------------------------------------------------------------------------------------------

HINT = 'pyedge is not built here: run "pip install -e ." in this folder, or change to another folder if it is installed'


@pytest.fixture
def checkout(tmp_path: Path) -> dict[str, str]:
    """The environment of a copy of the package without its compiled core."""
    source = Path(pyedge.__file__).parent
    shutil.copytree(source, tmp_path / "pyedge", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    return environment(PYTHONPATH=str(tmp_path), PYEDGE_HOME=str(tmp_path / "home"))


@pytest.mark.parametrize(
    "code",
    [
        "from pyedge import LLM",
        "import pyedge; pyedge.LLM",
        "from pyedge import SamplingParams",
        "from pyedge import _core",
    ],
)
def test_an_unbuilt_checkout_says_what_to_do(checkout: dict[str, str], code: str) -> None:
    result = python("-c", code, env=checkout)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == f"pyedge.errors.NotBuiltError: {HINT}"


def test_an_unbuilt_checkout_says_so_in_commands(checkout: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    result = program("run", str(tmp_path / "m.gguf"), "x", env=checkout)
    assert (result.returncode, result.stderr) == (1, f"error: {HINT}\n")
    assert program("--help", env=checkout).returncode == 0


def test_importing_pyedge_is_light() -> None:
    code = "import sys, time\nt = time.perf_counter()\nimport pyedge\nprint(time.perf_counter() - t)"
    assert min(float(python("-c", code).stdout) for _ in range(3)) < 0.01


def test_names_are_listed_and_others_refused() -> None:
    assert {"LLM", "SamplingParams", "ModelError", "__version__"} <= set(dir(pyedge))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = pyedge.nope
