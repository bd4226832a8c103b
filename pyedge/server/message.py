"""From a model's text to an assistant's message.

Owns the seam: a chat route pushes the text of an answer through a MessageParser, and what comes out are parts of
OpenAI's `delta`, which add up to its `message`. Text that is all content needs no more than `PlainParser`; what splits
reasoning off, or reads tool calls, is a parser of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

Delta = dict[str, Any]  # {"content": ...}, {"reasoning_content": ...}, {"tool_calls": [...]}; empty: nothing new


class MessageParser(Protocol):
    def push(self, text: str) -> Delta:
        """What these characters add to the message."""

    def finish(self, reason: str) -> tuple[Delta, str]:
        """What was held back, and why the message ends: "stop", "length", "tool_calls"."""


class PlainParser:
    """All text is content."""

    def push(self, text: str) -> Delta:
        return {"content": text} if text else {}

    def finish(self, reason: str) -> tuple[Delta, str]:
        return {}, reason


def merge_deltas(deltas: Iterable[Delta]) -> Delta:
    """Several deltas as one."""
    merged: Delta = {}
    for delta in deltas:
        for key, value in delta.items():
            if key not in merged:
                merged[key] = value
            elif key == "tool_calls":
                for call in value:
                    last = merged[key][-1]
                    if last["index"] == call["index"]:  # more of its arguments
                        arguments = last["function"]["arguments"] + call["function"]["arguments"]
                        last = {**last, "function": {**last["function"], "arguments": arguments}}
                        merged[key] = [*merged[key][:-1], last]
                    else:
                        merged[key] = [*merged[key], call]
            else:
                merged[key] += value
    return merged


def merge(message: dict[str, Any], delta: Delta) -> None:
    """Adds a delta to the message that it belongs to."""
    for key, value in delta.items():
        if key == "tool_calls":
            _merge_calls(message.setdefault(key, []), value)
        elif isinstance(value, str):
            message[key] = (message.get(key) or "") + value
        else:
            message[key] = value


def _merge_calls(calls: list[dict[str, Any]], deltas: list[dict[str, Any]]) -> None:
    for delta in deltas:
        while len(calls) <= delta["index"]:
            calls.append({})
        call = calls[delta["index"]]
        for key, value in delta.items():
            if key == "function":
                function = call.setdefault("function", {"name": "", "arguments": ""})
                for part, text in value.items():
                    function[part] += text
            elif key != "index":
                call[key] = value
