"""`pyedge convert`'s files against what transformers computes, and against files that the gguf package wrote.

Checkpoints are tiny and of every family (tests/models/families), and say their settings in both of the ways that
config.json has known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import families
import familygguf
import hfcheckpoint
import numpy as np
import pytest
from corerun import Runner
from program import program

from pyedge import LLM, ModelError, _core
from pyedge.models import build_plan
from pyedge.tokenizers.vocabulary import TokenType
from pyedge.tools.convert import convert

NAMES = families.names()
TOLERANCE = 1e-4  # of logits that are 2 on average; tests/models/test_families.py
PER_LAYER = 2e-6

# What a converter may say or leave out: readers take the same for it.
OPTIONAL = {
    "attention.key_length", "attention.value_length", "attention.head_count_kv", "rope.dimension_count",
    "rope.freq_base", "rope.freq_base_swa", "vocab_size", "rope.scaling.type", "rope.scaling.original_context_length",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.scale", "final_logit_softcapping",
    "rope.scaling.yarn_attn_factor", "attention.layer_norm_rms_epsilon", "use_parallel_residual",
    "expert_feed_forward_length",
}  # fmt: skip


def keys_of(gguf: _core.Gguf, architecture: str) -> dict[str, Any]:
    prefix = f"{architecture}."
    return {key.removeprefix(prefix): gguf.get(key) for key in gguf.keys() if key.startswith(prefix)}  # noqa: SIM118


@pytest.mark.parametrize("name", NAMES)
def test_every_family(tmp_path: Path, name: str) -> None:
    case = families.load(name)
    path = tmp_path / "m.gguf"
    facts = convert(hfcheckpoint.write(tmp_path / name, case), path)
    assert (facts["architecture"], facts["type"], facts["file_bytes"]) == (
        case.architecture,
        "f32",
        path.stat().st_size,
    )
    runner = Runner(path, build=lambda gguf: build_plan(gguf, case.max_model_len))
    found = runner.run(case.tokens)
    tolerance = TOLERANCE + PER_LAYER * case.config["num_hidden_layers"]
    assert np.abs((found[-1:] if case.pooling else found) - case.values).max() < tolerance

    # Both ways of writing a config say the same.
    older = tmp_path / "older.gguf"
    convert(hfcheckpoint.write(tmp_path / "older", case, older=True), older)
    with _core.Gguf(str(path)) as ours, _core.Gguf(str(older)) as other:
        keys, others = keys_of(ours, case.architecture), keys_of(other, case.architecture)
        if name == "olmo3":  # layers with a window have the same base, which goes without saying
            others["rope.freq_base_swa"] = others["rope.freq_base"]
        assert keys == others
        # And another converter's file has the same weights, to the bit, and nothing that ours has otherwise.
        with _core.Gguf(str(familygguf.write(tmp_path / "other.gguf", case))) as theirs:
            for key, value in keys_of(theirs, case.architecture).items():
                assert key in keys or key in OPTIONAL, key
                assert keys.get(key, value) == pytest.approx(value), key
            assert {t.name for t in ours.tensors} == {t.name for t in theirs.tensors}
            for t in ours.tensors:
                assert np.allclose(ours.dequantize(t.name), theirs.dequantize(t.name), rtol=1e-6, atol=0), t.name
                assert t.type == theirs.tensors[theirs.tensor_index(t.name)].type


def test_heads_of_their_own_width_and_rows_without_tokens(tmp_path: Path) -> None:
    """B43: head_dim is no quotient, and the embedding may have more rows than there are tokens."""
    case = families.load("qwen3")
    heads, width = case.config["num_attention_heads"], case.config["head_dim"]
    assert width != case.config["hidden_size"] // heads
    folder, path = hfcheckpoint.write(tmp_path / "c", case), tmp_path / "m.gguf"
    n_rows = case.config["vocab_size"]
    n_tokens = n_rows - 16
    hfcheckpoint.write_tokenizer(folder, n_tokens)
    convert(folder, path)
    with _core.Gguf(path) as file:
        assert file.get("qwen3.attention.key_length") == file.get("qwen3.attention.value_length") == width
        assert len(file.get("tokenizer.ggml.tokens", [])) == n_rows
        types = file.get("tokenizer.ggml.token_type", [])
        assert types[n_tokens:] == [TokenType.UNUSED] * (n_rows - n_tokens)
    with LLM(path, precision="f32") as llm:
        assert np.all(np.isfinite(llm.logits([n_rows - 1])))
        with pytest.raises(ValueError, match=str(n_rows)):
            llm.logits([n_rows])


def test_the_text_part_of_a_model_of_images(tmp_path: Path) -> None:
    case = families.load("gemma3")
    plain, whole = (hfcheckpoint.write(tmp_path / name, case) for name in ("plain", "whole"))
    config = json.loads((whole / "config.json").read_text())
    settings = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": config, "vision_config": {}}
    hfcheckpoint.write_json(whole / "config.json", settings)
    others = {"vision_tower.layers.0.weight": np.ones((2, 2), np.float32)}
    for prefix in ("language_model.model.", "model.language_model."):
        tensors = {n.replace("model.", prefix, 1): v for n, v in case.weights().items()}
        hfcheckpoint.write_weights(whole, {**tensors, **others})
        convert(whole, tmp_path / "whole.gguf")
        convert(plain, tmp_path / "plain.gguf")
        with _core.Gguf(tmp_path / "plain.gguf") as a, _core.Gguf(tmp_path / "whole.gguf") as b:
            assert keys_of(a, "gemma3") == keys_of(b, "gemma3")
            assert [t.name for t in a.tensors] == [t.name for t in b.tensors]
            assert all(np.array_equal(a.dequantize(t.name), b.dequantize(t.name)) for t in a.tensors)


def test_names_of_a_model_without_its_head(tmp_path: Path) -> None:
    """As Qwen 3 Embedding has them; what its folder says of pooling goes into the file."""
    case = families.load("qwen3-embedding")
    folder = hfcheckpoint.write(tmp_path / "c", case)
    convert(folder, tmp_path / "a.gguf")
    hfcheckpoint.write_weights(folder, {n.removeprefix("model."): v for n, v in case.weights().items()})
    convert(folder, tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    hfcheckpoint.write_json(folder / "1_Pooling" / "config.json", {"pooling_mode_max_tokens": True})
    with pytest.raises(ModelError, match=r"1_Pooling/config\.json: pooling by \[\] is not supported"):
        convert(folder, tmp_path / "c.gguf")


def test_layers_behind_the_pooling(tmp_path: Path) -> None:
    case = families.load("gemma-embedding")
    folder = hfcheckpoint.write(tmp_path / "c", case)
    convert(folder, tmp_path / "m.gguf")
    with _core.Gguf(tmp_path / "m.gguf") as gguf:
        widths = [gguf.get(f"gemma-embedding.dense_{n}_feat_{way}") for n in (2, 3) for way in ("in", "out")]
        assert widths == [64, 96, 96, 64]  # other programs need them
    for function, fine in (("torch.nn.modules.linear.Identity", True), ("torch.nn.modules.activation.Tanh", False)):
        hfcheckpoint.write_json(folder / "2_Dense" / "config.json", {"activation_function": function})
        if fine:
            convert(folder, tmp_path / "m.gguf")
            continue
        with pytest.raises(ModelError, match=r"activation_function: .*Tanh.* is not supported"):
            convert(folder, tmp_path / "n.gguf")


def test_roberta_counts_positions_from_behind_its_padding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLM-R is the BERT whose first two positions nothing has, however many pieces their tensor comes in."""
    case = families.load("bert-mean")
    bert, roberta = (hfcheckpoint.write(tmp_path / name / "c", case) for name in ("bert", "roberta"))
    tensors = {f"roberta.{name}": values for name, values in case.weights().items()}
    name = "roberta.embeddings.position_embeddings.weight"
    tensors[name] = np.concatenate((np.full((2, tensors[name].shape[1]), 9.0, np.float32), tensors[name]))
    hfcheckpoint.write_weights(roberta, tensors)
    config = json.loads((roberta / "config.json").read_text())
    config |= {"architectures": ["XLMRobertaModel"], "max_position_embeddings": 66, "pad_token_id": 1}
    hfcheckpoint.write_json(roberta / "config.json", config)
    convert(bert, tmp_path / "a.gguf")
    for piece in (1 << 21, 1 << 8):
        monkeypatch.setattr("pyedge.tools.made_tensor._PIECE", piece)
        convert(roberta, tmp_path / "b.gguf")
        with _core.Gguf(tmp_path / "a.gguf") as a, _core.Gguf(tmp_path / "b.gguf") as b:
            assert keys_of(a, "bert") == keys_of(b, "bert")
            assert [t.name for t in a.tensors] == [t.name for t in b.tensors]
            assert all(np.array_equal(a.dequantize(t.name), b.dequantize(t.name)) for t in a.tensors)
    hfcheckpoint.write_json(roberta / "config.json", {**config, "pad_token_id": 0})
    with pytest.raises(ModelError, match="pad_token_id: 0 is not supported for bert"):
        convert(roberta, tmp_path / "c.gguf")


def test_command(tmp_path: Path) -> None:
    folder = hfcheckpoint.write(tmp_path / "Tiny-Model", families.load("llama-2"))
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Tiny\n")
    out = tmp_path / "m.gguf"
    result = program("convert", str(folder), "-o", str(out), "--type", "f16", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts == {
        "file": str(out),
        "architecture": "llama",
        "type": "f16",
        "tensors": 21,
        "file_bytes": facts["file_bytes"],
    }
    with _core.Gguf(out) as gguf:
        general = {key: gguf.get(f"general.{key}") for key in ("name", "license", "type", "file_type")}
        assert general == {"name": "Tiny-Model", "license": "apache-2.0", "type": "model", "file_type": 1}
    assert program("convert", str(folder), "-o", str(out)).stdout.startswith(f"{out}: llama, f32, 21 tensors, ")
    (folder / "config.json").unlink()
    result = program("convert", str(folder), "-o", str(tmp_path / "other.gguf"))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {folder}: config.json: missing")
    assert program("convert", str(folder)).returncode == 2
