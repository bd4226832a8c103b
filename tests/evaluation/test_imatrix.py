"""Importance matrices against sums made in numpy of what goes into the matrices, and as files."""

from __future__ import annotations

import json
from pathlib import Path

import click
import families
import familygguf
import gguf
import numpy as np
import pytest
from program import program
from tinymodel import write_tiny_llama

from pyedge import ModelError, _core
from pyedge.cli.imatrix import command
from pyedge.evaluation.imatrix import collect
from pyedge.evaluation.reader import Reader
from pyedge.tools import imatrix_file
from pyedge.tools.imatrix_file import Imatrix

TEXT = "The keeper and the sea: 123 ships, and then the rest of them in a row. " * 12
WINDOWS = [[(7 * i * i + 3 * j) % 60 for i in range(24)] for j in range(3)]


def collected(reader: Reader, windows: list[list[int]]) -> Imatrix:
    return [*collect(reader, windows)][-1]


def outputs_of(reader: Reader, op: str) -> np.ndarray:
    """What the op of this name makes of all windows: [tokens, width]."""
    seen = []
    reader.engine.tap(op, lambda _name, _output, rows: seen.append(rows))
    for window in WINDOWS:
        reader.read(window)
    reader.engine.tap(None)
    return np.concatenate(seen).astype(np.float64)


@pytest.mark.parametrize("precision", ["fast", "f32"])
def test_sums_of_squares(tmp_path: Path, precision: str) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", types="Q8_0")
    with Reader(path, 32, precision=precision) as reader:
        found = collected(reader, WINDOWS)
        inputs = {"attn_norm": ("attn_q", "attn_k", "attn_v"), "ffn_norm": ("ffn_gate", "ffn_up")}
        for op, fed in inputs.items():
            for layer in range(2):
                squares = (outputs_of(reader, f"blk.{layer}.{op}") ** 2).sum(axis=0)
                for name in fed:
                    assert found.sums[f"blk.{layer}.{name}.weight"][0] == pytest.approx(squares, rel=1e-9)
    names = (*inputs["attn_norm"], *inputs["ffn_norm"], "attn_output", "ffn_down")
    assert set(found.sums) == {f"blk.{i}.{name}.weight" for i in range(2) for name in names}
    assert {tuple(counts) for counts in found.counts.values()} == {(72,)}
    assert found.sums["blk.1.ffn_down.weight"].shape == (1, 96)
    assert (found.n_windows, found.n_ctx) == (3, 24)


def test_sums_of_each_expert(tmp_path: Path) -> None:
    """Of Mixtral's: what an expert's matrices see is what its tokens are, and what its own gate and up make of them."""
    path = familygguf.write(
        tmp_path / "m.gguf",
        families.load("mixtral"),
        tokenizer={"model": "gpt2", "pre": "gpt-2", "tokens": [*map(chr, range(33, 96)), '!"'], "merges": ['! "']},
    )
    with Reader(path, 32, precision="f32") as reader, _core.Gguf(path) as file:
        found = collected(reader, WINDOWS)
        for layer in range(2):
            b = f"blk.{layer}"
            x = outputs_of(reader, f"{b}.ffn_norm")
            router, gate, up = (
                file.dequantize(f"{b}.{name}.weight").astype(np.float64)
                for name in ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps")
            )
            gate, up = (w.reshape(6, 96, 64) for w in (gate, up))
            chosen = np.argsort(-(x @ router.T), axis=1)[:, :2]
            assert found.sums[f"{b}.ffn_gate_inp.weight"][0] == pytest.approx((x**2).sum(axis=0), rel=1e-9)
            for e in range(6):
                own = x[(chosen == e).any(axis=1)]
                for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"):
                    assert found.counts[f"{b}.{name}.weight"][e] == len(own)
                for name in ("ffn_gate_exps", "ffn_up_exps"):
                    assert found.sums[f"{b}.{name}.weight"][e] == pytest.approx((own**2).sum(axis=0), rel=1e-9)
                g = own @ gate[e].T
                inner = g / (1 + np.exp(-g)) * (own @ up[e].T)
                assert found.sums[f"{b}.ffn_down_exps.weight"][e] == pytest.approx((inner**2).sum(axis=0), rel=1e-4)
    assert found.unseen() == sum((c == 0).sum() for c in found.counts.values())


