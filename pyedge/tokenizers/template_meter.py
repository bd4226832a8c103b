"""What a rendering of a chat template has left: fuel, time, and how much a value may weigh.

Owns the limits and the account of one rendering, which METER has while it runs. What is paid for is said where it
happens: template_operations.py, template_sandbox.py, and what template_rewriter.py puts into a template.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import Undefined

MAX_CHARS = 1 << 22  # of the output, and of any value on the way
MAX_ITEMS = MAX_CHARS // 16  # of a list made of something else
MAX_RANGE = 100_000
MAX_DEPTH = 100  # of lists in lists
MAX_BITS = 4096  # of an integer
MAX_WIDTH = 1000  # of padding, digits, indentation and numbers in text
MAX_INDENT = 16  # of JSON
MAX_SEARCH = 1 << 26  # characters of text times those looked for, where Python's search takes the product
FUEL = 1 << 26
SECONDS = 2.0  # of processor time: a busy machine refuses nothing

TICK = 32  # fuel of a loop round or a call
ITEM = 16  # fuel, and weight, of an element beside its content
_LOOK = 20_000  # fuel and characters read between two looks at the clock


class LimitError(Exception):
    """More than a template may say or use."""


class Meter:
    def __init__(self, mark: str, seconds: float) -> None:
        self.mark = mark
        self._fuel = FUEL
        self._unseen = 0  # fuel and characters read since the last look at the clock
        self._seconds = seconds
        self._end = time.thread_time() + seconds
        # Weight and depth of the containers seen, by identity; each is kept, so that no other takes its identity.
        self._known: dict[int, tuple[int, int, object]] = {}

    def tick(self, cost: int = TICK) -> None:
        self._fuel -= cost
        if self._fuel < 0:
            raise LimitError("it makes more text and lists than a prompt needs")
        self.work(cost)

    def work(self, cost: int = TICK) -> None:
        """Time that makes nothing."""
        self._unseen += cost
        if self._unseen > _LOOK:
            self._unseen = 0
            if time.thread_time() > self._end:
                raise LimitError(f"it takes more than {self._seconds:g} s")

    def read(self, *values: Any) -> None:
        """An operation is about to go through these."""
        size = ITEM
        for value in values:
            if isinstance(value, (str, range)):
                size += len(value)
            elif isinstance(value, (list, tuple, dict)):
                size += self.weigh(value)
        self.work(size)

    def made(self, value: Any) -> Any:
        """The value, paid for."""
        if isinstance(value, str):
            self.allow(len(value))
            self.tick(len(value) + ITEM)
        else:
            self.tick(ITEM)
            if isinstance(value, (list, tuple, dict, int)):
                self.weigh(value)
        return value

    def allow(self, size: int) -> None:
        if size > MAX_CHARS:
            raise LimitError(f"it makes a value of more than {MAX_CHARS} characters")

    def weigh(self, value: Any) -> int:
        """Characters in a value, counted each time that they occur, and a fixed weight for each element."""
        return self._weigh(value, 0)[0]

    def _weigh(self, value: Any, level: int) -> tuple[int, int]:
        if isinstance(value, str):
            self.allow(len(value))
            return len(value), 0
        if not isinstance(value, (list, tuple, dict)):
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise LimitError(f"it makes a number of more than {MAX_BITS} bits")
            if value is None or isinstance(value, (int, float, range, Undefined)):
                return 1, 0
            raise LimitError(f"it puts a {type(value).__name__} into a list")
        if id(value) in self._known:
            return self._known[id(value)][:2]
        if level > MAX_DEPTH:
            raise LimitError(f"it nests lists more than {MAX_DEPTH} deep")
        self.tick(ITEM * len(value))
        weight, depth = ITEM, 0
        for child in _children(value):
            child_weight, child_depth = self._weigh(child, level + 1)
            weight += child_weight + ITEM
            depth = max(depth, child_depth + 1)
            self.allow(weight)
        if level + depth > MAX_DEPTH:
            raise LimitError(f"it nests lists more than {MAX_DEPTH} deep")
        self._known[id(value)] = weight, depth, value
        return weight, depth


METER: ContextVar[Meter] = ContextVar("meter")


def _children(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    else:
        yield from value
