"""The benchmark of pages, on a tiny model: what it counts, and that both policies end with the same answers."""

from pathlib import Path

import paging
import pytest
from tinymodel import write_tiny_llama

from pyedge import LLM


def test_pages_hold_more_requests_and_waste_less(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", types="Q8_0", n_layer=1, context=256)
    lengths = paging.workload(12, 128, seed=1)
    assert all(4 <= n <= 64 for pair in lengths for n in pair)
    with LLM(path, kv_memory="1MB", threads=1) as llm:
        reserved, pages = (
            paging.run(paging.make_engine(llm, policy, 512, 128), lengths)
            for policy in (paging.Reserving, paging.Scheduler)
        )
        assert max(reserved.running) <= 512 // 128
        assert max(pages.running) > max(reserved.running) or max(pages.running) == 12
        assert sum(pages.waste) / len(pages.waste) < sum(reserved.waste) / len(reserved.waste)
        assert pages.tokens == reserved.tokens == sum(map(sum, lengths))
        waste = paging.run(paging.make_engine(llm, paging.Scheduler, 16 * 272, 256), [(116, 128)] * 16).waste
        assert sum(waste) / len(waste) == pytest.approx(8 / 180, abs=0.02)
