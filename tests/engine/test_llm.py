"""LLM on a tiny model: forms of prompts, order of outputs, streams, refusals, and memory given back."""

import inspect
import os
import re
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import pytest
from hostilefiles import with_values
from program import python
from tinymodel import write_tiny_llama

from pyedge import LLM, ModelError, SamplingParams, _core
from pyedge.engine.request import TokenEvent
from pyedge.llm import _plan_cache, bytes_of

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
    for prompt in ("the cat", ["the cat"], as_ids, [as_ids], np.array(["the cat"])):
        assert llm.generate(cast(Any, prompt), RULES)[0].token_ids == wanted
    for other in (np.array(ids), np.array(ids, np.uint16), array("q", ids), tuple(ids), deque(ids)):
        assert llm.generate({"prompt_token_ids": other}, RULES)[0].token_ids == wanted
        assert np.array_equal(llm.logits(cast(Any, other)), llm.logits(ids))
    assert len(llm.generate("<|im_start|>", RULES)[0].prompt_token_ids) == 1  # a raw prompt is the caller's own


def test_several_answers(llm: LLM) -> None:
    params = SamplingParams(seed=5, max_tokens=6, n=3)
    first, second = llm.generate(["the hat", "a cat"], params)
    for output, prompt in ((first, "the hat"), (second, "a cat")):
        assert [o.seed for o in output.outputs] == [5, 6, 7]
        assert output.outputs[0] is output
        assert all(o.outputs == [o] for o in output.others)
        for o in output.outputs:
            (alone,) = llm.generate(prompt, SamplingParams(seed=o.seed, max_tokens=6))
            assert (o.text, o.token_ids, o.prompt_token_ids) == (alone.text, alone.token_ids, alone.prompt_token_ids)
    assert len(llm.chat([{"role": "user", "content": "hi"}], params).outputs) == 3
    with pytest.raises(ValueError, match="n is 3: a stream is one answer"):
        llm.stream("the hat", params)


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


def test_logits_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(with_values("token_embd.weight", float("nan"))())
    with LLM(path, threads=1) as llm, pytest.raises(ModelError, match="token 0: the logits after it are not finite; "):
        llm.logits([5, 6, 7])


def test_a_block_scale_that_is_infinite_is_an_error(tmp_path: Path) -> None:
    """B47: no token is made of it."""
    path = write_tiny_llama(tmp_path / "m.gguf", types={"": "Q8_0"})
    with _core.Gguf(path) as file:
        block = file.read("blk.1.ffn_down.weight", 0, 34)
    data = bytearray(path.read_bytes())
    at = data.index(block)
    data[at : at + 2] = b"\x00\x7c"
    path.write_bytes(data)
    for precision in ("fast", "f32"):
        with LLM(path, threads=1, precision=precision) as llm, pytest.raises(ModelError, match="not finite"):
            llm.generate("the cat", SamplingParams(max_tokens=4))


