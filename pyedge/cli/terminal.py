"""What the commands share about the terminal: progress bars, and text that a model made."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyedge.store import Progress

# A model's text must not move the cursor, retitle the window or write to the clipboard: control characters are shown as
# their pictures (U+2400 and up), but for newline and tab; carriage returns go.
_PICTURES: dict[int, int | None] = {c: 0x2400 + c for c in range(0x20) if c not in (0x09, 0x0A)}
_PICTURES |= {0x0D: None, 0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def harmless(text: str) -> str:
    """Text as it may be written to a terminal."""
    return text.translate(_PICTURES)


@contextmanager
def download_bar(what: str) -> Iterator[Progress | None]:
    """A progress callback that draws a bar on standard error; None, and so no bar, where that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
