"""Encoding and decoding: round trips, special tokens, the table of pre-tokenizers, and files that are wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program import python
from tokenizers import normalizers

from pyedge.errors import ModelError
from pyedge.tokenizers import Tokenizer, pretokenizers
from pyedge.tokenizers.bpe import BpeTokenizer
from pyedge.tokenizers.pretokenizers import PRE_TOKENIZERS
from pyedge.tokenizers.vocabulary import TextFinder, longest_of

Make = Callable[..., Tokenizer]

ROWS = {rules: name for name, rules in reversed(PRE_TOKENIZERS.items()) if rules.byte_level}.values()  # each once
FRAGMENTS = ("<|im_end|>", "<|im_", "end|>", "<", "</think>", "</", "think>", "'ll", "  ", "\r\n", "\n\n", "12345", "é")
TEXTS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=6)), max_size=8).map("".join)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token_bytes(i).decode() for i in ids]


def composed(tokenizer: Tokenizer, text: str, special: bool) -> str:
    """In NFC, by what stands between special tokens."""
    runs = tokenizer._specials.split(text, control=special)
    nfc = normalizers.NFC().normalize_str
    return "".join(nfc(run) if isinstance(run, str) else tokenizer.token_bytes(run).decode() for run in runs)


# ---- Round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pre", ROWS)
def test_decoding_gives_the_text_back(make: Make, pre: str) -> None:
    tokenizer = make(pre=pre)

    @settings(max_examples=30)
    @given(text=TEXTS, special=st.booleans())
    def check(text: str, special: bool) -> None:
        ids = tokenizer.encode(text, special=special, bos=False)
        assert tokenizer.decode(ids) == (composed(tokenizer, text, special) if PRE_TOKENIZERS[pre].composes else text)
        assert all(0 <= i < tokenizer.n_vocab for i in ids)
        assert special or not tokenizer.hidden_ids.intersection(ids)

    check()


# fmt: off
AT_CUTS = ("a", "Z", "é", "日", "ー", "한", " ", "  ", "\n", "\r\n", "\t", "1", "٣", "'s", "'", ".", "。", "_", "-",
           "$", "\u0301", "\u180e", "\x1c", "\xa0", "\u3000", "ſ", "😀", "</think>", "<|im_end|>")  # noqa: RUF001
# fmt: on


@pytest.mark.parametrize("pre", ROWS)
def test_pieces_have_the_ids_of_the_whole(make: Make, pre: str) -> None:
    tokenizer = make(pre=pre)

    @settings(max_examples=80)
    @given(parts=st.lists(st.one_of(st.sampled_from(AT_CUTS), st.characters(exclude_categories=["Cs"])), max_size=24))
    def check(parts: list[str]) -> None:
        text = "".join(parts)
        assert "".join(pretokenizers.pieces(text, 1)) == text
        whole = tokenizer.encode(text)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pretokenizers, "PIECE", 1)
            assert tokenizer.encode(text) == whole

    check()


@pytest.mark.parametrize("word", ["word ", "日本語。", "x1", '{"key":[12,34]},', "Line\n", "Привет, "])
def test_ordinary_text_has_places_to_cut(word: str) -> None:
    cut = list(pretokenizers.pieces(word * 5000, 100))
    assert max(map(len, cut)) < 120
    assert "".join(cut) == word * 5000


@pytest.mark.parametrize("text", ["word " * 200_000, "a" * 1_000_000, "1" * 1_000_000, "<|im_end|>" * 100_000])
def test_a_limit_ends_it_early(make: Make, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make()
    given_out: list[int] = []
    encode = BpeTokenizer._encode

    def counted(self: BpeTokenizer, piece: str) -> list[int]:
        given_out.append(len(piece))
        return encode(self, piece)

    monkeypatch.setattr(BpeTokenizer, "_encode", counted)
    for run in (
        lambda: tokenizer.encode(text, special=True, limit=1000),
        lambda: tokenizer.apply_chat_template([{"role": "user", "content": text}], limit=1000),
    ):
        with pytest.raises(ValueError, match=r"a text of 1[01]\d+ characters and has more than 1000 tokens") as caught:
            run()
        assert "\n" not in str(caught.value)
    assert sum(given_out) < 2 * pretokenizers.PIECE


APART = st.lists(st.sampled_from("\u1fbe\u0308\u0301\u212a\u1112\u1161\u11aba"), max_size=30).map(
    "".join
)  # NFC shortens


@pytest.mark.parametrize("pre", ["smollm", "qwen2"])
@pytest.mark.parametrize("lacking", ["", "ą"])  # U+0105 is byte 5
def test_no_text_has_fewer_tokens_than_foreseen(make: Make, metadata: dict[str, Any], lacking: str, pre: str) -> None:
    tokens = metadata["tokenizer.ggml.tokens"]
    tokenizer = make(pre=pre, tokens=["unused" if token == lacking else token for token in tokens])

    @given(text=st.one_of(st.text(), APART, st.sampled_from(tokens), st.just("\x05é" * 300)))
    def check(text: str) -> None:
        assert tokenizer._kind.fewest(text) <= len([i for ids in tokenizer._kind.encode(text) for i in ids])

    check()


def test_the_limit_is_the_most_there_may_be(make: Make) -> None:
    tokenizer, messages = make(add_bos_token=True), [{"role": "user", "content": "a<think>b"}]
    n = len(tokenizer.encode("a b c</think> d"))
    assert len(tokenizer.encode("a b c</think> d", limit=n)) == n
    with pytest.raises(ValueError, match=f"more than {n - 1} tokens"):
        tokenizer.encode("a b c</think> d", limit=n - 1)
    n = len(tokenizer.apply_chat_template(messages))
    assert len(tokenizer.apply_chat_template(messages, limit=n)) == n
    with pytest.raises(ValueError, match=f"more than {n - 1} tokens"):
        tokenizer.apply_chat_template(messages, limit=n - 1)


@pytest.mark.parametrize("text", [None, b"a", 5, ["a"]])
def test_only_text_is_encoded(make: Make, text: Any) -> None:
    with pytest.raises(ValueError, match=f"the text must be a str, not {type(text).__name__}"):
        make().encode(text)


@pytest.mark.parametrize("ids", [None, 5, "1", b"1", {1: 2}, ["a"], [None], [[1]], [1.0], np.array(5)])
def test_only_ids_are_decoded(make: Make, ids: Any) -> None:
    tokenizer = make()
    tokenizer.decode([0, 1])
    for skip in (False, True):
        with pytest.raises(
            ValueError, match=r"^(a token id must be an integer|the token ids must be a list of integers), not \w+$"
        ):
            tokenizer.decode(ids, skip_special=skip)


def test_nothing_is_stripped_or_normalised(make: Make) -> None:
    tokenizer = make()
    for text in (
        "",
        " ",
        "  two",
        "e\u0301",
        "\ufeffhi",
        "a\u200bb",
        "\0\x01",
        "a\r\nb",
        "\ufdd0",
        "👩\u200d👧",
        "\u2581",
    ):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("") == []


def test_a_surrogate_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate, U\+D83D, at character 2"):
        make().encode("ab\ud83d")


def test_bytes_without_a_token_are_left_out(make: Make, metadata: dict[str, Any], caplog: Any) -> None:
    tokens = ["unused" if token == "ą" else token for token in metadata["tokenizer.ggml.tokens"]]  # U+0105 is byte 5
    tokenizer = make(tokens=tokens)
    assert tokenizer.decode(tokenizer.encode("a b")) == "a b"
    assert not caplog.records
    for _ in range(2):
        assert tokenizer.decode(tokenizer.encode("a\x05b")) == "ab"
    assert [r.levelno for r in caplog.records] == [logging.WARNING]


def test_ids_outside_the_vocabulary(make: Make) -> None:
    tokenizer = make()
    for bad in (-1, tokenizer.n_vocab):
        with pytest.raises(ValueError, match="outside the vocabulary"):
            tokenizer.decode([bad])


# ---- Special tokens --------------------------------------------------------------------------------------------------


def test_control_tokens_are_parsed_on_request_only(make: Make) -> None:
    tokenizer = make()
    text = "a<|im_start|>b<|im_end|>"
    assert not {1, 2} & set(tokenizer.encode(text))
    ids = tokenizer.encode(text, special=True)
    assert [i for i in ids if i < 3] == [1, 2]
    assert tokenizer.decode(ids, skip_special=True) == "ab"


def test_user_defined_tokens_are_always_found_the_longest_first(make: Make) -> None:
    tokenizer = make()
    for special in (False, True):
        assert pieces(tokenizer, tokenizer.encode("</think></<think>", special=special)) == [
            "</think>",
            "</",
            "<think>",
        ]


def test_a_user_defined_token_may_be_one_character(make: Make, metadata: dict[str, Any]) -> None:
    """DeepSeek's "ö" is one. A control token may not, in a text that somebody types."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    n = len(tokens)
    tokenizer = make(tokens=[*tokens, "ö", "ü"], token_type=[*types, 4, 3])
    assert tokenizer.encode("aöa") == [*make().encode("a"), n, *make().encode("a")]
    for special in (False, True):
        assert tokenizer.encode("ü", special=special) == make().encode("ü")
    assert tokenizer.decode([n, n + 1]) == "öü"


