"""Quantizers: blocks that the gguf package decodes, with errors below llama.cpp's, whatever surrounds a block.

Owns the data and the bounds. The decoding oracle is the gguf package; the figures to beat were measured with
llama.cpp b11434 on the same data (see PEER).
"""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from ggufbytes import Type, write_gguf
from program import ELSEWHERE, environment

from pyedge import ModelError, _core

Array = npt.NDArray[np.float32]
FORMATS = {info.name: info for info in _core.formats() if info.runs}
BLOCKS = [name for name in FORMATS if name not in ("F32", "F16", "BF16")]
COLUMNS = 512

# Sum of weight * (error squared) over sum of weight * (value squared), in millionths, of data() and importance():
# ggml_quantize_chunk of llama.cpp b11434 on x86-64, without and with the importances.
PEER = {
    "Q4_0": (9874.915, 7426.427),
    "Q4_1": (6776.990, 3821.772),
    "Q5_0": (2395.886, 1879.753),
    "Q5_1": (1593.233, 868.778),
    "Q8_0": (37.636, 36.005),
    "Q2_K": (94737.131, 47999.170),
    "Q3_K": (26168.701, 18517.429),
    "Q4_K": (5738.564, 4083.360),
    "Q5_K": (1463.382, 1058.158),
    "Q6_K": (391.973, 284.722),
    "IQ4_NL": (6974.941, 5178.009),
    "IQ4_XS": (7138.181, 5429.238),
    "MXFP4": (15401.255, 15384.543),
}


def data(rows: int = 64) -> Array:
    """Like weights: bell-shaped, rows of different sizes, some far values."""
    rng = np.random.default_rng(11)
    values = rng.standard_normal((rows, COLUMNS)) * np.exp(rng.standard_normal((rows, 1)) * 0.5) * 0.03
    values[rng.random(values.shape) < 0.002] *= 8
    return values.astype(np.float32)


def importance() -> Array:
    """Like mean squares of activations: few columns matter most."""
    rng = np.random.default_rng(12)
    return np.exp(1.5 * rng.standard_normal(COLUMNS)).astype(np.float32)


def decoded(blocks: npt.NDArray[np.uint8], name: str) -> Array:
    kind = gguf.GGMLQuantizationType[name]
    if name == "F16":
        return blocks.view(np.float16).astype(np.float32)
    out: Array = gguf.quants.dequantize(blocks, kind).astype(np.float32)
    return out


def error(values: Array, blocks: npt.NDArray[np.uint8], name: str, weights: Array | None = None) -> float:
    w = np.ones(values.shape[1]) if weights is None else weights.astype(np.float64)
    x = values.astype(np.float64)
    return float((w * (decoded(blocks, name) - x) ** 2).sum() / (w * x**2).sum())


def test_every_format_has_a_figure_to_beat() -> None:
    assert sorted(PEER) == sorted(BLOCKS)


@pytest.mark.parametrize("name", BLOCKS)
def test_errors_are_below_those_of_llama_cpp(name: str) -> None:
    values, weights = data(), importance()
    plain, weighted = (figure / 1e6 for figure in PEER[name])
    assert error(values, _core.quantize(values, name), name) <= 0.985 * plain
    assert error(values, _core.quantize(values, name, importance=weights), name, weights) <= 0.985 * weighted


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_does_not_depend_on_its_neighbours_nor_on_threads(name: str) -> None:
    values, weights = data(37), importance()
    for w in (None, weights):
        whole = _core.quantize(values, name, importance=w, threads=1)
        for threads in (2, 3, 0):
            assert np.array_equal(_core.quantize(values, name, importance=w, threads=threads), whole)
        for row in (0, 1, 17, 36):
            assert np.array_equal(_core.quantize(values[row : row + 1], name, importance=w), whole[row : row + 1])


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_does_not_depend_on_where_it_stands(name: str) -> None:
    values = data(4).reshape(-1, FORMATS[name].block_values)
    alone = np.concatenate([_core.quantize(block[None], name) for block in values])
    assert np.array_equal(_core.quantize(values.reshape(4, -1), name).reshape(alone.shape), alone)


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_stay_zeros_and_what_is_small_stays_finite(name: str) -> None:
    zeros = np.zeros((2, COLUMNS), np.float32)
    assert not decoded(_core.quantize(zeros, name), name).any()
    assert not decoded(_core.quantize(zeros, name, importance=importance()), name).any()
    for size in (1e-45, 1e-30, 1e-8, 1e-6):
        tiny = (data(2) * size / 0.03).astype(np.float32)
        back = decoded(_core.quantize(tiny, name), name)
        assert np.all(np.isfinite(back))
        assert np.abs(back - tiny).max() <= np.abs(tiny).max() + 2**-23  # two of the least numbers of an f16


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("value", [0.7, -0.7, 1e-3, -30.0])
def test_a_constant_is_kept(name: str, value: float) -> None:
    values = np.full((1, COLUMNS), value, np.float32)
    back = decoded(_core.quantize(values, name), name)
    # MXFP4's steps are powers of two; the scales of others are rounded to 11 bits (fewer, if small), then to 4 or 6.
    assert np.abs(back / value - 1).max() < (0.2 if name == "MXFP4" else 0.04 if name == "Q2_K" else 0.02)


