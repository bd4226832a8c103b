"""Markdown that is shown while it is written.

Finished blocks (paragraph, list, code, table) are printed once and scroll away as any output does; only the last one,
which may still change, is redrawn in place, and of that no more than fits on the screen. So the length of an answer
costs nothing, and nothing is drawn twice.
"""

from __future__ import annotations

import time
from types import TracebackType

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

from pyedge.cli.terminal import harmless

_SHORTEST = 1 / 15  # seconds between redraws
_SHARE = 0.1  # of the time may go into redrawing: the model needs the processor

# HTML is off, since Rich leaves it out: a person asks for a <table> and wants to see it.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _Blocks(Markdown):
    """Markdown as a model means it: tags are text, and an address is seen before it is followed."""

    def __init__(self, markup: str) -> None:
        super().__init__(markup, hyperlinks=False)
        self.parsed = _PARSER.parse(markup)


class _End:
    """The last lines of Markdown, as many as the screen holds."""

    def __init__(self, markup: str) -> None:
        self._markdown = _Blocks(markup)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._markdown, options.update(height=None), pad=False)
        lines = lines[-max(1, console.height - 1) :]
        for i, line in enumerate(lines):
            if i:
                yield Segment.line()
            yield from line


def finished_until(markup: str) -> int:
    """Up to where no later text changes how Markdown is read: the start of the last block of whole lines."""
    lines = markup.split("\n")[:-1]  # what a line is may change until it ends: `#` is a heading, `#tag` is none
    tokens = _PARSER.parse("\n".join(lines))
    starts = [token.map[0] for token in tokens if token.level == 0 and token.map and token.nesting >= 0]
    return sum(len(line) + 1 for line in lines[: starts[-1]]) if len(starts) > 1 else 0


class MarkdownStream:
    """Shows text on a terminal as it comes. Use as a context manager; whatever ends it, what came is left on screen."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
        )
        self._rest = ""  # not yet printed for good
        self._printed = False
        self._next = 0.0

    def __enter__(self) -> MarkdownStream:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.update("", refresh=True)
        self._live.stop()
        self._print(self._rest)

    def feed(self, text: str) -> None:
        self._rest += harmless(text)
        start = time.perf_counter()
        if start < self._next:
            return
        end = finished_until(self._rest)
        finished, self._rest = self._rest[:end], self._rest[end:]
        self._live.update(_End(self._rest))
        if finished:
            self._print(finished)  # above the live part, which is drawn with it
        else:
            self._live.refresh()
        now = time.perf_counter()
        self._next = now + max(_SHORTEST, (now - start) / _SHARE)

    def _print(self, markup: str) -> None:
        if not markup.strip():
            return
        if self._printed:
            self._console.print()
        self._console.print(_Blocks(markup))
        self._printed = True
