"""SmolLM2 goes round: its file, unpacked by the gguf package into a checkpoint, is converted to the same model."""

from __future__ import annotations

import json
from pathlib import Path

import hfcheckpoint
import numpy as np
import pytest
from program import program

import pyedge
from pyedge import _core
from pyedge.tools.convert import convert

pytestmark = pytest.mark.slow

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
PRE_TOKENIZER = {"type": "Sequence", "pretokenizers": [DIGITS, BYTES]}

# What of the file's metadata need not be in a checkpoint.
OTHERWISE = {"tokenizer.ggml.add_space_prefix", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"}


def test_there_and_back(smollm2_path: Path, tmp_path: Path) -> None:
    folder = hfcheckpoint.from_llama(smollm2_path, tmp_path / "SmolLM2", PRE_TOKENIZER)
    for kind in ("f32", "f16"):
        convert(folder, tmp_path / f"{kind}.gguf", kind)
    with _core.Gguf(smollm2_path) as before, _core.Gguf(tmp_path / "f32.gguf") as after:
        for key in before.keys():  # noqa: SIM118
            if key.startswith(("llama.", "tokenizer.")) and key not in OTHERWISE:
                assert after.get(key) == before.get(key), key
        assert {t.name for t in before.tensors} == {t.name for t in after.tensors}
        for t in before.tensors:
            assert np.array_equal(before.dequantize(t.name), after.dequantize(t.name)), t.name
    prompt = [{"role": "user", "content": "Name three colours."}]
    params = pyedge.SamplingParams(temperature=0, max_tokens=12)
    answers = []
    for path in (smollm2_path, tmp_path / "f16.gguf"):
        with pyedge.LLM(path, precision="f32", max_model_len=256) as llm:
            answers.append(llm.chat(prompt, params).text)
    assert answers[0] == answers[1]

    # And on to small files, which say nearly the same: measured, 0.0013 and 0.035.
    text = str(Path(__file__).parents[1] / "golden" / "harbour.txt")
    source, out = str(tmp_path / "f16.gguf"), str(tmp_path / "out.gguf")
    for mix, most in (("Q8_0", 0.002), ("Q4_K_M", 0.05)):
        assert program("quantize", source, out, mix).returncode == 0
        asked = program("perplexity", out, text, "--against", source, "--ctx", "256", "--windows", "2", "--json")
        found = json.loads(asked.stdout)
        assert 0 < found["kl_mean"] < most, mix
        assert found["top1"] > 0.85
        assert abs(found["ppl_ratio"] - 1) < 0.05
