"""The chat loop against a model that says what it is told to: commands, errors, interruptions, a full context."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pyedge.cli import chat, cli
from pyedge.engine.request import TokenEvent
from pyedge.engine.sampling_params import SamplingParams


@dataclass
class Model:
    """Answers with the next of `answers`; an exception among its pieces is raised there."""

    answers: list[list[Any]] = field(default_factory=list)
    max_model_len: int = 1000
    template: str | None = "a template"
    asked: list[tuple[list[dict[str, str]], SamplingParams]] = field(default_factory=list)
    threads: int = 2
    isa: str = "scalar"
    reason: str = "stop"
    ended: int = 0
    plan: Any = field(default_factory=lambda: SimpleNamespace(hparams=SimpleNamespace(context_length=4000)))

    @property
    def tokenizer(self) -> Any:
        return SimpleNamespace(chat_template=self.template, apply_chat_template=self.count)

    def count(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """One token for each word."""
        return [0] * sum(len(m["content"].split()) for m in messages)

    def stream_chat(self, messages: Sequence[dict[str, str]], params: SamplingParams) -> Iterator[TokenEvent]:
        self.asked.append(([dict(m) for m in messages], params))
        return self._answer(self.answers.pop(0) if self.answers else ["ok"])

    def _answer(self, pieces: list[Any]) -> Iterator[TokenEvent]:
        try:
            for i, piece in enumerate(pieces):
                if isinstance(piece, BaseException):
                    raise piece
                last = i == len(pieces) - 1
                yield TokenEvent(0, piece, i, finish_reason=self.reason if last else None)  # type: ignore[arg-type]
        finally:
            self.ended += 1

    @property
    def said(self) -> list[str]:
        """What the user said last, at each request."""
        return [messages[-1]["content"] for messages, _ in self.asked]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Model:
    fake = Model()
    monkeypatch.setenv("PYEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(chat, "locate", Path)
    monkeypatch.setattr(chat, "load", lambda path, options: fake)
    return fake


def talk(*lines: str, args: Sequence[str] = ()) -> Result:
    return CliRunner().invoke(cli, ["chat", "some:model", *args], input="".join(f"{line}\n" for line in lines))


def test_answers_are_streamed_and_remembered(model: Model) -> None:
    model.answers = [["Hel", "", "lo."], ["Bye."]]
    result = talk("hi", "", "and now")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello.\nBye.\n", "")
    assert model.asked[1][0] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "and now"},
    ]


def test_the_default_model_is_used_without_a_name(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    located: list[str] = []
    monkeypatch.setattr(chat, "locate", located.append)
    assert CliRunner().invoke(cli, ["chat"], input="hi\n").exit_code == 0
    assert located == ["smollm2:135m"]


def test_options_hold_and_defaults_are_left_to_the_engine(model: Model) -> None:
    talk("hi", args=["--system", "be brief", "--temp", "0", "--stop", "a", "--stop", "b"])
    messages, params = model.asked[0]
    assert messages[0] == {"role": "system", "content": "be brief"}
    assert params == SamplingParams(temperature=0, stop=("a", "b"))


def test_a_bad_option_is_wrong_usage(model: Model) -> None:
    result = talk("hi", args=["--temp", "-1"])
    assert result.exit_code == 2
    assert "--temp must be from 0 to 100" in result.stderr


def test_a_backslash_joins_lines(model: Model) -> None:
    talk("one\\", "two\\", "three", "four")
    assert model.said == ["one\ntwo\nthree", "four"]


def test_a_model_without_a_template_is_refused(model: Model) -> None:
    model.template = None
    result = talk("hi")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: some:model: has no chat template")
    assert "pyedge run --raw some:model" in result.stderr


# ---- commands --------------------------------------------------------------------------------------------------------


def test_help_lists_every_command(model: Model) -> None:
    result = talk("/help")
    for name in chat.COMMANDS:
        assert name in result.stdout
        assert name == "/exit" or hasattr(chat.Chat, "_" + name[1:])


def test_exit_leaves(model: Model) -> None:
    assert talk("/exit", "more").exit_code == 0
    assert model.asked == []


def test_unknown_commands_hint(model: Model) -> None:
    result = talk("/nope x", "/", " /etc is a folder")
    assert result.stderr.count("is no command; /help lists them") == 2
    assert model.said == ["/etc is a folder"]
    assert result.exit_code == 1


def test_system(model: Model) -> None:
    result = talk("/system", "/system Be kind.", "/system", "hi", "/system -", "again")
    assert "there is no system message" in result.stderr
    assert result.stdout.startswith("Be kind.\n")
    assert [messages[0]["role"] for messages, _ in model.asked] == ["system", "user"]


def test_retry_asks_again(model: Model) -> None:
    model.answers = [["first"], ["second"]]
    result = talk("/retry", "hi", "/retry", "more")
    assert "nothing was said yet" in result.stderr
    assert model.said == ["hi", "hi", "more"]
    assert [m["content"] for m in model.asked[2][0]] == ["hi", "second", "more"]


def test_clear_forgets(model: Model) -> None:
    talk("/system S", "hi", "/clear", "again", "/clear", "/retry")
    assert [[m["content"] for m in messages] for messages, _ in model.asked] == [["S", "hi"], ["S", "again"]]


def test_set_changes_the_next_answer(model: Model) -> None:
    result = talk(
        "/set temperature 0", "/set stop END", "/set seed 5", "hi", "/set", "/set temperature default", "again",
        "/set stats on", "/set nope 1", "/set top_k", "/set top_p 2", "/set stats maybe",
    )  # fmt: skip
    assert model.asked[0][1] == SamplingParams(temperature=0, stop=("END",), seed=5)
    assert model.asked[1][1] == SamplingParams(stop=("END",), seed=5)
    assert "temperature     0.0\n" in result.stdout
    assert "stop            ['END']\n" in result.stdout
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["error"] * 4


def test_save_and_load(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "with space.json"
    result = talk("/set top_k 3", "/system S", "hi", f"/save {path}")
    assert result.exit_code == 0
    assert json.loads(path.read_text())["model"] == "some:model"
    result = talk(f"/load {path}", "more", "/save", "/load nope.json")
    assert [m["content"] for m in model.asked[1][0]] == ["S", "hi", "ok", "more"]
    assert model.asked[1][1] == SamplingParams(top_k=3)
    assert "error: the command needs the name of a file\nerror: nope.json: No such file or directory" in result.stderr


def test_stats(model: Model) -> None:
    model.answers = [["a", "b", "c"], ["a"]]
    lines = talk("/set stats on", "hi", "hi", "/set stats off", "hi").stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("3 tokens, the first after 0.")
    assert lines[0].endswith(" tokens/s")
    assert lines[1].startswith("1 tokens, the first after 0.")
    assert "3 tokens" not in talk("hi").stderr


# ---- limits, errors, interruptions -----------------------------------------------------------------------------------


def test_a_full_context_is_said_with_ways_on(model: Model) -> None:
    model.max_model_len = 12
    model.answers = [["a b c d"]] * 5
    result = talk("one two", "three four", "five six", "/trim", "/retry")
    assert (
        "error: the context of 12 tokens is full: /trim forgets the oldest turns, /clear all of them; --ctx 4000"
        in (result.stderr)
    )
    assert "then /retry says this again" in result.stderr
    assert "the oldest 2 of the answers are forgotten, 2 tokens of context are used; /retry" in result.stderr
    assert model.said == ["one two", "three four", "five six"]
    assert len(model.asked[2][0]) == 1
    assert "/trim" not in talk("/clear", "one").stderr


def test_a_message_longer_than_the_context_is_refused_and_forgotten(model: Model) -> None:
    model.max_model_len = 6
    result = talk("hi", "one two three four five six", "/retry", "/system be brief", "one two three four")
    assert result.stderr.splitlines() == [
        "error: this message has 6 tokens, the context 6: shorten it; --ctx 4000 at the start gives more",
        "error: this message with the system message has 6 tokens, the context 6: shorten it; "
        "--ctx 4000 at the start gives more",
    ]
    assert model.said == ["hi", "hi"]


def test_bytes_that_are_no_text_are_refused_and_the_chat_goes_on(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(["h\udce9\n", "hi\n", ""])
    monkeypatch.setattr(chat, "sys", SimpleNamespace(stdin=SimpleNamespace(readline=lambda: next(lines), isatty=bool)))
    with pytest.raises(ValueError, match="standard input: character 1 of the line is not UTF-8"):
        chat._plain_reader()
    assert chat._plain_reader() == "hi"


def test_a_context_that_fills_during_the_answer_is_said(model: Model) -> None:
    model.reason = "length"
    model.plan.hparams.context_length = model.max_model_len
    result = talk("hi", "/set max_tokens 1", "hi", "/clear", "/trim")
    assert result.stderr.splitlines() == [
        "the context of 1000 tokens is full: /trim forgets the oldest turns, /clear all of them",
        "cut at 1 tokens, which is what max_tokens allows",
        "all is forgotten, but for the system message and the settings",
        "there is no turn to forget",
    ]


def test_an_error_is_one_line_and_the_chat_goes_on(model: Model) -> None:
    model.answers = [["par", ValueError("the template\nrefuses")], ["fine"]]
    result = talk("hi", "/retry", "more")
    assert result.stdout == "par\nfine\nok\n"
    assert result.stderr == "error: the template refuses\n"
    assert [m["content"] for m in model.asked[2][0]] == ["hi", "fine", "more"]
    assert result.exit_code == 1


def test_an_interrupt_without_a_terminal_ends_the_program(model: Model) -> None:
    model.answers = [["par", KeyboardInterrupt()]]
    assert talk("hi", "more").exit_code == 130
    assert model.said == ["hi"]


def test_an_interrupt_on_a_terminal_ends_the_answer_only(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model.answers = [["par", KeyboardInterrupt(), "t"], [KeyboardInterrupt()], ["fine"]]
    path = tmp_path / "chat.json"
    lines = iter(["hi", "again", "/retry", f"/save {path}", KeyboardInterrupt()])

    def read() -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        if isinstance(line, BaseException):
            raise line
        return str(line)

    monkeypatch.setattr(chat, "_plain_reader", read)
    monkeypatch.setattr(chat.Chat, "on_terminal", property(lambda self: True, lambda self, value: None), raising=False)
    result = talk()
    assert result.exit_code == 0
    assert model.ended == 3
    assert "stopped; what there is stays in the conversation" in result.stderr
    assert "stopped; /retry says it again" in result.stderr
    assert "/exit or Ctrl-D leaves" in result.stderr
    assert [m["content"] for m in model.asked[2][0]] == ["hi", "par", "again"]
    assert json.loads(path.read_text())["messages"][1] == {"role": "assistant", "content": "par", "stopped": True}
