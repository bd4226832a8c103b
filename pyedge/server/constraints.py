"""What a body says about the form of its answer, as the engine's grammar and the parsers of the text.

Owns `response_format` and its other spellings, `tools` and `tool_choice`: which of them go together, what a model's
template can do, and when a thought comes first. The forms of calls are tool_calls.py's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyedge.engine.grammar import Grammar
from pyedge.engine.sampling_params import shown
from pyedge.server.errors import ApiError
from pyedge.server.message import MessageParser, PlainParser
from pyedge.server.reasoning import CLOSE, OPEN, ReasoningParser
from pyedge.server.tool_calls import ToolCallParser, ToolStyle, call_grammar, free_grammar, style_of

if TYPE_CHECKING:
    from pyedge.server.schemas import ChatRequest, Sampling
    from pyedge.tokenizers import Tokenizer

MAX_TOOLS = 128  # OpenAI's limit
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def grammar_of(body: Sampling) -> Grammar | None:
    """The one form that is asked for, by whichever name."""
    asked: dict[str, Grammar] = {}
    for name, make in (
        ("regex", Grammar.regex), ("guided_regex", Grammar.regex), ("grammar", Grammar.grammar),
        ("guided_grammar", Grammar.grammar), ("guided_json", Grammar.json_schema), ("json_schema", Grammar.json_schema),
    ):  # fmt: skip
        if (value := getattr(body, name)) is not None:
            asked[name] = _made(name, make, value)
    if body.response_format is not None and (made := _of_response_format(body.response_format)) is not None:
        asked["response_format"] = made
    if len(asked) > 1:
        first, second = list(asked)[:2]
        raise ApiError(400, f"{first} and {second} are both given, and a text has one form; give one", param=second)
    return next(iter(asked.values()), None)


def _of_response_format(given: Mapping[str, Any]) -> Grammar | None:
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json_object()
    if kind != "json_schema":
        text = f"response_format.type: must be 'text', 'json_object' or 'json_schema', not {shown(kind)}"
        raise ApiError(400, text, param="response_format.type")
    named = given.get("json_schema")
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        where = "response_format.json_schema"
        raise ApiError(400, f"{where}: must be an object with a name and a schema, an object too", param=where)
    return _made("response_format", Grammar.json_schema, named["schema"])


def _made(name: str, make: Any, value: Any) -> Grammar:
    try:
        made: Grammar = make(value)
    except ValueError as error:
        what = str(error)
        raise ApiError(400, what if what.startswith(f"{name}: ") else f"{name}: {what}", param=name) from None
    return made


@dataclass(frozen=True)
class Tools:
    """Those of a chat request that its prompt tells of."""

    given: list[dict[str, Any]]
    functions: list[dict[str, Any]]  # of `given`
    style: ToolStyle
    forced: list[dict[str, Any]]  # functions of which one must be called; empty: the model is free
    several: bool

    def grammar(self, form: Grammar | None) -> Grammar | None:
        """form: what the answer is to be where it is no call."""
        if self.forced:
            return _made("tools", Grammar.grammar, call_grammar(self.style, self.forced, several=self.several))
        if form is not None:
            return form.otherwise(call_grammar(self.style, self.functions, several=self.several))
        if any(function.get("strict") for function in self.functions):
            free = free_grammar(self.style, self.functions, several=self.several)
            return _made("tools", Grammar.grammar, free)
        return None

    def parser(self) -> ToolCallParser:
        return ToolCallParser(self.style, {f["name"] for f in self.functions}, several=self.several)


def tools_of(body: ChatRequest, tokenizer: Tokenizer) -> Tools | None:
    """None: without tools, or told to leave them alone."""
    functions = [_function(i, tool) for i, tool in enumerate(body.tools or ())]
    choice = ("auto" if functions else "none") if body.tool_choice is None else body.tool_choice
    forced = _forced(functions, choice)
    if not functions or choice == "none":
        return None
    if len(functions) > MAX_TOOLS:
        raise ApiError(400, f"tools: {len(functions)}, and {MAX_TOOLS} is the most", param="tools")
    style = style_of(tokenizer.chat_templates.get("tool_use") or tokenizer.chat_template)
    if style is None:
        raise ApiError(
            400, "tools: this model's chat template knows no tools in a form that is read here; use another model, or "
            "leave them out", param="tools",
        )  # fmt: skip
    several = body.parallel_tool_calls is not False and not isinstance(choice, dict)
    return Tools(list(body.tools or ()), functions, style, forced, several)


def _forced(functions: Sequence[dict[str, Any]], choice: str | dict[str, Any]) -> list[dict[str, Any]]:
    if choice in ("none", "auto"):
        return []
    if not functions:
        raise ApiError(400, "tool_choice: is given without tools; give tools, or leave it out", param="tool_choice")
    if choice == "required":
        return list(functions)
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if name is None:
        text = "tool_choice: must be 'none', 'auto', 'required', or name a function"
        raise ApiError(400, f"{text}, not {shown(choice)}", param="tool_choice")
    if not (found := [f for f in functions if f["name"] == name]):
        raise ApiError(400, f"tool_choice: {shown(name)} is none of the tools", param="tool_choice")
    return found


def _function(i: int, tool: dict[str, Any]) -> dict[str, Any]:
    where = f"tools[{i}]"
    if tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        raise ApiError(400, f"{where}: must be of type 'function', with a function", param=where)
    function: dict[str, Any] = tool["function"]
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        text = f"{where}.function.name: must be 1 to 64 letters, digits, '_', '-' or '.', not {shown(name)}"
        raise ApiError(400, text, param=f"{where}.function.name")
    if not isinstance(function.get("parameters"), (dict, type(None))):
        raise ApiError(400, f"{where}.function.parameters: must be a JSON schema", param=f"{where}.function.parameters")
    return function


def chat_form(
    body: ChatRequest, tools: Tools | None, tokenizer: Tokenizer, prompt: Sequence[int]
) -> tuple[Grammar | None, list[MessageParser]]:
    """What an answer to this prompt must be, and a reader for each of the n answers."""
    asked = grammar_of(body)
    if asked is not None and asked.kind == "grammar" and tools is not None and not tools.forced:
        # Its rules and those of the calls might have names in common.
        text = "go with a JSON schema or a regular expression, and not with a grammar; leave one out"
        raise ApiError(400, f"tools: {text}", param="tools")
    grammar = asked if tools is None else tools.grammar(asked)
    thinking = tokenizer.decode(prompt[-8:]).rstrip().endswith(OPEN)
    if grammar is not None and thinking and (tools is not None or grammar.kind != "grammar"):
        grammar = grammar.behind(CLOSE)
    thinks = thinking or CLOSE in (tokenizer.chat_template or "") or len(tokenizer.encode(CLOSE, bos=False)) == 1

    def parser() -> MessageParser:
        rest: MessageParser = PlainParser() if tools is None else tools.parser()
        return ReasoningParser(rest, thinking=thinking) if thinks else rest

    return grammar, [parser() for _ in range(body.n or 1)]
