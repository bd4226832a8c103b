"""What becomes of a crowd of chats: played in a time that is added up, on steps whose costs are known."""

from dataclasses import replace
from pathlib import Path

import pytest
from tinymodel import write_tiny_llama

from pyedge import LLM
from pyedge.engine.capacity import Capacity, Chat, Curve, Measured, capacity, measure, n_measures, play
from pyedge.engine.engine import EngineConfig
from pyedge.engine.pace import StepCost, Work

COST = StepCost(step=0.01, token=0.001, row=0.0, key=0.0)
CONFIG = EngineConfig(n_pages=1000, max_model_len=1000, page_size=16, max_tokens=512, max_sequences=32)
CHAT = Chat(prompt=100, output=11)


def cost(writing: Work, reading: Work) -> float:
    return COST.seconds(writing + reading)


def test_a_chat_alone() -> None:
    times = play(cost, CONFIG, CHAT, 1, COST)
    assert times.ttft == pytest.approx(0.01 + 100 * 0.001)
    assert times.tpot == pytest.approx(0.01 + 0.001)


def test_a_long_prompt_is_read_in_steps() -> None:
    times = play(cost, replace(CONFIG, max_model_len=2000), Chat(1100, 1), 1, COST)
    assert times.ttft == pytest.approx(3 * 0.01 + 1100 * 0.001)
    assert times.tpot == 0.0


def test_more_chats_wait_longer_and_write_slower() -> None:
    times = [play(cost, CONFIG, CHAT, n, COST) for n in (1, 4, 16, 32)]
    assert [t.ttft for t in times] == sorted(t.ttft for t in times)
    assert [t.tpot for t in times] == sorted(t.tpot for t in times)
    assert times[-1].ttft >= 32 * 100 * 0.001


@pytest.mark.parametrize(
    ("limited_by", "options", "ttft", "tpot"),
    [
        ("memory", {"n_pages": 15}, 9.0, 9.0),  # 7 pages each
        ("reading", {}, 0.5, 9.0),
        ("writing", {}, 9.0, 0.0145),
        ("sequences", {"max_sequences": 3}, 9.0, 9.0),
    ],
)
def test_what_limits_them(limited_by: str, options: dict[str, int], ttft: float, tpot: float) -> None:
    config = replace(CONFIG, **options)  # type: ignore[arg-type]
    found = capacity(cost, config, CHAT, ttft, tpot, COST)
    assert found.limited_by == limited_by
    n = found.chats
    assert n == getattr(found, limited_by)
    assert 1 < n < 32
    if limited_by in ("reading", "writing"):
        fits, too_many = (play(cost, CONFIG, CHAT, k, COST) for k in (n, n + 1))
        assert fits.ttft <= ttft
        assert fits.tpot <= tpot
        assert too_many.ttft > ttft or too_many.tpot > tpot
    if limited_by == "memory":
        assert n == 2


def test_none_fits() -> None:
    found = capacity(cost, CONFIG, CHAT, 0.05, 9.0, COST)
    assert (found.chats, found.limited_by) == (0, "reading")
    assert Capacity(3, 4, 3, 9).limited_by == "memory"


def test_curves_are_straight_between_what_was_measured_and_beyond() -> None:
    curve = Curve([1, 8, 16], [1.0, 8.0, 12.0])
    assert [curve(n) for n in (0, 1, 4, 8, 12, 16, 24)] == [0.0, 1.0, 4.0, 8.0, 10.0, 12.0, 16.0]
    assert Curve([2], [4.0])(3) == 6.0


def test_steps_that_write_and_steps_that_read() -> None:
    measured = Measured(
        read=Curve([1, 64], [0.01, 0.073]),
        read_key=1e-6,
        write=Curve([1, 4], [0.011, 0.014]),
        looking=Curve([1, 4], [0.002, 0.005]),
        depth=500,
        row=5e-4,
        resident=Curve([0, 1], [0, 0]),
    )
    nothing = Work()
    assert measured.seconds(Work(2, 2, 1002), nothing) == pytest.approx(0.012 + 0.003)
    assert measured.seconds(Work(1, 1, 251), nothing) == pytest.approx(0.011 + 0.001)
    first, later = Work.piece(0, 64), Work.piece(100, 164)
    assert measured.seconds(nothing, first) == pytest.approx(0.073)
    assert measured.seconds(nothing, later) == pytest.approx(0.073 + 64 * 100 * 1e-6)
    assert measured.seconds(Work(4, 4, 2004), first) == pytest.approx(0.077 + 3 * 5e-4 + 0.005)
    assert measured.seconds(Work(1, 1, 1), nothing, 0.5) == pytest.approx(0.011 - 0.5 * 0.010)


def test_measuring_a_model(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", types="Q8_0", n_layer=1, context=256)
    with LLM(path, kv_memory="1MB", threads=1) as llm:
        calls: list[None] = []
        config = replace(llm.engine.config, n_pages=30)
        measured = measure(llm.weights, llm.tokenizer, config, Chat(180, 20), lambda: calls.append(None))
        assert 10 < len(calls) <= n_measures(config, Chat(180, 20))
        assert measured.read.at == [1, 8, 16, 32, 64, 128, 199]
        assert measured.write.at == [1, 2, 4, 8]  # of 3 pages
        assert min(*measured.read.values, *measured.write.values) > 0
        assert measured.resident.at == [0, *measured.write.at]
        assert min(measured.resident.values) > 1e6
        tiny = measure(llm.weights, llm.tokenizer, replace(config, n_pages=2), Chat(4, 1))
        assert tiny.read.at == [1, 4]
    with pytest.raises(ValueError, match="closed"):
        _ = llm.weights
