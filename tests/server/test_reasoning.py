"""Thoughts are split off, however the text is cut into pieces."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyedge.server.message import PlainParser, merge
from pyedge.server.reasoning import ReasoningParser

CASES = [  # text, the prompt ends in a thought, reasoning, content
    ("<think>\nA hm.\n</think>\n\nYes.", False, "A hm.", "Yes."),
    ("\n<think>A</think>Yes </think> <think>", False, "A", "Yes </think> <think>"),
    ("A < b </thin\n</think>\nYes.\n", True, "A < b </thin", "Yes.\n"),
    ("only thought  ", True, "only thought", None),
    ("<think>only", False, "only", None),
    ("<think></think>\nno thought", False, None, "no thought"),
    ("Plain <think>no</think>", False, None, "Plain <think>no</think>"),
    ("  <thin", False, None, "  <thin"),
    ("<thinker>", False, None, "<thinker>"),
    ("", False, None, None),
    (" \n", True, None, None),
    ("a </thi", True, "a </thi", None),
]


@pytest.mark.parametrize(("text", "thinking", "reasoning", "content"), CASES)
@given(cuts=st.sets(st.integers(0, 60)))
def test_any_pieces(text: str, thinking: bool, reasoning: str | None, content: str | None, cuts: set[int]) -> None:
    parser = ReasoningParser(PlainParser(), thinking=thinking)
    message: dict[str, Any] = {}
    marks = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for begin, end in pairwise(marks):
        merge(message, parser.push(text[begin:end]))
    rest, reason = parser.finish("stop")
    merge(message, rest)
    assert (message.get("reasoning_content"), message.get("content"), reason) == (reasoning, content, "stop")


def test_thoughts_come_as_they_are_written() -> None:
    parser = ReasoningParser(PlainParser())
    assert [parser.push(piece) for piece in ("<think>", "\n", "One", " two", ".</", "think>", "\n", "Yes")] == [
        {}, {}, {"reasoning_content": "One"}, {"reasoning_content": " two"}, {"reasoning_content": "."}, {}, {},
        {"content": "Yes"},
    ]  # fmt: skip