@pytest.mark.parametrize("name", [n for n in FORMATS if n != "F16"])
@pytest.mark.parametrize("far", [1e5, 6e4])
def test_one_far_value_costs_its_block_and_no_other(name: str, far: float) -> None:
    values = data(2)
    plain = decoded(_core.quantize(values, name), name)
    values[0, 300] = far
    back = decoded(_core.quantize(values, name), name)
    assert abs(back[0, 300] / far - 1) < (0.35 if name == "MXFP4" else 0.15)
    block = FORMATS[name].block_values
    same = np.ones(values.shape, bool)
    same[0, 300 // block * block : 300 // block * block + block] = False
    assert np.array_equal(back[same], plain[same])


@pytest.mark.parametrize("name", FORMATS)
def test_what_can_just_be_held_is_held_and_more_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="value 515 is NaN"):
        _core.quantize(_with(np.nan), name)
    with pytest.raises(ValueError, match="value 515 is infinity"):
        _core.quantize(_with(-np.inf), name)
    if name in ("F32", "MXFP4"):
        return
    with pytest.raises(
        ValueError, match=rf"value 515 is 3.4e\+38, more than {name} can hold .*; keep it in (BF16|F32)"
    ):
        _core.quantize(_with(3.4e38), name)
    for largest in (60000.0, -60000.0):
        back = decoded(_core.quantize(_with(largest), name), name)
        assert np.all(np.isfinite(back))


def _with(value: float) -> Array:
    values = data(3)
    values[1, 3] = value
    return values


@pytest.mark.parametrize("name", BLOCKS)
def test_quantizing_again_costs_little(name: str) -> None:
    """A block that is one already is found again, or nearly: what a second time adds is a fraction of the first."""
    once = decoded(_core.quantize(data(), name), name)
    twice = decoded(_core.quantize(once, name), name)
    signal = float((once.astype(np.float64) ** 2).sum())
    second = float(((twice - once).astype(np.float64) ** 2).sum()) / signal
    assert second < 0.2 * error(data(), _core.quantize(data(), name), name)


def test_floats_are_rounded_to_nearest_even() -> None:
    values = np.concatenate([data(8), data(8) * 1e-6, [[1 + 2**-11, 1 + 3 * 2**-11] * (COLUMNS // 2)]]).astype(
        np.float32
    )
    assert np.array_equal(_core.quantize(values, "F16").view(np.float16), values.astype(np.float16))
    assert np.array_equal(_core.quantize(values, "F32").view(np.float32), values)
    wanted = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
    assert np.array_equal(_core.quantize(values, "BF16"), wanted)


def test_columns_without_importance_are_not_lost() -> None:
    values, weights = data(), np.zeros(COLUMNS, np.float32)
    for name in BLOCKS:
        none = error(values, _core.quantize(values, name, importance=weights), name)
        assert none <= 1.02 * error(values, _core.quantize(values, name), name)
        weights[:64] = 1e6
        some = error(values[:, 256:], _core.quantize(values, name, importance=weights)[:, -_bytes(name) :], name)
        assert some < 2 * error(values[:, 256:], _core.quantize(values[:, 256:].copy(), name), name)
        weights[:64] = 0


def _bytes(name: str) -> int:
    return FORMATS[name].block_bytes * 256 // FORMATS[name].block_values


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"type": "Q9_9"}, "'Q9_9' is no format"),
        ({"type": "Q8_1"}, "Q8_1 is no format that this version can write"),
        ({"values": np.zeros((2, 40), np.float32)}, "a row of 40 values is no whole number of blocks of Q4_0"),
        ({"threads": -1}, "threads is -1"),
        ({"importance": np.ones(3, np.float32)}, "3 numbers for 512 columns"),
        ({"importance": np.full(COLUMNS, -1, np.float32)}, "at 0 is -1, which cannot be"),
        ({"importance": np.full(COLUMNS, np.nan, np.float32)}, "at 0 is -?nan, which cannot be"),
        ({"values": np.float32(3)}, "an array of rows is needed"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, object], says: str) -> None:
    arguments: dict[str, object] = {"values": data(1), "type": "Q4_0"} | change
    values, kind = arguments.pop("values"), arguments.pop("type")
    with pytest.raises(ValueError, match=says):
        _core.quantize(values, kind, **arguments)  # type: ignore[arg-type]


