"""Ctrl-C at every point at which Python looks for it: whoever is interrupted ends, nobody else loses a token, and
nothing stays behind: no lock, no page, no request."""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tinymodel import write_tiny_llama

import pyedge
from pyedge import LLM, SamplingParams

PACKAGE = str(Path(pyedge.__file__).parent)
RULES = SamplingParams(seed=1, max_tokens=6, ignore_eos=True)
FIRST, SECOND = {"prompt_token_ids": [5, 6, 7, 8, 9]}, {"prompt_token_ids": [10, 11, 12]}
TOKENS = list(range(20, 31))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", types="Q8_0", n_layer=1, context=64)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, kv_memory="1MB", threads=1, page_size=8, max_sequences=4, step_tokens=4) as llm:
        yield llm


def interrupted(at: int, work: Callable[[], object]) -> list[str] | None:
    """Does the work, with Ctrl-C at one point of the package's code, counted from 1: a function's start, or the end of
    a call. Returns the names of the functions it came into, outermost first; None: there are fewer points."""
    n = 0

    def look(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal n
        # Python does not look before a call into C, nor when it discards a generator expression.
        if event == "c_call" or frame.f_code.co_name == "<genexpr>":
            return
        if frame.f_code.co_filename.startswith(PACKAGE):
            n += 1
            if n == at:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt as e:
        return [frame.name for frame in traceback.extract_tb(e.__traceback__)]
    finally:
        sys.setprofile(None)
    assert n < at, "a KeyboardInterrupt was swallowed"
    return None


def check_nothing_stays(llm: LLM) -> None:
    """Also that another thread gets its turn: the lock is free."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(llm.generate(SECOND, RULES)), daemon=True)
    thread.start()
    thread.join(20)
    assert done, "the engine is stuck"
    engine = llm.engine
    engine.check_integrity()
    assert (engine.scheduler.pool.n_used, engine.scheduler.lent) == (0, None)
    assert (engine.has_work, list(engine._aborts), engine._inside) == (False, [], False)


def check_another_stream(llm: LLM, work: Callable[[], object]) -> None:
    """Interrupts the work at each of its points while a stream is under way, which must go on as if nothing was, or,
    when the interrupt broke off a change of the books, say so."""
    wanted = llm.generate(SECOND, RULES)[0].token_ids
    n_lost = 0
    for at in count(1):
        stream = llm.stream(SECOND, RULES)
        got = [next(stream).token_id for _ in range(2)]
        where = interrupted(at, work)
        error = None
        try:
            got += [event.token_id for event in stream]
        except RuntimeError as e:
            error = e
        if error is None:
            assert got == wanted, where
        else:
            n_lost += 1
            assert "interrupted" in str(error)
            assert "_change" in (where or ()), where
        check_nothing_stays(llm)
        if where is None:
            assert n_lost < at
            return


def test_a_stream_beside_an_interrupted_stream(llm: LLM) -> None:
    """Every step computes both, so that each makes tokens for the other."""
    wanted = llm.generate(FIRST, RULES)[0].token_ids

    def stream() -> None:
        assert [event.token_id for event in llm.stream(FIRST, RULES)] == wanted

    check_another_stream(llm, stream)


def test_a_stream_beside_an_interrupted_batch(llm: LLM) -> None:
    rules = SamplingParams(seed=1, max_tokens=2)
    check_another_stream(llm, lambda: llm.generate([FIRST, SECOND], rules))


def test_a_stream_beside_interrupted_logits(llm: LLM) -> None:
    wanted = llm.logits(TOKENS)
    check_another_stream(llm, lambda: llm.logits(TOKENS))
    assert np.array_equal(llm.logits(TOKENS), wanted)


def test_closing_a_stream(llm: LLM) -> None:
    for at in count(1):
        stream = llm.stream(FIRST, RULES)
        next(stream)
        where = interrupted(at, stream.close)
        check_nothing_stays(llm)
        if where is None:
            return


def test_embeddings(tmp_path: Path) -> None:
    keys = {"llama.pooling_type": 3}
    path = write_tiny_llama(tmp_path / "m.gguf", types="Q8_0", n_layer=1, context=64, keys=keys, tied=True)
    texts = [FIRST, {"prompt_token_ids": TOKENS}, SECOND]
    with LLM(path, kv_memory="1MB", threads=1, page_size=8, max_sequences=2, step_tokens=4) as llm:
        wanted = llm.embed(texts)
        for at in count(1):
            where = interrupted(at, lambda: llm.embed(texts))
            done: list[np.ndarray] = []
            thread = threading.Thread(target=lambda: done.append(llm.embed(texts)), daemon=True)  # noqa: B023
            thread.start()
            thread.join(20)
            assert done, f"it is stuck: {where}"
            assert np.array_equal(done[0], wanted), where
            if where is None:
                return
