"""Tokenizers of checkpoints, in all forms: ids as their own libraries give them, and what ends a generation."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

import families
import gguf
import hfcheckpoint
import numpy as np
import pytest
import spmodel
import tokenizers
from hfcheckpoint import write_json
from tinymodel import byte_characters

from pyedge import LLM, ModelError, _core
from pyedge.tokenizers import Tokenizer
from pyedge.tokenizers.bpe import cutter
from pyedge.tokenizers.pretokenizers import PRE_TOKENIZERS
from pyedge.tokenizers.vocabulary import TokenType
from pyedge.tools import pre_recognition, tokenizer_files
from pyedge.tools.checkpoint import Checkpoint
from pyedge.tools.convert import convert

TEXTS = [*spmodel.TEXT, "", " ", "a", "  two  leading", "é\n\n\tx 🦙", "<s> and </s> are text", "The sea, the sea!"]
SPM = spmodel.train("bpe", vocab_size=460)


def folder_of(path: Path, **files: Any) -> Path:
    """A checkpoint's folder with these files (`__` is a dot): bytes, text, or JSON."""
    path.mkdir(exist_ok=True)
    files.setdefault("config__json", {})
    for name, value in files.items():
        file = path / name.replace("__", ".")
        if isinstance(value, (dict, list)):
            write_json(file, value)
        else:
            file.write_bytes(value if isinstance(value, bytes) else value.encode())
    return path


def made(path: Path, n: int, pre: str | None = None, **files: Any) -> tuple[Tokenizer, dict[str, Any]]:
    """What a file would have of such a checkpoint."""
    keys = tokenizer_files.keys(Checkpoint(folder_of(path, **files)), n, pre)
    return Tokenizer.from_gguf(keys), {key.removeprefix("tokenizer.ggml."): value for key, value in keys.items()}


# ---- SentencePiece ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("squeezes", [True, False])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokenizer_model(tmp_path: Path, kind: str, prefix: bool, squeezes: bool) -> None:
    message = spmodel.train(
        kind, add_dummy_prefix=prefix, remove_extra_whitespaces=squeezes, user_defined_symbols=("▁x▁",)
    )
    expected = spmodel.metadata_of(message)
    _, keys = made(tmp_path / "c", len(expected["tokenizer.ggml.tokens"]), tokenizer__model=message)
    for name in ("tokens", "scores", "token_type", "model", "add_space_prefix", "precompiled_charsmap"):
        assert keys.get(name) == expected.get(f"tokenizer.ggml.{name}"), name
    assert bool(keys.get("remove_extra_whitespaces")) == squeezes
    assert (keys["add_bos_token"], keys["add_eos_token"]) == (False, False)  # no file says what they are


