"""Stop strings: what is given out, however the text is cut."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyedge.tokenizers import StopMatcher


def run(stops: list[str], parts: list[str]) -> tuple[list[str], bool]:
    """What each push gives, then the finish; and whether it stopped."""
    matcher = StopMatcher(stops)
    return [*map(matcher.push, parts), matcher.finish()], matcher.stopped


def expected(stops: list[str], text: str) -> tuple[str, bool]:
    """By the definition: the first end of a stop string in the text; the longest that ends there is cut off."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


TOKENS = ["DEF", "GH", "I", "J", "K", "LM", "N", "OP", "QR", "STUV", "WXY", "Z\n", "\nNow"]
CASES = [
    (["DEFGHIJ"], "", True),
    (["GHI"], "DEF", True),
    (["IJ"], "DEFGH", True),
    (["Z\n\nNow"], "DEFGHIJKLMNOPQRSTUVWXY", True),
    (["XY", "GHI"], "DEF", True),
    (["ABC"], "".join(TOKENS), False),
    (["hij"], "".join(TOKENS), False),
    ([], "".join(TOKENS), False),
]


@pytest.mark.parametrize(("stops", "text", "stopped"), CASES)
@pytest.mark.parametrize(
    "parts", [TOKENS, ["".join(TOKENS)], list("".join(TOKENS))], ids=["tokens", "whole", "letters"]
)
def test_over_tokens(stops: list[str], text: str, stopped: bool, parts: list[str]) -> None:
    given_out, did_stop = run(stops, parts)
    assert ("".join(given_out), did_stop) == (text, stopped)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    assert run(["abc"], ["xxa", "bx", "ab", "ab", "c", "y"])[0] == ["xx", "abx", "", "ab", "", "", ""]
    assert run(["aab"], ["aaaa"])[0] == ["aa", "aa"]
    assert run(["abcd", "bx"], ["abc", "x"])[0] == ["", "abcx", ""]
    assert run(["stop"], ["no match"])[0] == ["no match", ""]


def test_the_first_to_be_complete_wins() -> None:
    assert run(["GHI", "FGHIJK"], ["DEFGHIJK"]) == (["DEF", ""], True)
    assert run(["abc", "c"], ["xabc"]) == (["x", ""], True)
    assert run(["c", "abc"], ["xa", "bc"]) == (["x", "", ""], True)


def test_nothing_follows_a_stop() -> None:
    matcher = StopMatcher(["."])
    assert [matcher.push("a.b"), matcher.push("c"), matcher.finish(), matcher.stopped] == ["a", "", "", True]


@pytest.mark.parametrize("stops", [[""], ["a", ""], [1], [None], None, 5, b"a"])
def test_refused(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="stop string"):
        StopMatcher(stops)


@given(
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4),
    st.lists(st.text(alphabet="abc", max_size=5), max_size=10),
)
def test_by_the_definition(stops: list[str], parts: list[str]) -> None:
    given_out, stopped = run(stops, parts)
    assert ("".join(given_out), stopped) == expected(stops, "".join(parts))
    seen = ""
    for i, part in enumerate(parts):  # what is out so far, and no more, is safe whatever follows
        seen += part
        if expected(stops, seen)[1]:
            break
        held = max((k for s in stops for k in range(len(s)) if seen.endswith(s[:k])), default=0)
        assert "".join(given_out[: i + 1]) == seen[: len(seen) - held]


def test_time_is_linear() -> None:
    matcher = StopMatcher(["a" * 5000 + "b", "a" * 3000 + "c"])
    start = time.process_time()
    for _ in range(100_000):
        matcher.push("a")
    assert time.process_time() - start < 5
