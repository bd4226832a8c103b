"""From messages to a prompt: what a template is given, and which of its text may be control tokens.

Owns the checking and copying of messages, the choice between text and parts, and the marks that keep a control token's
text in a message from becoming the token. Running a template is template_sandbox.py's.

How the marks work. A noncharacter that occurs nowhere in the input is put into each control token's text in the input,
before rendering. The rendered prompt is split at the control tokens that are left, which are the template's own; then
the marks are removed and each run between is encoded whole. A mark also stands where a message begins with the end of
such a text, ends with its beginning, or is its inside, so that none comes about by joining. (A template that cuts
messages into pieces itself could still join pieces; none known does.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from pyedge.tokenizers.vocabulary import TextFinder

Message = Mapping[str, Any]

_MAX_DEPTH = 64  # of JSON in messages and tools
_PROBE = "pyedge asks"
_PROBE_SECONDS = 0.25  # of processor time; a template takes milliseconds for a message of two words


@dataclass(frozen=True)
class Prompt:
    marked: str  # as rendered
    mark: str  # the character that stands in control texts of the messages

    @property
    def text(self) -> str:
        return self.marked.replace(self.mark, "")


class ChatTemplate:
    def __init__(self, source: str, control_texts: Iterable[str], variables: Mapping[str, Any]) -> None:
        """variables: what the template sees besides the messages (bos_token, ...)."""
        self.source = source
        self._control_texts = frozenset(control_texts)
        self._control_finder = TextFinder(self._control_texts)
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> Prompt:
        """Raises ValueError for messages of a wrong form, ChatTemplateError (a ValueError) from the template."""
        inputs = {
            **_plain(extra, "template arguments"),
            "messages": [self._message(message, f"messages[{i}]") for i, message in enumerate(_list(messages))],
            "tools": _tools(tools),
        }
        marks = _Marks(self._control_texts, self._control_finder, _noncharacter(inputs))
        inputs = {key: marks.protect(value, key) for key, value in inputs.items()}
        return Prompt(self._run(inputs, marks.mark, add_generation_prompt), marks.mark)

    def _run(
        self,
        inputs: Mapping[str, Any],
        mark: str = "",
        add_generation_prompt: bool = False,
        seconds: float | None = None,
    ) -> str:
        from pyedge.tokenizers import template_meter, template_sandbox

        variables = {**self._variables, **inputs, "add_generation_prompt": add_generation_prompt}
        return template_sandbox.render(self.source, variables, mark, seconds or template_meter.SECONDS)

    # ---- Messages ----

    def _message(self, message: Any, where: str) -> dict[str, Any]:
        if not isinstance(message, Mapping):
            raise ValueError(f"{where} must be a dict with role and content, not {type(message).__name__}")
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise ValueError(f"{where} has no role; give 'system', 'user' or 'assistant'")
        copy: dict[str, Any] = _plain(message, where)
        if not isinstance(calls := copy.get("tool_calls"), (list, type(None))):
            raise ValueError(f"{where}.tool_calls must be a list, not {type(calls).__name__}")
        if calls:
            copy["tool_calls"] = [_with_arguments(call) for call in calls]
            if copy.get("content") is None:
                copy["content"] = None if self._takes_none else ""
        elif copy.get("content") is None:
            copy["content"] = ""
        if copy["content"] is not None:
            copy["content"] = self._content(copy["content"], f"{where}.content")
        return copy

    def _content(self, content: Any, where: str) -> Any:
        """Text or parts, whichever the template takes."""
        if isinstance(content, str):
            return content if self._takes_text else [{"type": "text", "text": content}]
        if not isinstance(content, list):
            raise ValueError(f"{where} must be text or a list of text parts, not {type(content).__name__}")
        for i, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if kind != "text":
                raise ValueError(f"{where}[{i}] is of type {kind!r}; this model reads parts of type 'text' only")
            if not isinstance(part.get("text"), str):
                raise ValueError(f"{where}[{i}].text must be text")
        return content if self._takes_parts else "\n".join(part["text"] for part in content)

    @cached_property
    def _takes_text(self) -> bool:
        return _PROBE in (self._probe(_PROBE) or "") or not self._takes_parts

    @cached_property
    def _takes_none(self) -> bool:
        """Whether a message that is only calls may have no content, which some templates ask for and others, Qwen 3's
        too, cannot bear, or spell out."""
        call = {"type": "function", "id": "call00000", "function": {"name": _PROBE, "arguments": {}}}

        def said(content: str | None) -> str | None:
            before = {"role": "user", "content": _PROBE}
            after = {"role": "tool", "tool_call_id": "call00000", "name": _PROBE, "content": _PROBE}
            calls = {"role": "assistant", "content": content, "tool_calls": [call]}
            return self._probe_messages([before, calls, after, {"role": "assistant", "content": _PROBE}, before])

        without = said(None)
        return said("") is None if without is None else "None" not in without

    @cached_property
    def _takes_parts(self) -> bool:
        """Whether the template writes the text of parts as it is, and not Python's spelling of a list."""
        with_parts = self._probe([{"type": "text", "text": _PROBE}])
        if with_parts is None or _PROBE not in with_parts:
            return False
        with_text = self._probe(_PROBE)
        return with_text is None or _PROBE not in with_text or with_text == with_parts

    def _probe(self, content: Any) -> str | None:
        return self._probe_messages([{"role": "user", "content": content}])

    def _probe_messages(self, messages: list[dict[str, Any]]) -> str | None:
        from pyedge.tokenizers.template_sandbox import ChatTemplateError

        try:
            return self._run({"messages": messages, "tools": None}, seconds=_PROBE_SECONDS)
        except ChatTemplateError:
            return None


