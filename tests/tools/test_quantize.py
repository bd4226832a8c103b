"""`pyedge quantize`: a file with the same metadata and coarser matrices, whole or not at all."""

import json
import os
import re
import struct
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from ggufbytes import Type, write_gguf
from program import ELSEWHERE, PROGRAM, environment, program
from tinymodel import write_tiny_llama

from pyedge import LLM, ModelError, _core
from pyedge.tools import imatrix_file, quantize
from pyedge.tools.gguf_writer import GgufWriter, Tensor, packed
from pyedge.tools.mixes import Wishes

Wide = partial(write_tiny_llama, n_embd=256, n_head=4, n_kv=2, n_ff=512)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose rows fit every format, in F16."""
    return Wide(tmp_path_factory.mktemp("source") / "m.gguf", types="F16")


def made(source: Path, out: Path, mix: str, *options: str) -> Path:
    outcome = program("quantize", str(source), str(out), mix, *options)
    assert outcome.returncode == 0, outcome.stderr
    return out


def written(source: Path, out: Path, mix: str) -> int:
    """The same without the command: the file's size."""
    with _core.Gguf(source) as file:
        return quantize.quantize(file, out, quantize.plan(file, Wishes(mix)))


def refused(*args: str) -> str:
    """The one line that a command says when it fails."""
    outcome = program("quantize", *args)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert outcome.stdout == ""
    lines = outcome.stderr.splitlines()
    assert len(lines) == 1
    return lines[0]


def types(path: Path) -> dict[str, str]:
    with _core.Gguf(path) as file:
        return {t.name: t.type for t in file.tensors}


@pytest.mark.parametrize("mix", ["F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_XS", "MXFP4", "Q2_K"])
def test_a_quantized_model_still_says_nearly_the_same(source: Path, tmp_path: Path, mix: str) -> None:
    out = tmp_path / "out.gguf"
    size = written(source, out, mix)
    assert out.stat().st_size == size
    ids = list(range(5, 60))
    wanted, got = (LLM(path, precision="f32").logits(ids).reshape(-1) for path in (source, out))
    alike = float(np.corrcoef(wanted, got)[0, 1])
    least = {
        "F16": 0.999999, "BF16": 0.9999, "Q8_0": 0.9997, "Q6_K": 0.997, "Q5_K_M": 0.99, "Q4_K_M": 0.965, "Q4_0": 0.95,
        "IQ4_XS": 0.96, "MXFP4": 0.92, "Q2_K": 0.75,
    }  # fmt: skip
    assert alike >= least[mix]  # random weights suffer more than learned ones
    if mix == "F16":
        assert out.read_bytes()[-10000:] == source.read_bytes()[-10000:]


def test_metadata_are_kept_to_the_byte_and_in_order(tmp_path: Path) -> None:
    source = tmp_path / "in.gguf"
    kv: list[tuple[str, int, Any]] = [
        ("zzz.unknown", Type.ARRAY, (Type.F64, [0.1, float("nan")])),
        ("general.architecture", Type.STRING, "strange"),
        ("general.file_type", Type.U32, 1),
        ("a.nothing", Type.ARRAY, (Type.STRING, [])),
        ("a.bytes", Type.ARRAY, (Type.STRING, [b"\xff", "ä"])),
        ("general.alignment", Type.U32, 64),
        ("a.small", Type.I8, -3),
    ]
    values = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    tensors = [
        ("a.weight", (64, 8), 0, values.tobytes()),
        ("numbers", (3,), 26, struct.pack("<3i", 1, 2, 3)),  # I32
        ("b_norm.weight", (64, 8), 0, values.tobytes()),
        ("v.weight", (7,), 0, bytes(28)),
    ]
    write_gguf(source, kv, tensors, alignment=64)
    out = made(source, tmp_path / "out.gguf", "Q4_0")
    with _core.Gguf(source) as a, _core.Gguf(out) as b:
        assert b.keys() == [*a.keys(), "general.quantization_version"]
        for key in a.keys():  # noqa: SIM118
            if key != "general.file_type":
                assert a.packed(key) == b.packed(key), key
        assert (b.get("general.file_type"), b.get("general.quantization_version")) == (2, 2)
        assert [t.name for t in b.tensors] == [t.name for t in a.tensors]
        assert [t.type for t in b.tensors] == ["Q4_0", "I32", "F32", "F32"]
        assert all(t.offset % 64 == 0 for t in b.tensors)
        for name in ("numbers", "b_norm.weight", "v.weight"):
            assert a.read(name) == b.read(name)
        assert np.abs(b.dequantize("a.weight") - values).max() < 0.4
    assert len(gguf.GGUFReader(out).tensors) == 4


