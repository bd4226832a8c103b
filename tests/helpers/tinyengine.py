"""A small model of the real core, and prompts for it whose lengths lie around pages, tiles and pieces."""

from __future__ import annotations

from pathlib import Path

from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.models import build_plan

PROMPTS = [[5 + (i * i + 7 * j) % 250 for j in range(n)] for i, n in enumerate((1, 7, 8, 9, 23, 40, 64))]
PROMPTS += [[*PROMPTS[5][:24], 9, 9], [*PROMPTS[5], 8], [5, 12]]  # two with beginnings in common


def load_tiny_llama(folder: Path) -> _core.Model:
    path = folder / "tiny.gguf"
    write_tiny_llama(path, types="Q4_0", n_embd=96, n_head=6, n_kv=2, n_ff=128)
    with _core.Gguf(path) as gguf:
        return _core.Model(gguf, build_plan(gguf).ops, "fast", 2)
