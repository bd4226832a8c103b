"""A process that forks: the child may use a model that was at rest, gets an error for one at work, and never hangs."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from forkrun import in_child
from tinymodel import write_tiny_llama

from pyedge import LLM, SamplingParams

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
RULES = SamplingParams(seed=1, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", n_embd=256, n_ff=512, context=256)


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_memory="4MB", threads=2) as llm:
        llm.generate("a", RULES)  # the thread pool is there
        yield llm


def text(llm: LLM) -> str:
    return llm.generate("the cat and the rest", RULES)[0].text


def test_a_model_at_rest_works_in_both(llm: LLM) -> None:
    wanted = text(llm)
    assert in_child(lambda: text(llm)) == wanted
    assert in_child(lambda: in_child(lambda: text(llm))) == wanted
    assert text(llm) == wanted


def test_a_stream_goes_on_in_both(llm: LLM) -> None:
    stream = llm.stream("the cat", RULES)
    next(stream)
    said = in_child(lambda: [event.token_id for event in stream])
    assert said == str([event.token_id for event in stream])


def test_a_model_at_work_says_so(llm: LLM, path: Path) -> None:
    wanted, inside, go = text(llm), threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        inside.set()
        assert go.wait(60)

    stream = llm.stream("the cat", RULES)
    next(stream)
    llm.engine._core.tap(llm.plan.ops[1].name, wait)
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(text(llm)), daemon=True)
    thread.start()
    assert inside.wait(30)
    try:
        uses: list[Callable[[], object]] = [
            *(lambda: text(llm), lambda: llm.logits([5, 6]), lambda: next(stream), lambda: in_child(lambda: text(llm))),
            lambda: stream.close() or llm.close() or text(LLM(path, kv_memory="4MB")),
        ]
        said = [in_child(use) for use in uses]
    finally:
        go.set()
        thread.join(30)
        llm.engine._core.tap(None)
    message = "RuntimeError: this process was forked while the model was at work in the parent; load the model again"
    assert said == [message] * 4 + [wanted]
    assert got == [wanted]
    stream.close()
    assert text(llm) == wanted