def test_text_cannot_become_a_token_that_is_not_text(make: Make, metadata: dict[str, Any]) -> None:
    """Not by merging, nor as a whole word."""
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    for word in ("he", "Ġthe"):
        changed = [3 if t == word else kind for t, kind in zip(tokens, types, strict=True)]
        tokenizer = make(token_type=changed, pre="llama-bpe")
        for text in ("he", "the he", " the", "then"):
            ids = tokenizer.encode(text, bos=False)
            assert tokens.index(word) not in ids
            assert tokenizer.decode(ids) == text
    assert tokens.index("he") in make().encode("he")


@given(st.lists(st.text(alphabet="ab<|", min_size=1, max_size=5), min_size=1, max_size=12, unique=True), TEXTS)
def test_longest_of(texts: list[str], text: str) -> None:
    import re

    pattern = re.compile(longest_of(texts))
    for start in range(len(text) + 1):
        here = [t for t in texts if text.startswith(t, start)]
        match = pattern.match(text, start)
        assert (match[0] if match else "") == max(here, key=len, default="")


@given(st.lists(st.text(alphabet="ab<|", min_size=1, max_size=6), max_size=12, unique=True), st.text(alphabet="ab<|"))
def test_text_finder(texts: list[str], text: str) -> None:
    longest = [max((t for t in texts if text.startswith(t, i)), key=len, default="") for i in range(len(text))]
    found, at = [], 0
    for start, here in enumerate(longest):
        if here and start >= at:
            at = start + len(here)
            found.append((start, at))
    finder = TextFinder(texts)
    assert list(finder.find_all(text)) == found
    assert list(finder.starts(text)) == [start for start, here in enumerate(longest) if here]


