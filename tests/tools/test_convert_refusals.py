"""Checkpoints that cannot be converted, or not quite: one clear line, and no file."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path
from typing import Any

import families
import gguf
import hfcheckpoint
import numpy as np
import pytest
from hfcheckpoint import write_json, write_safetensors, write_weights
from program import python

from pyedge import LLM, ModelError, _core
from pyedge.tools.checkpoint import Checkpoint
from pyedge.tools.convert import convert

CASE = families.load("llama-2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return hfcheckpoint.write(tmp_path / "checkpoint", CASE)


def refused(folder: Path, match: str, **kw: Any) -> None:
    out = folder.parent / "out"
    out.mkdir(exist_ok=True)
    with pytest.raises(ModelError, match=match) as caught:
        convert(folder, out / "m.gguf", **kw)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600 + len(str(folder))
    assert not list(out.iterdir())


def configure(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **settings}
    write_json(path, {k: v for k, v in config.items() if v is not ...})


def weights(**changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """Those of the checkpoint, changed (None: left out), by names with `_` in place of dots."""
    found = {**CASE.weights()}
    for name, values in changed.items():
        full = next((n for n in found if n.replace(".", "_") == name), name)
        if values is None:
            del found[full]
        else:
            found[full] = values
    return found


# ---- Weights ---------------------------------------------------------------------------------------------------------


def test_tied_or_not(folder: Path, tmp_path: Path) -> None:
    """B38: an output of its own that is missing is not made up, and one that is not used is not stored."""
    write_weights(folder, weights(lm_head_weight=None))
    refused(folder, r"lm_head\.weight: missing")
    configure(folder, tie_word_embeddings=True)
    convert(folder, tmp_path / "tied.gguf")
    copied = {**weights(lm_head_weight=None), "lm_head.weight": CASE.weights()["model.embed_tokens.weight"]}
    write_weights(folder, copied)
    convert(folder, tmp_path / "copied.gguf")
    found = []
    for name in ("tied", "copied"):
        with _core.Gguf(tmp_path / f"{name}.gguf") as file:
            assert file.tensor_index("output.weight") < 0
        with LLM(tmp_path / f"{name}.gguf", precision="f32") as llm:
            found.append(llm.logits([1, 2, 3]))
    # The embedding as an output of its own is the same model, and is one that computes with it.
    embedding = CASE.weights()["model.embed_tokens.weight"]
    configure(folder, tie_word_embeddings=False)
    write_weights(folder, weights(lm_head_weight=embedding))
    convert(folder, tmp_path / "own.gguf")
    with LLM(tmp_path / "own.gguf", precision="f32") as llm:
        wanted = llm.logits([1, 2, 3])
    assert wanted.any()
    for logits in found:
        assert np.allclose(logits, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("value", "what"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_what_is_no_number_is_named_with_its_place(folder: Path, value: float, what: str) -> None:
    bad = CASE.weights()["model.layers.1.mlp.down_proj.weight"].copy()
    bad[10, 5] = value
    write_weights(folder, weights(model_layers_1_mlp_down_proj_weight=bad))
    place = 10 * bad.shape[1] + 5
    refused(folder, rf"model\.layers\.1\.mlp\.down_proj\.weight: value {place} is {what}")


def test_what_f16_cannot_hold(folder: Path, tmp_path: Path) -> None:
    """B40: never an infinity that nobody is told of."""
    big = CASE.weights()["model.layers.1.mlp.down_proj.weight"].copy()
    big[3, 5] = 1e5
    write_weights(folder, weights(model_layers_1_mlp_down_proj_weight=big), "BF16")
    refused(folder, r"model\.layers\.1\.mlp\.down_proj\.weight: 99840 is more than F16 can hold; .*bf16", type="f16")
    assert convert(folder, tmp_path / "m.gguf")["type"] == "bf16"
    big[3, 5] = 3.4e38  # rounds up to infinity
    write_weights(folder, weights(model_layers_1_mlp_down_proj_weight=big))
    refused(folder, r"3\.4e\+38 is more than BF16 can hold; give --type f32", type="bf16")
    big[3, 5] = 99840
    write_weights(folder, weights(model_layers_1_mlp_down_proj_weight=big))
    convert(folder, tmp_path / "m.gguf", "bf16")
    with _core.Gguf(tmp_path / "m.gguf") as file:
        assert file.dequantize("blk.1.ffn_down.weight")[3, 5] == 99840


def test_biases_go_with_their_rows(folder: Path, tmp_path: Path) -> None:
    """Those of q and k too, whose rows are in another order in the file."""
    first = {n: v[:, 0].copy() for n, v in CASE.weights().items() if n.endswith(("q_proj.weight", "k_proj.weight"))}
    biases = {n.replace(".weight", ".bias"): v for n, v in first.items()}
    write_weights(folder, {**weights(), **biases})
    convert(folder, tmp_path / "m.gguf")
    with _core.Gguf(tmp_path / "m.gguf") as file:
        for name in (f"blk.{i}.attn_{part}" for i in range(2) for part in "qk"):
            matrix, bias = (file.dequantize(f"{name}.{kind}") for kind in ("weight", "bias"))
            assert np.array_equal(matrix[:, 0], bias.reshape(-1))


def test_zeros_are_zeros(folder: Path, tmp_path: Path) -> None:
    zeros = np.zeros_like(CASE.weights()["model.layers.1.mlp.down_proj.weight"])
    write_weights(folder, weights(model_layers_1_mlp_down_proj_weight=zeros))
    for kind in ("f32", "f16", "bf16", "q8_0"):
        convert(folder, tmp_path / "m.gguf", kind)
        with _core.Gguf(tmp_path / "m.gguf") as file:
            assert not file.dequantize("blk.1.ffn_down.weight").any()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_types_and_shards(tmp_path: Path, dtype: str, n_shards: int) -> None:
    folder = hfcheckpoint.write(tmp_path / "c", CASE, dtype=dtype, n_shards=n_shards)
    assert convert(folder, tmp_path / "own.gguf")["type"] == dtype.lower()
    convert(folder, tmp_path / "f32.gguf", "f32")
    with _core.Gguf(tmp_path / "own.gguf") as own, _core.Gguf(tmp_path / "f32.gguf") as f32:
        for t in own.tensors:
            assert t.type == ("F32" if len(t.shape) == 1 else dtype)
            assert np.array_equal(own.dequantize(t.name), f32.dequantize(t.name))  # nothing is lost in its own type
        source = CASE.weights()["model.layers.0.mlp.up_proj.weight"]
        assert np.allclose(own.dequantize("blk.0.ffn_up.weight"), source, rtol=0.005)


def test_q8_0(tmp_path: Path) -> None:
    """No farther from the weights than what the gguf package makes of them; rows that are no whole blocks are F16."""
    convert(hfcheckpoint.write(tmp_path / "odd", families.load("smollm2")), tmp_path / "odd.gguf", "q8_0")
    with _core.Gguf(tmp_path / "odd.gguf") as odd:  # its rows have 72 values
        assert {t.type for t in odd.tensors if len(t.shape) > 1} == {"F16", "Q8_0"}
        assert all((t.type == "Q8_0") == (t.shape[0] % 32 == 0) for t in odd.tensors if len(t.shape) > 1)
    convert(hfcheckpoint.write(tmp_path / "c", CASE), tmp_path / "m.gguf", "q8_0")
    source, kind = CASE.weights()["lm_head.weight"], gguf.GGMLQuantizationType.Q8_0
    theirs = gguf.quants.dequantize(gguf.quants.quantize(source, kind), kind)
    with _core.Gguf(tmp_path / "m.gguf") as file:
        assert file.get("general.file_type") == 7
        assert ((file.dequantize("output.weight") - source) ** 2).sum() <= ((theirs - source) ** 2).sum()


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = hfcheckpoint.write(tmp_path / "c", CASE, n_shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(folder, r"model-00002-of-00003\.safetensors: missing")


def test_a_shard_without_what_the_index_says(tmp_path: Path) -> None:
    folder = hfcheckpoint.write(tmp_path / "c", CASE, n_shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.layers.7.mlp.up_proj.weight"] = "model-00001-of-00002.safetensors"
    write_json(folder / "model.safetensors.index.json", index)
    refused(folder, r"model\.layers\.7\.mlp\.up_proj\.weight: missing, though the index says")
    for name in ("../checkpoint.safetensors", "/etc/passwd", "..", 5):
        index["weight_map"]["model.norm.weight"] = name
        write_json(folder / "model.safetensors.index.json", index)
        refused(folder, "is no name of a file in this folder")


def test_fp8_is_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    write_safetensors(path, {n: v.astype(np.uint8) if "up_proj" in n else v for n, v in CASE.weights().items()})
    path.write_bytes(path.read_bytes().replace(b'"U8"', b'"F8_E4M3"', 1).replace(b" ", b"", 5))
    refused(folder, r"up_proj\.weight: is F8_E4M3 \(fp8\)")
    configure(folder, quantization_config={"quant_method": "fp8"})
    refused(folder, "quantized by 'fp8'")


def test_only_pickles(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, r"pytorch_model\.bin: weights are read from safetensors only")


def test_a_tensor_without_a_place(folder: Path) -> None:
    write_weights(folder, {**weights(), "model.layers.0.mlp.extra.weight": np.zeros((4, 4), np.float32)})
    refused(folder, r"model\.layers\.0\.mlp\.extra\.weight: has no place")


def test_missing_tensors_are_named_together(folder: Path) -> None:
    write_weights(folder, weights(model_layers_1_mlp_down_proj_weight=None))
    refused(folder, r"checkpoint: model\.layers\.1\.mlp\.down_proj\.weight: missing; download")
    write_weights(folder, weights(model_layers_1_mlp_down_proj_weight=None, model_embed_tokens_weight=None))
    refused(folder, r"model\.embed_tokens\.weight, model\.layers\.1\.mlp\.down_proj\.weight: missing")
    write_weights(folder, {n: v for n, v in weights().items() if not n.startswith("model.layers.0.")})
    names = ["input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm"]
    refused(folder, re.escape(", ".join(f"model.layers.0.{n}.weight" for n in names) + " and 4 more: missing; "))
    # What no layer has: only the plan knows that it is needed.
    write_weights(folder, {n: v for n, v in weights().items() if "down_proj" not in n})
    refused(folder, r"the file would not run: blk\.0\.ffn_down\.weight: tensor missing")


def test_missing_experts_are_named_together(tmp_path: Path) -> None:
    folder = hfcheckpoint.write(tmp_path / "c", families.load("qwen3moe"))
    tensors = Checkpoint(folder).tensors()
    left = [n for n in tensors if ".1.mlp.experts.2." not in n and ".0.mlp.experts.5.up" not in n]
    write_weights(folder, {n: tensors[n].values(0, tensors[n].n_rows).reshape(tensors[n].shape) for n in left})
    found = [f"model.layers.1.mlp.experts.2.{part}_proj.weight" for part in ("gate", "up", "down")]
    for name in ["model.layers.0.mlp.experts.5.up_proj.weight", *found]:
        refused(folder, rf"{re.escape(name)}(,.*)?: missing; ")


def test_tensors_without_a_place_are_named_together(folder: Path) -> None:
    extra = {f"model.layers.{i}.mlp.extra.weight": np.zeros((4, 4), np.float32) for i in range(7)}
    write_weights(folder, {**weights(), **extra})
    refused(folder, r"model\.layers\.0\.mlp\.extra\.weight, .*\.4\.mlp\.extra\.weight and 2 more: have no place")


# ---- Headers ---------------------------------------------------------------------------------------------------------

ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def header(value: Any, data: bytes = bytes(16)) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return len(text).to_bytes(8, "little") + text + data


HEADERS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "header of 0 bytes"),
    "short": (b"\x08\0\0", "a header of"),
    "longer than the file": ((1 << 40).to_bytes(8, "little") + b"{}", "is not possible in a file of 10"),
    "no JSON": (header(b"{]"), "is no JSON"),
    "no UTF-8": (header(b'{"\xff": 1}'), "not UTF-8"),
    "nested": (header(b"[" * 100_000), "is no JSON"),
    "a list": (header([1]), "no JSON object"),
    "a name twice": (header(b'{"a": 1, "a": 2}'), "there twice"),
    "no description": (header({"a": 5}), "a: no description"),
    "unknown type": (header({"a": {**ENTRY, "dtype": "F4"}}), "type 'F4' is not known"),
    "type that is a list": (header({"a": {**ENTRY, "dtype": ["F32"]}}), r"type \['F32'\] is not known"),
    "type of a wrong kind": (header({"a": {**ENTRY, "dtype": 7}}), "type 7 is not known"),
    "negative shape": (header({"a": {**ENTRY, "shape": [-2, -2]}}), "shape"),
    "shape of truth values": (header({"a": {**ENTRY, "shape": [True, True]}}), "shape"),
    "huge shape": (header({"a": {**ENTRY, "shape": [2**62, 2**62]}}), "do not fit shape"),
    "too many dimensions": (header({"a": {**ENTRY, "shape": [1] * 9}}), "shape"),
    "offsets turned round": (header({"a": {**ENTRY, "data_offsets": [16, 0]}}), "do not fit"),
    "offsets of another size": (header({"a": {**ENTRY, "data_offsets": [0, 12]}}), "do not fit"),
    "beyond the end": (header({"a": ENTRY}, bytes(12)), "it was cut short"),
    "a hole": (header({"a": {**ENTRY, "data_offsets": [4, 20]}}, bytes(20)), "do not follow"),
    "overlapping": (header({"a": ENTRY, "b": ENTRY}), "do not follow"),
    "something behind": (header({"a": ENTRY}, bytes(20)), "4 bytes are behind"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_strangers(folder: Path, name: str) -> None:
    data, why = HEADERS[name]
    (folder / "model.safetensors").write_bytes(data)
    refused(folder, why)


def test_every_cut_of_a_file_is_seen(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for n in [*range(0, 40), *range(40, len(whole), 9973), len(whole) - 1]:
        path.write_bytes(whole[:n])
        with pytest.raises(ModelError, match=r"model\.safetensors: "):
            Checkpoint(folder).tensors()


# ---- Settings --------------------------------------------------------------------------------------------------------


def longrope(**more: Any) -> dict[str, Any]:
    return {"rope_type": "longrope", "long_factor": [1.0] * 8, "short_factor": [1.0] * 8, **more}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"\['GPT2LMHeadModel'\] is not supported; supported: .*LlamaFor"),
        ({"architectures": ...}, "None is not supported"),
        ({"architectures": "LlamaForCausalLM"}, "is not supported"),
        ({"hidden_act": "relu"}, "hidden_act: 'relu' is not supported for llama"),
        ({"num_hidden_layers": ...}, "num_hidden_layers: missing"),
        ({"num_hidden_layers": 3}, r"model\.layers\.2\.input_layernorm\.weight, .* and 4 more: missing"),
        ({"num_attention_heads": 0}, "out of range|heads"),
        ({"num_attention_heads": 3}, "64 rows are no 3 heads"),
        ({"num_attention_heads": "4"}, "num_attention_heads: '4' is not a whole number"),
        ({"rms_norm_eps": 1e308}, "rms_norm_eps: 1e.308 is not a number that is possible"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1e308}},
            "partial_rotary_factor: 1e.308 is not",
        ),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": -2.0}}, "rope_theta: -2.0 is not above 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no' is not true or false"),
        ({"layer_types": {"0": "full_attention"}}, "layer_types: .* is not a list"),
        ({"rms_norm_eps": "NaN"}, "rms_norm_eps: 'NaN' is not a number"),
        ({"hidden_size": 2**40}, "hidden_size: .* is not a whole number"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized by 'gptq'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4}}, "'mrope' is not supported"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor: missing"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0}}, "low_freq_factor: missing"),
        ({"rope_parameters": longrope(long_factor=[1.0])}, "long_factor is no list of 8 numbers"),
        ({"rope_parameters": longrope(short_factor="x")}, "short_factor is no list of 8 numbers"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "truncate": False}}, "'yarn with truncate' is not"),
        ({"rope_scaling": 5, "rope_parameters": ...}, "rope_scaling: 5 is not an object"),
        ({"layer_types": ["full_attention", "linear_attention"], "sliding_window": 8}, "layer_types"),
    ],
)
def test_settings_that_are_not_computed(folder: Path, settings: dict[str, Any], why: str) -> None:
    configure(folder, **settings)
    refused(folder, why)


def test_no_config_and_no_folder(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").write_text("[1]")
    refused(folder, r"config\.json: is no JSON object")
    (folder / "config.json").unlink()
    refused(folder, r"config\.json: missing")
    refused(folder / "model.safetensors", "is no folder")
    with pytest.raises(ValueError, match="type 'f64' is not known"):
        convert(folder, tmp_path / "m.gguf", "f64")


# ---- The file --------------------------------------------------------------------------------------------------------


def test_a_disk_that_fills_up(folder: Path, tmp_path: Path) -> None:
    """As far as a limit of a file's size shows it."""
    out = tmp_path / "out"
    out.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            convert(folder, out / "m.gguf")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.filename == str(out / "m.gguf")
    assert not list(out.iterdir())


