"""What the commands share about the terminal: progress bars, and text that a model made."""

from __future__ import annotations

import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import click

from pyedge.cli.streams import dumb
from pyedge.store import Consent, Progress, Terms

# A model's text must not move the cursor, retitle the window or write to the clipboard: control characters are shown as
# their pictures (U+2400 and up), but for newline and tab; carriage returns go.
_PICTURES: dict[int, int | None] = {c: 0x2400 + c for c in range(0x20) if c not in (0x09, 0x0A)}
_PICTURES |= {0x0D: None, 0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def harmless(text: str) -> str:
    """Text as it may be written to a terminal."""
    return text.translate(_PICTURES)


def in_bytes(n: int) -> str:
    """A size for people, in the units of disks."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.{0 if n >= 100 * size else 1}f} {unit}"
    return f"{n} B"


@contextmanager
def silent_keys() -> Iterator[None]:
    """What is typed meanwhile waits to be read and is not echoed, where it would break what is drawn. Ctrl-C works."""
    try:
        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):  # no terminal
        yield
        return
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def consent(accepted: bool = False) -> Consent:
    """Shows a licence before a download, and on a terminal asks for a yes unless that was given with the command. A
    script goes on: these terms bind whoever uses the model, and it was told which they are."""

    def ask(model: str, terms: Terms) -> bool:
        question = not accepted and sys.stdin.isatty() and sys.stderr.isatty()
        using = "" if question else "; by using it you accept them"
        click.echo(f"note: {model} comes under the {terms}{using}", err=True)
        return not question or click.confirm("Do you accept them, and fetch it?", err=True)

    return ask


@contextmanager
def count_bar(what: str) -> Iterator[Progress | None]:
    """A progress callback for what is counted one by one; None where standard error is no terminal."""
    with download_bar(what, counted=True) as progress:
        yield progress


@contextmanager
def download_bar(what: str, counted: bool = False) -> Iterator[Progress | None]:
    """A progress callback that draws a bar on standard error from its first call on; None where that is no terminal.
    Meanwhile, who ends this process ends the one that downloads for it, too. counted: not bytes."""
    with ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        if not sys.stderr.isatty() or dumb():
            yield None
            return
        update: Progress | None = None

        def progress(done: int, total: int) -> None:
            nonlocal update
            if update is None:
                update = stack.enter_context(_bar(what, counted))
            update(done, total)

        yield progress


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what runs as an exception does, with its clean-up, and not at once."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    taken = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) is signal.SIG_DFL]
    for s in taken:
        signal.signal(s, end)
    try:
        yield
    finally:
        for s in taken:
            signal.signal(s, signal.SIG_DFL)


@contextmanager
def _bar(what: str, counted: bool) -> Iterator[Progress]:
    from rich import progress
    from rich.console import Console

    amount = [progress.MofNCompleteColumn()] if counted else [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *amount, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


@contextmanager
def measuring_bar(steps: int) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty() or dumb():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # Drawn between measurements only: a thread that draws would be measured too.
    with Progress(console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("measuring", total=steps)

        def advance() -> None:
            bar.advance(task)
            bar.refresh()

        bar.refresh()
        yield advance