LIMITED = """
import resource
import sys
from pyedge import LLM, SamplingParams, _core
free = _core.machine()["memory_available"]
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 300_000_000,) * 2)
assert 200_000_000 < _core.machine()["memory_available"] <= 300_000_000 < free
llm = LLM(sys.argv[1], threads=1)
print(len(llm.generate("the cat", SamplingParams(max_tokens=3, ignore_eos=True))[0].token_ids))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux has such a limit")
def test_a_limit_of_addresses_is_a_limit_of_memory(tmp_path: Path) -> None:
    """`ulimit -v`: the KV cache that nobody asked for is no larger than it allows."""
    path = write_tiny_llama(tmp_path / "m.gguf", context=2**28)
    done = python("-c", LIMITED, str(path))
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


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
    (b"a", "a prompt must be text .*, not bytes"),
    (np.array("a"), "a prompt must be text .*, not ndarray"),
    ([5], "a prompt must be text"),
    ({"ids": [1]}, "prompt_token_ids"),
    ({"prompt_token_ids": "abc"}, "token ids must be a list of integers, not str"),
    ({"prompt_token_ids": None}, "token ids must be a list of integers, not NoneType"),
    ({"prompt_token_ids": np.zeros((2, 300))}, "a token id must be an integer, not ndarray"),
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


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_read_through(llm: LLM) -> None:
    start = time.perf_counter()
    with pytest.raises(ValueError, match="more than 256 tokens"):
        llm.generate("Hello world. " * 2_000_000, RULES)
    assert time.perf_counter() - start < 5
    with pytest.raises(ValueError, match=r"the prompt has \d+ tokens, the context is 256"):
        llm.generate("Hello world. " * 256, RULES)


def test_wrong_params(llm: LLM) -> None:
    with pytest.raises(ValueError, match="must be SamplingParams, or one for each prompt, not int"):
        llm.generate("a", cast(Any, 5))
    with pytest.raises(ValueError, match="2 sampling params for 1 prompts"):
        llm.generate("a", [RULES, RULES])
    with pytest.raises(ValueError, match="must be SamplingParams, not dict"):
        llm.stream("a", cast(Any, {"temperature": 1}))
    with pytest.raises(ValueError, match="must be SamplingParams, or one for each prompt, not dict"):
        llm.generate("a", cast(Any, {"temperature": 1}))
    with pytest.raises(ValueError, match="lone surrogate"):
        llm.generate("a", SamplingParams(stop="\udce9"))


def test_logits_of_no_list(llm: LLM) -> None:
    for wrong in (None, 5, "text", {}):
        with pytest.raises(ValueError, match="token ids must be a list of integers"):
            llm.logits(cast(Any, wrong))


def test_loading_and_speed_are_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "pyedge"), LLM(path, max_model_len=64, threads=1) as llm:
        llm.generate("a", RULES)
        list(llm.stream("a", RULES))
    load, *speeds = [record.getMessage() for record in caplog.records if record.name == "pyedge.llm"]
    assert re.search(r"loaded in .* 1 threads, .* 16 KV pages of 16 tokens \(f16\), contexts of 64 tokens", load)
    assert len(speeds) == 2
    assert all("per second" in line for line in speeds)


LARGE = np.zeros((100, 100))  # of whose text an error must not make many lines
WRONG_OPTIONS: list[tuple[str, list[Any], str]] = [
    ("model", [5, None, b"x", LARGE], "model must be a path or a name"),
    ("device", ["cuda", 5, None, LARGE], "device .* is not in this build; choose from auto, cpu"),
    ("precision", ["f16", "", None, [], LARGE], "precision .* choose from fast, f32"),
    ("kv_type", ["q5_0", "", 0, LARGE], "kv_type .* is not in this build; choose from"),
    ("threads", [0, -1, _core.MAX_THREADS + 1, 2**40, 10**5000], f"threads must be from 1 to {_core.MAX_THREADS}, not"),
    ("threads", ["2", 1.0, True, LARGE], "threads must be an integer, not"),
    ("max_model_len", [1, 0, -(2**70)], "max_model_len must be from 2 up"),
    ("max_model_len", [257, 2**70, 10**5000], "max_model_len .* is beyond the model's context of 256"),
    ("max_model_len", ["16", 16.0, True], "max_model_len must be an integer"),
    (
        "kv_memory",
        ["much", "", "9" * 500 + "GB", "9" * 30, "1e9", 10**400, 10**5000, LARGE, 0, -1, True, [5]],
        "kv_memory must be",
    ),
    ("kv_memory", [10, "10"], "kv_memory of 10 bytes is less than one page"),
    ("page_size", [0, -16, 5, 64, 2**40], "page_size must be"),
    ("page_size", ["16", 16.0, None, True], "page_size must be an integer"),
    ("prefix_cache", [0, 1, None, "no", LARGE], "prefix_cache must be True or False"),
    ("max_sequences", [0, -1, 65537, 2**40], "max_sequences must be from 1 to 65536"),
    ("max_sequences", ["8", 8.0, None], "max_sequences must be an integer"),
    ("step_tokens", [0, -1, 65537, 2**40], "step_tokens must be from 1 to 65536"),
    ("step_tokens", ["8", 8.0, None], "step_tokens must be an integer"),
    ("pre", ["nonesuch", "", 5, LARGE], "pre .* is not known"),
    ("step_tokens", [8], r"step_tokens \(8\) must be at least max_sequences \(64\)"),
]


@pytest.mark.parametrize(("name", "values", "said"), WRONG_OPTIONS, ids=[option[0] for option in WRONG_OPTIONS])
def test_wrong_options(path: Path, name: str, values: list[Any], said: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=said) as e:
            LLM(**cast(Any, {"model": path, "kv_memory": "1MB", name: value}))
        assert "\n" not in str(e.value)
        assert len(str(e.value)) < 200


def test_wrong_options_are_found_before_anything_is_loaded(tmp_path: Path) -> None:
    for name, values, said in WRONG_OPTIONS:
        if name != "model" and "beyond" not in said and "less than" not in said:
            for value in values:
                with pytest.raises(ValueError, match=said):
                    LLM(tmp_path / "absent.gguf", **cast(Any, {name: value}))


def test_every_option_is_checked() -> None:
    parameters = set(inspect.signature(LLM.__init__).parameters) - {"self"}
    assert parameters == {name for name, _, _ in WRONG_OPTIONS}


def test_numbers_of_numpy(path: Path) -> None:
    numbers = {name: np.int64(n) for name, n in (("threads", 1), ("max_model_len", 64), ("kv_memory", 10**6))}
    with LLM(path, page_size=cast(Any, np.int32(8)), **cast(Any, numbers)) as llm:
        assert llm.max_model_len == 64
        assert llm.generate("a", RULES)[0].token_ids


def test_more_keys_and_values_than_memory(path: Path) -> None:
    total = _core.machine()["memory_total"]
    with pytest.raises(ValueError, match=r"kv_memory of [\d,]+ MB is more than the [\d,]+ MB of memory") as e:
        LLM(path, kv_memory=4 * total)
    wanted, free = (int(n.replace(",", "")) for n in re.findall(r"([\d,]+) MB", str(e.value)))
    assert abs(wanted - 4 * total / 1e6) < 2
    assert 0 < free <= total / 1e6


def test_a_step_that_takes_more_than_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cache leaves is too little for the rest: the core counts both."""
    free = _core.machine()["memory_available"]
    monkeypatch.setattr(_core, "machine", lambda: {"memory_available": 2**60, "default_threads": 1})
    with pytest.raises(MemoryError, match=r"needs [\d.]+ GB .* [\d.]+ GB of memory are free") as e:
        LLM(path, kv_memory=4 * free)
    assert "\n" not in str(e.value)