def test_threads_and_steps_do_not_matter(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", context=2048, types="Q4_0")
    ids = [(11 * i * i) % 250 for i in range(1100)]  # three steps
    made = []
    for threads in (1, 3):
        with Reader(path, 1100, threads=threads) as reader:
            made.append(collected(reader, [ids]))
    for name, sums in made[0].sums.items():
        assert np.array_equal(sums, made[1].sums[name])
        assert made[0].counts[name] == [1100]


def test_collecting_changes_nothing_and_can_end(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf")
    with Reader(path, 32) as reader:
        before = np.concatenate(list(reader.logits(WINDOWS[0])))
        with pytest.raises(ValueError, match="nothing is collected"):
            reader.engine.collected(0, 0)
        reader.engine.collect(True)
        assert np.array_equal(np.concatenate(list(reader.logits(WINDOWS[0]))), before)
        linear = next(i for i, op in enumerate(reader.plan.ops) if _core.ops()[op.kind].name == "linear")
        assert reader.engine.collected(linear, 0)[1] == [24]
        for op, slot in ((-1, 0), (len(reader.plan.ops), 0), (linear, 1), (linear, 6), (linear, -2), (0, 0)):
            with pytest.raises(ValueError, match="is multiplied with nothing"):
                reader.engine.collected(op, slot)
        reader.engine.collect(True)
        assert reader.engine.collected(linear, 0)[1] == [0]
        reader.engine.collect(False)
        with pytest.raises(ValueError, match="nothing is collected"):
            reader.engine.collected(linear, 0)


# ---- Files -----------------------------------------------------------------------------------------------------------


def some(seed: int, n: int = 1) -> Imatrix:
    rng = np.random.default_rng(seed)
    shapes = {"blk.0.attn_q.weight": (1, 8), "blk.0.ffn_down_exps.weight": (3, 5)}
    sums = {name: rng.random(shape).astype(np.float32).astype(np.float64) for name, shape in shapes.items()}
    counts = {name: np.arange(1, shape[0] + 1) * n for name, shape in shapes.items()}
    return Imatrix(sums, counts, [f"text {seed}"], 512, 2 * n, ("abc", 2 * n))


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    imatrix_file.write(path, some(1))
    found = imatrix_file.read(path)
    for name, sums in some(1).sums.items():
        assert np.array_equal(found.sums[name], sums)
        assert np.array_equal(found.counts[name], some(1).counts[name])
    assert (found.texts, found.n_ctx, found.n_windows, found.last) == (["text 1"], 512, 2, ("abc", 2))
    # As other programs see it.
    reader = gguf.GGUFReader(path)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.chunk_count"].contents() == 2
    assert reader.fields["imatrix.datasets"].contents() == ["text 1"]
    shapes = {t.name: t.shape.tolist() for t in reader.tensors}
    assert shapes["blk.0.ffn_down_exps.weight.in_sum2"] == [5, 3]
    assert shapes["blk.0.ffn_down_exps.weight.counts"] == [1, 3]


def test_merged(tmp_path: Path) -> None:
    for seed in (1, 2):
        imatrix_file.write(tmp_path / f"{seed}.gguf", some(seed, seed))
    found = imatrix_file.merged([tmp_path / "1.gguf", tmp_path / "2.gguf"])
    name = "blk.0.ffn_down_exps.weight"
    assert np.array_equal(found.sums[name], some(1).sums[name] + some(2).sums[name])
    assert found.counts[name].tolist() == [3, 6, 9]
    assert (found.n_windows, found.texts) == (6, ["text 1", "text 2"])
    other = some(3)
    other.sums[name] = np.ones((3, 6))
    imatrix_file.write(tmp_path / "3.gguf", other)
    with pytest.raises(ModelError, match=r"3\.gguf: blk\.0\.ffn_down_exps\.weight: .* two models"):
        imatrix_file.merged([tmp_path / "1.gguf", tmp_path / "3.gguf"])
    assert imatrix_file.merged([]).sums == {}


def test_importance() -> None:
    found = some(1)
    name = "blk.0.ffn_down_exps.weight"
    found.counts[name][1] = 0
    importance = found.importance(name)
    assert importance is not None
    assert np.allclose(importance[2], found.sums[name][2] / 3)
    assert (importance[1] == 1).all()
    assert found.importance("other") is None


def test_files_that_are_none(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="is no importance matrix"):
        imatrix_file.read(path)
    bad = some(1)
    bad.sums["blk.0.attn_q.weight"][0, 0] = np.nan
    imatrix_file.write(path, bad)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.weight\.in_sum2: has values that are not possible"):
        imatrix_file.read(path)
    bad = some(1)
    bad.counts["blk.0.attn_q.weight"] = np.ones(2, np.int64)
    imatrix_file.write(path, bad)
    with pytest.raises(ModelError, match="has no counts that fit it"):
        imatrix_file.read(path)
    imatrix_file.write(path, Imatrix())
    with pytest.raises(ModelError, match="holds no sums"):
        imatrix_file.read(path)


# ---- The command -----------------------------------------------------------------------------------------------------


def test_command_goes_on_where_it_stopped(tmp_path: Path) -> None:
    model, text = write_tiny_llama(tmp_path / "m.gguf"), tmp_path / "text.txt"
    text.write_text(TEXT)
    asked = ["imatrix", str(model), str(text), "--ctx", "64"]
    whole, part = tmp_path / "whole.gguf", tmp_path / "part.gguf"
    result = program(*asked, "-o", str(whole), "--json")
    assert result.returncode == 0, result.stderr
    assert program(*asked, "-o", str(part), "--windows", "2").returncode == 0
    result = program(*asked, "-o", str(part), "--from", str(part), "--json")
    facts = json.loads(result.stdout)
    expected, found = imatrix_file.read(whole), imatrix_file.read(part)
    assert facts["windows"] == expected.n_windows == found.n_windows > 2
    for name, sums in expected.sums.items():
        assert found.sums[name] == pytest.approx(sums, rel=1e-6)
        assert np.array_equal(found.counts[name], expected.counts[name])
    # Nothing is left of this text; of another one, all is added.
    result = program(*asked, "-o", str(part), "--from", str(part))
    assert "has been read to its end" in result.stderr
    assert imatrix_file.read(part).n_windows == expected.n_windows
    text.write_text(TEXT + "More.")
    assert program(*asked, "-o", str(part), "--from", str(whole)).returncode == 0
    assert imatrix_file.read(part).n_windows == 2 * expected.n_windows


def test_what_was_read_is_kept_when_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole windows, and no part of the one that was being read."""
    model, text, out = write_tiny_llama(tmp_path / "m.gguf"), tmp_path / "text.txt", tmp_path / "i.gguf"
    text.write_text(TEXT)
    whole, reads = Reader.read, 0

    def read(reader: Reader, ids: list[int]) -> None:
        nonlocal reads
        reads += 1
        whole(reader, ids[: 10 if reads == 3 else None])
        if reads == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Reader, "read", read)
    asked = [str(model), str(text), "--ctx", "64", "-o", str(out)]
    with pytest.raises((KeyboardInterrupt, click.Abort)):
        command.main(asked, standalone_mode=False)
    found = imatrix_file.read(out)
    assert found.n_windows == 2
    assert found.counts["blk.0.attn_q.weight"].tolist() == [128]
