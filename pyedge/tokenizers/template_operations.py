"""What chat templates do with values, made of little and worth much: their text, JSON, formats, padding, joining.

Owns these operations, each checked against the limits (template_meter.py) before it runs. Which names templates know
them by is template_sandbox.py's.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from jinja2 import Undefined
from jinja2.filters import FILTERS
from jinja2.sandbox import SandboxedFormatter
from jinja2.utils import Namespace

from pyedge.tokenizers.template_meter import (
    ITEM,
    MAX_INDENT,
    MAX_ITEMS,
    MAX_RANGE,
    MAX_SEARCH,
    MAX_WIDTH,
    METER,
    LimitError,
)

# ---- Text of values --------------------------------------------------------------------------------------------------


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, float, range, Undefined)):
        return str(value)
    if isinstance(value, (int, list, tuple, dict)):
        METER.get().weigh(value)
        return _repr(value)
    return f"<{type(value).__name__}>"


def _repr(value: Any) -> str:
    """Python's text of a value, but with the mark as it is: repr() would turn it into six ordinary characters."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_repr(k)}: {_repr(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_repr, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_repr, value)) + (",)" if len(value) == 1 else ")")
    mark = METER.get().mark
    if isinstance(value, str) and mark and mark in value:
        METER.get().work(len(value))
        letter = next(c for c in map(chr, range(0x4E00, 0x9FFF)) if c not in value)
        return repr(value.replace(mark, letter)).replace(letter, mark)
    return repr(value)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """tojson as transformers has it: plain JSON, no HTML escapes."""
    meter = METER.get()
    meter.weigh(value)
    if max(indent if isinstance(indent, int) else len(indent or ""), *map(len, separators or ("", ""))) > MAX_INDENT:
        raise LimitError(f"it asks for an indentation of more than {MAX_INDENT}")
    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators, sort_keys=bool(sort_keys))
    parts = []
    for part in encoder.iterencode(value):
        meter.tick(len(part))
        parts.append(part)
    text = "".join(parts)
    return re.sub(r"[^\x00-\x7e]", _json_escape, text) if ensure_ascii else text


def _json_escape(match: re.Match[str]) -> str:
    meter, character = METER.get(), match[0]
    meter.work()
    return character if character == meter.mark else json.dumps(character)[1:-1]


def from_json(text: Any) -> Any:
    return json.loads(text_of(text), parse_int=_number)


def _number(text: str) -> int:
    METER.get().work()
    _narrow(len(text))
    return int(text)


def _narrow(width: int) -> int:
    if width > MAX_WIDTH:
        raise LimitError(f"it asks for a width of more than {MAX_WIDTH}")
    return width


class Formatter(SandboxedFormatter):
    """str.format: attributes go through the sandbox, widths are bounded, each field is paid for."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return value if conversion is None else _repr(_plain(value)) if conversion == "r" else text_of(value)

    def format_field(self, value: Any, format_spec: str) -> str:
        for digits in re.findall(r"\d+", format_spec):
            _number(digits)
            _narrow(int(digits))
        text = format(value if isinstance(value, (int, float)) else text_of(value), format_spec)
        METER.get().tick(len(text))
        return text


def _plain(value: Any) -> Any:
    METER.get().weigh(value)
    return value


_PERCENT = re.compile(
    r"%(?:\((?P<key>\w*)\))?(?P<spec>[-+ #0]*(?P<width>\d*)(?:\.(?P<digits>\d*))?[diouxXeEfFgGcrs%])|%"
)


def percent(form: str, values: Any) -> str:
    """`form % values`, with bounded widths, each field paid for."""
    left = deque(values if isinstance(values, tuple) else (values,))
    meter = METER.get()

    def field(match: re.Match[str]) -> str:
        meter.work()
        spec = match["spec"]
        if spec is None:
            raise ValueError(f"unsupported format in {one_line(form)[:60]!r}")
        _narrow(_number(match["width"] or "0"))
        _narrow(_number(match["digits"] or "0"))
        if spec.endswith("%"):
            return "%"
        if match["key"] is not None:
            value = values[match["key"]]
            left.clear()
        elif left:
            value = left.popleft()
        else:
            raise TypeError("not enough arguments for format string")
        if spec.endswith(("s", "r")):
            value = text_of(value) if spec.endswith("s") else _repr(_plain(value))
            spec = spec[:-1] + "s"
        text = ("%" + spec) % (value,)
        meter.tick(len(text))
        return text

    text = _PERCENT.sub(field, form)
    if left and not isinstance(values, dict):
        raise TypeError("not all arguments converted during string formatting")
    return text


def one_line(text: str, mark: str = "") -> str:
    text = " ".join((text.replace(mark, "") if mark else text).split())
    return text if len(text) <= 500 else text[:500] + "..."


# ---- Operations that make much of little -----------------------------------------------------------------------------


def items(value: Any) -> Sequence[Any]:
    """What a loop over the value would give."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Undefined):
        return list(value)  # empty, or the error of a stricter kind
    if isinstance(value, (str, dict, range)):
        if len(value) > MAX_ITEMS:
            raise LimitError(f"it makes a list of more than {MAX_ITEMS} elements")
        return list(value)
    raise TypeError(f"{type(value).__name__!r} object is not iterable")