def test_longest_of_many_levels() -> None:
    import re

    pattern = re.compile(longest_of(["a" * n for n in range(1, 200)]))
    match = pattern.match("a" * 5000)
    assert match
    assert len(match[0]) == 199


def test_bos(make: Make) -> None:
    assert make().encode("a")[0] != 0
    assert make().encode("a", bos=True)[0] == 0
    assert make(add_bos_token=True).encode("a")[0] == 0
    assert make(add_bos_token=True).encode("a", bos=False)[0] != 0
    assert make(add_bos_token=True).encode("") == [0]
    assert make(add_bos_token=None, pre="llama-bpe").add_bos
    assert not make(add_bos_token=None, pre="qwen2").add_bos
    assert not make(add_bos_token=True, bos_token_id=None).add_bos


def test_eos(make: Make) -> None:
    """Embedding models of Qwen 3 want one behind the text."""
    text = make().encode("a")
    assert make(add_eos_token=True).encode("a") == [*text, 2]
    assert make(add_eos_token=True).encode("a", bos=False) == text
    assert make(add_eos_token=True).encode("a", bos=False, eos=True) == [*text, 2]
    assert make(add_eos_token=True).encode("a", eos=False) == text
    assert make().encode("a", eos=True) == [*text, 2]
    assert make(add_eos_token=True, eos_token_id=None).encode("a", eos=True) == text
    assert make(add_eos_token=True, add_bos_token=True).encode("a", limit=len(text) + 2) == [0, *text, 2]
    with pytest.raises(ValueError, match="more than"):
        make(add_eos_token=True).encode("a", limit=len(text))


