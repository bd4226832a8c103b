"""What went wrong in other engines, on the default model: greedy asked for in many ways, small limits, stop strings and
characters over several tokens, page edges, and Ctrl-C in a long prompt."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from program import python

from pyedge import LLM, Grammar, SamplingParams

pytestmark = pytest.mark.slow

MONTHS = "Months of the year: January, February, March, April,"


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with LLM(smollm2_path, max_model_len=4096) as llm:
        yield llm


def greedy(**more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 24, **more})


def test_every_way_to_ask_for_greedy_gives_the_same_text(llm: LLM) -> None:
    ways: list[dict[str, Any]] = [
        *({"seed": seed} for seed in (None, 1, 2)),
        *({"top_p": 0.0}, {"top_k": 0}, {"top_k": 1}, {"min_p": 1.0}),
        *({"temperature": 1e-4}, {"temperature": 1e-6}, {"temperature": 5.0, "top_k": 1}),
    ]
    outputs = llm.generate([MONTHS] * len(ways), [greedy(**way) for way in ways])
    assert len({out.text for out in outputs}) == 1
    assert outputs[0].text.startswith(" May, June, July")


def test_limits_are_kept(llm: LLM) -> None:
    longest = llm.generate(MONTHS, greedy())[0]
    for n in range(4):
        out = llm.generate(MONTHS, greedy(max_tokens=n))[0]
        assert (out.token_ids, out.finish_reason) == (longest.token_ids[:n], "length")
        assert longest.text.startswith(out.text)


def test_stop_strings(llm: LLM) -> None:
    whole = llm.generate(MONTHS, greedy())[0]
    for stop, left in (
        (["June, July"], " May, "),
        (["une, Ju"], " May, J"),
        ([" May"], ""),
        (["September", "July,"], " May, June, "),
        (["March, April"], whole.text),  # the prompt does not count
        (["june"], whole.text),
    ):
        out = llm.generate(MONTHS, greedy(stop=stop))[0]
        events = list(llm.stream(MONTHS, greedy(stop=stop)))
        assert out.text == "".join(event.text for event in events) == left
        assert out.finish_reason == events[-1].finish_reason == ("length" if left == whole.text else "stop")


@pytest.mark.parametrize("text", ["文字文字文字文字", "🐢🐇" * 5, "αβγ αβγ αβγ"])
def test_streams_have_whole_characters(llm: LLM, text: str) -> None:
    out = llm.generate(text, greedy())[0]
    parts = [event.text for event in llm.stream(text, greedy())]
    assert "".join(parts) == out.text
    assert "\ufffd" not in out.text[:-1]


def test_every_prompt_length_alone_together_and_from_the_cache(llm: LLM) -> None:
    """B34"""
    ids = [(7919 * i) % 40000 + 5 for i in range(70)]
    prompts = [{"prompt_token_ids": ids[:n]} for n in range(1, 71)]
    rules = greedy(max_tokens=4, logprobs=2)
    together, cached = llm.generate(prompts, rules), llm.generate(prompts, rules)
    assert [out.metrics.cached_tokens for out in cached] == [(n - 1) // 16 * 16 for n in range(1, 71)]
    for i, prompt in enumerate(prompts):
        outs = [together[i], cached[i], *(llm.generate(prompt, rules) if i % 8 == 0 else [])]
        assert len({str((out.token_ids, out.logprobs)) for out in outs}) == 1


def test_the_next_turn_reuses_the_last_one(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Name three rivers."}]
    first = llm.chat(messages, greedy())
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Which is the longest?"}]
    second = llm.chat(messages, greedy())
    assert second.metrics.cached_tokens >= len(first.prompt_token_ids) // 16 * 16


def test_ctrl_c_acts_within_a_long_prompt(llm: LLM) -> None:
    prompt = {"prompt_token_ids": [(7907 * i) % 40000 + 5 for i in range(4000)]}
    sent: list[float] = []

    def interrupt() -> None:
        time.sleep(0.4)
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate(prompt, greedy())
    took = time.perf_counter() - sent[0]
    thread.join()
    assert took < 1  # an op takes a few hundredths of a second, a step more than one
    llm.engine.check_integrity()
    assert llm.engine.scheduler.pool.n_used == 0
    assert llm.generate(MONTHS, greedy(max_tokens=1))[0].text == " May"


RESIDENT = """
import json, sys
from pyedge import LLM, Grammar, SamplingParams
llm = LLM(sys.argv[1])
out = llm.chat([{"role": "user", "content": "Name three rivers."}], SamplingParams(temperature=0, max_tokens=32))
with open("/proc/self/status") as f:
    resident = next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS:"))
pool, config = llm.engine.scheduler.pool, llm.engine.config
pages = pool.pages_for(len(out.prompt_token_ids) + len(out.token_ids))
from pyedge import _core
print(json.dumps([resident, pages * _core.page_bytes(llm._weights, config.page_size, config.kv_type), out.text]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_resident_memory(smollm2_path: Path) -> None:
    """The file's size and 10 %, 120 MB for all else, and the keys and values there are: not those there may be."""
    done = python("-c", RESIDENT, str(smollm2_path), timeout=300)
    assert done.returncode == 0, done.stderr
    resident, kv, text = json.loads(done.stdout)
    assert text
    assert resident <= 1.10 * smollm2_path.stat().st_size + 120e6 + kv, f"{resident / 1e6:.0f} MB, {kv / 1e6:.1f} of KV"


def test_json_ends_with_its_last_brace(llm: LLM) -> None:
    """B37, ollama/ollama#2577: in JSON mode white space went on after the object, until the limit."""
    schema = {
        "type": "object",
        "properties": {"color": {"enum": ["red", "green"]}, "ok": {"type": "boolean"}},
        "required": ["color", "ok"],
        "additionalProperties": False,
    }
    messages = [{"role": "user", "content": "Give a color as JSON."}]
    prompt = {"prompt_token_ids": llm.tokenizer.apply_chat_template(messages)}
    fits, any_object = Grammar.json_schema(schema), Grammar.json_object()
    rules = [
        SamplingParams(temperature=t, seed=seed, max_tokens=200, grammar=grammar)
        for grammar in (fits, any_object)
        for t, seed in ((0, 0), *((1.5, seed) for seed in range(1, 11)))
    ]
    for rule, out in zip(rules, llm.generate([prompt] * len(rules), rules), strict=True):
        if rule.grammar == fits:
            assert out.finish_reason == "stop"
            assert not re.search(r"\s{21}", out.text)
            assert set(json.loads(out.text)) == {"color", "ok"}
            assert json.loads(out.text)["color"] in ("red", "green")
        if out.finish_reason == "stop":
            assert isinstance(json.loads(out.text), dict)
            assert out.text.endswith("}")
    cut = llm.chat(messages, SamplingParams(temperature=0, max_tokens=3, grammar=fits))
    assert cut.finish_reason == "length"
    whole = llm.chat(messages, SamplingParams(temperature=0, max_tokens=200, grammar=fits))
    assert whole.text.startswith(cut.text)
    events = llm.stream_chat(messages, SamplingParams(temperature=0, max_tokens=200, grammar=fits))
    assert "".join(event.text for event in events) == whole.text