def test_the_checkpoint_is_not_overwritten(folder: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        before = (folder / name).read_bytes()
        with pytest.raises(ValueError, match=rf"{re.escape(name)}: is a file of the checkpoint"):
            convert(folder, folder / name)
        assert (folder / name).read_bytes() == before
    for _ in range(2):  # a GGUF beside the weights is no part of them
        convert(folder, folder / "m.gguf")


def test_what_was_there_stays_when_it_fails(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    out.write_text("before")
    configure(folder, hidden_act="relu")
    with pytest.raises(ModelError):
        convert(folder, out)
    assert out.read_text() == "before"


MEASURE = """
import resource, sys
from pyedge.tools.convert import convert
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
before = peak()
convert(sys.argv[1], sys.argv[2], "f32")
print(peak() - before)
"""


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """Here the embedding alone has 33 MB, and all weights 83 MB, as F16; the file has twice as much."""
    d, d_ff, n = 512, 2048, 6
    shapes = {"model.embed_tokens": (32768, d), "model.norm": (d,)}
    for i in range(n):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.self_attn.{name}_proj": (d, d) for name in "qkvo"}
        shapes |= {f"{layer}.mlp.{name}_proj": (d_ff, d) for name in ("gate", "up")}
        shapes |= {f"{layer}.mlp.down_proj": (d, d_ff)}
        shapes |= {f"{layer}.{name}": (d,) for name in ("input_layernorm", "post_attention_layernorm")}
    folder = hfcheckpoint.write(tmp_path / "large", CASE)
    write_weights(folder, {f"{name}.weight": np.zeros(shape, np.float16) for name, shape in shapes.items()}, "F16")
    sizes = {"hidden_size": d, "intermediate_size": d_ff, "num_hidden_layers": n, "vocab_size": 32768}
    configure(folder, **sizes, tie_word_embeddings=True)
    out = tmp_path / "large.gguf"
    result = python("-c", MEASURE, str(folder), str(out))
    assert result.returncode == 0, result.stderr
    assert out.stat().st_size > 150e6
    assert int(result.stdout) < 3 * 32768 * d * 2


# ---- Other spellings -------------------------------------------------------------------------------------------------


def test_names_of_old(tmp_path: Path) -> None:
    case = families.load("bert-mean")
    for name in ("new", "old"):
        hfcheckpoint.write(tmp_path / name, case)
    endings = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {f"bert.{n}": v for n, v in case.weights().items()}
    for new, old in endings.items():
        tensors = {n.replace(new, old): v for n, v in tensors.items()}
    tensors["bert.embeddings.position_ids"] = np.arange(64)
    tensors["cls.predictions.bias"] = np.zeros(64, np.float32)
    write_weights(tmp_path / "old", tensors)
    for name in ("new", "old"):
        convert(tmp_path / name, tmp_path / f"{name}.gguf")
    with _core.Gguf(tmp_path / "new.gguf") as new, _core.Gguf(tmp_path / "old.gguf") as old:
        assert [t.name for t in new.tensors] == [t.name for t in old.tensors]
        assert all(np.array_equal(new.dequantize(t.name), old.dequantize(t.name)) for t in new.tensors)


def test_settings_of_nomic_as_published(tmp_path: Path) -> None:
    case = families.load("nomic-bert")
    folder = hfcheckpoint.write(tmp_path / "c", case)
    convert(folder, tmp_path / "a.gguf")
    config = {
        "architectures": ["NomicBertModel"], "n_layer": 2, "n_embd": 64, "n_head": 4, "n_inner": 96, "vocab_size": 64,
        "n_positions": 8192, "max_trained_positions": 64, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 5000,
        "rotary_emb_fraction": 1.0, "activation_function": "swiglu", "prenorm": False, "causal": False,
        "type_vocab_size": 2,
    }  # fmt: skip
    write_json(folder / "config.json", config)
    convert(folder, tmp_path / "b.gguf")
    with _core.Gguf(tmp_path / "a.gguf") as a, _core.Gguf(tmp_path / "b.gguf") as b:
        keys = [{k: g.get(k) for k in g.keys() if k.startswith("nomic-bert.")} for g in (a, b)]  # noqa: SIM118
    del keys[0]["nomic-bert.attention.layer_norm_rms_epsilon"]  # which the fixture's config has, of no use
    assert keys[1] == {**keys[0], "nomic-bert.rope.freq_base": 5000.0}


def test_which_layers_have_windows(tmp_path: Path) -> None:
    """Where it is not what a file means that says nothing, the file says it."""
    folder = hfcheckpoint.write(tmp_path / "c", families.load("gemma3"))
    full = [False] * 7
    for settings, expected in (
        ({}, None),
        ({"sliding_window_pattern": 6}, None),
        ({"sliding_window_pattern": 3}, [True, True, False, True, True, False, True]),
        ({"layer_types": ["full_attention"] * 7}, full),
    ):
        configure(folder, **{"sliding_window_pattern": ..., "layer_types": ..., **settings})
        convert(folder, tmp_path / "m.gguf")
        with _core.Gguf(tmp_path / "m.gguf") as file:
            assert file.get("gemma3.attention.sliding_window_pattern") == expected
    smollm3 = hfcheckpoint.write(tmp_path / "s", families.load("smollm3"))
    configure(smollm3, no_rope_layers=[1, 1, 1, 0, 1])
    convert(smollm3, tmp_path / "m.gguf")
    configure(smollm3, no_rope_layers=[1, 1, 1, 1, 0])
    refused(smollm3, "no_rope_layers: .* is not every fourth")
