"""The bodies of requests: their fields, types and limits, and what is said of a wrong one.

Owns how JSON is read. As OpenAI's server and vLLM do: of a field that is given twice the last counts, a field that
nobody knows is ignored, null means the default, and a wrong type is an error. NaN and Infinity are no JSON. What is
known elsewhere and changes the answer, but is not done here, is refused by name and never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from flask import request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from pyedge.engine.sampling_params import SamplingParams, shown
from pyedge.server.errors import ApiError, unsupported

B = TypeVar("B", bound="Body")

MAX_STOPS = 64
MAX_STOP_CHARS = 4096  # of all stop strings of a request
MAX_BIASES = 8192  # tokens of logit_bias, which the engine's thread goes through
MAX_PRIORITY = 2**31 - 1


class Body(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, protected_namespaces=())

    REFUSED: ClassVar[Mapping[str, str]] = {}  # fields: why they are not for this server

    model: str | None = None


class StreamOptions(Body):
    include_usage: bool | None = None


class Sampling(Body):
    """Fields of everything that generates."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=MAX_BIASES)
    ignore_eos: bool | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: int | None = Field(None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    cache_salt: str | None = None
    response_format: dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None  # llama.cpp's name
    guided_json: dict[str, Any] | str | None = None  # vLLM's names
    guided_regex: str | None = None
    guided_grammar: str | None = None

    def check_stream(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                400, "stream_options: is for a stream only; set stream, or leave it out", param="stream_options"
            )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def params(self, **others: Any) -> SamplingParams:
        """The rules of the engine, with the defaults of its own."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "repeat_last_n", "presence_penalty",
            "frequency_penalty", "max_tokens", "min_tokens", "seed", "ignore_eos", "n",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MAX_STOPS or sum(map(len, stops)) > MAX_STOP_CHARS:
            raise ApiError(
                400,
                f"stop: {len(stops)} strings; at most {MAX_STOPS} of {MAX_STOP_CHARS} characters together",
                param="stop",
            )
        if not all(stops):
            raise ApiError(400, "stop: a stop string has at least one character", param="stop")
        bias = None if self.logit_bias is None else {_token(key): value for key, value in self.logit_bias.items()}
        try:
            return SamplingParams(**{**given, "stop": tuple(stops), "logit_bias": bias, **others})
        except ValueError as error:
            raise refused(error) from None


def refused(error: ValueError, param: str | None = None) -> ApiError:
    """What is said of a wrong value in Python, which begins with the field's name if it is about one."""
    text = str(error)
    first = text.split(maxsplit=1)[0].rstrip(":")
    too_long = "tokens" in text and ("context" in text or "KV cache" in text)
    code = "context_length_exceeded" if too_long else None
    known = first == "logprobs" or first in Sampling.model_fields
    return ApiError(400, text, param=first if known else param, code=code)


def _token(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 12):
        raise ApiError(400, f"logit_bias: the keys are token ids, not {shown(key)}", param="logit_bias")
    return int(key)


def read_body(kind: type[B]) -> B:
    """The request's body. Raises ApiError."""
    data = request.get_data()
    try:
        raw = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is no valid JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ApiError(400, f"the body must be a JSON object, not {_kind(raw)}")
    for name, why in kind.REFUSED.items():
        value = raw.get(name)
        if value is not False and value not in (None, [], {}):
            raise unsupported(name, why)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise _wrong(raw, error) from None


def _wrong(raw: Any, error: ValidationError) -> ApiError:
    """The first of the errors, and of a choice between types the one that got furthest."""
    each = [(_where(raw, e["loc"]), e["msg"]) for e in error.errors(include_url=False, include_input=False)]
    where, what = max(each, key=lambda e: len(e[0]))
    if len({w for w, _ in each if w == where}) == 1:
        what = ", or ".join(dict.fromkeys(m for w, m in each if w == where))
    param = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in where).lstrip(".")
    return ApiError(400, f"{param}: {what[:1].lower()}{what[1:]}" if param else what, param=param or None)


