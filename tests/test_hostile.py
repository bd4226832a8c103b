"""Every command that opens a file, and the Python API, against files that a stranger made to do harm.

Refused cleanly means: exit code 1, one short line that names the file and the field, no traceback, within seconds and
500 MB, and nothing left behind. The commands are those of the command line's own table: a new one is tried at once.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import Outcome
from hostilefiles import FILES, File
from program import environment, python

from pyedge import LLM, SamplingParams
from pyedge.cli import COMMANDS
from pyedge.errors import ModelError

NO_FILE = ("pull", "list", "rm", "doctor", "convert")  # these take names of models, a folder, or nothing
ARGUMENTS: dict[str, tuple[list[str], str]] = {  # a command's other arguments, and its standard input
    "run": (["ab", "-n", "8", "--temp", "0", "--threads", "1"], ""),
    "chat": (["-n", "2", "--temp", "0", "--threads", "1"], "ab\n"),
    "bench": (["-p", "4", "-n", "2", "--runs", "1", "--threads", "1"], ""),
    "profile": (["-p", "4", "-n", "2", "--runs", "1", "--threads", "1"], ""),
    "tokenize": (["ab"], ""),
    "serve": (["--port", "0", "--threads", "1"], ""),
    "capacity": (["--prompt", "4", "--output", "2", "--chats", "1", "--threads", "1"], ""),
    "quantize": (["OUTPUT", "Q8_0", "--allow-requantize", "--threads", "1"], ""),
    "perplexity": (["-", "--ctx", "8", "--threads", "1"], "ab ba " * 20),
    "imatrix": (["-", "-o", "OUTPUT", "--ctx", "8", "--threads", "1"], "ab ba " * 20),
}
RUNS = ("run", "chat", "bench")  # the model
TRIED = [name for name in COMMANDS if name not in NO_FILE]
# Not tried with every command: they take a template's deadline, or seconds to be written and read.
SLOW = {"template: an endless loop", "template: a flood at compile time", "a template of 100 MB", "a text of 100 MB"}
DEADLINE = 5.0  # seconds of processor time


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hostile")
    for i, file in enumerate(FILES.values()):
        (folder / f"{i}.gguf").write_bytes(file.make())
    yield folder
    for path in folder.iterdir():
        path.unlink()


def paths(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{i}.gguf" for i, name in enumerate(FILES)}


def line(command: str, path: Path, out: Path) -> tuple[list[str], str]:
    """A command line, and its standard input. out: a folder for what is written."""
    more, given = ARGUMENTS.get(command, ([], ""))
    return [command, str(path), *(str(out / path.name) if word == "OUTPUT" else word for word in more)], given


def outcomes(commands: list[tuple[list[str], str]], home: Path) -> list[Outcome]:
    forked = str(Path(__file__).parent / "helpers" / "forked.py")
    env = environment(PYEDGE_HOME=str(home), TERM="dumb")
    done = python(forked, env=env, given=json.dumps(commands), timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return [Outcome(**outcome) for outcome in json.loads(done.stdout)]


def refuses(command: str, file: File) -> bool:
    if file.refused is None:
        return False
    by = {"all": TRIED, "run": RUNS, "chat": ("run", "chat"), "text": (*RUNS, "tokenize")}[file.by]
    return command in by


def complaint(command: str, name: str, path: Path, outcome: Outcome) -> str | None:
    """What is wrong with how a command took a file."""
    file = FILES[name]
    if not 0 <= outcome.code <= 125:
        return f"ended with {outcome.code}: {outcome.stderr[-600:]}"
    if "Traceback" in outcome.stderr:
        return outcome.stderr[-600:]
    if outcome.seconds > DEADLINE:
        return f"took {outcome.seconds:.1f} s"
    if outcome.rss_bytes > 500e6:
        return f"took {outcome.rss_bytes / 1e6:.0f} MB"
    # What a model writes goes into a pipe as it is.
    shown = outcome.stderr if command in ("run", "chat") else outcome.stdout + outcome.stderr
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]", shown):
        return f"control characters: {shown!r:.300}"
    errors = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
    if refuses(command, file):
        if outcome.code != 1 or len(errors) != 1:
            return f"ended with {outcome.code}: {outcome.stderr[-600:]!r}"
        if (file.names_file and str(path) not in errors[0]) or not re.search(file.refused or "", errors[0]):
            return f"the error names not the file and the field: {errors[0]}"
        if len(errors[0]) > 1000:
            return f"a long error: {errors[0][:1100]}"
    elif outcome.code != 0 and (file.refused is None or outcome.code != 1):
        return f"ended with {outcome.code}: {outcome.stderr[-600:]!r}"
    return None


@pytest.mark.parametrize("command", TRIED)
def test_commands_take_or_refuse_every_file(folder: Path, tmp_path: Path, command: str) -> None:
    tried = {name: path for name, path in paths(folder).items() if name not in SLOW or command in ("run", "inspect")}
    if command == "serve":  # it would go on with the others
        tried = {name: path for name, path in tried.items() if FILES[name].refused and FILES[name].by == "all"}
    commands = [line(command, path, tmp_path) for path in tried.values()]
    before = sorted(os.listdir(folder))
    done = outcomes(commands, tmp_path / "home")
    found = {
        name: why
        for (name, path), outcome in zip(tried.items(), done, strict=True)
        if (why := complaint(command, name, path, outcome))
    }
    assert not found, "\n".join(f"{name}: {why}" for name, why in found.items())
    assert sorted(os.listdir(folder)) == before
    if command == "run":
        texts = {name: outcome.stdout for name, outcome in zip(tried, done, strict=True)}
        for name in ("aligned to 64", "aligned to 8", "version 2"):
            assert texts[name] == texts["good"], name
        assert len(texts["good"]) > 1


def test_every_command_is_tried_or_opens_no_file() -> None:
    assert set(TRIED) >= {"run", "chat", "bench", "show", "tokenize", "inspect"}
    assert set(ARGUMENTS) <= set(TRIED)


def test_the_python_api_takes_or_refuses_every_file(folder: Path) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=2)
    for name, path in paths(folder).items():
        file = FILES[name]
        if name in SLOW:
            continue
        try:
            with LLM(path, threads=1) as llm:
                if file.by == "chat":
                    llm.chat([{"role": "user", "content": "ab"}], greedy)
                else:
                    llm.generate("ab", greedy)
        except (ModelError, ValueError) as e:
            message = str(e)
            assert refuses("run", file), f"{name}: {message}"
            assert "\n" not in message
            assert "\x1b" not in message or not file.names_file, name
            assert str(path) in message or not file.names_file, message
            assert "; " in message or "raise_exception" in str(file.make()), message  # then what to do
            assert re.search(file.refused or "", message), f"{name}: {message}"
        else:
            assert not refuses("run", file), name


# ---- what is no plain file -------------------------------------------------------------------------------------------


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nowhere.gguf")
    (tmp_path / "empty.gguf").touch()
    given = [tmp_path / f"{n}.gguf" for n in ("folder", "pipe", "loop", "dangling", "empty", "absent")]
    given += [path for path in (Path("/dev/zero"), Path("/dev/null"), Path("/proc/self/mem")) if path.exists()]
    cases = [(command, path) for command in TRIED for path in given]
    commands = [line(command, path, tmp_path / "out") for command, path in cases]
    for (command, path), outcome in zip(cases, outcomes(commands, tmp_path / "home"), strict=True):
        said = f"{command} {path}: {outcome.code} {outcome.stderr[-400:]}"
        assert outcome.code == 1, said
        assert outcome.stderr.startswith(f"error: {path}: "), said
        assert outcome.stderr.count("\n") == 1, said
        assert outcome.seconds < DEADLINE, said
        with pytest.raises(ModelError) as info:
            LLM(path)
        assert str(path) in str(info.value)
