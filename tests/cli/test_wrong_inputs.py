"""Every command that takes a model, with everything that is none: one line that says what, exit code 1, no output."""

import os
import socket
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from program import environment, program
from tinymodel import write_tiny_llama

from pyedge.cli import COMMANDS, cli

FILES = ("model", "models", "file")  # what arguments are called that take a model


def arguments(name: str, wrong: str) -> list[str] | None:
    """A command line of that command with a wrong model; None: it takes none."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    given = [p for p in command.params if isinstance(p, click.Argument)]
    if not any(p.name in FILES for p in given):
        return None
    needed = [p.opts[0] for p in command.params if isinstance(p, click.Option) and p.required]
    others = {"text": __file__}  # a file that is there, where a command wants one
    values = [
        wrong if p.name in FILES else others.get(p.name or "", "x") for p in given if p.required or p.name in FILES
    ]
    return [name, *(word for option in needed for word in (option, "x")), "--", *values]


TAKING = [name for name in COMMANDS if arguments(name, "") is not None]


def write_wrong_things(folder: Path) -> None:
    good = write_tiny_llama(folder / "good.gguf").read_bytes()
    (folder / "folder.gguf").mkdir()
    (folder / "text.gguf").write_text("Once upon a time")
    (folder / "page.gguf").write_text("<!DOCTYPE html><html>")  # what a download without a log-in gives
    (folder / "zip.gguf").write_bytes(b"PK\x03\x04" + bytes(60))
    (folder / "empty.gguf").write_bytes(b"")
    (folder / "three.gguf").write_bytes(good[:3])
    (folder / "header.gguf").write_bytes(good[:24])
    (folder / "half.gguf").write_bytes(good[: len(good) // 2])
    (folder / "short.gguf").write_bytes(good[:-1])
    (folder / "zeros.gguf").write_bytes(bytes(1000))
    (folder / "ff.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 1000)
    (folder / "good.gguf").unlink()
    (folder / "loop.gguf").symlink_to("loop.gguf")
    (folder / "gone.gguf").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.gguf")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.relpath(folder / "socket.gguf"))


NAMES = [
    "", " ", ".", "..", "/", "/dev/null", "missing.gguf", "no/such/folder/x.gguf", "llama:70b", "smollm2", "gemma3:1b",
    "hf:", "hf:x", "hf:x/y/z", "hf:x/..", "pypi:", "pypi:-x", "pypi:x y", "--", "a\nb", "\x1b[2J", "日本", "x" * 5000,
    "%s%n{}", "~/x.gguf", "http://host.example/x.gguf", "Org/Model-GGUF",
]  # fmt: skip


@pytest.fixture(scope="module")
def wrong_things(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("wrong")
    write_wrong_things(folder)
    return sorted(str(path) for path in folder.iterdir())


@pytest.mark.parametrize("name", TAKING)
def test_one_line_says_what_is_wrong(
    name: str, wrong_things: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYEDGE_HOME", str(tmp_path / "home"))
    for wrong in [*wrong_things, *NAMES]:
        line = arguments(name, wrong)
        assert line is not None
        result = CliRunner().invoke(cli, line)
        said = (line, result.output, result.exception)
        assert (result.exit_code, result.stdout) == (1, ""), said
        assert result.stderr.startswith("error: "), said
        assert result.stderr.count("\n") == 1, said
        assert result.stderr[:-1].isprintable(), said
        assert len(result.stderr) < 700, said
        shown = os.path.basename(wrong)
        if shown.isprintable() and 3 < len(shown) < 100 and not shown.isspace():
            assert shown in result.stderr, said
    assert not list(tmp_path.glob("home/models/*"))


def test_the_tables_have_commands() -> None:
    assert {"run", "chat", "bench", "show", "tokenize", "pull", "rm"} <= set(TAKING)


@pytest.mark.parametrize("name", [name for name in TAKING if name != "rm"])
def test_an_unreadable_file(name: str, tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("root may read everything")
    line = arguments(name, str(path))
    assert line is not None
    result = CliRunner().invoke(cli, line)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "m.gguf: " in result.stderr
    assert "no permission to read this file" in result.stderr


@pytest.mark.parametrize("name", ["list", "show", "rm", "pull", "run", "doctor"])
@pytest.mark.parametrize("home", ["/dev/null", "/proc/no-such-folder", "~no-such-user/x"])
def test_a_store_that_cannot_be(name: str, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYEDGE_HOME", home)
    line = arguments(name, "smollm2:135m") or [name]
    result = CliRunner().invoke(cli, line)
    assert result.exit_code in (0, 1), result.exception
    assert result.stderr.count("\n") <= 1, result.stderr
    if name in ("pull", "run"):
        assert result.exit_code == 1
        assert "PYEDGE_HOME" in result.stderr


def test_without_a_home(tmp_path: Path) -> None:
    env = {k: v for k, v in environment(TMPDIR=str(tmp_path)).items() if k not in ("HOME", "PYEDGE_HOME")}
    for args in (["list", "--json"], ["doctor"], ["rm", "no-such-model"]):
        result = program(*args, env=env)
        assert "Traceback" not in result.stderr
        assert result.returncode in (0, 1)
