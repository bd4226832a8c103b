"""LLM: a model file, ready to generate or to embed. What Python users import.

Owns loading (file, tokenizer, plan, weights, the size of the KV cache), the forms that prompts may have, and results.
Batches, pages and stop rules are the engine's; text is the tokenizer's.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from pyedge import _core, store
from pyedge.engine.embedder import Embedder
from pyedge.engine.engine import MAX_PER_STEP, Engine, EngineConfig
from pyedge.engine.pace import StepCost
from pyedge.engine.request import FinishReason, Metrics, Request, Status, TokenEvent
from pyedge.engine.sampling_params import SamplingParams, shown
from pyedge.engine.token_ids import checked_ids
from pyedge.models import Plan, build_plan
from pyedge.tokenizers import Tokenizer
from pyedge.tokenizers.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

log = logging.getLogger(__name__)

Prompt = str | Mapping[str, Any]  # text, or {"prompt_token_ids": [...]}
Message = Mapping[str, Any]  # {"role": ..., "content": ...}

DEVICES = ("auto", "cpu")
PAGE_SIZES = (8, 16, 32)
MAX_PAGES = 2**28
MAX_BYTES = 2**62
_LONG_TOKEN = 32  # characters; a text whose tokens were all that long would be an odd one
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True)
class Output:
    """What became of one prompt; with SamplingParams(n=...), its first answer, and `others`."""

    text: str  # without the stop string or end-of-text token that ended it
    token_ids: list[int]  # with them
    finish_reason: FinishReason
    logprobs: list[dict[int, float]] | None  # for each token, natural logs: the most likely ones, and the token itself
    prompt_token_ids: list[int]
    metrics: Metrics
    seed: int  # that was used: passed as SamplingParams(seed=...), it gives this output again
    prompt_logprobs: list[dict[int, float] | None] | None = None  # the same of the prompt; None for its first token
    others: list[Output] = field(default_factory=list)  # the second answer and so on

    @property
    def outputs(self) -> list[Output]:
        """All n answers."""
        return [self, *self.others]


class LLM:
    """A loaded model. Threads may share it; prompts of one `generate` call run as one batch.

    model           a path to a GGUF file, or a name that `pyedge pull` knows, fetched if it is not there yet
    max_model_len   tokens of prompt and output together; None: the model's context, or what the KV cache can hold
    kv_memory       bytes of KV cache, or '512MB', '2GiB'; None: four sequences of max_model_len, and at most a quarter
                    of the memory that is available
    kv_type         'f16', 'f32', 'q8_0' or 'q4_0' (half and a quarter of f16's memory; q4_0 costs quality that shows);
                    None: 'f16', with precision 'f32' 'f32'
    threads         None: the machine's physical cores, within what the process may use
    device          'auto' or 'cpu'
    precision       'fast', or 'f32': float activations and KV cache, no integer kernels: the reference path
    prefix_cache    whether prompts with the same beginning share its keys and values
    max_sequences   that run at once; further ones wait
    step_tokens     computed at most in one step: what a prompt is cut into; at least max_sequences. An encoder takes
                    a whole text in a step, however many these are, up to 65536
    page_size       tokens per KV page: 8, 16 or 32
    pre             how a BPE tokenizer cuts words, by a name of `tokenizer.ggml.pre`; None: as the file says

    A forked process may use a model that was at rest when it was forked; one at work there must be loaded again.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = store.DEFAULT_MODEL,
        max_model_len: int | None = None,
        kv_memory: int | str | None = None,
        kv_type: str | None = None,
        threads: int | None = None,
        device: str = "auto",
        precision: str = "fast",
        *,
        prefix_cache: bool = True,
        max_sequences: int = 64,
        step_tokens: int = 512,
        page_size: int = 16,
        pre: str | None = None,
    ) -> None:
        if not isinstance(model, (str, os.PathLike)) or not isinstance(os.fspath(model), str):
            raise ValueError(f"model must be a path or a name, not {shown(model)}")
        _one_of("device", device, DEVICES)
        _one_of("precision", precision, _core.PRECISIONS)
        default_kv_type = "f32" if precision == "f32" else "f16"
        kv_type = _one_of("kv_type", default_kv_type if kv_type is None else kv_type, _core.KV_TYPES)
        n_threads = 0 if threads is None else _integer("threads", threads, 1, _core.MAX_THREADS)
        kv_bytes = None if kv_memory is None else bytes_of("kv_memory", kv_memory)
        max_model_len = None if max_model_len is None else _integer("max_model_len", max_model_len, 2)
        if not isinstance(prefix_cache, bool):
            raise ValueError(f"prefix_cache must be True or False, not {shown(prefix_cache)}")
        max_sequences = _integer("max_sequences", max_sequences, 1, MAX_PER_STEP)
        step_tokens = _integer("step_tokens", step_tokens, 1, MAX_PER_STEP)
        if step_tokens < max_sequences:
            raise ValueError(
                f"step_tokens ({step_tokens}) must be at least max_sequences ({max_sequences}): "
                "a step takes a token of each sequence"
            )
        page_size = _integer("page_size", page_size, 1)
        if page_size not in PAGE_SIZES:
            raise ValueError(f"page_size must be 8, 16 or 32, not {page_size}")
        if pre is not None and (not isinstance(pre, str) or pre not in PRE_TOKENIZERS):
            raise ValueError(
                f"pre {shown(pre)} is not known; pyedge.tokenizers.pretokenizers.PRE_TOKENIZERS has the names"
            )

        self.path = store.resolve(model, pull=True)
        start = time.perf_counter()
        with _core.Gguf(self.path) as gguf, ThreadPoolExecutor(1) as other_thread:
            # Packing weights leaves Python free meanwhile, and reading a vocabulary keeps one core busy.
            tokenizer = other_thread.submit(Tokenizer.from_gguf, gguf, pre)
            self.plan, tensors = build_plan(gguf, max_model_len), gguf.tensors
            weights = _core.Model(gguf, self.plan.ops, precision, n_threads)
            self.tokenizer = tokenizer.result()
        self._weights: _core.Model | None = weights

        n_pages, length = _plan_cache(
            self.plan.hparams.context_length,
            max_model_len,
            kv_bytes,
            page_size,
            page_bytes=_core.page_bytes(weights, page_size, kv_type),
            available=_core.machine()["memory_available"],
        )
        config = EngineConfig(
            n_pages=n_pages,
            max_model_len=length,
            page_size=page_size,
            max_tokens=step_tokens,
            max_sequences=max_sequences,
            kv_type=kv_type,
            threads=n_threads,
            prefix_cache=prefix_cache,
        )
        self._engine: Engine | None = None
        self._embedder: Embedder | None = None
        if self.plan.pooling is None:
            prior = partial(_prior, self.plan, tensors, precision, kv_type)
            self._engine = Engine(weights, self.tokenizer, config, prior=prior)
        else:
            self._embedder = Embedder(weights, self.plan, config)
        self.max_sequences = max_sequences
        self.threads: int = n_threads or _core.machine()["default_threads"]
        self.isa: str = weights.isa
        self.weight_bytes: int = weights.weight_bytes  # resident
        log.info(
            "%s: loaded in %.2f s: %s, %d threads, %s weights; %d KV pages of %d tokens (%s), contexts of %d tokens",
            self.path,
            time.perf_counter() - start,
            self.isa,
            self.threads,
            _megabytes(self.weight_bytes),
            n_pages,
            page_size,
            kv_type,
            self.max_model_len,
        )

    # ---- generation --------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Output]:
        """Continues each prompt; outputs come in the order of the prompts.

        prompts: text, {"prompt_token_ids": [...]}, or a list of these. Control tokens written in a text are parsed, and
        the model's begin-of-text token is added where it wants one: a raw prompt is the caller's own. (In `chat`,
        control tokens in a message stay text.) params: for all, or one for each prompt. Of n answers, the result is
        the first one, and has all in `outputs`.
        """
        each = _each(prompts)
        if params is None or isinstance(params, SamplingParams):
            rules = [params or SamplingParams()] * len(each)
        elif not isinstance(params, Iterable) or isinstance(params, (str, bytes, Mapping)):
            raise ValueError(f"params must be SamplingParams, or one for each prompt, not {type(params).__name__}")
        else:
            rules = list(params)
            if len(rules) != len(each):
                raise ValueError(f"{len(rules)} sampling params for {len(each)} prompts; give one, or one for each")
        ids = [self.encode(prompt) for prompt in each]
        return self._finish([self._requests(i, r, watched=False) for i, r in zip(ids, rules, strict=True)])

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Generator[TokenEvent, None, None]:
        """Continues one prompt, a token at a time. The last event, and no other, has a finish_reason: "stop" when the
        model ends its answer or a stop string comes, "length" when max_tokens are there or, without that, when the
        context is full. Closing the generator, or dropping it, ends the request.
        """
        return self._stream(self._requests(self.encode(prompt), params))

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Output:
        """Answers a conversation, by the model's chat template."""
        return self._finish([self._requests(self.encode_chat(messages), params, watched=False)])[0]

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[TokenEvent, None, None]:
        """Answers a conversation, a token at a time, as `stream` does."""
        return self._stream(self._requests(self.encode_chat(messages), params))

    def logits(self, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """What the model predicts after each token: [n, n_vocab], row i for token i + 1. No other request matters.
        Raises ModelError where the model makes numbers that are none."""
        return self.engine.logits(token_ids)

    # ---- embeddings --------------------------------------------------------------------------------------------------

    def embed(self, texts: Prompt | Sequence[Prompt], *, normalize: bool = True) -> npt.NDArray[np.float32]:
        """Vectors that are close to each other where texts mean the same: [n, d], in the order of the texts.

        texts: text, {"prompt_token_ids": [...]}, or a list of these. A text gets the model's own begin and end tokens,
        and control tokens written in it stay text; token ids are taken as they are. normalize: to length 1, so that a
        dot product is the cosine. A text longer than the model reads is an error, never cut.
        """
        import numpy as np

        embedder = self.embedder
        each = [self.encode_text(i, text) for i, text in enumerate(_each(texts))]
        out = embedder.embed(each)
        if normalize:
            for row in out:  # an exact sum: its bits cannot depend on how numpy adds
                length = math.sqrt(math.fsum((row.astype(np.float64) ** 2).tolist()))
                row /= np.float32(length or 1.0)
        return out

    # ---- prompts -----------------------------------------------------------------------------------------------------

    def encode(self, prompt: Any) -> Any:
        """Token ids of a prompt as `generate` takes it; ids that are given come back, and the engine checks them."""
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" not in prompt:
                raise ValueError('a prompt that is no text must be {"prompt_token_ids": [integers]}')
            return prompt["prompt_token_ids"]  # the engine checks them
        if not isinstance(prompt, str):
            raise ValueError(f"a prompt must be text or {{'prompt_token_ids': [...]}}, not {type(prompt).__name__}")
        # A count is not worth seconds where nothing can fit; of what nearly fits, the engine says how many there are.
        hopeless = len(prompt) > _LONG_TOKEN * self.max_model_len
        limit = self.max_model_len if hopeless else None
        ids = self.tokenizer.encode(prompt, special=True, eos=False, limit=limit)  # the answer comes behind it
        if not ids and self.tokenizer.bos_id is not None:
            ids = [self.tokenizer.bos_id]
        if not ids:
            raise ValueError("the prompt is empty, and this model has no begin-of-text token to start from")
        return ids

    def encode_text(self, number: int, text: Any) -> list[int]:
        """Token ids of a text as `embed` takes them. number: what errors call it."""
        capacity = self.max_model_len
        if isinstance(text, Mapping):
            if "prompt_token_ids" not in text:
                raise ValueError('a text that is none must be {"prompt_token_ids": [integers]}')
            ids = checked_ids(text["prompt_token_ids"], self.plan.hparams.n_vocab)
        elif isinstance(text, str):
            hopeless = len(text) > _LONG_TOKEN * capacity
            ids = self.tokenizer.encode(text, limit=capacity if hopeless else None)
        else:
            raise ValueError(f"a text must be str or {{'prompt_token_ids': [...]}}, not {type(text).__name__}")
        if not ids:
            raise ValueError(f"text {number} is empty, and this model has no begin or end token")
        if len(ids) > capacity:
            raise ValueError(f"text {number}: {len(ids)} tokens, but this model reads at most {capacity}; cut it up")
        return ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation as `chat` takes it. variables: for the template."""
        hopeless = _n_characters(messages) > _LONG_TOKEN * self.max_model_len
        limit = self.max_model_len if hopeless else None
        return self.tokenizer.apply_chat_template(messages, tools, add_generation_prompt, limit=limit, **variables)

    # ---- facts -------------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> _core.Model:
        """The model's packed weights, for who runs steps by hand."""
        if self._weights is None:
            raise ValueError("this LLM is closed; make a new one")
        return self._weights

    @property
    def engine(self) -> Engine:
        """Of a model that generates."""
        if self._engine is None:
            self._refuse("this model embeds texts and generates none; use LLM.embed, or another model")
        return self._engine

    @property
    def embedder(self) -> Embedder:
        """Of a model that embeds."""
        if self._embedder is None:
            self._refuse("this model generates text and embeds none; use an embedding model, such as a BERT")
        return self._embedder

    @property
    def max_model_len(self) -> int:
        """Tokens that one sequence can have, prompt and output."""
        return self.engine.scheduler.capacity if self.plan.pooling is None else self.embedder.capacity

    def close(self) -> None:
        """Gives the memory back. Nothing can be generated afterwards."""
        self._engine = self._embedder = self._weights = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _refuse(self, why: str) -> NoReturn:
        raise ValueError(f"{self.path}: {why}" if self._weights else "this LLM is closed; make a new one")

    def _requests(self, ids: Sequence[int], params: SamplingParams | None, *, watched: bool = True) -> list[Request]:
        if not isinstance(params, (SamplingParams, type(None))):
            raise ValueError(f"params must be SamplingParams, not {type(params).__name__}")
        for text in params.stop if params is not None else ():
            if any("\ud800" <= c <= "\udfff" for c in text):
                raise ValueError(f"the stop string {shown(text)} has a lone surrogate, which no output has; remove it")
        return self.engine.requests(ids, params or SamplingParams(), watched=watched)

    def _finish(self, groups: list[list[Request]]) -> list[Output]:
        engine = self.engine
        requests = [request for group in groups for request in group]
        try:
            for request in requests:
                engine.add(request)
            while any(request.status is not Status.FINISHED for request in requests):
                engine.step()
        finally:
            try:
                engine.abort(*requests)
            except KeyboardInterrupt:  # it came in here, and they must not stay behind
                engine.abort(*requests)
                raise
        for request in requests:
            if request.error is not None:
                raise request.error
            _log_speed(request)
        return [_output(*group) for group in groups]

    def _stream(self, requests: list[Request]) -> Generator[TokenEvent, None, None]:
        if len(requests) > 1:
            raise ValueError(f"n is {len(requests)}: a stream is one answer; use generate, or one stream for each")
        return self._stream_one(requests[0])

    def _stream_one(self, request: Request) -> Generator[TokenEvent, None, None]:
        engine, events = self.engine, deque[TokenEvent]()
        try:
            engine.add(request, events)
            while True:
                while not events:
                    engine.step(wanted_by=request)
                event = events.popleft()
                if event.error is not None:
                    raise event.error
                yield event
                if event.finish_reason is not None:
                    _log_speed(request)
                    return
        finally:
            try:
                engine.abort(request)
            except KeyboardInterrupt:  # it came in here, and they must not stay behind
                engine.abort(request)
                raise


def _log_speed(request: Request) -> None:
    times = request.metrics
    log.info(
        "request %d: %d tokens read (%d of them cached), the first written after %.3f s, %d at %.1f per second",
        request.id,
        len(request.prompt_token_ids),
        times.cached_tokens,
        times.ttft or 0.0,
        times.output_tokens,
        1 / times.tpot if times.tpot else 0.0,
    )


def _output(request: Request, *others: Request) -> Output:
    assert request.finish_reason is not None
    assert request.params.seed is not None
    return Output(
        text=request.text,
        token_ids=request.output_token_ids,
        finish_reason=request.finish_reason,
        logprobs=request.logprobs,
        prompt_token_ids=request.prompt_token_ids,
        metrics=request.metrics,
        seed=request.params.seed,
        prompt_logprobs=request.prompt_logprobs,
        others=[_output(other) for other in others],
    )


def _prior(plan: Plan, tensors: Sequence[_core.TensorInfo], precision: str, kv_type: str) -> StepCost:
    from pyedge.engine.profile import expected  # counting is of no use to who asks one thing at a time

    return expected(plan, tensors, precision, kv_type)


def _plan_cache(
    context: int,
    max_model_len: int | None,
    kv_bytes: int | None,
    page_size: int,
    *,
    page_bytes: int,
    available: int,
) -> tuple[int, int]:
    """Pages in the pool, and the length that a sequence may have (which the pool may bound further)."""
    if max_model_len is not None and max_model_len > context:
        raise ValueError(f"max_model_len {shown(max_model_len)} is beyond the model's context of {context} tokens")
    length = context if max_model_len is None else max_model_len
    one_sequence = -(-length // page_size)
    if kv_bytes is not None:
        n_pages = kv_bytes // page_bytes
        if n_pages < 1:
            raise ValueError(f"kv_memory of {kv_bytes} bytes is less than one page, which takes {page_bytes}")
        if max_model_len is not None and n_pages < one_sequence:
            raise ValueError(
                f"kv_memory of {_megabytes(kv_bytes)} holds {n_pages * page_size} tokens, fewer than max_model_len "
                f"{max_model_len}; give {one_sequence * page_bytes} bytes or more, or a smaller max_model_len"
            )
        what, remedy = f"kv_memory of {_megabytes(kv_bytes)}", "kv_memory"
    else:
        n_pages = min(4 * one_sequence, available // 4 // page_bytes)
        if max_model_len is not None:
            n_pages = max(n_pages, one_sequence)  # asked for by name, it may take more than its share
        n_pages = max(n_pages, 1)
        what = f"the KV cache of {n_pages * page_size} tokens takes {_megabytes(n_pages * page_bytes)}, which"
        remedy = "max_model_len"
    if n_pages * page_bytes > available:
        raise ValueError(f"{what} is more than the {_megabytes(available)} of memory available; use a smaller {remedy}")
    return min(n_pages, MAX_PAGES), length


def _n_characters(value: Any, depth: int = 5) -> int:
    """Of messages that nobody has checked: in their contents, and in the texts of parts."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        value = [value.get("content"), value.get("text")]
    if not isinstance(value, (list, tuple)) or depth == 0:
        return 0
    return sum(_n_characters(each, depth - 1) for each in value)


def _each(prompts: Any) -> list[Any]:
    """One prompt as a list of it; what is neither one nor several is refused when it is read."""
    if isinstance(prompts, (str, bytes, Mapping)):
        return [prompts]
    try:
        several = iter(prompts)
    except TypeError:  # an array without dimensions too, which says that it is iterable
        return [prompts]
    return list(several)


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.0f} MB"


def _one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} {shown(value)} is not in this build; choose from {', '.join(choices)}")
    return value


def _integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} must be an integer, not {shown(value)}")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name} must be from {low} {'up' if high is None else f'to {high}'}, not {shown(number)}")
    return number


def bytes_of(name: str, value: Any) -> int:
    """A number of bytes, or a text such as '512MB'. ValueError that begins with the name."""
    if not isinstance(value, str):
        return _integer(name, value, 1, MAX_BYTES)
    match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([KMG]?i?B?)\s*", value, re.IGNORECASE)
    unit = match[2].upper() if match else "?"
    unit = unit + "B" if unit in ("K", "M", "G", "KI", "MI", "GI") else unit
    if match and unit in _UNITS:
        return _integer(name, int(float(match[1]) * _UNITS[unit]), 1, MAX_BYTES)
    raise ValueError(f"{name} must be a number of bytes such as 536870912, '512MB' or '2GiB', not {shown(value)}")
