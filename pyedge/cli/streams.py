"""The standard streams as the commands find them: there, in an encoding that takes any text, and with names.

Owns what a closed stream, a locale without an encoding, and bytes in another encoding mean. Imports next to nothing, as
`pyedge --help` needs it.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from typing import Any

import click


class StreamError(OSError):
    """A standard stream cannot be read or written: nothing goes on after that."""


def dumb(kind: str | None = None) -> bool:
    """Whether the terminal takes no escape sequences."""
    return (os.environ.get("TERM", "dumb") if kind is None else kind) in ("dumb", "unknown")


def prepare() -> None:
    """Makes the three streams fit for use. Called once, before anything is read or written."""
    for number, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):
        # Where one is closed, the next file opened would get its number, and what is meant for the stream. In its place
        # comes one that cannot be used, save for standard error: where nobody listens, nothing is said.
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    sys.stdin = _open(sys.stdin, 0, "r", "standard input", "surrogateescape")
    sys.stdout = _open(sys.stdout, 1, "w", "standard output", "surrogateescape")
    sys.stderr = _open(sys.stderr, 2, "w", "standard error", "backslashreplace")


def text_of(argument: str, where: str) -> str:
    """An argument as text. Bytes that the locale's encoding lacks are hidden in it as lone surrogates: UTF-8 in the
    locale C, mostly. Others are refused."""
    try:
        return os.fsencode(argument).decode("utf-8") if _halves(argument) is not None else argument
    except UnicodeError:
        raise click.UsageError(f"{where}: character {_halves(argument)} is not valid UTF-8") from None


def checked_line(line: str) -> str:
    """A line of standard input, refused if it was not UTF-8."""
    if (at := _halves(line)) is not None:
        raise ValueError(f"standard input: character {at} of the line is not UTF-8; give text in that encoding")
    return line


def read_input() -> str:
    """All of standard input."""
    try:
        text: str = sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as e:
        raise ValueError(f"standard input: byte {e.start} is not UTF-8; give text in that encoding") from None
    return text


def text_in(path: str) -> str:
    """All of a file of text; `-`: of standard input."""
    if path == "-":
        return read_input()
    try:
        with open(path, "rb") as file:
            return file.read().decode("utf-8")
    except UnicodeDecodeError as e:
        raise ValueError(f"{path}: byte {e.start} is not UTF-8; give text in that encoding") from None


def print_json(document: Any) -> None:
    """One document on standard output: in UTF-8 in every locale, and a path's bytes that are none as escapes."""
    import json

    click.echo(json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace"))


def _halves(text: str) -> int | None:
    """Where the first lone surrogate is."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        return e.start
    return None


def _open(stream: Any, number: int, mode: str, name: str, errors: str) -> Any:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    if encoding.lower().replace("-", "").replace("_", "") in ("ascii", "usascii", "ansi_x3.41968", "ansix3.41968"):
        encoding = "utf-8"  # the locale C says nothing about the terminal
    if mode == "w" and errors == "surrogateescape" and encoding.lower() not in ("utf-8", "utf8"):
        errors = "replace"  # as surrogates have no bytes there, nor has most of what a model writes
    if mode == "r" and not os.isatty(number):
        encoding = "utf-8"  # a pipe has no locale
    raw = _Named(number, mode, name)
    buffer: Any = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    line_buffering = number == 2 or (number == 1 and os.isatty(number))
    return io.TextIOWrapper(buffer, encoding=encoding, errors=errors, line_buffering=line_buffering)


class _Named(io.FileIO):
    """A standard stream's descriptor, whose errors say which one it is."""

    def __init__(self, number: int, mode: str, name: str) -> None:
        super().__init__(number, mode, closefd=False)
        self._said = name

    def write(self, data: Any, /) -> Any:
        return self._do(super().write, data)

    def readinto(self, data: Any, /) -> Any:
        return self._do(super().readinto, data)

    def readall(self) -> Any:
        return self._do(super().readall)

    def _do(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args)
        except (BrokenPipeError, BlockingIOError):
            raise
        except OSError as e:
            raise StreamError(e.errno, "is closed" if e.errno == errno.EBADF else e.strerror, self._said) from e