def test_rows_that_no_block_divides_fall_back_and_say_so(tmp_path: Path) -> None:
    """B45: each tensor gets a format whose blocks divide its rows."""
    """B45: a format whose blocks divide the rows, and a line that says which."""
    source = write_tiny_llama(tmp_path / "in.gguf", n_embd=288, n_head=9, n_kv=3, head_dim=32, n_ff=512)
    outcome = program("quantize", str(source), str(tmp_path / "out.gguf"), "Q4_K_M")
    assert "note: token_embd.weight and 11 more:" in outcome.stderr
    assert "rows of 288 values are no multiple of 256; Q5_0 in place of Q4_K" in outcome.stderr
    found = types(tmp_path / "out.gguf")
    assert found["blk.0.attn_q.weight"] == "Q5_0"
    assert found["blk.0.ffn_down.weight"] in ("Q4_K", "Q6_K")
    assert found["output.weight"] == "Q8_0"
    assert np.all(np.isfinite(LLM(tmp_path / "out.gguf").logits([5, 6, 7])))

    odd = write_tiny_llama(tmp_path / "odd.gguf", n_embd=72, n_head=4, n_kv=2, head_dim=18, n_ff=96)
    outcome = program("quantize", str(odd), str(tmp_path / "out.gguf"), "Q4_0")
    assert "rows of 72 values are no multiple of 32; F16 in place of Q4_0" in outcome.stderr
    assert types(tmp_path / "out.gguf")["blk.0.attn_q.weight"] == "F16"