def test_ends_of_a_generation(make: Make, metadata: dict[str, Any]) -> None:
    assert make().end_ids == {0, 2}  # <|endoftext|>, and eos
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    n = len(tokens)
    assert make(tokens=[*tokens, "<end_of_turn>"], token_type=[*types, 4]).end_ids == {0, 2, n}
    assert make(tokens=[*tokens, "<|eot_id|>"], token_type=[*types, 1]).end_ids == {0, 2, n}
    assert make(tokens=[*tokens, "</s>"], token_type=[*types, 3]).end_ids == {0, 2, n}
    assert make(tokens=[*tokens, "</s>"], token_type=[*types, 1]).end_ids == {0, 2}  # may be HTML
    for pair, ends in (((3, 4), {0, 2, n + 1}), ((4, 4), {0, 2}), ((1, 4), {0, 2})):  # Phi-3's and Gemma's
        tokenizer = make(tokens=[*tokens, "<s>", "</s>"], token_type=[*metadata["tokenizer.ggml.token_type"], *pair])
        assert tokenizer.end_ids == ends
    assert make(eot_token_id=5, eom_token_id=6).end_ids == {0, 2, 5, 6}
    harmony = make(tokens=[*tokens, "<|return|>", "<|call|>", "<|end|>"], token_type=[*types, 3, 3, 3])
    assert harmony.end_ids == {0, 2, n, n + 1}


# ---- Words -----------------------------------------------------------------------------------------------------------

WORDS = {
    "gpt-2": (
        ("a 1234  b", ["a", " 1234", " ", " b"]),
        ("I'll I'LL", ["I", "'ll", " I", "'", "LL"]),
        ("x\n\n  y", ["x", "\n\n ", " y"]),
        ("(hi)!", ["(", "hi", ")!"]),
    ),
    "smollm": (("a 12", ["a", " ", "1", "2"]), ("x1y", ["x", "1", "y"])),
    "llama-bpe": (
        ("a 1234  b", ["a", " ", "123", "4", " ", " b"]),
        ("I'LL (hi)!\n\nx", ["I", "'LL", " (", "hi", ")!\n\n", "x"]),
        ("x \n \ny", ["x", " \n \n", "y"]),
    ),
    "qwen2": (("a 12", ["a", " ", "1", "2"]), ("(hi", ["(hi"])),
    "default": (("a+b (1234)", ["a", "+", "b", " ", "(", "123", "4", ")"]),),
}


@pytest.mark.parametrize("pre", WORDS)
def test_words(make: Make, pre: str) -> None:
    """With a vocabulary in which all that is not cut is merged."""
    for text, words in WORDS[pre]:
        tokens = sorted({character for word in words for character in _alphabet(word)})
        merges = []
        for word in map(_alphabet, [*words, text]):
            for end in range(1, len(word)):
                merges.append(f"{word[:end]} {word[end]}")
                tokens.append(word[: end + 1])
        tokens = list(dict.fromkeys(tokens))
        tokenizer = make(
            pre=pre, tokens=tokens, token_type=None, merges=list(dict.fromkeys(merges)), bos_token_id=None,
            eos_token_id=None,
        )  # fmt: skip
        assert pieces(tokenizer, tokenizer.encode(text)) == words


def _alphabet(text: str) -> str:
    return text.replace(" ", "Ġ").replace("\n", "Ċ")


# ---- Time ------------------------------------------------------------------------------------------------------------