def _list(messages: Any) -> Sequence[Any]:
    if not isinstance(messages, (list, tuple)):
        raise ValueError(f"messages must be a list, not {type(messages).__name__}")
    if not messages:
        raise ValueError("messages is empty; give at least one message")
    return messages


def _tools(tools: Any) -> list[dict[str, Any]] | None:
    if not tools:
        return None
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise ValueError("tools must be a list of dicts, as OpenAI's API has them")
    copy: list[dict[str, Any]] = _plain(tools, "tools")
    return copy


def _with_arguments(call: Any) -> Any:
    """A tool call with its arguments as a dict: the API has them as JSON text, templates want what it says."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": _plain(arguments, "tool call arguments")}}


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy in plain JSON types, so that a template meets no object with methods of its own."""
    if isinstance(value, str):
        check_text(value, where)
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth > _MAX_DEPTH:
        raise ValueError(f"{where} is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"{where} has a key that is no text")
        return {
            _plain(k, where): _plain(v, f"{where}.{k}" if depth < 2 else where, depth + 1) for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{where}[{i}]" if depth < 2 else where, depth + 1) for i, v in enumerate(value)]
    raise ValueError(f"{where} is of type {type(value).__name__}, which JSON does not have")


def check_text(text: str, where: str = "the text") -> None:
    """Raises ValueError for what is no text, and for half a character, which no UTF-8 can hold."""
    if not isinstance(text, str):
        raise ValueError(f"{where} must be a str, not {type(text).__name__}; decode bytes, join lists")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ord(text[error.start])
        raise ValueError(f"{where} has a lone surrogate, U+{half:04X}, at character {error.start}; remove it") from None


# ---- Marks -----------------------------------------------------------------------------------------------------------


def _noncharacter(inputs: Any) -> str:
    """A noncharacter that occurs nowhere in the inputs."""
    strings = list(_strings(inputs))
    candidates = [
        *range(0xFDD0, 0xFDF0),
        *(plane + end for plane in range(0, 0x110000, 0x10000) for end in (0xFFFE, 0xFFFF)),
    ]
    for code in candidates:
        if not any(chr(code) in text for text in strings):
            return chr(code)
    raise ValueError("the messages contain every noncharacter that Unicode has; remove one")


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for child in value.values():
            yield from _strings(child)
    elif isinstance(value, list):
        for child in value:
            yield from _strings(child)


class _Marks:
    def __init__(self, control_texts: frozenset[str], finder: TextFinder, mark: str) -> None:
        self.mark = mark
        self._finder = finder
        self._any = len(control_texts) > 0
        self._all = "\0".join(["", *control_texts, ""])
        self._longest = max(map(len, control_texts), default=0)

    def protect(self, value: Any, key: str = "") -> Any:
        """A copy of the value whose texts cannot become control tokens. key: what the value is called."""
        if isinstance(value, str):
            return self._protect_text(value, key)
        if isinstance(value, dict):
            return {self._break(k): self.protect(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [self.protect(v, key) for v in value]
        return value

    def _break(self, text: str) -> str:
        """Puts a mark behind the first character of each control text, also where two overlap."""
        cuts = [0, *(start + 1 for start in self._finder.starts(text)), len(text)]
        return self.mark.join(text[a:b] for a, b in pairwise(cuts))

    def _protect_text(self, text: str, key: str) -> str:
        if key in ("role", "type"):  # templates compare these, and build tokens like <|user|> of a role
            return self._break(text)
        core = text.strip()
        before, after = "", ""
        if core and self._any:
            ends = range(1, min(len(core), self._longest) + 1)
            inside = key in ("content", "text") and len(core) < self._longest and core in self._all
            before = self.mark if inside or any(core[:k] + "\0" in self._all for k in ends) else ""
            after = self.mark if any("\0" + core[-k:] in self._all for k in ends) else ""
        if not before and not after:
            return self._break(text)
        start = text.index(core)
        return text[:start] + before + self._break(core) + after + text[start + len(core) :]
