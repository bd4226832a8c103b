"""Calls are read in whatever pieces they come; what is none stays content, to the letter."""

import json
import re
from itertools import count, pairwise
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyedge.engine.grammar import Grammar, GrammarCompiler, Matcher
from pyedge.server.message import merge
from pyedge.server.tool_calls import HERMES, LLAMA, ToolCallParser, ToolStyle, call_grammar, free_grammar, style_of

NAMES = {"weather", "add"}


def read(style: ToolStyle, text: str, cuts: set[int], several: bool = True) -> tuple[dict[str, Any], str]:
    ids = count()
    parser = ToolCallParser(style, NAMES, several=several, new_id=lambda: f"call_{next(ids)}")
    message: dict[str, Any] = {}
    marks = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    for begin, end in pairwise(marks):
        merge(message, parser.push(text[begin:end]))
    rest, reason = parser.finish("stop")
    merge(message, rest)
    return message, reason


def calls(*each: tuple[str, Any]) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(each)
    ]


PARIS = '{"name": "weather", "arguments": {"city": "Paris } \\" {", "at": [1, {}]}}'
PARIS_ARGS = '{"city": "Paris } \\" {", "at": [1, {}]}'
CASES = [  # style, text, content, calls
    (HERMES, "Just text, 1 < 2 and <tool", "Just text, 1 < 2 and <tool", []),
    (HERMES, f"<tool_call>\n{PARIS}\n</tool_call>", None, [("weather", PARIS_ARGS)]),
    (HERMES, f"I look.\n\n<tool_call>{PARIS}</tool_call>\n", "I look.\n", [("weather", PARIS_ARGS)]),
    (
        HERMES,
        f'<tool_call>\n{PARIS}\n</tool_call>\n<tool_call>\n{{"name": "add", "arguments": {{}}}}\n</tool_call>',
        None,
        [("weather", PARIS_ARGS), ("add", "{}")],
    ),
    (HERMES, f"<tool_call>\n{PARIS}", None, [("weather", PARIS_ARGS)]),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', None, [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', None, [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add"}</tool_call>', None, [("add", "{}")]),
    (HERMES, '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', 0, []),
    (HERMES, "<tool_call>nonsense</tool_call> and on", 0, []),
    (HERMES, '<tool_call>{"name": "add", "argum', 0, []),
    (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', 0, []),
    (HERMES, "<tool_call>", 0, []),
    (LLAMA, '{"name": "add", "parameters": {"a": 1}}', None, [("add", '{"a": 1}')]),
    (LLAMA, ' <|python_tag|>{"name": "add", "parameters": {"a": "é"}} \n', None, [("add", '{"a": "é"}')]),
    (LLAMA, '{"type": "function", "name": "add", "parameters": {}}', None, [("add", "{}")]),
    (
        LLAMA,
        '{"name": "add", "parameters": {"a": 1}}; {"name": "weather", "parameters": {}}',
        None,
        [("add", '{"a": 1}'), ("weather", "{}")],
    ),
    (LLAMA, '{"color": "red", "name": "add"}', 0, []),
    (LLAMA, '{"name": "rm", "parameters": {}}', 0, []),
    (LLAMA, "{not JSON} at all", 0, []),
    (LLAMA, "Hello {}", 0, []),
    (LLAMA, "<|python", 0, []),
    (LLAMA, "", None, []),
]


@pytest.mark.parametrize(("style", "text", "content", "wanted"), CASES)
@given(cuts=st.sets(st.integers(0, 150)))
def test_any_pieces(style: ToolStyle, text: str, content: Any, wanted: list[Any], cuts: set[int]) -> None:
    message, reason = read(style, text, cuts)
    assert message.get("tool_calls", []) == calls(*wanted)
    kept = text if content == 0 else content
    assert (message.get("content") or "").rstrip("\n") == (kept or "").rstrip("\n")
    assert reason == ("tool_calls" if wanted else "stop")


def test_one_call_only() -> None:
    second = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    message, _ = read(HERMES, f"<tool_call>{PARIS}</tool_call>{second}", set(), several=False)
    assert message["tool_calls"] == calls(("weather", PARIS_ARGS))
    assert message["content"] == second


def test_arguments_come_in_pieces() -> None:
    parser = ToolCallParser(HERMES, NAMES, new_id=lambda: "call_x")
    pieces = ["<tool_", 'call>{"name": "add", "argu', 'ments": {"a', '": 1', "2}}", "</tool_call>"]
    deltas = [parser.push(piece) for piece in pieces]
    assert deltas[:2] == [{}, {}]
    head = {"index": 0, "id": "call_x", "type": "function", "function": {"name": "add", "arguments": '{"a'}}
    assert deltas[2] == {"tool_calls": [head]}
    assert deltas[3:] == [
        {"tool_calls": [{"index": 0, "function": {"arguments": '": 1'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "2}"}}]},
        {},
    ]
    assert parser.finish("stop") == ({}, "tool_calls")
    cut = ToolCallParser(HERMES, NAMES)
    cut.push('<tool_call>{"name": "add", "arguments": {"a')
    assert cut.finish("length") == ({}, "length")


def test_what_turns_out_to_be_no_json_is_content() -> None:
    message, _ = read(HERMES, '<tool_call>{"name": "add", "arguments": {"a": oops}}</tool_call>', set(range(90)))
    assert "oops" in message["content"]


@given(st.text(st.sampled_from('<tool_call>/{"name": add, rgumts}[]1\\ \n'), max_size=80), st.sets(st.integers(0, 80)))
def test_pieces_never_matter(text: str, cuts: set[int]) -> None:
    for style in (HERMES, LLAMA):
        for written in (text, f"<tool_call>{text}", f'<tool_call>{{"name": "add", "arguments": {{{text}'):
            whole, pieces = read(style, written, set()), read(style, written, cuts)
            if "tool_calls" not in whole[0]:
                assert (whole[0].get("content") or "").strip() == written.strip()
            assert bool(whole[0].get("tool_calls")) == bool(pieces[0].get("tool_calls"))


FUNCTIONS = [
    {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"name": "now"},
]


class Bytes:
    end_ids = frozenset({256})
    hidden_ids = frozenset({256})

    def vocabulary_bytes(self) -> list[bytes]:
        return [*(bytes([i]) for i in range(256)), b"<end>"]


@pytest.mark.parametrize("style", [HERMES, LLAMA])
def test_a_grammar_lets_nothing_but_calls_through(style: ToolStyle) -> None:
    compiler = GrammarCompiler(Bytes(), 257)
    made = Grammar.grammar(call_grammar(style, FUNCTIONS, several=True))
    for name, arguments, right in (
        ("add", {"a": 1}, True), ("now", {}, True), ("now", {"b": 1}, False), ("add", {}, False), ("rm", {}, False),
    ):  # fmt: skip
        text = json.dumps({"name": name, style.arguments: arguments})
        text = f"{style.begin}\n{text}\n{style.end}" if style.begin else text
        matcher = compiler.matcher(made)
        fits = True
        for byte in text.encode():
            fits = fits and bool(int.from_bytes(matcher.mask(), "little") >> byte & 1)
            if fits:
                matcher.accept(byte)
        assert fits is right, (name, arguments)
        if right:
            assert int.from_bytes(matcher.mask(), "little") >> 256 & 1
            message: dict[str, Any] = {}
            parser = ToolCallParser(style, {"add", "now"})
            merge(message, parser.push(text))
            merge(message, parser.finish("stop")[0])
            (call,) = message["tool_calls"]
            jsonschema.validate(json.loads(call["function"]["arguments"]), {"type": "object"})


class Marked(Bytes):
    """With the mark as one token, as Qwen's vocabularies have it."""

    def vocabulary_bytes(self) -> list[bytes]:
        return [*super().vocabulary_bytes(), HERMES.begin.encode()]


def fits(matcher: Matcher, text: str, *, marked: bool = False) -> bool:
    """Whether it may be written so, and be all. marked: with the token of the mark."""
    parts = re.split(f"({HERMES.begin})", text) if marked else [text]
    for token in (t for part in parts for t in ([257] if marked and part == HERMES.begin else part.encode())):
        if not int.from_bytes(matcher.mask(), "little") >> token & 1:
            return False
        matcher.accept(token)
    return bool(int.from_bytes(matcher.mask(), "little") >> 256 & 1)


def written(style: ToolStyle, name: str, arguments: Any) -> str:
    call = json.dumps({"name": name, style.arguments: arguments})
    return f"{style.begin}\n{call}\n{style.end}" if style.begin else call


@pytest.mark.parametrize("style", [HERMES, LLAMA])
@pytest.mark.parametrize("marked", [False, True])
def test_in_free_text_a_call_of_a_strict_function_fits_its_schema(style: ToolStyle, marked: bool) -> None:
    compiler = GrammarCompiler(Marked() if marked else Bytes(), 258)
    functions = [{**FUNCTIONS[0], "strict": True}, FUNCTIONS[1]]
    add = written(style, "add", {"a": 1})
    for several in (True, False):
        made = Grammar.grammar(free_grammar(style, functions, several=several))
        texts = {
            "": True, "1 < 2, <tool and {} go": True, "\n\nWell": True, add: True, add[:-3]: False,
            written(style, "now", {"b": [2]}): True, written(style, "add", {}): False,
            written(style, "add", {"a": "1"}): False, written(style, "rm", {}): False,
        }  # fmt: skip
        if style is HERMES:
            texts |= {f"I add. {add}": True, f"{add}\n{add} Done.": several, "It is <tool_call>, you see": False}
        else:
            texts |= {'{"b": 1}': False, '<|python_tag|>{"name"': False, "<b>{}</b>": True}
        for text, right in texts.items():
            assert fits(compiler.matcher(made), text, marked=marked) is right, text
            if right:
                parser = ToolCallParser(style, {"add", "now"}, several=several)
                parser.push(text)
                assert (parser.finish("stop")[1] == "tool_calls") is ('"name"' in text)
        thinking = compiler.matcher(made.behind("</think>"))
        assert fits(thinking, f"Shall I?</think>\n\n{add}", marked=marked)


@pytest.mark.parametrize("style", [HERMES, LLAMA])
def test_a_form_or_a_call(style: ToolStyle) -> None:
    compiler = GrammarCompiler(Bytes(), 257)
    calls = call_grammar(style, FUNCTIONS, several=True)
    add, wrong = written(style, "add", {"a": 1}), written(style, "add", {})
    closed = {"type": "object", "properties": {"c": {"type": "boolean"}}, "additionalProperties": False}
    for form, right in ((Grammar.json_schema(closed), '{"c": true}'), (Grammar.regex("[ab]{2}"), "ab")):
        made = form.otherwise(calls)
        for text, may in ((right, True), (add, True), (wrong, False), ("So: " + right, False), (right + add, False)):
            assert fits(compiler.matcher(made), text) is may, text
            assert fits(compiler.matcher(made.behind("</think>")), f"Hm.</think>\n{text}") is may, text


def test_styles_by_template() -> None:
    assert style_of(None) is style_of("{{ messages }}") is None
    assert style_of("{% if tools %}<tool_call>{% endif %}") is HERMES
    assert style_of('{{ "<|start_header_id|>" }}{% if tools %}{"name": function name, "parameters": ...}') is LLAMA
    assert style_of("{% if tools %}[TOOL_CALLS]{% endif %}") is None
