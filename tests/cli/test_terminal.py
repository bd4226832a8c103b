"""`pyedge chat` as a person has it: a real terminal (a pseudo one), keys, Ctrl-C, history."""

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest
from program import ELSEWHERE, PROGRAM, environment, write_endless

PROMPT = ">>>"
ALT_ENTER = "\x1b\r"


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_endless(tmp_path_factory.mktemp("models") / "endless.gguf")


class Terminal:
    def __init__(self, model: Path, home: Path, *args: str, term: str = "xterm-256color") -> None:
        self.child = pexpect.spawn(
            sys.executable,
            [*PROGRAM[1:], "chat", str(model), *args],
            env=environment(PYEDGE_HOME=str(home), TERM=term, PROMPT_TOOLKIT_NO_CPR="1"),
            cwd=ELSEWHERE,
            timeout=30,
            encoding="utf-8",
            codec_errors="replace",
            dimensions=(24, 100),
        )

    def sees(self, text: str) -> None:
        self.child.expect(re.escape(text))

    def types(self, keys: str) -> None:
        self.child.send(keys)

    def ends(self) -> int | None:
        self.child.expect(pexpect.EOF)
        self.child.close()
        status: int | None = self.child.exitstatus
        return status


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def terminal(endless: Path, home: Path) -> Iterator[Terminal]:
    terminal = Terminal(endless, home, "--temp", "0", "-n", "8")
    terminal.sees("Ctrl-D leaves.")
    terminal.sees(PROMPT)
    yield terminal
    terminal.child.close(force=True)


def saved(terminal: Terminal, path: Path) -> list[dict[str, str]]:
    """The conversation so far, by way of /save."""
    terminal.types(f"/save {path}\r")
    terminal.sees("saved ")
    terminal.sees(PROMPT)
    messages: list[dict[str, str]] = json.loads(path.read_text())["messages"]
    return messages


def test_keys(terminal: Terminal, tmp_path: Path, home: Path) -> None:
    for keys in (
        "one\r",
        "two" + ALT_ENTER + "lines\r",
        "three\\\rlines\r",
        "\x1b[200~pasted\nlines\x1b[201~\r",
        "not sent\x03sent\r",  # Ctrl-C empties the line
        "\x1b[A again\r",  # up: the line before
    ):
        terminal.types(keys)
        terminal.sees("cut at 8 tokens")
        terminal.sees(PROMPT)
    messages = saved(terminal, tmp_path / "chat.json")
    assert [m["content"] for m in messages[::2]] == [
        "one", "two\nlines", "three\nlines", "pasted\nlines", "sent", "sent again",
    ]  # fmt: skip
    terminal.types("\x03")
    terminal.sees("/exit or Ctrl-D leaves")
    terminal.sees(PROMPT)
    terminal.types("/nope\r")
    terminal.sees("is no command; /help lists them")
    terminal.sees(PROMPT)
    terminal.types("\x04")
    assert terminal.ends() == 0
    history = home / "chat_history"
    assert "+sent again" in history.read_text()
    assert history.stat().st_mode & 0o777 == 0o600


def test_ctrl_c_ends_the_answer_and_not_the_program(terminal: Terminal, tmp_path: Path) -> None:
    terminal.types("/set max_tokens none\r")
    terminal.sees(PROMPT)
    for _ in range(2):
        terminal.types("go on\r")
        terminal.sees("go on")
        time.sleep(0.5)
        terminal.types("\x03")
        terminal.sees("stopped")
        terminal.sees(PROMPT)
    terminal.types("/set max_tokens 4\r")
    terminal.sees(PROMPT)
    terminal.types("/retry\r")
    terminal.sees("cut at 4 tokens")
    terminal.sees(PROMPT)
    messages = saved(terminal, tmp_path / "chat.json")
    assert messages[-1].get("stopped") is None
    terminal.types("/exit\r")
    assert terminal.ends() == 0


def test_stats_with_v(endless: Path, home: Path) -> None:
    terminal = Terminal(endless, home, "--temp", "0", "-n", "8", "-v")
    terminal.sees(PROMPT)
    terminal.types("hi\r")
    terminal.sees("8 tokens, the first after 0.")
    terminal.sees(" tokens/s")
    terminal.sees(PROMPT)
    terminal.types("\x04")
    assert terminal.ends() == 0


def test_a_dumb_terminal_gets_no_escapes(endless: Path, home: Path) -> None:
    terminal = Terminal(endless, home, "--temp", "0", "-n", "8", term="dumb")
    screen = ""
    for keys in ("hi\n", "/nonsense\n", "/set\n", "\x04"):
        terminal.sees("> ")
        screen += terminal.child.before
        terminal.types(keys)
    assert terminal.ends() == 0
    screen += terminal.child.before
    assert "cut at 8 tokens" in screen
    assert "temperature" in screen
    assert "\x1b" not in screen


def test_without_a_home_to_write_to_it_talks_all_the_same(endless: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    terminal = Terminal(endless, tmp_path / "file", "--temp", "0", "-n", "8")
    terminal.sees(PROMPT)
    terminal.types("hi\r")
    terminal.sees("cut at 8 tokens")
    terminal.sees(PROMPT)
    terminal.types("\x04")
    assert terminal.ends() == 0
