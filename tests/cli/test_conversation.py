"""Conversations: what the model gets, settings, and files that survive slips and strangers."""

import json
from pathlib import Path

import pytest

from pyedge.cli.conversation import Conversation, Exchange


def talk() -> Conversation:
    return Conversation(
        "be brief", [Exchange("one", "1"), Exchange("two", "2 \n日", stopped=True)], settings={"top_k": 3}
    )


def test_messages_alternate_behind_the_system_message() -> None:
    assert talk().messages("three") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "2 \n日"},
        {"role": "user", "content": "three"},
    ]
    assert Conversation().messages() == []


def test_settings_are_checked_and_undone() -> None:
    c = Conversation()
    for name, text, value in [
        ("temperature", "0.5", 0.5),
        ("temp", "0.5", 0.5),
        ("n", "5", 5),
        ("--top-p", "0.5", 0.5),
        ("top_k", "7", 7),
        ("max_tokens", "none", None),
        ("seed", "12", 12),
        ("stop", "END OF", ("END OF",)),
        ("stop", '["a", "\\n\\n"]', ("a", "\n\n")),
    ]:
        c.set(name, text)
        name = {"temp": "temperature", "n": "max_tokens", "--top-p": "top_p"}.get(name, name)
        assert getattr(c.params(), name) == value
    before = dict(c.settings)
    for name, text in [
        ("temperature", "hot"), ("temperature", "-1"), ("temperature", "nan"), ("top_k", "1.5"), ("stop", "[1]"),
        ("stop", "[}"), ("colour", "red"), ("logprobs", "3"),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=name):
            c.set(name, text)
    assert c.settings == before
    for name in before:
        c.set(name, "default")
    assert c.settings == {}


def test_take_back() -> None:
    c = talk()
    c.unanswered = "three"
    assert [c.take_back() for _ in range(4)] == ["three", "two", "one", None]


def test_trim_drops_the_oldest_until_it_fits() -> None:
    c = talk()
    assert c.trim(lambda messages: True) == 1
    assert [e.user for e in c.exchanges] == ["two"]
    c = talk()
    c.unanswered = "three"
    assert c.trim(lambda messages: messages[-1]["content"] == "three" and len(messages) <= 2) == 2
    assert c.trim(lambda messages: True) == 0


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    talk().save(path, "some:model")
    c = Conversation(unanswered="x")
    assert c.load(path) == "some:model"
    assert c == talk()
    document = json.loads(path.read_text("utf-8"))
    assert document["messages"][3] == {"role": "assistant", "content": "2 \n日", "stopped": True}
    talk().save(path, "some:model")  # a saved chat may be overwritten
    assert [p.name for p in tmp_path.iterdir()] == ["chat.json"]


@pytest.mark.parametrize("text", ["my notes", "{}", "[1]", "", "[" * 100_000])
def test_what_is_no_chat_is_neither_overwritten_nor_loaded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"notes\.txt: is there already and is no saved chat"):
        talk().save(path, "m")
    assert path.read_text() == text
    c = talk()
    with pytest.raises(ValueError, match=r"notes\.txt: is no chat"):
        c.load(path)
    assert c == talk()


@pytest.mark.parametrize(
    "change",
    [
        {"system": 1},
        {"settings": [1]},
        {"settings": {"nope": 1}},
        {"settings": {"top_p": 7}},
        {"messages": {"role": "user"}},
        {"messages": [{"role": "user", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ["x"]}]},
        {"messages": ["user", "assistant"]},
        {"pyedge_chat": 99},
    ],
)
def test_unsound_files_change_nothing(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "chat.json"
    talk().save(path, "m")
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | change))
    c = Conversation("other")
    with pytest.raises(ValueError, match=r"^[^\n]*chat\.json: [^\n]*$"):
        c.load(path)
    assert c == Conversation("other")


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path):
        with pytest.raises(ValueError, match="no regular file"):
            Conversation().load(path)


def test_errors_of_saving_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "chat.json"
    with pytest.raises(FileNotFoundError) as e:
        talk().save(path, "m")
    assert e.value.filename == str(path)


def test_load_of_nothing_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"chat\.json"):
        Conversation().load(tmp_path / "chat.json")