@pytest.mark.parametrize("mix", ["Q4_1", "Q8_0", "Q4_K_M", "F16", "F32"])
def test_weights_that_are_no_numbers_are_refused_by_name_and_place(tmp_path: Path, mix: str) -> None:
    """B47: and what is only large is refused where it would become infinity."""
    """B47: none goes into a file, and what is only large does where the format holds it."""
    values = np.random.default_rng(1).standard_normal((288, 512)).astype(np.float32) * 0.05
    out = tmp_path / "out.gguf"
    for bad, word in ((np.nan, "NaN"), (np.inf, "infinity")):
        values[1000 // 512, 1000 % 512] = bad
        source = _with_down(tmp_path, values)
        with pytest.raises(ModelError, match=rf"in.gguf: tensor 'blk.1.ffn_down.weight': value 1000 is {word}"):
            written(source, out, mix)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["in.gguf"]
    values[1000 // 512, 1000 % 512] = 1e5
    source = _with_down(tmp_path, values)
    if mix == "F16":
        assert "value 1000 is 100000, more than F16 can hold" in refused(str(source), str(out), mix)
        assert not out.exists()
        return
    written(source, out, mix)
    with _core.Gguf(out) as file:
        assert file.dequantize("blk.1.ffn_down.weight").reshape(-1)[1000] == pytest.approx(1e5, rel=0.02)


def _with_down(folder: Path, values: np.ndarray) -> Path:
    return write_tiny_llama(
        folder / "in.gguf", n_embd=288, n_head=9, n_kv=3, head_dim=32, n_ff=512, extra={"blk.1.ffn_down.weight": values}
    )


def test_a_matrix_of_zeros_stays_one(tmp_path: Path) -> None:
    """B47."""
    source = Wide(tmp_path / "in.gguf", extra={"blk.1.ffn_down.weight": np.zeros((256, 512), np.float32)})
    with _core.Gguf(made(source, tmp_path / "out.gguf", "Q4_K_M")) as file:
        assert not file.dequantize("blk.1.ffn_down.weight").any()
    assert np.all(np.isfinite(LLM(tmp_path / "out.gguf").logits([5, 6, 7])))


# ---- importance matrices ---------------------------------------------------------------------------------------------


def importances(source: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    with _core.Gguf(source) as file:
        return {
            t.name: np.exp(1.5 * rng.standard_normal(t.shape[0])).astype(np.float32)
            for t in file.tensors
            if t.name.startswith("blk") and len(t.shape) == 2
        }


def write_imatrix(path: Path, values: dict[str, np.ndarray]) -> Path:
    """As llama.cpp's newer versions write it."""
    metadata = {
        "general.type": packed("imatrix"),
        "imatrix.datasets": packed(["calm.txt"]),
        "imatrix.chunk_count": packed(7),
        "imatrix.chunk_size": packed(512),
    }
    tensors = []
    for name, v in values.items():
        tensors += [Tensor(f"{name}.in_sum2", "F32", (len(v), 1)), Tensor(f"{name}.counts", "F32", (1, 1))]
    with GgufWriter(path, metadata, tensors) as writer:
        for name, v in values.items():
            writer.write(f"{name}.in_sum2", v * np.float32(4096))
            writer.write(f"{name}.counts", np.float32([4096]))
    return path


def write_dat(path: Path, values: dict[str, np.ndarray]) -> Path:
    """As its older ones did."""
    raw = struct.pack("<i", len(values))
    for name, v in values.items():
        raw += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", 8, len(v)) + (v * 8).tobytes()
    path.write_bytes(raw + struct.pack("<ii", 7, 8) + b"calm.txt")
    return path


def test_both_kinds_of_importance_matrix_do_the_same(source: Path, tmp_path: Path) -> None:
    values = importances(source)
    del values["blk.0.attn_q.weight"]
    new, old = write_imatrix(tmp_path / "new.gguf", values), write_dat(tmp_path / "old.dat", values)
    for path in (new, old):
        found = imatrix_file.read(path)
        assert (found.texts, found.n_windows) == (["calm.txt"], 7)
        assert found.sums.keys() == values.keys()
        for name, v in values.items():
            means = found.importance(name)
            assert means is not None
            assert np.allclose(means[0], v, rtol=1e-6)
    outcome = program("quantize", str(source), str(tmp_path / "a"), "Q3_K_M", "--imatrix", str(new))
    assert "note: token_embd.weight and 2 more: not in" in outcome.stderr
    made(source, tmp_path / "b", "Q3_K_M", "--imatrix", str(old))
    made(source, tmp_path / "c", "Q3_K_M")
    name = "blk.1.ffn_up.weight"
    with _core.Gguf(tmp_path / "a") as a, _core.Gguf(tmp_path / "b") as b, _core.Gguf(tmp_path / "c") as c:
        assert (a.get("quantize.imatrix.file"), a.get("quantize.imatrix.dataset")) == ("new.gguf", "calm.txt")
        assert a.get("quantize.imatrix.chunks_count") == 7
        assert a.read(name) == b.read(name) != c.read(name)
        assert a.read("blk.0.attn_q.weight") == c.read("blk.0.attn_q.weight")
        with _core.Gguf(source) as file:
            exact = file.dequantize(name)
        cost = [float((values[name] * (f.dequantize(name) - exact) ** 2).sum()) for f in (a, c)]
    assert cost[0] < 0.8 * cost[1]


def test_an_importance_matrix_that_does_not_fit_is_refused(source: Path, tmp_path: Path) -> None:
    values = importances(source)
    out = str(tmp_path / "out")
    short = write_dat(tmp_path / "short.dat", values | {"blk.0.attn_q.weight": np.ones(5, np.float32)})
    assert "has 5 numbers for tensor 'blk.0.attn_q.weight' of 1 x 256 columns" in refused(
        str(source), out, "Q4_0", "--imatrix", str(short)
    )
    other = write_dat(tmp_path / "other.dat", {"model.layers.0.q_proj.weight": np.ones(256, np.float32)})
    assert "has none of this model's tensors" in refused(str(source), out, "Q4_0", "--imatrix", str(other))
    cut = tmp_path / "cut.dat"
    cut.write_bytes(short.read_bytes()[:1000])
    for path, says in ((cut, "cut short"), (source, "is no importance matrix")):
        with pytest.raises(ModelError, match=says):
            imatrix_file.read(path)
    for bad in (np.nan, -1.0):
        damaged = write_dat(tmp_path / "bad.dat", {"blk.0.attn_q.weight": np.full(256, bad, np.float32)})
        with pytest.raises(ModelError, match="not possible"):
            imatrix_file.read(damaged)
    assert not os.path.exists(out)


# ---- what is refused, and what is shown ------------------------------------------------------------------------------


def test_a_quantized_file_is_taken_only_when_that_is_said(source: Path, tmp_path: Path) -> None:
    once = made(source, tmp_path / "q8.gguf", "Q8_0")
    assert "is Q8_0 already, and rounding twice costs quality" in refused(str(once), str(tmp_path / "out"), "Q4_0")
    again = made(once, tmp_path / "q4.gguf", "Q4_0", "--allow-requantize")
    assert types(again)["blk.0.attn_q.weight"] == "Q4_0"
    same = made(once, tmp_path / "same.gguf", "Q8_0")
    assert same.read_bytes() == once.read_bytes()


def test_the_file_that_is_read_is_not_written(source: Path, tmp_path: Path) -> None:
    os.link(source, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(source)
    before = source.read_bytes()
    for name in (source, tmp_path / "hard", tmp_path / "soft"):
        assert f"{name}: is the file that is read" in refused(str(source), str(name), "Q4_0")
    assert source.read_bytes() == before


def test_a_split_model_becomes_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Wide(tmp_path / "whole.gguf")
    monkeypatch.setattr(gguf, "GGUFWriter", partial(gguf.GGUFWriter, split_max_tensors=5))
    Wide(tmp_path / "split.gguf")
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) > 1
    out = made(parts[0], tmp_path / "a.gguf", "Q4_K_M")
    assert out.read_bytes() == made(whole, tmp_path / "b.gguf", "Q4_K_M").read_bytes()
    assert "is the file that is read" in refused(str(parts[0]), str(parts[1]), "Q4_0")


def test_a_dry_run_writes_nothing_and_says_the_sizes(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    outcome = program("quantize", str(source), str(out), "q4_k", "--dry-run")
    assert not out.exists()
    lines = outcome.stdout.splitlines()
    assert re.match(r"blk\.0\.attn_q\.weight +256 x 256  F16 -> Q4_K +36\.9 kB", lines[2]), lines[2]
    assert re.match(r"would be [\d.]+ kB -> [\d.]+ kB, \d\.\d\d bits per weight", lines[-1]) or "MB" in lines[-1]
    planned = json.loads(program("quantize", str(source), str(out), "Q4_K_M", "--dry-run", "--json").stdout)
    done = json.loads(program("quantize", str(source), str(out), "Q4_K_M", "--json").stdout)
    assert planned.items() <= done.items()
    assert done["file_bytes"] == out.stat().st_size
    assert sum(t["bytes"] for t in done["tensors"]) == done["bytes_after"]
    assert {t["name"]: t["to"] for t in done["tensors"]} == types(out)
    assert done["type"] == "Q4_K_M"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["Q4"], "'Q4' is no type; take one of F32"),
        (["Q4_0", "--tensor-type", "ffn"], "'ffn' is not REGEX=TYPE"),
        (["Q4_0", "--tensor-type", "(=Q8_0"], "'(' is no regular expression"),
        (["Q4_0", "--tensor-type", "ffn=Q9"], "'Q9' is no format"),
        (["Q4_0", "--output-type", "Q4_K_M"], "'Q4_K_M' is no format"),
        (["Q4_0", "--threads", "0"], "0 is not in the range"),
    ],
)
def test_wrong_usage(tmp_path: Path, args: list[str], says: str) -> None:
    outcome = program("quantize", str(tmp_path / "none.gguf"), str(tmp_path / "out"), *args)
    assert outcome.returncode == 2
    assert says in outcome.stderr


def test_a_pattern_that_no_tensor_has_is_an_error(source: Path, tmp_path: Path) -> None:
    said = refused(str(source), str(tmp_path / "out"), "Q4_0", "--tensor-type", "sideways=Q8_0")
    assert said.startswith("error: --tensor-type 'sideways': found in no name")


def test_a_disk_that_fills_up_leaves_no_file(source: Path, tmp_path: Path) -> None:
    """A limit on the size of files, which is met in the middle of writing."""
    command = f"ulimit -f 300; exec {' '.join(PROGRAM)} quantize {source} {tmp_path / 'out.gguf'} Q8_0"
    outcome = subprocess.run(
        ["bash", "-c", command], env=environment(), cwd=ELSEWHERE, capture_output=True, text=True, timeout=60
    )
    assert outcome.returncode == 1
    assert outcome.stderr == f"error: {tmp_path / 'out.gguf'}: File too large\n"
    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """A tensor of 128 MB is quantized in less memory than it has."""
    rows, columns = 16384, 4096
    path = tmp_path / "large.gguf"
    with GgufWriter(
        path, {"general.architecture": packed("x")}, [Tensor("a.weight", "F16", (columns, rows))]
    ) as writer:
        block = (np.random.default_rng(0).standard_normal((256, columns)) * 0.02).astype(np.float16)
        for _ in range(rows // 256):
            writer.write("a.weight", block)
    script = (
        "import sys, resource; from pyedge import _core; from pyedge.tools import quantize, mixes\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "with _core.Gguf(sys.argv[1]) as f:\n"
        "    quantize.quantize(f, sys.argv[2], quantize.plan(f, mixes.Wishes('Q4_0')))\n"
        "print(peak() - before)"
    )
    outcome = subprocess.run(
        [PROGRAM[0], "-c", script, path, tmp_path / "out"],
        env=environment(),
        cwd=ELSEWHERE,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    grown = int(outcome.stdout)  # kilobytes; on macOS bytes
    assert grown < 40_000 * (1024 if os.uname().sysname == "Darwin" else 1)