def collect(values: Iterable[Any]) -> list[Any]:
    meter, kept = METER.get(), []
    for value in values:
        meter.tick(ITEM)
        kept.append(value)
    return kept


def join(separator: str, values: Any) -> str:
    parts = collect(map(text_of, items(values)))
    METER.get().allow(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    n = text.count(old) if count < 0 else min(count, text.count(old))
    METER.get().allow(len(text) + n * max(len(new) - len(old), 0))
    return text.replace(old, new, n)


def pad(name: str, text: str, width: int, *fill: str) -> str:
    return str(getattr(text, name)(_narrow(width), *fill))


def search(name: str, text: str, *args: Any, **kwargs: Any) -> Any:
    for needle in (*args, *kwargs.values()):
        if isinstance(needle, str) and len(needle) * len(text) > MAX_SEARCH:
            raise LimitError(f"it searches {len(text)} characters for {len(needle)} others with {name}")
    return getattr(text, name)(*args, **kwargs)


def title(text: str) -> str:
    """Jinja's, a word at a time: it would make a list of millions."""

    def word(match: re.Match[str]) -> str:
        METER.get().work()
        return match[0][0].upper() + match[0][1:].lower()

    return re.sub(r"[^-\s({\[<]+", word, text)


def indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    prefix = width if isinstance(width, str) else " " * _narrow(width)
    _narrow(len(prefix))
    lines = (text + "\n" if text.endswith("\n") else text).splitlines()
    METER.get().allow(len(text) + (len(prefix) + 1) * len(lines))
    return "\n".join(prefix + s if (s or blank) and (i or first) else s for i, s in enumerate(lines))


def rounded(value: float, precision: int = 0, method: str = "common") -> float:
    if method == "common":
        return round(value, max(-20, min(precision, 20)))
    scale = 10.0 ** max(-20, min(precision, 20))
    return (math.ceil if method == "ceil" else math.floor)(value * scale) / scale


def to_int(value: Any, default: int = 0, base: int = 10) -> Any:
    if isinstance(value, str) and len(value) > MAX_WIDTH:
        return default
    return FILTERS["int"](value, default, base)


def to_float(value: Any, default: float = 0.0) -> Any:
    if isinstance(value, str) and len(value) > MAX_WIDTH:
        return default
    return FILTERS["float"](value, default)


def range_of(*args: int) -> range:
    values = range(*args)
    if len(values) > MAX_RANGE:
        raise LimitError(f"it makes a range of more than {MAX_RANGE} numbers")
    return values


def namespace(*args: Any, **kwargs: Any) -> Namespace:
    return Namespace(METER.get().made(dict(*args, **kwargs)))


def now(form: str) -> str:
    if len(form) > MAX_WIDTH:  # one directive can make 256 times its length
        raise LimitError("it asks for a date in too long a form")
    return datetime.now().strftime(form)