def test_rows_of_a_file_are_as_rows_of_an_array(tmp_path: Path) -> None:
    values = data(64).reshape(4, 16, COLUMNS)  # four experts
    weights = np.stack([importance() * (i + 1) ** np.arange(COLUMNS) ** 0.3 for i in range(4)]).astype(np.float32)
    half = values.astype(np.float16)
    path = write_gguf(
        tmp_path / "m.gguf",
        [("general.architecture", Type.STRING, "x")],
        [("f32", (COLUMNS, 16, 4), 0, values.tobytes()), ("f16", (COLUMNS, 16, 4), 1, half.tobytes())],
    )
    with _core.Gguf(path) as file:
        for name in ("Q4_0", "Q4_K", "BF16"):
            wanted = [_core.quantize(v, name, importance=w) for v, w in zip(values, weights, strict=True)]
            got = file.quantize("f32", name, importance=weights.reshape(-1))
            assert np.array_equal(got, np.concatenate(wanted))
            assert np.array_equal(file.quantize("f32", name, 10, 20, importance=weights.reshape(-1)), got[10:30])
            wanted = [_core.quantize(v.astype(np.float32), name, importance=weights[0]) for v in half]
            assert np.array_equal(file.quantize("f16", name, importance=weights[0]), np.concatenate(wanted))
        with pytest.raises(ValueError, match="70 from 0"):
            file.quantize("f32", "Q4_0", 0, 70)
        with pytest.raises(ValueError, match="of another model"):
            file.quantize("f32", "Q4_0", importance=weights[0, :64])
        with pytest.raises(ModelError, match="'none' is missing"):
            file.quantize("none", "Q4_0")


def test_a_bad_value_is_named_by_its_place_in_the_tensor(tmp_path: Path) -> None:
    values = data(2048)
    for row, column in ((2000, 5), (777, 9), (1500, 1)):
        values[row, column] = np.nan
    path = write_gguf(
        tmp_path / "m.gguf", [("general.architecture", Type.STRING, "x")], [("t", (COLUMNS, 2048), 0, values.tobytes())]
    )
    with _core.Gguf(path) as file:
        for threads in (1, 2, 3):
            with pytest.raises(ModelError, match=rf"m.gguf: tensor 't': value {777 * COLUMNS + 9} is NaN"):
                file.quantize("t", "Q4_0", threads=threads)
            with pytest.raises(ModelError, match=rf"value {1500 * COLUMNS + 1} is NaN"):
                file.quantize("t", "Q4_0", 1400, 300, threads=threads)


def test_every_vector_set_writes_the_same_file() -> None:
    """One lane is one block, so that the number of lanes does not show. Plain C has no fused multiply-add."""
    script = (
        "import sys, hashlib, numpy as np; from pyedge import _core\n"
        "rng = np.random.default_rng(3); x = rng.standard_normal((20, 512)).astype(np.float32)\n"
        "w = rng.random(512).astype(np.float32)\n"
        "for f in _core.formats():\n"
        "    if f.runs:\n"
        "        both = [_core.quantize(x, f.name), _core.quantize(x, f.name, importance=w)]\n"
        "        print(f.name, *(hashlib.sha256(b).hexdigest() for b in both))\n"
    )
    sets = [name for name, supported in _core.isas() if supported and name != "scalar"]
    outcomes = {
        name: subprocess.run(
            [sys.executable, "-c", script],
            env=environment(PYEDGE_ISA=name),
            cwd=ELSEWHERE,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for name in sets
    }
    assert len(set(outcomes.values())) <= 1, outcomes