def test_more_weights_than_memory(tmp_path: Path) -> None:
    """A file with a hole in it, as large as it says."""
    small, rows = 96, 2 * _core.machine()["memory_total"] // (3 * 4 * 1024)
    file = write_tiny_llama(tmp_path / "huge.gguf", n_embd=1024, n_head=8, n_layer=1, n_ff=small)
    reader = gguf.GGUFReader(file, "r+")
    reader.fields["llama.feed_forward_length"].parts[-1][0] = rows
    end = 0
    for tensor in reader.tensors:
        *_, shape, _, offset = tensor.field.parts
        shape[shape == small] = rows
        offset[0] = end
        end += -(-4 * int(shape.prod()) // 32) * 32
    reader.data.flush()
    size = reader.data_offset + end
    del reader
    try:
        os.truncate(file, size)
    except OSError:
        pytest.skip("no file of that size here")
    with pytest.raises(MemoryError, match=r"weights need [\d.]+ GB, [\d.]+ GB of memory are free") as e:
        LLM(file)
    file.unlink()
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
    assert dict(_core.isas())[llm.isa]


def test_precision_f32_keeps_an_f32_cache(path: Path) -> None:
    for options, kv_type in (({}, "f32"), ({"kv_type": "f16"}, "f16")):
        with LLM(path, kv_memory="1MB", precision="f32", **cast(Any, options)) as llm:
            assert llm.engine.config.kv_type == kv_type


@pytest.mark.parametrize(
    ("given", "n"),
    [(5, 5), ("5", 5), ("512MB", 512 * 10**6), ("2 GiB", 2**31), ("1.5k", 1500), ("1g", 10**9), ("64kib", 65536)],
)
def test_bytes(given: int | str, n: int) -> None:
    assert bytes_of("kv_memory", given) == n


@pytest.mark.parametrize("given", ["", "MB", "5TB", "-1", "1e9", "0", "0.1", "9" * 400, 0, -1, True, 1.5, None])
def test_no_bytes(given: Any) -> None:
    with pytest.raises(ValueError, match="kv_memory"):
        bytes_of("kv_memory", given)


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
    assert plan(max_model_len=112, kv_bytes=7_500) == (7, 112)
    with pytest.raises(ValueError, match="holds 112 tokens, fewer than max_model_len 113; give 8000 bytes or more"):
        plan(max_model_len=113, kv_bytes=7_500)
    with pytest.raises(ValueError, match="less than one page"):
        plan(kv_bytes=999)