def check_time(tokenizer: Tokenizer, small: int, large: int) -> None:
    for text in ("a", "A", " ", "日", "\u0301", "1", "!", "\n", " \n", "a1"):
        times = []
        for n in (small, large):
            start = time.process_time()
            tokenizer.encode(text * (n // len(text.encode())), special=True)
            times.append(time.process_time() - start)
        assert times[1] < 5
        assert times[1] < 2.5 * large / small * times[0] + 0.2


@pytest.mark.parametrize("pre", ROWS)
def test_runs_take_linear_time(make: Make, pre: str) -> None:
    check_time(make(pre=pre), 4_000, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("pre", ROWS)
def test_long_runs_take_linear_time(make: Make, pre: str) -> None:
    check_time(make(pre=pre), 50_000, 200_000)


def test_a_thousand_special_tokens_cost_little(make: Make, metadata: dict[str, Any]) -> None:
    more = [f"<|reserved_{i}|>" for i in range(1000)] + ["<" * n for n in range(2, 30)]
    tokenizer = make(
        tokens=[*metadata["tokenizer.ggml.tokens"], *more],
        token_type=[*metadata["tokenizer.ggml.token_type"]] + [4] * len(more),
    )
    for text in ("<" * 200_000, "<|reserved_" * 20_000, "<|reserved_999|>" * 10_000):
        start = time.process_time()
        tokenizer.encode(text, special=True)
        assert time.process_time() - start < 5


def test_the_size_of_special_tokens_is_bounded(make: Make, metadata: dict[str, Any]) -> None:
    more = [f"{i:0200}" for i in range(10_001)]
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    with pytest.raises(ModelError, match=r"the 10007 special tokens have 200\d+ characters; 2000000 is the most"):
        make(tokens=[*tokens, *more], token_type=[*types, *[3] * len(more)])
    make(tokens=[*tokens, *more], token_type=[*types, *[1] * len(more)])


def test_importing_it_imports_no_library() -> None:
    code = (
        "import sys, pyedge.tokenizers as t; t.Tokenizer; t.StopMatcher;"
        "print(sorted({'jinja2', 'tokenizers', 'sentencepiece', 'numpy'} & set(sys.modules)))"
    )
    assert python("-c", code).stdout == "[]\n"


# ---- Files that are wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": None}, r"tokenizer\.ggml\.model: missing"),
        ({"model": "rwkv"}, "'rwkv' is not supported, only gpt2, .* are"),
        ({"model": ["gpt2"]}, "is not supported"),
        ({"pre": 3}, "'3' is not known"),
        ({"token_type": "x"}, r"1 types for \d+ tokens"),
        ({"pre": "nonesuch"}, "'nonesuch' is not known.*--pre"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens: empty or missing"),
        ({"tokens": []}, r"tokenizer\.ggml\.tokens: empty or missing"),
        ({"tokens": "abc"}, "not an array of strings"),
        ({"tokens": [1, 2]}, "not an array of strings"),
        ({"token_type": [1, 1]}, r"2 types for \d+ tokens"),
        ({"merges": None}, r"tokenizer\.ggml\.merges: empty or missing"),
        ({"merges": ["a b", "nonesuch x"]}, "merge 1, 'nonesuch' and 'x', is not of tokens"),
        ({"merges": ["ab"]}, "merge 0, 'ab' and '', is not of tokens"),
    ],
)
def test_refused(make: Make, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


LONG = "a" * 1_000_000


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "gemma4"])
@pytest.mark.parametrize(
    ("tokens", "merges"),
    [
        (["", "a", "b"], [" a", "a "]),
        ([""] * 5, [" "] * 5),
        (["a"] * 5, ["a a"]),
        (["a", "aa"] * 5, ["a a"] * 50),
        (["a", "aa"], ["a a", "aa a", "a aa", "aa aa"]),
        (["a", "aa", "b", "ab", "ba", "aba"], ["a b", "b a", "ab a", "a ba"]),
        (["a", LONG, LONG + "a"], ["a " + LONG]),
        (["a" * (i + 1) for i in range(500)], ["a" * (i + 1) + " a" for i in range(499)]),
        (["a" * (i + 1) for i in range(500)], ["a " + "a" * (i + 1) for i in range(498, -1, -1)]),
        (["é", "bbb"], ["é é"]),
        (["é", "😀", "a"], ["é 😀"]),
        (["a", "b"], ["a  b", "  "]),
    ],
)
def test_odd_vocabularies_do_no_harm(pre: str, tokens: list[str], merges: list[str], capfd: Any) -> None:
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens}
    try:
        tokenizer = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.merges": merges})
    except ModelError as error:
        said = str(error)
        assert "is not of tokens in the vocabulary" in said
        assert "\n" not in said
    else:
        for text in ("", "a", "ab aba", "a" * 10_000, "😀é"):
            assert all(0 <= i < len(tokens) for i in tokenizer.encode(text))
    assert capfd.readouterr() == ("", "")  # the library prints when it panics