def test_special_tokens_and_padding(tmp_path: Path) -> None:
    """B43: rows of the embedding that no token has are marked as unused."""
    case = families.load("llama-2")
    n = len(spmodel.pieces_of(SPM))
    case.config["vocab_size"] = n + 3
    case.shapes["model.embed_tokens.weight"][0] = case.shapes["lm_head.weight"][0] = n + 3
    folder = hfcheckpoint.write(tmp_path / "c", case)
    (folder / "tokenizer.json").unlink()
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>", "add_bos_token": True}
    (folder / "tokenizer.model").write_bytes(SPM)
    write_json(folder / "tokenizer_config.json", config)
    convert(folder, tmp_path / "m.gguf")
    with _core.Gguf(tmp_path / "m.gguf") as gguf:
        types: Any = gguf.get("tokenizer.ggml.token_type")
        assert types[-3:] == [TokenType.UNUSED] * 3
        assert types[:3] == [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
        ids = [gguf.get(f"tokenizer.ggml.{name}_token_id") for name in ("unknown", "bos", "eos")]
        assert ids == [0, 1, 2]
    with LLM(tmp_path / "m.gguf") as llm:
        assert llm.tokenizer.encode("the sea")[0] == 1
        assert llm.logits([n + 2]).shape == (1, n + 3)
        with pytest.raises(ValueError, match=str(n + 3)):
            llm.logits([n + 3])


def as_merges(message: bytes, prefix: bool) -> dict[str, Any]:
    """What converters make of SentencePiece's BPE: every pair that makes a piece, the likeliest piece first."""
    pieces = spmodel.pieces_of(message)
    ids = {text: i for i, (text, _, _) in enumerate(pieces)}
    merges = []
    for text, score, kind in pieces:
        if kind == TokenType.NORMAL and len(text) > 1:
            splits = [(text[:i], text[i:]) for i in range(1, len(text))]
            merges += [(-score, ids[a], ids[b], [a, b]) for a, b in splits if a in ids and b in ids]
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [{"type": "Prepend", "prepend": "▁"}, replace] if prefix else [replace]
    return {
        "version": "1.0",
        "added_tokens": [added(i, pieces[i][0], special=True) for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": ids, "merges": [pair for *_, pair in sorted(merges)],
        },
    }  # fmt: skip


def added(token: int, text: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, **flags, "special": special}


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_as_merges(tmp_path: Path, prefix: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A piece's rank says what its score said: the ids are those of the model itself."""
    message = spmodel.train("bpe", add_dummy_prefix=prefix, vocab_size=460)
    n = len(spmodel.pieces_of(message))
    ours, keys = made(tmp_path / "json", n, tokenizer__json=as_merges(message, prefix))
    theirs, _ = made(tmp_path / "model", n, tokenizer__model=message)
    for text in TEXTS:
        assert ours.encode(text, bos=False) == theirs.encode(text, bos=False), text
    assert keys["add_space_prefix"] == prefix
    assert keys["bos_token_id"] == 1
    assert (keys["add_bos_token"], keys["add_eos_token"]) == (True, False)
    assert keys["token_type"][:3] == [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    assert not caplog.messages


# ---- BPE of bytes ----------------------------------------------------------------------------------------------------

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(*patterns: str) -> dict[str, Any]:
    cuts = [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in patterns]
    return {"type": "Sequence", "pretokenizers": [*cuts, BYTES]}


def bpe(pre: dict[str, Any] | None, *tokens: dict[str, Any], **model: Any) -> dict[str, Any]:
    vocabulary = {text: i for i, text in enumerate([*byte_characters(), "th", "the", "Ġthe", "12", "123", "'s", "Ġ'"])}
    merges = ["t h", "th e", "Ġ the", "1 2", "12 3", "' s", "Ġ '"]
    return {
        "version": "1.0",
        "added_tokens": list(tokens),
        "normalizer": None,
        "pre_tokenizer": pre,
        "post_processor": None,
        "decoder": BYTES,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": merges, **model,
        },
    }  # fmt: skip


def by_digits(alone: bool) -> dict[str, Any]:
    digits = {"type": "Digits", "individual_digits": alone}
    return {"type": "Sequence", "pretokenizers": [digits, {**BYTES, "use_regex": True}]}


PUBLISHED = {  # as models' tokenizer.json have them
    "gpt-2": ({**BYTES, "use_regex": True}, False),
    "smollm": (by_digits(True), False),
    "llama-bpe": (split(LLAMA_3), True),
    "dbrx": (split(LLAMA_3), False),
    "deepseek-r1-qwen": (split(QWEN_2), False),
    "deepseek-r1-qwen ": (split(QWEN_2.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)")), False),
    "deepseek-v3": (split(*PRE_TOKENIZERS["deepseek-v3"].patterns), False),
    "gpt-4o": (split(*PRE_TOKENIZERS["gpt-4o"].patterns), False),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_how_words_are_cut_is_recognised(tmp_path: Path, name: str) -> None:
    pre, whole_words = PUBLISHED[name]
    tokenizer, keys = made(tmp_path / "c", 300, tokenizer__json=bpe(pre, ignore_merges=whole_words))
    assert (keys["model"], keys["pre"]) == ("gpt2", name.strip())
    assert keys["token_type"][263:] == [TokenType.UNUSED] * 37
    library = tokenizers.Tokenizer.from_str(json.dumps(bpe(pre, ignore_merges=whole_words)))
    for text in [*TEXTS, "don't 123456 the\n\n the  the"]:
        assert tokenizer.encode(text) == library.encode(text).ids


def test_the_probe_tells_all_rules_apart() -> None:
    of_bytes = [rules for rules in PRE_TOKENIZERS.values() if rules.byte_level]
    cuts = {rules.patterns: pre_recognition.cuts_of(rules.patterns) for rules in of_bytes}
    assert len(set(cuts.values())) == len(cuts)
    for rules in {(rules.patterns, rules.whole_words): rules for rules in of_bytes}.values():
        library = tokenizers.Tokenizer(tokenizers.models.BPE())
        library.pre_tokenizer = cutter(rules.patterns, True)
        found = PRE_TOKENIZERS[pre_recognition.recognised(library, rules.whole_words)]
        assert (found.patterns, found.whole_words) == (rules.patterns, rules.whole_words)


UNKNOWN = {
    "four digits": split(LLAMA_3.replace("{1,3}", "{1,4}")),
    "no contractions": split(LLAMA_3.partition("|[^")[2].join(["[^", ""])),
    "groups of digits": by_digits(False),
    "white space": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, BYTES]},
    "nothing": BYTES,
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_rules_are_refused(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json: cuts words by rules that have no name here; .*--pre NAME"):
        made(tmp_path / "c", 300, tokenizer__json=bpe(UNKNOWN[name]))
    with caplog.at_level(logging.WARNING, "pyedge"):
        _, keys = made(tmp_path / "c", 300, "qwen2", tokenizer__json=bpe(UNKNOWN[name]))
    assert keys["pre"] == "qwen2"


def test_what_is_cut_alike_and_joined_otherwise_is_refused(tmp_path: Path) -> None:
    """A rule that no key of the file can say: words that are tokens are taken whole, which no merges do."""
    whole = bpe(split(LLAMA_3), ignore_merges=True)
    whole["model"]["vocab"] |= {"class": 263, "Hello": 264}
    made(tmp_path / "c", 300, tokenizer__json=whole)
    smollm = bpe(by_digits(True), ignore_merges=True)
    made(tmp_path / "c", 300, tokenizer__json=smollm)
    smollm["model"]["vocab"] |= {"class": 263, "Hello": 264}
    with pytest.raises(ModelError, match=r"cuts .* otherwise than the file would say; .*--pre NAME"):
        made(tmp_path / "c", 300, tokenizer__json=smollm)


def test_normalizers_that_change_text_are_refused(tmp_path: Path) -> None:
    tokenizer = {**bpe(PUBLISHED["deepseek-r1-qwen"][0]), "normalizer": {"type": "NFC"}}
    made(tmp_path / "c", 300, tokenizer__json=tokenizer)
    with pytest.raises(ModelError, match="normalizer"):
        made(tmp_path / "c", 300, tokenizer__json={**tokenizer, "normalizer": {"type": "Lowercase"}})


APART = (  # what a normalizer to NFC changes, alone, beside what ends a piece, and where it makes most of it
    "e\u0301", "Cafe\u0301 nai\u0308ve", "\u1112\u1161\u11ab\u1100\u1173\u11af", "\u212b \u212a", "\u1fbe\u0308\u0301",
    " \u0301a", "=\u0338", "\u0301", "o\u0323\u0302 o\u0302\u0323", "\ufb01 \u2460", "\u0958",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "pre"), [("qwen2", split(QWEN_2)), ("command-r", by_digits(True)), ("olmo", {**BYTES, "use_regex": True})]
)
def test_a_normalizer_to_nfc(tmp_path: Path, name: str, pre: dict[str, Any]) -> None:
    """Composed letters, as the original's: llama.cpp reads the same file without."""
    tokenizer = {**bpe(pre), "normalizer": {"type": "NFC"}}
    ours, keys = made(tmp_path / "c", 300, tokenizer__json=tokenizer)
    assert keys["pre"] == name
    library = tokenizers.Tokenizer.from_str(json.dumps(tokenizer))
    for text in [*APART, *TEXTS, "x, ".join(APART)]:
        ids = library.encode(text).ids
        assert ours.encode(text) == ids, text
        assert ours._kind.fewest(text) <= len(ids)
    plain, _ = made(tmp_path / "plain", 300, tokenizer__json=bpe(pre))
    assert plain.encode("e\u0301") == tokenizers.Tokenizer.from_str(json.dumps(bpe(pre))).encode("e\u0301").ids
    assert plain.encode("e\u0301") != ours.encode("e\u0301")


def test_a_normalizer_that_no_name_has_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pyedge"):
        tokenizer = {**bpe(split(LLAMA_3), ignore_merges=True), "normalizer": {"type": "NFC"}}
        _, keys = made(tmp_path / "c", 300, tokenizer__json=tokenizer)
    assert keys["pre"] == "llama-bpe"
    assert "brings text to NFC, and pre llama-bpe says otherwise" in caplog.text


# ---- Around a text ---------------------------------------------------------------------------------------------------

CHAT = [added(263, "<|begin|>", True), added(264, "<|im_end|>", True), added(265, "<|stop|>", True)]
CHAT += [added(266, "<|halt|>", True), added(267, "</think>", False), added(268, "<|im_start|>", True)]


def frame(begin: str, begin_id: int, *ends: tuple[str, int]) -> dict[str, Any]:
    one = [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    one += [{"SpecialToken": {"id": end, "type_id": 0}} for end, _ in ends]
    tokens = {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in [(begin, begin_id), *ends]}
    return {"type": "TemplateProcessing", "single": one, "pair": one, "special_tokens": tokens}


def test_all_ends_of_a_generation(tmp_path: Path) -> None:
    tokenizer, keys = made(
        tmp_path / "c",
        270,
        tokenizer__json=bpe(PUBLISHED["deepseek-r1-qwen"][0], *CHAT),
        tokenizer_config__json={"eos_token": "<|im_end|>", "bos_token": None, "pad_token": "<|stop|>"},
        generation_config__json={"eos_token_id": [265, 264, 266]},
        config__json={"bos_token_id": 263, "eos_token_id": 264},
    )
    assert tokenizer.end_ids == {264, 265, 266}
    assert (keys["eos_token_id"], keys["bos_token_id"], keys["padding_token_id"]) == (264, 263, 265)
    assert {keys["eot_token_id"], keys["eom_token_id"]} == {265, 266}
    assert keys["token_type"][263:] == [3, 3, 3, 3, 4, 3, 5]
    assert (keys["add_bos_token"], keys["add_eos_token"]) == (False, False)
    assert tokenizer.encode("</think>the") == [267, 257]


def test_ends_that_are_no_ids(tmp_path: Path) -> None:
    ends = {"eos_token_id": [-1, 2**70, "x", None, 262]}
    json_ = bpe(PUBLISHED["deepseek-r1-qwen"][0])
    tokenizer, keys = made(tmp_path / "c", 263, tokenizer__json=json_, generation_config__json=ends)
    assert keys["eos_token_id"] == 262
    assert tokenizer.end_ids == {262}


def test_an_end_that_cannot_be_said_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ends = {"eos_token_id": [263, 265, 266, 40]}
    tokenizer, _ = made(
        tmp_path / "c",
        270,
        tokenizer__json=bpe(PUBLISHED["deepseek-r1-qwen"][0], *CHAT),
        tokenizer_config__json={"eos_token": "<|im_end|>"},
        generation_config__json=ends,
    )
    assert "token 266 ends a generation" in caplog.text
    assert tokenizer.end_ids == {264, 263, 265}


def test_what_stands_around_a_text(tmp_path: Path) -> None:
    json_ = {
        **bpe(PUBLISHED["deepseek-r1-qwen"][0], *CHAT),
        "post_processor": frame("<|begin|>", 263, ("<|stop|>", 265)),
    }
    config = {"eos_token": "<|im_end|>"}
    tokenizer, keys = made(tmp_path / "c", 270, tokenizer__json=json_, tokenizer_config__json=config)
    assert tokenizer.encode("the") == [263, 257, 265]
    assert tokenizer.end_ids == {264, 265}
    # A flag comes before what the file says.
    config |= {"add_bos_token": False, "add_eos_token": False}
    tokenizer, keys = made(tmp_path / "c", 270, tokenizer__json=json_, tokenizer_config__json=config)
    assert tokenizer.encode("the") == [257]
    assert not keys["add_bos_token"]


def test_padding_and_cutting_belong_to_no_text(tmp_path: Path) -> None:
    """MiniLM's file has both, for batches."""
    json_ = bpe(PUBLISHED["deepseek-r1-qwen"][0])
    json_["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
    json_["padding"] = {**pad, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    assert made(tmp_path / "c", 263, tokenizer__json=json_)[0].encode("the") == [257]


# ---- WordPiece -------------------------------------------------------------------------------------------------------

# ---- Unigram ---------------------------------------------------------------------------------------------------------


def unigram(**changed: Any) -> dict[str, Any]:
    """As converters write SentencePiece's for XLM-R: other special tokens first, and its table of characters."""
    message = spmodel.train("unigram", byte_fallback=False, normalization_rule_name="nmt_nfkc")
    pieces = [[text, score] for text, score, kind in spmodel.pieces_of(message) if kind == TokenType.NORMAL]
    charsmap = next(dict(spmodel.fields(part))[2] for number, part in spmodel.fields(message) if number == 3)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    json_ = {
        "version": "1.0",
        "added_tokens": [added(i, text, special=True) for i, text in enumerate(special)],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, metaspace]},
        "post_processor": frame("<s>", 0, ("</s>", 2)),
        "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": [*([text, 0.0] for text in special), *pieces]},
    }
    for name, value in changed.items():
        if name in json_:
            json_[name] = value
        else:
            json_["model"][name] = value
    return json_


def test_unigram(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    json_ = unigram()
    n = len(json_["model"]["vocab"])
    tokenizer, keys = made(tmp_path / "c", n, tokenizer__json=json_)
    library = tokenizers.Tokenizer.from_str(json.dumps(json_))
    texts = [text for text in TEXTS if "<s>" not in text]  # which the library takes for the token
    for text in [*texts, "ﬁve Ａ①", "日本", "tab\tand\nline"]:
        assert tokenizer.encode(text) == library.encode(text).ids, text
    assert not caplog.text
    facts = [keys[name] for name in ("model", "add_space_prefix", "remove_extra_whitespaces", "unknown_token_id")]
    assert facts == ["t5", True, True, 3]
    assert keys["token_type"][:5] == [TokenType.CONTROL] * 3 + [TokenType.UNKNOWN, TokenType.NORMAL]
    # Without what squeezes spaces and puts one before a text, they stay.
    plain = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": False}
    json_ = unigram(pre_tokenizer=plain, normalizer=None)
    tokenizer, keys = made(tmp_path / "c", n, tokenizer__json=json_)
    library = tokenizers.Tokenizer.from_str(json.dumps(json_))
    for text in texts:
        assert tokenizer.encode(text) == library.encode(text).ids, text
    assert "remove_extra_whitespaces" not in keys
    # Bytes stand for what no piece has.
    json_["model"] = {**json_["model"], "byte_fallback": True}
    json_["model"]["vocab"] = [*json_["model"]["vocab"], *([f"<0x{i:02X}>", 0.0] for i in range(256))]
    tokenizer, keys = made(tmp_path / "c", n + 256, tokenizer__json=json_)
    assert keys["token_type"][n:] == [TokenType.BYTE] * 256
    assert tokenizer.decode(tokenizer.encode("the 🦙", bos=False, eos=False)) == "the 🦙"


def test_a_table_of_characters_is_written_as_bytes(tmp_path: Path) -> None:
    """Other programs read no other type of array."""
    json_ = unigram()
    case = families.load("bert-mean")
    case.config["vocab_size"] = case.shapes["embeddings.word_embeddings.weight"][0] = len(json_["model"]["vocab"])
    folder = hfcheckpoint.write(tmp_path / "c", case)
    write_json(folder / "tokenizer.json", json_)
    convert(folder, tmp_path / "m.gguf")
    field = gguf.GGUFReader(tmp_path / "m.gguf").fields["tokenizer.ggml.precompiled_charsmap"]
    assert field.types == [gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8]
    with LLM(tmp_path / "m.gguf", precision="f32") as llm:
        library = tokenizers.Tokenizer.from_str(json.dumps(json_))
        assert llm.tokenizer.encode("The ﬁrst sea") == library.encode("The ﬁrst sea").ids
        assert np.all(np.isfinite(llm.embed(["The sea"])))


_WILD_CHARSMAP = base64.b64encode((1024).to_bytes(4, "little") + b"\xff\x07" * 512 + b"x\0").decode()  # points far away


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "its normalizer 'Lowercase' is not supported beside Unigram"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}]}}, "normalizer 'NFKD'"),
        ({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}}, "normalizer 'Replace'"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"}}, "no base64"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "rules are damaged"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": _WILD_CHARSMAP}}, "rules are damaged"),
        ({"pre_tokenizer": {"type": "Digits", "individual_digits": True}}, "pre_tokenizer 'Digits' is not supported"),
        ({"vocab": []}, "no list of pieces with scores"),
        ({"vocab": {"a": 1}}, "vocab is no list"),
        ({"vocab": [["a", float("nan")]]}, "no list of pieces with scores"),
        ({"vocab": [["a", 1e308]]}, "no list of pieces with scores"),
        ({"vocab": [["a"]]}, "no list of pieces with scores"),
        ({"unk_id": 10**6}, "unk_id 1000000 is none of its pieces"),
        ({"unk_id": -1}, "unk_id -1 is none of its pieces"),
    ],
)
def test_unigram_of_another_kind_is_refused(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        made(tmp_path / "c", 460, tokenizer__json=unigram(**changed))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "sea", "##s", "light", "##house", ",", "."]


