"""`pyedge inspect`: what it shows of sound files, and the problems it finds in others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner, Result
from ggufbytes import Kv, Type, write_gguf
from tinymodel import vocabulary, write_tiny_llama

import pyedge
from pyedge import _core
from pyedge.cli import cli
from pyedge.models.cost import kv_bytes_per_token
from pyedge.tools import inspect as tools_inspect


def inspect(*args: object) -> Result:
    return CliRunner().invoke(cli, ["inspect", *map(str, args)])


def document(*args: object) -> dict[str, Any]:
    result = inspect(*args, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def problems(*args: object) -> str:
    return "\n".join(document(*args)["problems"])


def test_a_sound_model_is_described(tmp_path: Path) -> None:
    path = write_tiny_llama(
        tmp_path / "m.gguf", types={"": "Q8_0", "output": "F16"}, context=8192, n_head=2, n_kv=2, head_dim=32
    )
    found = document(path)
    reader = gguf.GGUFReader(path)
    assert found["problems"] == []
    assert found["metadata"]["llama.block_count"] == 2
    tokens, _ = vocabulary()
    assert found["metadata"]["tokenizer.ggml.tokens"] == {"length": len(tokens), "first": tokens[:8]}
    assert [(t["name"], t["shape"], t["bytes"]) for t in found["tensors"]] == [
        (t.name, [int(n) for n in t.shape], int(t.n_bytes)) for t in reader.tensors
    ]
    sizes = found["sizes"]
    assert sizes["file_bytes"] == path.stat().st_size
    assert sizes["parameters"] == sum(int(t.n_elements) for t in reader.tensors)
    assert sum(sizes["bytes_by_type"].values()) == sizes["weight_bytes"]
    assert sizes["bits_per_weight"] == pytest.approx(8 * sizes["weight_bytes"] / sizes["parameters"])
    assert found["memory"]["kv_bytes_per_token"] == 2 * 2 * (2 * 32) * 2  # layers, k and v, heads of 32, f16
    per_token = found["memory"]["kv_bytes_per_token"]
    assert found["memory"]["bytes_at_context"] == {
        str(n): sizes["weight_bytes"] + n * per_token
        for n in (4096, 8192)  # no more than the context
    }
    with pyedge.LLM(path, max_model_len=64) as llm:
        assert per_token == _core.page_bytes(llm.weights, 16, "f16") / 16
        for kv_type in ("f32", "f16", "q8_0", "q4_0"):
            assert kv_bytes_per_token(llm.plan, kv_type) == _core.page_bytes(llm.weights, 16, kv_type) / 16
    assert found["tokenizer"]["tokens"] == len(tokens)
    assert found["tokenizer"]["eos"] == 2
    shown = inspect(path)
    assert shown.exit_code == 0
    for text in ("blk.1.ffn_down.weight", "Q8_0", "problems: none found", "about ", "bits each"):
        assert text in shown.output


def test_a_split_model_is_shown_whole(tmp_path: Path) -> None:
    for i in range(2):
        kv: list[Kv] = [("split.no", Type.U16, i), ("split.count", Type.U16, 2)]
        values = np.full(4, i + 1, np.float32)
        write_gguf(tmp_path / f"m-{i + 1:05d}-of-00002.gguf", kv, [(f"t{i}", [4], 0, values.tobytes())])
    found = document(tmp_path / "m-00001-of-00002.gguf")
    assert [(t["name"], t["file"]) for t in found["tensors"]] == [
        ("t0", "m-00001-of-00002.gguf"),
        ("t1", "m-00002-of-00002.gguf"),
    ]
    assert found["sizes"]["files"] == 2


@pytest.mark.parametrize(("value", "name"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_numbers_that_are_none_are_found(tmp_path: Path, value: float, name: str) -> None:
    values = np.ones(96, np.float32)
    values[70] = value
    path = write_gguf(
        tmp_path / "m.gguf", [], [("good", [4], 0, bytes(4) * 3 + b"\0\0\x80\x3f"), ("x", [8, 12], 0, values.tobytes())]
    )
    found = problems(path)
    assert f"x: value 70 is {name}" in found
    assert "good: " not in found
    assert "value 70" not in problems(path, "--quick")


def test_a_block_scale_that_is_infinite_is_found(tmp_path: Path) -> None:
    data = bytearray(34 * 4)
    data[34:36] = b"\x00\x7c"  # an f16 infinity, in the second block
    data[34 + 2 :] = bytes([1]) * len(data[34 + 2 :])
    path = write_gguf(tmp_path / "m.gguf", [], [("q", [64, 2], 8, bytes(data))])
    assert "q: value 32 is infinity (and 31 more" in problems(path)


@pytest.mark.parametrize("info", [f for f in _core.formats() if f.name in tools_inspect.SCALES], ids=lambda f: f.name)
def test_scales_decide_whether_a_block_is_finite(tmp_path: Path, info: _core.FormatInfo) -> None:
    """Whatever else is in it; and each of them does."""
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (64, info.block_bytes), np.uint8)
    for at in tools_inspect.SCALES[info.name]:
        blocks[:, at + 1] &= 0xFB  # never the exponent of infinity and NaN

    def values(blocks: np.ndarray) -> np.ndarray:
        tensor = ("w", [info.block_values, len(blocks)], info.type, blocks.tobytes())
        with _core.Gguf(write_gguf(tmp_path / "m.gguf", [], [tensor])) as file:
            return file.dequantize("w")

    assert np.all(np.isfinite(values(blocks)))
    assert problems(tmp_path / "m.gguf").count("w: ") == 0
    for at in tools_inspect.SCALES[info.name]:
        bad = blocks.copy()
        bad[7, at : at + 2] = (0, 0x7C)
        assert not np.all(np.isfinite(values(bad))), at
        assert f"w: value {7 * info.block_values}" in problems(tmp_path / "m.gguf")


def test_large_values_are_no_problem_and_zeros_are_told(tmp_path: Path) -> None:
    large = np.full(8, 3e38, np.float32)  # whose squares overflow
    path = write_gguf(tmp_path / "m.gguf", [], [("large", [8], 0, large.tobytes()), ("zero", [8], 0, bytes(32))])
    found = problems(path)
    assert "large" not in found
    assert "zero: all values are zero" in found


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"drop": ["blk.1.ffn_up.weight"]}, "blk.1.ffn_up.weight"),
        ({"keys": {"llama.attention.head_count": 0}}, "llama.attention.head_count: 0 is out of range"),
        ({"keys": {"general.architecture": "nosuch"}}, "general.architecture"),
        ({"keys": {"tokenizer.ggml.pre": "nosuch"}}, "tokenizer.ggml.pre"),
        ({"keys": {"tokenizer.ggml.eos_token_id": 5000}}, "tokenizer.ggml.eos_token_id: 5000 is outside"),
        ({"keys": {"tokenizer.ggml.bos_token_id": 5000}}, "tokenizer.ggml.bos_token_id: 5000 is outside"),
        ({"keys": {"tokenizer.ggml.fim_pre_token_id": 5000}}, "tokenizer.ggml.fim_pre_token_id: 5000 is outside"),
        ({"extra": {"blk.0.odd.weight": np.ones(64, np.float32)}}, "blk.0.odd.weight: the llama family does not read"),
        ({"keys": {"llama.rope.freq_base": float("nan")}}, "llama.rope.freq_base: is or holds nan"),
        ({"chat_template": "{% if %}"}, "tokenizer.chat_template: "),
        ({"chat_template": "{{ raise_exception('not for you') }}"}, "not for you"),
        (
            {
                "chat_template": "{{ messages }}",
                "keys": {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{% if %}"},
            },
            "tokenizer.chat_template.tool_use: ",
        ),
    ],
)
def test_what_keeps_a_model_from_running_is_said(tmp_path: Path, options: dict[str, Any], wanted: str) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", **options)
    assert wanted in problems(path, "--quick")
    assert wanted in inspect(path).output


def test_a_format_that_is_not_run_is_named(tmp_path: Path) -> None:
    kinds = [gguf.GGMLQuantizationType.IQ2_XXS, gguf.GGMLQuantizationType.TQ1_0]
    tensors = [(f"{k.name}.weight", [256, 2], int(k), bytes(2 * gguf.GGML_QUANT_SIZES[k][1])) for k in kinds]
    found = problems(write_gguf(tmp_path / "m.gguf", [("general.architecture", Type.STRING, "llama")], tensors))
    for kind in kinds:
        assert f"{kind.name}.weight: is {kind.name}, which this version cannot run; take another quantization" in found


def test_a_strangers_text_does_not_drive_the_terminal(tmp_path: Path) -> None:
    kv: list[Kv] = [
        ("general.name", Type.STRING, "\x1b]0;title\x07\x9b31m\u202e\r\n"),
        ("words", Type.ARRAY, (Type.STRING, ["\x1b[2J"] * 3)),
        ("general.architecture", Type.STRING, "\x1b[2J"),
    ]
    path = write_gguf(tmp_path / "m.gguf", kv)
    shown = inspect(path)
    assert shown.exit_code == 0
    assert "\\x1b]0;title" in shown.output
    assert all(c.isprintable() or c == "\n" for c in shown.output)
    assert document(path)["metadata"]["general.name"] == "\x1b]0;title\x07\x9b31m\u202e\r\n"


def test_a_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    result = inspect(path, "--json")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "m.gguf: the file has only 4 bytes" in result.output
