"""WordPiece vocabularies: ids by the book, the tokens around a text, and files that are wrong."""

from __future__ import annotations

import time
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyedge.errors import ModelError
from pyedge.tokenizers import Tokenizer, pretokenizers
from pyedge.tokenizers.wordpiece import LONGEST_WORD

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "the",
    "sea",
    "un",
    "lighthouse",
    "naive",
    "a",
    "b",
    "é",
    "E",
    "日",
    "語",
    "!",
    ",",
    "'",
    "$",
    "-",
    "#",
    "s",
    "12",
]
INSIDE = ["##aff", "##able", "##s", "##a", "##e", "##12", "###", "##é"]
FILE = [*SPECIALS, *(f"\u2581{word}" for word in WORDS), *(piece[2:] for piece in INSIDE)]
OWN = [*SPECIALS, *WORDS, *INSIDE]  # as BERT's own files have them
CHARACTERS = "the seaunafbl!,'$-#12日語éÉe\u0301AEÀ \t\n\u200b\0ß😀\u3000\ufffd"
FRAGMENTS = ["unaffable", "Sea,", "the ", "naïve", "a" * LONGEST_WORD, "日本"]
TEXTS = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(CHARACTERS, max_size=8)), max_size=6).map("".join)


def tokenizer(**changes: Any) -> Tokenizer:
    metadata = {
        "model": "bert",
        "tokens": FILE,
        "token_type": [3] * len(SPECIALS) + [1] * (len(FILE) - len(SPECIALS)),
        "unknown_token_id": 1,
        "cls_token_id": 2,
        "seperator_token_id": 3,
        **changes,
    }
    return Tokenizer.from_gguf({f"tokenizer.ggml.{k}": v for k, v in metadata.items() if v is not None})


def by_the_book(text: str, lower: bool, strip: bool) -> list[int]:
    """arXiv:1810.04805's published tokenizer: clean, split, and take the longest piece again and again."""
    kept = ""
    for c in text:
        if c in " \t\n\r" or unicodedata.category(c) == "Zs":
            kept += " "
        elif c != "\ufffd" and unicodedata.category(c)[0] != "C":
            kept += f" {c} " if "\u4e00" <= c <= "\u9fff" else c
    if strip:
        kept = "".join(c for c in unicodedata.normalize("NFD", kept) if unicodedata.category(c) != "Mn")
    if lower:
        kept = kept.lower()
    for c in set(kept):
        if unicodedata.category(c)[0] == "P" or ("!" <= c <= "~" and not c.isalnum()):
            kept = kept.replace(c, f" {c} ")
    ids = []
    for word in kept.split(" "):
        pieces, start = [], 0
        while start < len(word) <= LONGEST_WORD:
            ends = [end for end in range(len(word), start, -1) if ("##" if start else "") + word[start:end] in OWN]
            if not ends:
                break
            pieces.append(OWN.index(("##" if start else "") + word[start : ends[0]]))
            start = ends[0]
        if word:
            ids += pieces if start == len(word) else [1]
    return ids


@pytest.mark.parametrize(("lower", "strip"), [(None, None), (True, False), (False, None), (False, True)])
def test_ids_by_the_book(lower: bool | None, strip: bool | None) -> None:
    ours = tokenizer(**{"normalizer.lowercase": lower, "normalizer.strip_accents": strip})
    lowers = lower is None or lower

    @settings(max_examples=150)
    @given(text=TEXTS)
    def check(text: str) -> None:
        ids = ours.encode(text, bos=False)
        assert ids == by_the_book(text, lowers, lowers if strip is None else strip)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pretokenizers, "PIECE", 1)
            assert ours.encode(text, bos=False) == ids
        assert ours._kind.fewest(text) <= len(ids)

    check()


def test_a_limit_does_not_count_words_that_vanish() -> None:
    """Without a token for unknown words, they do."""
    ours = tokenizer(unknown_token_id=None, token_type=None)
    assert ours.encode("the zebra the zebra", bos=False) == [5, 5]
    assert ours.encode("the zebra the zebra", bos=False, limit=2) == [5, 5]


def test_tokens_around_a_text() -> None:
    ours = tokenizer()
    sea = OWN.index("sea")
    assert ours.encode("Sea") == [2, sea, 3]
    assert ours.encode("") == [2, 3]
    assert ours.encode("sea", bos=False) == [sea]
    assert ours.encode("sea", eos=False) == [2, sea]
    assert ours.encode("sea[SEP]sea", special=True) == [2, sea, 3, sea, 3]
    assert ours.encode("[SEP]", bos=False) == [1, 1, 1]  # text, of which no word is known
    for changes in (
        {"cls_token_id": None, "seperator_token_id": None},
        {"add_bos_token": False, "add_sep_token": False},
    ):
        assert tokenizer(**changes).encode("sea") == [2, sea, 3]
    assert tokenizer(cls_token_id=None, bos_token_id=0, seperator_token_id=None, eos_token_id=4).encode("") == [0, 4]


def test_decoding_can_be_read() -> None:
    ours = tokenizer()
    ids = ours.encode("The unaffable sea, naïve!")
    assert ours.decode(ids, skip_special=True) == "the unaffable sea , naive !"
    detokenizer = ours.detokenizer(continues=False)
    assert "".join([*map(detokenizer.push, ids), detokenizer.finish()]) == "the unaffable sea , naive !"
    assert ours.decode(ids[1:], skip_special=True, continues=True) == " the unaffable sea , naive !"


def test_a_long_word_is_unknown() -> None:
    ours = tokenizer()
    assert 1 not in ours.encode("a" * LONGEST_WORD)
    assert ours.encode("a" * (LONGEST_WORD + 1)) == [2, 1, 3]


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [""] * len(FILE)},
        {"tokens": ["\u2581a"] * len(FILE)},
        {"tokens": ["\u2581"] * len(FILE)},
        {"tokens": ["\ufdd0", "\ufdd1", "\u2581\ufdd1", *FILE[3:]]},
        {"tokens": ["a" * 1_000_000, *FILE[1:]]},
        {"tokens": [*FILE[:-1], "a" * 1_000_000]},
        {"token_type": [3] * len(FILE)},
        {"token_type": [1] * len(FILE)},
        {"token_type": [0, 7, -1, *[1] * (len(FILE) - 3)]},
        {"unknown_token_id": None, "token_type": None},
        {"cls_token_id": 10**6},
        {"normalizer.lowercase": "x"},
    ],
)
def test_odd_vocabularies_do_no_harm(changes: dict[str, Any]) -> None:
    ours = tokenizer(**changes)
    for text in ("", "the sea", "unaffable \ufdd0 \ufdd1", "a" * 1000, "😀"):
        ids = ours.encode(text)
        assert all(0 <= i < len(FILE) for i in ids)
        ours.decode(ids)


def test_an_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ModelError, match="empty or missing"):
        tokenizer(tokens=[], token_type=[])


def test_long_runs_take_linear_time() -> None:
    ours = tokenizer()
    for text in ("a", " ", "日", "é", "!", "\u0301", "a ", "[SEP]"):
        times = []
        for n in (20_000, 80_000):
            start = time.process_time()
            ours.encode(text * (n // len(text)), special=True)
            times.append(time.process_time() - start)
        assert times[1] < 2
        assert times[1] < 10 * times[0] + 0.2