@pytest.mark.parametrize("lower", [True, False])
def test_word_pieces(tmp_path: Path, lower: bool) -> None:
    normalizer = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    ids = {text: i for i, text in enumerate(WORDS)}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##"}
    json_ = {
        "version": "1.0",
        "added_tokens": [added(i, WORDS[i], special=True) for i in range(5)],
        "normalizer": {**normalizer, "lowercase": lower},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": frame("[CLS]", 2, ("[SEP]", 3)),
        "decoder": None,
        "model": {**model, "max_input_chars_per_word": 100, "vocab": ids},
    }
    names = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "CLS", "SEP", "PAD", "MASK")}
    tokenizer, keys = made(tmp_path / "c", 13, tokenizer__json=json_, tokenizer_config__json=names)
    library = tokenizers.Tokenizer.from_str(json.dumps(json_))
    for text in ["the seas, the Lighthouse.", "The", "", "thé"]:
        assert tokenizer.encode(text) == library.encode(text).ids, text
    assert keys["tokens"][5:9] == ["▁the", "▁sea", "s", "▁light"]
    # And of a vocab.txt, as before there was a tokenizer.json.
    config = {**names, "do_lower_case": lower}
    other, others = made(tmp_path / "d", 13, vocab__txt="\n".join(WORDS) + "\n", tokenizer_config__json=config)
    assert others == keys
    assert other.encode("the Seas") == tokenizer.encode("the Seas")


