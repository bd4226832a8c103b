"""Every key of a tokenizer with a value of every kind, in a real file: it works, or one line says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ggufbytes import Type, write_gguf

from pyedge import _core
from pyedge import tokenizers as tokenizers_module
from pyedge.errors import ModelError
from pyedge.tokenizers import Tokenizer

SOUND: dict[str, tuple[int, Any]] = {
    "tokens": (Type.ARRAY, (Type.STRING, ["<unk>", "a", "b", "ab"])),
    "scores": (Type.ARRAY, (Type.F32, [0.0] * 4)),
    "token_type": (Type.ARRAY, (Type.I32, [3, 1, 1, 1])),
    "merges": (Type.ARRAY, (Type.STRING, ["a b"])),
    "pre": (Type.STRING, "gpt-2"),
}
KEYS = (
    *SOUND, "bos_token_id", "eos_token_id", "unknown_token_id", "cls_token_id", "seperator_token_id", "add_bos_token",
    "add_eos_token", "add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap", "normalizer.lowercase",
)  # fmt: skip
VALUES: tuple[tuple[int, Any], ...] = (
    (Type.U32, 5),
    (Type.STRING, "xx"),
    (Type.STRING, b"\xff"),
    (Type.F32, float("nan")),
    (Type.BOOL, True),
    (Type.ARRAY, (Type.I32, [1, 2, 3, 4])),
    (Type.ARRAY, (Type.I32, [6] * 4)),
    (Type.ARRAY, (Type.F32, [float("nan")] * 4)),
    (Type.ARRAY, (Type.F64, [1e300] * 4)),
    (Type.ARRAY, (Type.U64, [2**64 - 1] * 4)),
    (Type.ARRAY, (Type.BOOL, [True] * 4)),
    (Type.ARRAY, (Type.STRING, ["x"] * 4)),
    (Type.ARRAY, (Type.STRING, [b"\xff\xfe"] * 4)),
    (Type.ARRAY, (Type.STRING, ["\u2581a", "<0x41>", "", "a"])),
    (Type.ARRAY, (Type.STRING, [])),
)


@pytest.mark.parametrize("model", ["gpt2", "gemma4", "llama", "t5", "bert"])
@pytest.mark.parametrize("key", KEYS)
def test_any_value_of_any_key(model: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    worked = 0
    for value in VALUES:
        entries = {**SOUND, "model": (Type.STRING, model), key: value}
        write_gguf(path, [(f"tokenizer.ggml.{name}", kind, v) for name, (kind, v) in entries.items()])
        try:
            with _core.Gguf(path) as gguf:
                tokenizer = Tokenizer.from_gguf(gguf)
        except ModelError as error:
            said = str(error)
            assert said.startswith(f"{path}: ")
            assert "tokenizer.ggml." in said
            assert ";" in said  # then what to do
            assert "\n" not in said
            continue
        worked += 1
        ids = tokenizer.encode("ab a<unk>é", special=True)
        assert all(0 <= i < tokenizer.n_vocab for i in ids)
        tokenizer.decode(ids)
    assert worked < len(VALUES) or key not in ("tokens", "token_type")


@pytest.mark.parametrize("model", ["gpt2", "gemma4", "llama", "t5", "bert"])
@pytest.mark.parametrize(
    ("tokens", "kind", "said"),
    [
        ([""] * (2**20 + 1), 1, r"tokens: 1048577 tokens; 1048576 is the most there may be; the file is damaged"),
        ([f"<{i:0199}>" for i in range(10_000)], 3, r"token_type: the 10000 special tokens have 2010000 characters; "),
        ([f"<{i:0199}>" for i in range(10_000)], 4, r"token_type: the 10000 special tokens have 2010000 characters; "),
    ],
)
def test_floods_are_refused_before_a_library_is_built(
    model: str, tokens: list[str], kind: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take seconds, and a gigabyte."""
    monkeypatch.setattr(tokenizers_module, "_KINDS", {model: pytest.fail})
    metadata = {"model": model, "tokens": tokens, "token_type": [kind] * len(tokens), "pre": "gpt-2"}
    with pytest.raises(ModelError, match=rf"^tokenizer\.ggml\.{said}"):
        Tokenizer.from_gguf({f"tokenizer.ggml.{key}": value for key, value in metadata.items()})
