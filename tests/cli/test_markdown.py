"""Streamed Markdown: whatever the pieces, what ends up on the screen is what the whole text gives, and once."""

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from pyedge.cli import markdown
from pyedge.cli.markdown import MarkdownStream, finished_until
from pyedge.cli.terminal import harmless

ANSWER = """\
# Sorting

Quick **sort**, in *Python*:

```python
def sort(a):

    return sorted(a)

# done
```

1. first

   with a second paragraph
2. second
   - nested

10. tenth

> quoted
lazily

| a | b |
|---|---|
| 1 | `2` |

Text <b>bold</b>
#tag and
***strong***

---
The *end*
"""

LINES = st.sampled_from(
    ["", "word", "#", "# head", "#tag", "* item", "- item", "  more", "1. one", "```", "```py", "    code", "> quote",
     "***", "---", "===", "***x***", "| a | b |", "|---|---|", "<div>", "\\", "`", "~~~", "*", "-", "1)"]
)  # fmt: skip


def blocks(text: str) -> list[tuple[str, str, str]]:
    return [(token.type, token.tag, token.content) for token in markdown._PARSER.parse(text)]


def split(text: str, cuts: list[int]) -> list[str]:
    """The finished parts of a text that comes in pieces, and what is left."""
    parts, rest = [], ""
    for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True):
        rest += text[a:b]
        end = finished_until(rest)
        parts.append(rest[:end])
        rest = rest[end:]
    return [*parts, rest]


@settings(max_examples=200)
@given(st.lists(LINES, max_size=8).map("\n".join), st.randoms(use_true_random=False))
def test_parts_read_as_the_whole_does(text: str, rng: random.Random) -> None:
    for cuts in (range(len(text)), sorted(rng.choices(range(len(text) + 1), k=3))):
        parts = split(text, list(cuts))
        assert "".join(parts) == text
        assert [block for part in parts for block in blocks(part)] == blocks(text)


def test_parts_are_small() -> None:
    assert max(len(part) for part in split(ANSWER, list(range(len(ANSWER))))) < 120


def screen(written: str, width: int) -> list[str]:
    """The lines that a terminal shows after this output, scrolled ones included."""
    lines: list[list[str]] = [[]]
    row = column = i = 0
    while i < len(written):
        c = written[i]
        if c == "\x1b":
            end = i + 2
            while not written[end].isalpha():
                end += 1
            argument, kind = written[i + 2 : end], written[end]
            if kind == "A":
                row -= int(argument or 1)
            elif kind == "K":
                lines[row] = [] if argument == "2" else lines[row][:column]
            else:
                assert kind in "mhl", f"unknown sequence {written[i : end + 1]!r}"
            i = end + 1
            continue
        if c == "\n":
            row, column = row + 1, 0
        elif c == "\r":
            column = 0
        else:
            lines[row] += [" "] * (column + 1 - len(lines[row]))
            lines[row][column] = c
            column += 1
            assert column <= width
        while len(lines) <= row:
            lines.append([])
        i += 1
    return ["".join(line).rstrip() for line in lines]


def terminal(height: int = 30) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=60, height=height, color_system=None, legacy_windows=False
    )


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(autouse=True)
def redraw_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "_SHORTEST", 0.0)
    monkeypatch.setattr(markdown, "_SHARE", 1e9)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("height", [4, 30])
def test_the_screen_shows_every_block_once(size: int, height: int) -> None:
    console = terminal(height)
    with MarkdownStream(console) as stream:
        for i in range(0, len(ANSWER), size):
            stream.feed(ANSWER[i : i + size])
    shown = [line for line in screen(output(console), 60) if line]
    whole = terminal()
    whole.print(markdown._Blocks(ANSWER))
    assert shown == [line for line in screen(output(whole), 60) if line]


def test_tags_and_addresses_are_seen() -> None:
    console = terminal()
    with MarkdownStream(console) as stream:
        stream.feed("A <table> and [a link](http://example.org/x).")
    assert "A <table> and a link (http://example.org/x)." in screen(output(console), 60)


def test_what_came_stays_when_it_is_broken_off() -> None:
    def broken_off(stream: MarkdownStream) -> None:
        with stream:
            stream.feed("One.\n\nTw")
            raise KeyboardInterrupt

    console = terminal()
    with pytest.raises(KeyboardInterrupt):
        broken_off(MarkdownStream(console))
    assert [line for line in screen(output(console), 60) if line] == ["One.", "Tw"]


def test_nothing_said_shows_nothing() -> None:
    console = terminal()
    with MarkdownStream(console):
        pass
    assert "".join(screen(output(console), 60)) == ""


def test_a_models_text_cannot_steer_the_terminal() -> None:
    assert harmless("a\x1b[2Jb\r\nc\td\x07\x9b\x7f") == "a␛[2Jb\nc\td␇\ufffd␡"
    console = terminal()
    with MarkdownStream(console) as stream:
        stream.feed("x\x1b]0;title\x07y")
    assert "\x1b]" not in output(console)