# ---- Templates -------------------------------------------------------------------------------------------------------


def test_templates(tmp_path: Path) -> None:
    one = {"tokenizer__json": bpe(PUBLISHED["deepseek-r1-qwen"][0])}

    def templates(name: str, **files: Any) -> dict[str, str]:
        return made(tmp_path / name, 263, **one, **files)[0].chat_templates

    assert templates("none") == {}
    assert templates("a", tokenizer_config__json={"chat_template": "A"}) == {"default": "A"}
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "T"}]
    assert templates("b", tokenizer_config__json={"chat_template": named}) == {"default": "A", "tool_use": "T"}
    assert templates("b", chat_template__json={"chat_template": "B"})["default"] == "B"
    assert templates("b", chat_template__jinja="C")["default"] == "C"
    (tmp_path / "b" / "additional_chat_templates").mkdir()
    (tmp_path / "b" / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert templates("b") == {"default": "C", "tool_use": "T", "rag": "R"}


# ---- Files of strangers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "has no tokenizer that is read"),
        ({"tokenizer__json": b"\xff"}, "not UTF-8"),
        ({"tokenizer__json": {"model": {"type": "BPE"}}}, r"tokenizer\.json: it has no vocabulary"),
        ({"tokenizer__json": {**bpe(BYTES), "pre_tokenizer": {"type": "?"}}}, r"tokenizer\.json: cannot be read"),
        ({"tokenizer__json": {**bpe(BYTES), "added_tokens": 5}}, r"tokenizer\.json: "),
        ({"tokenizer__json": bpe(BYTES, continuing_subword_prefix="##")}, "marks the parts of words"),  # it would panic
        ({"tokenizer__json": bpe(BYTES, merges=["t h", "no ne"])}, "merge .*no.* is not of its tokens"),
        ({"tokenizer__json": bpe(BYTES, unk_token="none")}, "cannot encode|rules that have no name"),
        ({"tokenizer__model": b""}, r"tokenizer\.model: "),
        ({"tokenizer__model": b"\xff" * 50}, r"tokenizer\.model: is no model of SentencePiece"),
        ({"tokenizer__model": SPM[:-3]}, r"tokenizer\.model: is no model of SentencePiece"),
        ({"tokenizer__model": b"\x0a\xff\xff\xff\xff\x0f"}, r"tokenizer\.model: is no model of SentencePiece"),
        ({"tokenizer__model": SPM, "added_tokens__json": {"x": 10**9}}, "has the id 1000000000"),
        ({"tokenizer__model": SPM, "added_tokens__json": {"x": "y"}}, "has the id 'y'"),
        ({"tokenizer__model": SPM, "tokenizer_config__json": {"added_tokens_decoder": {"x": 1}}}, "no table of tokens"),
    ],
)
def test_what_is_no_tokenizer(tmp_path: Path, files: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        made(tmp_path / "c", 460, **files)


def test_pieces_of_a_message_cut_anywhere(tmp_path: Path) -> None:
    for n in range(0, len(SPM), 97):
        with pytest.raises(ModelError, match=r"tokenizer\.|vocabulary"):
            made(tmp_path / "c", 460, tokenizer__model=SPM[:n])


def test_pre_has_no_meaning_for_sentencepiece(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pre 'qwen2' has no meaning"):
        made(tmp_path / "c", 460, "qwen2", tokenizer__model=SPM)
