"""Tool calls in a model's text, as it comes.

Owns the forms that models write calls in, reading them, and the grammars that make a model write one. Reading is
incremental: a call's name comes out as soon as it is known, its arguments as they are written. What is no call after
all, by its form or because nobody offered such a tool, comes out as content, to the letter.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from pyedge.server.message import Delta, merge_deltas
from pyedge.server.reasoning import pending


@dataclass(frozen=True)
class ToolStyle:
    """How a family of models writes a call."""

    name: str
    arguments: str  # the key of a call's arguments
    begin: str  # what stands before and behind each call; empty: a call is all that the answer is
    end: str


HERMES = ToolStyle("hermes", "arguments", "<tool_call>", "</tool_call>")  # Qwen, Hermes, SmolLM 3
LLAMA = ToolStyle("llama3", "parameters", "", "")
_KEYS = {"type", "name", "arguments", "parameters", "id"}
_PYTHON_TAG = "<|python_tag|>"


def style_of(template: str | None) -> ToolStyle | None:
    """What a chat template tells its model to write; None: the template knows no tools, or a form that is not read
    here."""
    if template is None or "tools" not in template:
        return None
    if HERMES.begin in template:
        return HERMES
    if '"parameters"' in template and ("<|start_header_id|>" in template or _PYTHON_TAG in template):
        return LLAMA
    return None


def call_grammar(style: ToolStyle, functions: Sequence[Mapping[str, Any]], *, several: bool) -> str:
    """Lark for a text that is one call of these functions, or more."""
    rules = _call_rules(style, functions)
    if not style.begin:
        return "\n".join(["start: call", *rules])
    start = 'start: one ("\\n" one)*' if several else "start: one"
    return "\n".join([start, f'one: "{style.begin}\\n" call "\\n{style.end}"', *rules])


def free_grammar(style: ToolStyle, functions: Sequence[Mapping[str, Any]], *, several: bool) -> str:
    """Lark for any text in which each call is one of these functions, with arguments that fit the schemas of those that
    are `strict`. What opens a call binds what comes behind it: the mark, or of the form without marks the answer's
    first brace."""
    kept = [f if f.get("strict") else {**f, "parameters": {"type": "object"}} for f in functions]
    rules = _call_rules(style, kept)
    if not style.begin:
        # The parser takes a python tag for the beginning of a call as well.
        return "\n".join(["start: call | said |", r"said: /\s*([^{<\s]|<[^|\s])(.|\n)*/", *rules])
    one = f'one: opened "\\n" call "\\n{style.end}"'
    opened = f"opened[lazy]: /(.|\\n)*{style.begin}/"
    return "\n".join(["start: one* said" if several else "start: one | said", one, opened, r"said: /(.|\n)*/", *rules])


def _call_rules(style: ToolStyle, functions: Sequence[Mapping[str, Any]]) -> list[str]:
    """A rule `call`, and those that it needs."""
    rules = ["call: " + " | ".join(f"call{i}" for i in range(len(functions)))]
    for i, function in enumerate(functions):
        schema = {
            "type": "object",
            "properties": {"name": {"const": function["name"]}, style.arguments: _parameters(function)},
            "required": ["name", style.arguments],
            "additionalProperties": False,
            "x-guidance": {"whitespace_pattern": " "},
        }
        rules.append(f"call{i}: %json {json.dumps(schema)}")
    return rules


def _parameters(function: Mapping[str, Any]) -> Any:
    given = function.get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **given}


class ToolCallParser:
    def __init__(
        self,
        style: ToolStyle,
        names: Collection[str],
        *,
        several: bool = True,
        new_id: Callable[[], str] = lambda: f"call_{secrets.token_hex(12)}",
    ) -> None:
        """names: of the tools that were offered. several: a second call counts too."""
        self._style = style
        self._names = names
        self._several = several
        self._new_id = new_id
        self._key = re.compile(
            r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*'
            r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
        )
        self._state = "text" if style.begin else "start"
        self._held = ""
        self._n_calls = 0
        self._open = False  # the call's name was given out
        self._scan = _Scan()
        self._arguments = ""  # of the open call, as far as given out

    def push(self, text: str) -> Delta:
        self._held += text
        deltas: list[Delta] = []
        while (delta := self._advance()) is not None:
            deltas.append(delta)
        return merge_deltas(deltas)

    def finish(self, reason: str) -> tuple[Delta, str]:
        delta: Delta = {}
        if self._state == "call" and not self._open:
            delta = self._whole(self._held) or self._content(self._begin + self._held)
        elif self._state in ("text", "start", "next"):
            delta = self._content(self._held if self._state != "next" else self._held.strip())
        self._held = ""
        return delta, "tool_calls" if self._n_calls and reason == "stop" else reason

    # ---- inside: each returns what it adds, or None when more text is needed ----

    def _advance(self) -> Delta | None:
        if not self._held:
            return None
        return {
            "text": self._in_text,
            "start": self._at_start,
            "call": self._in_arguments if self._open else self._in_call,
            "tail": self._in_tail,
            "next": self._at_next,
            "content": self._in_content,
        }[self._state]()

    def _in_text(self) -> Delta | None:
        begin = self._style.begin
        at = self._held.find(begin)
        if at >= 0 and (self._several or not self._n_calls):
            said, self._held = self._held[:at].rstrip(), self._held[at + len(begin) :]
            self._begin_call(begin)
            return self._content(said)
        # White space is held back too: what stands before a call is no content.
        said = self._held[: len(self._held) - pending(self._held, begin)].rstrip()
        self._held = self._held[len(said) :]
        return self._content(said) if said else None

    def _at_start(self) -> Delta | None:
        """Of the form without marks: an answer that begins as a call, or as anything else."""
        begun = self._held.lstrip()
        if begun.startswith(_PYTHON_TAG):
            self._held = begun[len(_PYTHON_TAG) :]
            self._begin_call(_PYTHON_TAG)
        elif begun.startswith("{"):
            self._begin_call("")
        elif not _PYTHON_TAG.startswith(begun):
            self._state = "content"
        else:
            return None
        return {}

    def _in_content(self) -> Delta:
        said, self._held = self._held, ""
        return self._content(said)

    def _begin_call(self, begin: str) -> None:
        self._state, self._open, self._begin = "call", False, begin
        self._scan, self._arguments = _Scan(), ""

    def _in_call(self) -> Delta | None:
        head = self._key.match(self._held)
        if head is not None and (name := _text(head[1])) in self._names:
            self._open = True
            self._held = self._held[head.end() :]
            return self._call(name, "")
        end = _end_of_object(self._held)
        closed = self._held.find(self._style.end) if self._style.end else -1
        if end is None and closed < 0 and _may_be_call(self._held, bool(self._style.begin)):
            return None
        if end is not None and (delta := self._whole(self._held[:end])):
            self._held, self._state = self._held[end:], "tail"
            return delta
        # No call: all up to its mark is content.
        if closed >= 0:
            end = closed + len(self._style.end)
        elif self._style.end and end is not None and self._style.end.startswith(self._held[end:].lstrip()):
            return None
        said, self._held = self._begin + self._held[:end], self._held[end:] if end is not None else ""
        self._state = "text" if self._style.begin else "content"
        return self._content(said)

    def _in_arguments(self) -> Delta | None:
        n = self._scan.feed(self._held)
        piece = self._held[:n]
        try:
            from_json((self._arguments + piece).encode(), allow_partial="trailing-strings")
        except ValueError:  # it cannot be taken back; what is no JSON is content
            self._state = "text" if self._style.begin else "content"
            return {}
        self._held = self._held[n:]
        self._arguments += piece
        if self._scan.done:
            self._state = "tail"
        elif not piece:
            return None
        return {"tool_calls": [{"index": self._n_calls - 1, "function": {"arguments": piece}}]}

    def _in_tail(self) -> Delta | None:
        """Behind the arguments: the object's end, if it is open yet, and the mark."""
        rest = self._held.lstrip()
        if self._open:
            if not rest:
                return None
            if not rest.startswith("}"):  # further keys, which nobody asked for
                at = rest.find("}")
                if at < 0:
                    return None
                rest = rest[at:]
            self._held, self._open = rest[1:], False
            return {}
        if not rest:
            return None
        if self._style.end and self._style.end.startswith(rest) and rest != self._style.end:
            return None
        self._held = rest.removeprefix(self._style.end) if self._style.end else rest
        self._state = "text" if self._style.begin else "next"
        return {}

    def _at_next(self) -> Delta | None:
        """Of the form without marks: another call, or none."""
        rest = self._held.lstrip(" \t\r\n;,")
        if not rest:
            return None
        if rest.startswith("{") and self._several:
            self._held = rest
            self._begin_call("")
        else:
            self._state = "content"
        return {}

    def _whole(self, text: str) -> Delta | None:
        """A call that is there as a whole, in whatever order; None: it is none."""
        try:
            call = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(call, dict) or not call.keys() <= _KEYS or not isinstance(call.get("name"), str):
            return None
        if call["name"] not in self._names:
            return None
        if not self._style.begin and not call.keys() & {"arguments", "parameters"}:
            return None
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                return None
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            return None
        self._open = False
        return self._call(call["name"], json.dumps(arguments, ensure_ascii=False))

    def _call(self, name: str, arguments: str) -> Delta:
        self._n_calls += 1
        function = {"name": name, "arguments": arguments}
        return {
            "tool_calls": [{"index": self._n_calls - 1, "id": self._new_id(), "type": "function", "function": function}]
        }

    @staticmethod
    def _content(text: str) -> Delta:
        return {"content": text} if text else {}


class _Scan:
    """Finds where a JSON object ends, over any number of pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False
        self.done = False

    def feed(self, text: str) -> int:
        """How many of the characters belong to the object."""
        for i, c in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif c == "\\":
                    self._escaped = True
                elif c == '"':
                    self._in_string = False
            elif c == '"':
                self._in_string = True
            elif c in "{[":
                self._depth += 1
            elif c in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.done = True
                    return i + 1
        return len(text)


def _end_of_object(text: str) -> int | None:
    lead = len(text) - len(text.lstrip())
    if not text[lead:].startswith("{"):
        return None
    scan = _Scan()
    n = scan.feed(text[lead:])
    return lead + n if scan.done else None


def _may_be_call(text: str, marked: bool) -> bool:
    """Whether more text can make it a call. Of a form without marks, an object that begins with other keys cannot."""
    begun = text.strip()
    if not begun:
        return True
    try:
        value = from_json(begun.encode(), allow_partial="trailing-strings")
    except ValueError:
        return False
    if not isinstance(value, dict):
        return False
    return marked or not value or value.keys() <= _KEYS


def _text(literal: str) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        return ""
