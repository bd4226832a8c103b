"""Forms of an answer, tool calls and thoughts over HTTP: by a tiny random model that knows nothing of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel
from serving import Server, serving
from tinymodel import write_tiny_llama

from pyedge.engine.grammar import GrammarCompiler
from pyedge.errors import BusyError

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO: Any = [{"role": "user", "content": "the other"}]
WILD: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1, "min_p": 0, "max_tokens": 300}
COLOR = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "ok": {"type": "boolean"}},
    "required": ["color", "ok"],
    "additionalProperties": False,
}
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} write <tool_call>{...}</tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments.mode }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
MODE = {"type": "object", "properties": {"mode": {"enum": ["on", "off"]}}, "required": ["mode"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "light", "parameters": {**MODE, "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now"}},
]


@pytest.fixture(scope="module")
def tool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = write_tiny_llama(tmp_path_factory.mktemp("tools") / "tiny.gguf", chat_template=TEMPLATE)
    with serving(path) as server:
        yield server
        server.check()


@pytest.fixture
def client(tool_server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0, timeout=20) as client:
        yield client


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize(
    "form",
    [
        {"response_format": schema_format(COLOR)},
        {"json_schema": COLOR},
        {"guided_json": COLOR},
        {"guided_json": json.dumps(COLOR)},
    ],
    ids=lambda form: next(iter(form)),
)
def test_a_schema_is_kept(server: Server, form: dict[str, Any]) -> None:
    for path, prompt in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "the other"})):
        (choice,) = server.post(path, {**WILD, **prompt, **form, "seed": 3}).json["choices"]
        text = choice["text"] if path == TEXT else choice["message"]["content"]
        jsonschema.validate(json.loads(text), COLOR)
        assert choice["finish_reason"] == "stop"
        chunks = server.post(path, {**WILD, **prompt, **form, "seed": 3, "stream": True}).chunks
        assert text == "".join(
            c["choices"][0].get("text", c["choices"][0].get("delta", {}).get("content", "")) for c in chunks
        )


def test_other_forms(server: Server) -> None:
    for form, pattern in (
        ({"regex": "[a-c]{4}"}, "[a-c]{4}"),
        ({"guided_regex": r"\d{2}"}, r"\d\d"),
        ({"grammar": 'root ::= "yes" | "no"'}, "yes|no"),
        ({"guided_grammar": 'start: "yes" | "no"'}, "yes|no"),
        ({"response_format": {"type": "text"}}, r"(.|\n)*"),
    ):
        (choice,) = server.post(CHAT, {**WILD, "messages": HELLO, "seed": 1, **form}).json["choices"]
        assert re.fullmatch(pattern, choice["message"]["content"])
    (choice,) = server.post(
        CHAT, {**WILD, "messages": HELLO, "seed": 1, "response_format": {"type": "json_object"}}
    ).json["choices"]
    assert choice["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("wrong", "param", "why"),
    [
        ({"response_format": schema_format({"type": "strin"})}, "json_schema", "strin"),
        ({"response_format": schema_format({"uniqueItems": True})}, "json_schema", "uniqueItems"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"regex": "("}, "regex", "unclosed"),
        ({"regex": ""}, "regex", "empty"),
        ({"regex": "x" * 200_000}, "regex", "the most"),
        ({"grammar": "nonsense"}, "grammar", "nonsense"),
        ({"regex": "a", "grammar": 'start: "a"'}, "grammar", "one form"),
        ({"guided_json": "{"}, "guided_json", "no JSON"),
        ({"tools": TOOLS}, "tools", "knows no tools"),
        ({"tool_choice": "required"}, "tool_choice", "without tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "letters"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice", "maybe"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "none of"),
    ],
)
def test_what_cannot_be_kept_is_refused(server: Server, wrong: dict[str, Any], param: str, why: str) -> None:
    reply = server.post(CHAT, {"messages": HELLO, "max_tokens": 4, **wrong})
    assert reply.status == 400
    assert reply.error["param"] == param
    assert why in reply.error["message"]
    assert not reply.error["message"].startswith(f"{param}: {param}: ")


class Color(BaseModel):
    color: Literal["red", "green"]
    ok: bool


def test_openai_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Color, temperature=1.5, seed=2)
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Color)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "light"}}])
def test_openai_tools(client: openai.OpenAI, choice: Any) -> None:
    same: dict[str, Any] = {
        "model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False,
        "temperature": 1.5, "seed": 4,
    }  # fmt: skip
    answer = client.chat.completions.create(**same).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    (call,) = answer.message.tool_calls or []
    assert call.type == "function"
    if choice != "required":
        assert call.function.name == "light"
    if call.function.name == "light":
        jsonschema.validate(json.loads(call.function.arguments), MODE)
    name, arguments, ids = "", "", set()
    for chunk in client.chat.completions.create(**same, stream=True):
        for delta in chunk.choices[0].delta.tool_calls or []:
            assert delta.index == 0
            assert delta.function is not None
            ids.add(delta.id)
            name += delta.function.name or ""
            arguments += delta.function.arguments or ""
        reason = chunk.choices[0].finish_reason
    assert (name, json.loads(arguments), reason) == (
        call.function.name, json.loads(call.function.arguments), "tool_calls",
    )  # fmt: skip
    assert len(ids - {None}) == 1
    back: Any = [*HELLO, answer.message, {"role": "tool", "tool_call_id": call.id, "content": "<|im_end|> done"}]
    assert client.chat.completions.create(model="tiny", messages=back, tools=TOOLS, max_tokens=2).choices


def test_a_form_together_with_tools(tool_server: Server) -> None:
    kinds = set()
    for seed in range(8):
        body = {**WILD, "messages": HELLO, "tools": TOOLS, "response_format": schema_format(COLOR), "seed": seed}
        (choice,) = tool_server.post(CHAT, body).json["choices"]
        kinds.add(choice["finish_reason"])
        for call in choice["message"].get("tool_calls", []):
            assert call["function"]["name"] in ("light", "now")
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), COLOR)
    assert kinds >= {"stop", "tool_calls"}
    forced = tool_server.post(CHAT, {**body, "tool_choice": "required", "parallel_tool_calls": False}).json["choices"]
    assert forced[0]["finish_reason"] == "tool_calls"
    reply = tool_server.post(CHAT, {"messages": HELLO, "tools": TOOLS, "grammar": 'start: "a"'})
    assert (reply.status, reply.error["param"]) == (400, "tools")


def test_strict_tools_leave_the_model_free(tool_server: Server) -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    body = {**WILD, "messages": HELLO, "max_tokens": 20, "seed": 1, "ignore_eos": True, "tools": strict}
    (choice,) = tool_server.post(CHAT, body).json["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"]) > 5
    assert "\ufffd" not in choice["message"]["content"][:-1]  # the model is random, and its bytes are bound to be text
    reply = tool_server.post(CHAT, {**body, "tools": [{"type": "function", "function": {**strict[0]["function"],
        "parameters": {"type": "strin"}}}]})  # fmt: skip
    assert reply.status == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_cannot_be_followed_is_the_callers_mistake(server: Server, stream: bool) -> None:
    """It compiles, and is too much once a key may begin: no other try would do better."""
    schema = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(2000)}}
    reply = server.post(CHAT, {**WILD, "messages": HELLO, "json_schema": schema, "seed": 1, "stream": stream})
    error = reply.chunks[-1]["error"] if reply.status == 200 else reply.error
    assert error["type"] == "invalid_request_error"
    assert "make it simpler" in error["message"]


def test_who_finds_all_compilations_taken_is_told_to_come_again(
    tool_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(self: object, *_: object) -> None:
        raise BusyError("other grammars are being compiled")

    monkeypatch.setattr(GrammarCompiler, "matcher", busy)
    for path, body in ((CHAT, {"messages": HELLO}), (TEXT, {"prompt": "a"})):
        reply = tool_server.post(path, {**body, "regex": "a"})
        assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "server_busy", "5")


def test_arguments_are_objects_to_a_template_and_results_stay_text(tool_server: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "light", "arguments": '{"mode": "on"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "<|im_end|>"},
    ]
    prompt = tool_server.post("/apply-template", {"messages": messages, "tools": TOOLS}).json["prompt"]
    assert "<tool_call>light on</tool_call>" in prompt
    count = tool_server.post("/tokenize", {"messages": messages}).json["tokens"].count(2)
    assert count == 3  # one for each turn, and none for the result's text


def test_a_thought_that_the_template_begins_comes_before_the_form(tool_server: Server) -> None:
    body = {
        **WILD, "messages": HELLO, "chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 30,
    }  # fmt: skip
    (choice,) = tool_server.post(CHAT, {**body, "seed": 1, "regex": "[ab]{3}"}).json["choices"]
    assert choice["finish_reason"] == "length"  # a random model does not write </think>
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["content"] == ""


def test_a_form_behind_a_thought(tool_server: Server) -> None:
    from pyedge import Grammar

    for made, right in (
        (Grammar.regex("[ab]{3}"), "aba"),
        (Grammar.json_schema(COLOR), '{"color": "red", "ok": true}'),
    ):
        matcher = tool_server.llm.engine._grammars.matcher(made.behind("</think>"))
        for token in tool_server.llm.tokenizer.encode(f"Well < then.</think>\n\n{right}"):
            assert int.from_bytes(matcher.mask(), "little") >> token & 1
            matcher.accept(token)
        assert matcher.complete
