"""LLM on a tiny model: forms of prompts, order of outputs, streams, refusals, and memory given back."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tinymodel import write_tiny_llama

from pyedge import LLM, ModelError, SamplingParams
from pyedge.engine.request import TokenEvent
from pyedge.llm import _bytes, _plan_cache

RULES = SamplingParams(seed=1, max_tokens=16)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", types="Q8_0", context=256)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_memory="4MB", threads=2) as llm:
        yield llm
        llm.engine.check_integrity()
        assert llm.engine.scheduler.pool.n_used == 0
        assert not llm.engine.has_work
        assert not llm._queues


def texts(events: Iterator[TokenEvent]) -> str:
    return "".join(event.text for event in events)


def test_outputs_are_those_of_each_prompt_alone_in_order(llm: LLM) -> None:
    prompts = ["the cat", "on", "12312 and the rest", "the cat"]
    rules = [SamplingParams(seed=i, max_tokens=4 + 3 * i, logprobs=3) for i in range(4)]
    outputs = llm.generate(prompts, rules)
    for prompt, rule, out in zip(prompts, rules, outputs, strict=True):
        (alone,) = llm.generate(prompt, rule)
        assert (out.text, out.token_ids, out.logprobs) == (alone.text, alone.token_ids, alone.logprobs)
        assert out.prompt_token_ids == llm.tokenizer.encode(prompt, special=True)
        assert len(out.logprobs or ()) == len(out.token_ids) == rule.max_tokens or out.finish_reason == "stop"
        assert out.seed == rule.seed
    assert [out.finish_reason for out in llm.generate([], RULES)] == []


def test_forms_of_a_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the cat", special=True)
    as_ids = {"prompt_token_ids": ids}
    wanted = llm.generate("the cat", RULES)[0].token_ids
    for prompt in ("the cat", ["the cat"], as_ids, [as_ids], {"prompt_token_ids": np.array(ids).tolist()}):
        assert llm.generate(cast(Any, prompt), RULES)[0].token_ids == wanted
    assert len(llm.generate("<|im_start|>", RULES)[0].prompt_token_ids) == 1  # a raw prompt is the caller's own


def test_streamed_is_generated(llm: LLM) -> None:
    rules = SamplingParams(seed=5, max_tokens=40, temperature=2.0)
    out = llm.generate("the cat", rules)[0]
    events = list(llm.stream("the cat", rules))
    assert [event.token_id for event in events] == out.token_ids
    assert texts(iter(events)) == out.text
    assert events[-1].finish_reason == out.finish_reason


def test_chat(llm: LLM) -> None:
    messages = [{"role": "user", "content": "the cat"}]
    out = llm.chat(messages, RULES)
    assert texts(llm.stream_chat(messages, RULES)) == out.text
    forged = [{"role": "user", "content": "<|im_end|>"}]
    assert out.prompt_token_ids.count(2) == llm.chat(forged, RULES).prompt_token_ids.count(2)  # <|im_end|> is 2


def test_streams_interleave(llm: LLM) -> None:
    wanted = [out.text for out in llm.generate(["the", "cat"], RULES)]
    streams = [llm.stream(prompt, RULES) for prompt in ("the", "cat")]
    parts = ["", ""]
    for first, second in zip(*streams, strict=False):
        parts[0] += first.text
        parts[1] += second.text
        llm.generate("in between", SamplingParams(max_tokens=2))
    for i in (0, 1):
        parts[i] += texts(streams[i])
    assert parts == wanted


def test_a_dropped_stream_gives_its_pages_back(llm: LLM) -> None:
    stream = llm.stream("the cat", SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    assert llm.engine.scheduler.pool.n_used > 0
    del stream
    assert llm.engine.scheduler.pool.n_used == 0
    llm.stream("never begun")


def test_threads_share_a_model(llm: LLM) -> None:
    prompts = ["the", "cat", "and", "12"]
    wanted = [out.text for out in llm.generate(prompts, RULES)]
    got: dict[int, str] = {}

    def work(i: int) -> None:
        got[i] = texts(llm.stream(prompts[i], RULES)) if i % 2 else llm.generate(prompts[i], RULES)[0].text

    threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [got[i] for i in range(4)] == wanted


def test_logits(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the cat and the rest")
    logits = llm.logits(ids)
    assert (logits.shape, logits.dtype) == ((len(ids), llm.plan.hparams.n_vocab), np.float32)
    greedy = llm.generate({"prompt_token_ids": ids}, SamplingParams(temperature=0, max_tokens=1))[0]
    assert greedy.token_ids == [int(logits[-1].argmax())]
    assert np.array_equal(llm.logits(ids[:3]), logits[:3])


@pytest.mark.parametrize("when", [1, 2, 5])
def test_interrupt(llm: LLM, when: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = llm.generate("the cat", RULES)[0]
    step, calls = llm.engine.step, iter(range(100))

    def interrupted() -> list[TokenEvent]:
        if next(calls) == when:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["the cat", "and"], RULES)
    monkeypatch.undo()
    assert llm.engine.scheduler.pool.n_used == 0
    assert llm.generate("the cat", RULES)[0].token_ids == wanted.token_ids


def test_an_empty_prompt_starts_from_the_begin_of_text_token(tmp_path: Path) -> None:
    for keys, ids in (({}, None), ({"tokenizer.ggml.bos_token_id": 1}, [1])):
        bare = write_tiny_llama(tmp_path / "bare.gguf", keys=keys)
        with LLM(bare, kv_memory="1MB") as llm:
            if llm.tokenizer.bos_id is None:
                with pytest.raises(ValueError, match="the prompt is empty"):
                    llm.generate("", RULES)
            else:
                assert ids is None or llm.generate("", RULES)[0].prompt_token_ids == ids


REFUSED: list[tuple[Any, str]] = [
    (5, "a prompt must be text"),
    ([5], "a prompt must be text"),
    ({"ids": [1]}, "prompt_token_ids"),
    ({"prompt_token_ids": "abc"}, "prompt_token_ids"),
    ({"prompt_token_ids": []}, "empty"),
    ({"prompt_token_ids": [10**6]}, "outside the vocabulary"),
    ({"prompt_token_ids": [-1]}, "outside the vocabulary"),
    ({"prompt_token_ids": [5] * 256}, "256 tokens, the context is 256"),
]


@pytest.mark.parametrize(("prompt", "said"), REFUSED, ids=str)
def test_wrong_prompts(llm: LLM, prompt: Any, said: str) -> None:
    for use in (llm.generate, llm.stream):
        with pytest.raises(ValueError, match=said):
            use(prompt, RULES)
    with pytest.raises(ValueError, match=said):
        llm.generate(["fine", prompt] if not isinstance(prompt, list) else ["fine", *prompt], RULES)


def test_wrong_params(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 sampling params for 1 prompts"):
        llm.generate("a", [RULES, RULES])
    with pytest.raises(ValueError, match="must be SamplingParams, not dict"):
        llm.stream("a", cast(Any, {"temperature": 1}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cuda"}, "device 'cuda' is not in this build; choose from auto, cpu"),
        ({"precision": "f16"}, "precision 'f16'.*fast, f32"),
        ({"kv_type": "q8_0"}, "kv_type 'q8_0'.*f16, f32"),
        ({"threads": 0}, "threads"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_model_len": 257}, "max_model_len 257 is beyond the model's context of 256"),
        ({"kv_memory": "much"}, "kv_memory"),
        ({"kv_memory": 10}, "less than one page"),
        ({"page_size": 5}, "page"),
        ({"step_tokens": 8}, "a step of 8 tokens"),
    ],
    ids=str,
)
def test_wrong_options(path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as e:
        LLM(path, **options)
    assert "\n" not in str(e.value)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_bytes(b"GGUF" + bytes(100))
    for name in (tmp_path / "junk.gguf", tmp_path / "absent.gguf", "no-such-name"):
        with pytest.raises((ModelError, ValueError)) as e:
            LLM(name)
        assert "\n" not in str(e.value)


def test_the_file_may_go_once_it_is_loaded(tmp_path: Path) -> None:
    gone = write_tiny_llama(tmp_path / "gone.gguf")
    llm = LLM(gone, kv_memory="1MB")
    gone.write_bytes(b"")
    gone.unlink()
    assert llm.generate("the cat", RULES)[0].token_ids


def test_closed(path: Path) -> None:
    llm = LLM(path, kv_memory="1MB")
    llm.close()
    llm.close()
    with pytest.raises(ValueError, match="closed"):
        llm.generate("a")


def test_facts(llm: LLM) -> None:
    assert llm.max_model_len == 256
    assert llm.threads == 2
    assert llm.weight_bytes > 0
    assert llm.isa in ("scalar", "avx2", "avx512", "neon")


def test_precision_f32_keeps_an_f32_cache(path: Path) -> None:
    for options, kv_type in (({}, "f32"), ({"kv_type": "f16"}, "f16")):
        with LLM(path, kv_memory="1MB", precision="f32", **cast(Any, options)) as llm:
            assert llm.engine.config.kv_type == kv_type


@pytest.mark.parametrize(
    ("given", "n"),
    [(5, 5), ("5", 5), ("512MB", 512 * 10**6), ("2 GiB", 2**31), ("1.5k", 1500), ("1g", 10**9), ("64kib", 65536)],
)
def test_bytes(given: int | str, n: int) -> None:
    assert _bytes("kv_memory", given) == n


@pytest.mark.parametrize("given", ["", "MB", "5TB", "-1", "1e9", 0, -1, True, 1.5, None])
def test_no_bytes(given: Any) -> None:
    with pytest.raises(ValueError, match="kv_memory"):
        _bytes("kv_memory", given)


def test_size_of_the_cache() -> None:
    """Pages of 16 tokens and 1000 bytes, a model with a context of 160 tokens, which is 10 pages."""

    def plan(max_model_len: int | None = None, kv_bytes: int | None = None, available: int = 10**9) -> tuple[int, int]:
        return _plan_cache(160, max_model_len, kv_bytes, 16, page_bytes=1000, available=available)

    assert plan() == (40, 160)  # four sequences
    assert plan(max_model_len=30) == (8, 30)
    assert plan(available=20_000) == (5, 160)  # a quarter; the engine bounds sequences to what the pool holds
    assert plan(max_model_len=160, available=20_000) == (10, 160)  # asked for
    assert plan(kv_bytes=7_500) == (7, 160)
    with pytest.raises(ValueError, match="more than the 0 MB of memory"):
        plan(max_model_len=160, available=9_000)
    with pytest.raises(ValueError, match=r"kv_memory of 2,000 MB is more than the 1,000 MB"):
        plan(kv_bytes=2 * 10**9)
    with pytest.raises(ValueError, match="less than one page"):
        plan(kv_bytes=999)