def _where(raw: Any, loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """pydantic's place in the body, without the names of the types that it tried."""
    path: list[int | str] = []
    for key in loc:
        inside = (isinstance(raw, dict) and key in raw) or (isinstance(raw, list) and isinstance(key, int))
        if inside:
            raw = raw[key]
            path.append(key)
        elif key == loc[-1] and isinstance(raw, dict) and isinstance(key, str) and "[" not in key:
            path.append(key)  # it is missing
    return tuple(path)


def _kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")


# ---- chat ------------------------------------------------------------------------------------------------------------

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
MAX_MESSAGES = 4096


class ChatMessage(BaseModel):
    """As the template wants it, which may read more fields than these."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(Body):
    """What a chat template is given."""

    messages: list[ChatMessage] = Field(max_length=MAX_MESSAGES)
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None

    def plain_messages(self) -> list[dict[str, Any]]:
        return [_plain(i, message) for i, message in enumerate(self.messages)]

    def template_variables(self) -> dict[str, Any]:
        """Those of the request: `enable_thinking` and the like."""
        given = dict(self.chat_template_kwargs or {})
        if taken := given.keys() & {"messages", "tools", "add_generation_prompt", "limit", "self"}:
            raise ApiError(
                400, f"chat_template_kwargs: {min(taken)} has a field of its own", param="chat_template_kwargs"
            )
        if self.reasoning_effort is not None:
            given.setdefault("reasoning_effort", self.reasoning_effort)
        return given


class ChatRequest(Sampling, ChatBody):
    REFUSED: ClassVar[Mapping[str, str]] = {
        "functions": "is not supported; use tools",
        "function_call": "is not supported; use tool_choice",
        "audio": "this model writes text only",
        "prompt_logprobs": "is not supported; render the prompt by /apply-template, and use echo of /v1/completions",
        "web_search_options": "this server searches nothing",
        "continue_final_message": "is not supported; render the prompt by /apply-template and use /v1/completions",
    }

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    def chat_params(self) -> SamplingParams:
        if self.modalities not in (None, ["text"]):
            raise unsupported("modalities", 'this model writes text only; leave it out, or give ["text"]')
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs")
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise ApiError(
                    400, "max_tokens and max_completion_tokens differ; give one", param="max_completion_tokens"
                )
            self.max_tokens = self.max_completion_tokens
        return self.params(logprobs=(self.top_logprobs or 0) if self.logprobs else None)


def _plain(i: int, message: ChatMessage) -> dict[str, Any]:
    if message.role not in ROLES:
        where = f"messages[{i}].role"
        raise ApiError(400, f"{where}: {shown(message.role)} is none of {', '.join(ROLES)}", param=where)
    plain = {key: value for key, value in message.model_dump(exclude_unset=True).items() if value is not None}
    if message.role == "developer":  # newer clients' word for it; templates know the older one
        plain["role"] = "system"
    if isinstance(message.content, list):
        plain["content"] = [_text_part(f"messages[{i}].content[{j}]", part) for j, part in enumerate(message.content)]
    return plain


def _text_part(where: str, part: dict[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("image_url", "input_image", "image", "input_audio", "file", "video_url", "audio_url"):
        raise unsupported(where, f"is of type {kind!r}, and this model reads text only")
    if kind == "refusal":  # what an assistant once said
        return {"type": "text", "text": part.get("refusal")}
    if kind not in ("text", "input_text", "output_text"):
        raise ApiError(400, f"{where}.type: must be 'text', not {shown(kind)}", param=f"{where}.type")
    return {"type": "text", "text": part.get("text")}


# ---- completions -----------------------------------------------------------------------------------------------------

DEFAULT_MAX_TOKENS = 16  # OpenAI's, of completions


class CompletionRequest(Sampling):
    REFUSED: ClassVar[Mapping[str, str]] = {
        "suffix": "is not supported; leave it out, and write the prompt so that it ends where text is to come",
        "prompt_logprobs": "is not supported; use echo with logprobs",
    }

    prompt: Any = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None

    def completion_params(self) -> SamplingParams:
        if self.best_of is not None and self.best_of != (1 if self.n is None else self.n):
            raise unsupported("best_of", "is not supported unless it equals n; ask for n and choose yourself")
        if self.max_tokens is None:
            self.max_tokens = max(DEFAULT_MAX_TOKENS, self.min_tokens or 0)
        return self.params(logprobs=self.logprobs, prompt_logprobs=self.logprobs if self.echo else None)

    def prompts(self) -> list[str | list[int]]:
        """The prompts, each text or token ids, which are not checked yet."""
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not isinstance(given, list):
            raise ApiError(
                400, f"prompt: must be text, token ids, or a list of these, not {_kind(given)}", param="prompt"
            )
        if not given:
            raise ApiError(400, "prompt: is an empty list; give at least one prompt", param="prompt")
        if _are_ids(given):
            return [given]
        for i, each in enumerate(given):
            if not isinstance(each, str) and not (isinstance(each, list) and _are_ids(each)):
                raise ApiError(400, f"prompt[{i}]: must be text or token ids, as all the others", param=f"prompt[{i}]")
        return given


def _are_ids(value: list[Any]) -> bool:
    return all(type(token) is int for token in value)


# ---- tokens ----------------------------------------------------------------------------------------------------------


MAX_CHARS = 1 << 20  # of a text to be counted, and tokens to be spelled: a second's work that holds up everyone


class TokenizeRequest(Body):
    """vLLM's names, and llama.cpp's: `content`, `add_special`, `with_pieces`."""

    prompt: str | None = Field(None, max_length=MAX_CHARS)
    content: str | None = Field(None, max_length=MAX_CHARS)
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Body):
    tokens: list[int] = Field(max_length=MAX_CHARS)


# ---- embeddings ------------------------------------------------------------------------------------------------------

MAX_TEXTS = 2048  # OpenAI's limit


class EmbeddingRequest(Body):
    input: Any = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    def texts(self) -> list[str | list[int]]:
        given = self.input
        texts: list[str | list[int]] = (
            [given] if isinstance(given, str) or (isinstance(given, list) and given and _are_ids(given)) else given
        )
        if not isinstance(texts, list) or not texts:
            raise ApiError(400, "input: must be a text, a list of texts, or token ids, and not empty", param="input")
        if len(texts) > MAX_TEXTS:
            raise ApiError(400, f"input: {len(texts)} texts, and at most {MAX_TEXTS} may come at once", param="input")
        for i, text in enumerate(texts):
            if not isinstance(text, str) and not (isinstance(text, list) and _are_ids(text)):
                raise ApiError(400, f"input[{i}]: must be text or token ids", param=f"input[{i}]")
            if not text:
                where = "input" if isinstance(given, str) else f"input[{i}]"
                raise ApiError(400, f"{where}: is empty; give at least one character", param=where)
        return texts


class RerankRequest(Body):
    query: str = Field(min_length=1)
    documents: list[str | dict[str, Any]] = Field(max_length=MAX_TEXTS)
    top_n: int | None = Field(None, ge=1)
    return_documents: bool | None = None

    def texts(self) -> list[str]:
        return [_document(i, document) for i, document in enumerate(self.documents)]


def _document(i: int, document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise ApiError(400, f"documents[{i}]: must be text, or an object with text", param=f"documents[{i}]")
    return text
