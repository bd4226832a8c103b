"""A model's matrix takes other values, and what its op cannot take is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.evaluation.imatrix import places
from pyedge.evaluation.reader import Reader
from pyedge.tools.gguf_writer import GgufWriter, Tensor, copied

IDS = [5, 9, 11, 60, 61, 3, 17, 40]
KINDS = ("embed", "linear", "moe", "logits")


@pytest.mark.parametrize("types", ["F32", "F16", "Q8_0", "Q4_K"])
def test_a_model_becomes_another(tmp_path: Path, types: str) -> None:
    """With all matrices of another model its logits are, bit for bit, those of a file that has them."""
    shape = {"n_embd": 256, "n_head": 4, "n_kv": 2, "n_ff": 512}
    one, other = (write_tiny_llama(tmp_path / f"{seed}.gguf", types=types, seed=seed, **shape) for seed in (1, 2))
    both = tmp_path / "both.gguf"
    with _core.Gguf(one) as a, _core.Gguf(other) as b:
        tensors = [Tensor(t.name, t.type, t.shape) for t in a.tensors]
        with GgufWriter(both, copied(a), tensors) as writer:
            for t in tensors:
                writer.write(t.name, (b if len(t.shape) > 1 else a).read(t.name))
    with _core.Gguf(other) as gguf, Reader(one, 64) as reader, Reader(both, 64) as wanted:
        kinds = {t.name: t.type for t in gguf.tensors}
        before = next(reader.logits(IDS))
        for name, op, slot in places(reader, KINDS):
            rows = np.frombuffer(gguf.read(name), np.uint8)
            reader.model.replace(op, slot, kinds[name], rows, threads=2)
        after, expected = next(reader.logits(IDS)), next(wanted.logits(IDS))
    assert not np.array_equal(before, expected)
    assert np.array_equal(after, expected)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", types="F16")
    with _core.Gguf(path) as gguf, Reader(path, 64) as reader:
        name, op, slot = next(iter(places(reader)))
        rows = np.frombuffer(gguf.read(name), np.uint8)
        before = next(reader.logits(IDS))
        for at, type_name, given, why in (
            ((op, slot), "F32", rows, "packed in another way"),
            ((op, slot), "Q4_0", rows, "packed in another way"),
            ((op, slot), "F16", rows[:-1], "has not"),
            ((op, slot), "F16", rows[:0], "has not"),
            ((op, slot), "F16", np.tile(rows, 2), "has not"),
            ((op, 1), "F16", rows, "is no matrix"),
            ((op, -1), "F16", rows, "is no matrix"),
            ((10_000, 0), "F16", rows, "is no matrix"),
            ((-1, 0), "F16", rows, "is no matrix"),
            ((op, slot), "F17", rows, "is no format"),
        ):
            with pytest.raises(ValueError, match=why):
                reader.model.replace(*at, type_name, given)
        assert np.array_equal(next(reader.logits(IDS)), before)


def test_blocks_become_values_again() -> None:
    values = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    for info in _core.formats():
        if info.runs:
            found = _core.dequantize(_core.quantize(values, info.name), info.name, threads=2)
            assert found.shape == values.shape
            assert np.corrcoef(found.ravel(), values.ravel())[0, 1] > 0.9, info.name
    assert np.array_equal(_core.dequantize(values.view(np.uint8), "F32"), values)
    with pytest.raises(ValueError, match="whole blocks of Q4_0"):
        _core.dequantize(np.zeros((2, 17), np.uint8), "Q4_0")
    with pytest.raises(ValueError, match="whole blocks of Q4_0"):
        _core.dequantize(np.zeros(18, np.uint8), "Q4_0")
