"""Streaming text from tokens: any cutting of bytes into tokens adds up to the whole."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from pyedge.tokenizers import IncrementalDetokenizer

CONTROL = 0


class Bytes:
    """Token i > 0 is the i-th of some byte strings."""

    hidden_ids: Collection[int] = frozenset({CONTROL})

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = [b"<control>", *tokens]

    def token_bytes(self, token: int) -> bytes:
        return self.tokens[token]


def stream(tokens: list[bytes], skip_special: bool = True) -> list[str]:
    source = Bytes(tokens)
    detokenizer = IncrementalDetokenizer(source, skip_special)
    return [detokenizer.push(i + 1) for i in range(len(tokens))] + [detokenizer.finish()]


def test_a_character_over_several_tokens_comes_when_it_is_whole() -> None:
    a, b, c = "日".encode()[:1], "日".encode()[1:2], "日".encode()[2:]
    assert stream([a, b, c + b"x", b"y"]) == ["", "", "日x", "y", ""]


def test_the_end_in_a_character_is_one_replacement() -> None:
    for cut in (1, 2, 3):
        assert stream([b"x", "😀".encode()[:cut]]) == ["x", "", "\ufffd"]


def test_bytes_that_cannot_be_utf8_come_at_once() -> None:
    assert stream([b"a\xff", b"b"]) == ["a\ufffd", "b", ""]
    assert stream(["日".encode()[:2], b"x"]) == ["", "\ufffdx", ""]


def test_control_tokens() -> None:
    for skip_special, text in ((True, ""), (False, "<control>")):
        detokenizer = IncrementalDetokenizer(Bytes([]), skip_special)
        assert detokenizer.push(CONTROL) == text


@given(st.lists(st.one_of(st.binary(max_size=5), st.text(max_size=3).map(str.encode)), max_size=12))
def test_pushes_add_up_to_the_whole(tokens: list[bytes]) -> None:
    assert "".join(stream(tokens)) == b"".join(tokens).decode("utf-8", "replace")


@given(st.text(max_size=20), st.data())
def test_no_replacement_in_good_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    tokens = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    parts = stream(tokens)
    assert "".join(parts) == text
    assert all("\ufffd" not in part or "\ufffd" in text for part in parts)