class File(dict[str, Any]):
    path = "some/model.gguf"


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "rwkv"},
        {"model": None},
        {"pre": "nonesuch"},
        {"tokens": []},
        {"token_type": [1]},
        {"merges": []},
        {"merges": ["x nonesuch"]},
        {"tokens": 5},
    ],
)
def test_errors_begin_with_the_file(metadata: dict[str, Any], changes: dict[str, Any]) -> None:
    file = File({**metadata, **{f"tokenizer.ggml.{k}": v for k, v in changes.items()}})
    with pytest.raises(ModelError, match=r"^some/model\.gguf: tokenizer\.ggml\.\w+: .*[;,] .*") as caught:
        Tokenizer.from_gguf(file)
    assert str(caught.value).count("some/model.gguf") == 1


def test_pre_can_be_given(metadata: dict[str, Any]) -> None:
    metadata["tokenizer.ggml.pre"] = "nonesuch"
    assert Tokenizer.from_gguf(metadata, pre="smollm").encode("a")
    del metadata["tokenizer.ggml.pre"]
    assert Tokenizer.from_gguf(metadata).encode("a")  # 'default', with a warning


@pytest.mark.parametrize("name", ["bos", "eos", "eot", "unknown", "padding"])
@pytest.mark.parametrize("bad", [2**32 - 1, 10_000, -1, "2", True, 1.0])
def test_ids_past_the_vocabulary_are_ignored(make: Make, caplog: Any, name: str, bad: Any) -> None:
    tokenizer = make(**{f"{name}_token_id": bad, "add_bos_token": True})
    assert f"{name}_token_id" in caplog.text
    assert all(0 <= i < tokenizer.n_vocab for i in [*tokenizer.end_ids, *tokenizer.encode("a b", special=True)])
    tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])


def test_tokens_that_are_not_utf8(metadata: dict[str, Any]) -> None:
    class Raw(dict[str, Any]):
        def bytes(self, key: str) -> list[bytes]:
            return [t if isinstance(t, bytes) else t.encode() for t in self[key]]

    metadata["tokenizer.ggml.tokens"] += [b"\xff\xfe", "�".encode()]
    metadata["tokenizer.ggml.token_type"] += [1, 1]
    tokenizer = Tokenizer.from_gguf(Raw(metadata))
    assert tokenizer.token_bytes(tokenizer.n_vocab - 2) == b"\xff\xfe"
    assert tokenizer.token_bytes(tokenizer.n_vocab - 1) == "�".encode()
    assert tokenizer.decode(tokenizer.encode("The light �")) == "The light �"


def test_a_token_outside_the_byte_alphabet_stands_for_itself(make: Make, metadata: dict[str, Any]) -> None:
    more = ["日本", "a b", "\x85"]
    tokenizer = make(
        tokens=[*metadata["tokenizer.ggml.tokens"], *more], token_type=[*metadata["tokenizer.ggml.token_type"], 1, 1, 1]
    )
    n = tokenizer.n_vocab
    assert pieces(tokenizer, [n - 3, n - 2, n - 1]) == more
