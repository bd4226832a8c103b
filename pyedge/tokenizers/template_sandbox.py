"""Runs a template that a stranger wrote: Jinja's immutable sandbox, with limits over compiling and rendering.

Owns what a template may say, call and cost. Messages and special tokens are chat_template.py's.

Jinja's sandbox guards names, not costs, and one operation can cost a gigabyte. So:
  - The parsed template is rewritten before it is compiled: each loop round and macro call pays a tick first, and each
    container, comparison, slice and `~` goes through a function of ours, as arithmetic, calls, attributes, filters and
    output already do. Statements that reach other templates, or that Jinja evaluates while it compiles, are refused and
    its optimizer is off: compiling evaluates nothing, and the length of the source bounds its cost.
  - All that an operation makes is paid for from one amount of fuel, which bounds memory. Operations that can make much
    more than they are given (`*`, `center`, `replace`, ...) are checked before they run.
  - The clock is looked at as fuel goes down, and before an operation by the size of all that it is given: searching
    millions of characters makes nothing and takes long. So time ends within one operation, and one takes little.
  - No value weighs more than MAX_CHARS, and a container weighs its content each time that it occurs: a list that holds
    itself twice, thirty times over, is refused when it is made. So walking a value (text, JSON, ==) never takes long.
  - Attributes, filters, tests and globals are those listed here. No other exists.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import cache, lru_cache, partial, reduce, wraps
from typing import Any

import markupsafe
from jinja2 import Template, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.utils import Namespace, pass_context
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 1 << 16  # characters of a template; the longest known has 20,000
MAX_CHARS = 1 << 22  # of the output, and of any value on the way
MAX_ITEMS = MAX_CHARS // 16  # of a list made of something else
MAX_RANGE = 100_000
MAX_DEPTH = 100  # of lists in lists
MAX_BITS = 4096  # of an integer
MAX_WIDTH = 1000  # of padding, digits, indentation and numbers in text
MAX_INDENT = 16  # of JSON
MAX_ELIF = 200  # each is a level of recursion in Python's compiler
MAX_SEARCH = 1 << 26  # characters of text times those looked for, where Python's search takes the product
FUEL = 1 << 26
SECONDS = 2.0  # of processor time: a busy machine refuses nothing

_TICK = 32  # fuel of a loop round or a call
_ITEM = 16  # fuel, and weight, of an element beside its content
_LOOK = 20_000  # fuel and characters read between two looks at the clock


class ChatTemplateError(ValueError):
    """A chat template cannot be used, or refuses the messages. The text is one line."""


class ChatTemplateRefusalError(ChatTemplateError):
    """The template is in order, and refuses these messages."""


class _LimitError(Exception):
    """More than a template may say or use."""


class _RefusedError(Exception):
    """`raise_exception(...)` in a template."""


def check(source: str) -> None:
    """Raises ChatTemplateError if the template cannot be compiled."""
    try:
        if len(source) > MAX_SOURCE:
            raise _LimitError(f"it has {len(source)} characters, more than {MAX_SOURCE}")
        _compile(source)
    except TemplateSyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        raise ChatTemplateError(f"the chat template is wrong{where}: {_line(str(error.message))}") from None
    except RecursionError:
        raise ChatTemplateError("the chat template cannot be used: it is nested too deep") from None
    except Exception as error:  # Python's own compiler has limits, and the source is a stranger's
        text = _line(str(error)) or type(error).__name__
        raise ChatTemplateError(f"the chat template cannot be used: {text}") from None


def render(source: str, variables: Mapping[str, Any], mark: str = "", seconds: float = SECONDS) -> str:
    """The text that a template makes of plain variables: strings, numbers, None, lists and dicts.

    mark: a character that tojson and the printing of containers leave as it is. Raises ChatTemplateError.
    """
    check(source)
    meter = _Meter(mark, seconds)
    token = _METER.set(meter)
    try:
        for value in variables.values():
            meter.weigh(value)
        parts, size = [], 0
        template = _compile(source)
        for part in template.root_render_func(template.new_context(dict(variables))):
            size += len(part)
            if size > MAX_CHARS:
                raise _LimitError(f"it writes more than {MAX_CHARS} characters")
            parts.append(part)
        return "".join(parts)
    except _RefusedError as error:
        raise ChatTemplateRefusalError(f"the chat template refuses these messages: {_line(str(error), mark)}") from None
    except _LimitError as error:
        raise ChatTemplateError(f"the chat template was stopped: {error}") from None
    except RecursionError:
        raise ChatTemplateError("the chat template was stopped: it calls itself too deep") from None
    except Exception as error:  # a template can provoke any
        text = _line(str(error), mark) or type(error).__name__
        raise ChatTemplateError(f"the chat template failed: {text}") from None
    finally:
        _METER.reset(token)


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    environment = _environment()
    code = environment.compile(_Rewriter().visit(environment.parse(source)))
    return Template.from_code(environment, code, environment.globals)


@cache
def _environment() -> _Environment:
    return _Environment()


def _line(text: str, mark: str = "") -> str:
    text = " ".join((text.replace(mark, "") if mark else text).split())
    return text if len(text) <= 500 else text[:500] + "..."


# ---- What a rendering has left ---------------------------------------------------------------------------------------


class _Meter:
    def __init__(self, mark: str, seconds: float) -> None:
        self.mark = mark
        self._fuel = FUEL
        self._unseen = 0  # fuel and characters read since the last look at the clock
        self._seconds = seconds
        self._end = time.thread_time() + seconds
        # Weight and depth of the containers seen, by identity; each is kept, so that no other takes its identity.
        self._known: dict[int, tuple[int, int, object]] = {}

    def tick(self, cost: int = _TICK) -> None:
        self._fuel -= cost
        if self._fuel < 0:
            raise _LimitError("it makes more text and lists than a prompt needs")
        self.work(cost)

    def work(self, cost: int = _TICK) -> None:
        """Time that makes nothing."""
        self._unseen += cost
        if self._unseen > _LOOK:
            self._unseen = 0
            if time.thread_time() > self._end:
                raise _LimitError(f"it takes more than {self._seconds:g} s")

    def read(self, *values: Any) -> None:
        """An operation is about to go through these."""
        size = _ITEM
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
            self.tick(len(value) + _ITEM)
        else:
            self.tick(_ITEM)
            if isinstance(value, (list, tuple, dict, int)):
                self.weigh(value)
        return value

    def allow(self, size: int) -> None:
        if size > MAX_CHARS:
            raise _LimitError(f"it makes a value of more than {MAX_CHARS} characters")

    def weigh(self, value: Any) -> int:
        """Characters in a value, counted each time that they occur, and a fixed weight for each element."""
        return self._weigh(value, 0)[0]

    def _weigh(self, value: Any, level: int) -> tuple[int, int]:
        if isinstance(value, str):
            self.allow(len(value))
            return len(value), 0
        if not isinstance(value, (list, tuple, dict)):
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise _LimitError(f"it makes a number of more than {MAX_BITS} bits")
            if value is None or isinstance(value, (int, float, range, Undefined)):
                return 1, 0
            raise _LimitError(f"it puts a {type(value).__name__} into a list")
        if id(value) in self._known:
            return self._known[id(value)][:2]
        if level > MAX_DEPTH:
            raise _LimitError(f"it nests lists more than {MAX_DEPTH} deep")
        self.tick(_ITEM * len(value))
        weight, depth = _ITEM, 0
        for child in _children(value):
            child_weight, child_depth = self._weigh(child, level + 1)
            weight += child_weight + _ITEM
            depth = max(depth, child_depth + 1)
            self.allow(weight)
        if level + depth > MAX_DEPTH:
            raise _LimitError(f"it nests lists more than {MAX_DEPTH} deep")
        self._known[id(value)] = weight, depth, value
        return weight, depth


_METER: ContextVar[_Meter] = ContextVar("meter")


def _children(value: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    else:
        yield from value


# ---- Text of values --------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, (bool, float, range, Undefined)):
        return str(value)
    if isinstance(value, (int, list, tuple, dict)):
        _METER.get().weigh(value)
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
    mark = _METER.get().mark
    if isinstance(value, str) and mark and mark in value:
        _METER.get().work(len(value))
        letter = next(c for c in map(chr, range(0x4E00, 0x9FFF)) if c not in value)
        return repr(value.replace(mark, letter)).replace(letter, mark)
    return repr(value)


def _json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """tojson as transformers has it: plain JSON, no HTML escapes."""
    meter = _METER.get()
    meter.weigh(value)
    if max(indent if isinstance(indent, int) else len(indent or ""), *map(len, separators or ("", ""))) > MAX_INDENT:
        raise _LimitError(f"it asks for an indentation of more than {MAX_INDENT}")
    encoder = json.JSONEncoder(ensure_ascii=False, indent=indent, separators=separators, sort_keys=bool(sort_keys))
    parts = []
    for part in encoder.iterencode(value):
        meter.tick(len(part))
        parts.append(part)
    text = "".join(parts)
    return re.sub(r"[^\x00-\x7e]", _json_escape, text) if ensure_ascii else text


def _json_escape(match: re.Match[str]) -> str:
    meter, character = _METER.get(), match[0]
    meter.work()
    return character if character == meter.mark else json.dumps(character)[1:-1]


def _from_json(text: Any) -> Any:
    return json.loads(_text(text), parse_int=_number)


def _number(text: str) -> int:
    _METER.get().work()
    _narrow(len(text))
    return int(text)


def _narrow(width: int) -> int:
    if width > MAX_WIDTH:
        raise _LimitError(f"it asks for a width of more than {MAX_WIDTH}")
    return width


class _Formatter(SandboxedFormatter):
    """str.format: attributes go through the sandbox, widths are bounded, each field is paid for."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        return value if conversion is None else _repr(_plain(value)) if conversion == "r" else _text(value)

    def format_field(self, value: Any, format_spec: str) -> str:
        for digits in re.findall(r"\d+", format_spec):
            _number(digits)
            _narrow(int(digits))
        text = format(value if isinstance(value, (int, float)) else _text(value), format_spec)
        _METER.get().tick(len(text))
        return text


def _plain(value: Any) -> Any:
    _METER.get().weigh(value)
    return value


_PERCENT = re.compile(
    r"%(?:\((?P<key>\w*)\))?(?P<spec>[-+ #0]*(?P<width>\d*)(?:\.(?P<digits>\d*))?[diouxXeEfFgGcrs%])|%"
)


def _percent(form: str, values: Any) -> str:
    """`form % values`, with bounded widths, each field paid for."""
    left = deque(values if isinstance(values, tuple) else (values,))
    meter = _METER.get()

    def field(match: re.Match[str]) -> str:
        meter.work()
        spec = match["spec"]
        if spec is None:
            raise ValueError(f"unsupported format in {_line(form)[:60]!r}")
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
            value = _text(value) if spec.endswith("s") else _repr(_plain(value))
            spec = spec[:-1] + "s"
        text = ("%" + spec) % (value,)
        meter.tick(len(text))
        return text

    text = _PERCENT.sub(field, form)
    if left and not isinstance(values, dict):
        raise TypeError("not all arguments converted during string formatting")
    return text


# ---- Operations that make much of little -----------------------------------------------------------------------------


def _items(value: Any) -> Sequence[Any]:
    """What a loop over the value would give."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, Undefined):
        return list(value)  # empty, or the error of a stricter kind
    if isinstance(value, (str, dict, range)):
        if len(value) > MAX_ITEMS:
            raise _LimitError(f"it makes a list of more than {MAX_ITEMS} elements")
        return list(value)
    raise TypeError(f"{type(value).__name__!r} object is not iterable")


def _collect(values: Iterable[Any]) -> list[Any]:
    meter, kept = _METER.get(), []
    for value in values:
        meter.tick(_ITEM)
        kept.append(value)
    return kept


def _join(separator: str, values: Any) -> str:
    parts = _collect(map(_text, _items(values)))
    _METER.get().allow(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    n = text.count(old) if count < 0 else min(count, text.count(old))
    _METER.get().allow(len(text) + n * max(len(new) - len(old), 0))
    return text.replace(old, new, n)


def _pad(name: str, text: str, width: int, *fill: str) -> str:
    return str(getattr(text, name)(_narrow(width), *fill))


def _search(name: str, text: str, *args: Any, **kwargs: Any) -> Any:
    for needle in (*args, *kwargs.values()):
        if isinstance(needle, str) and len(needle) * len(text) > MAX_SEARCH:
            raise _LimitError(f"it searches {len(text)} characters for {len(needle)} others with {name}")
    return getattr(text, name)(*args, **kwargs)


def _title(text: str) -> str:
    """Jinja's, a word at a time: it would make a list of millions."""

    def word(match: re.Match[str]) -> str:
        _METER.get().work()
        return match[0][0].upper() + match[0][1:].lower()

    return re.sub(r"[^-\s({\[<]+", word, text)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    prefix = width if isinstance(width, str) else " " * _narrow(width)
    _narrow(len(prefix))
    lines = (text + "\n" if text.endswith("\n") else text).splitlines()
    _METER.get().allow(len(text) + (len(prefix) + 1) * len(lines))
    return "\n".join(prefix + s if (s or blank) and (i or first) else s for i, s in enumerate(lines))


def _sum(values: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for value in _attributes(values, attribute):
        total = _environment().binary("+", total, value)
    return total


def _attributes(values: Any, path: Any) -> Sequence[Any]:
    """The values, or what a path like "a.b" leads to in each."""
    if path is None:
        return _items(values)
    steps = [int(step) if step.isdigit() else step for step in str(path).split(".")]
    return [reduce(_environment().getitem, steps, value) for value in _items(values)]


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if method == "common":
        return round(value, max(-20, min(precision, 20)))
    scale = 10.0 ** max(-20, min(precision, 20))
    return (math.ceil if method == "ceil" else math.floor)(value * scale) / scale


def _to_int(value: Any, default: int = 0, base: int = 10) -> Any:
    if isinstance(value, str) and len(value) > MAX_WIDTH:
        return default
    return FILTERS["int"](value, default, base)


def _to_float(value: Any, default: float = 0.0) -> Any:
    if isinstance(value, str) and len(value) > MAX_WIDTH:
        return default
    return FILTERS["float"](value, default)


def _range(*args: int) -> range:
    values = range(*args)
    if len(values) > MAX_RANGE:
        raise _LimitError(f"it makes a range of more than {MAX_RANGE} numbers")
    return values


def _namespace(*args: Any, **kwargs: Any) -> Namespace:
    return Namespace(_METER.get().made(dict(*args, **kwargs)))


def _raise(message: Any = "") -> None:
    raise _RefusedError(_text(message))


def _now(form: str) -> str:
    if len(form) > MAX_WIDTH:  # one directive can make 256 times its length
        raise _LimitError("it asks for a date in too long a form")
    return datetime.now().strftime(form)


# ---- What there is ---------------------------------------------------------------------------------------------------


class _Function:
    """A function that templates may call. Nothing else in a template is callable but its own macros."""

    __slots__ = ("_bound", "_run")

    def __init__(self, run: Callable[..., Any], *bound: Any) -> None:
        self._run = run
        self._bound = bound  # what a method is of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _METER.get().read(*self._bound, *args, *kwargs.values())
        return self._run(*self._bound, *args, **kwargs)


def _methods(names: str, of: type) -> dict[str, Callable[..., Any]]:
    return {name: getattr(of, name) for name in names.split()}


_STR_METHODS: dict[str, Callable[..., Any]] = {
    **_methods("capitalize casefold lower swapcase title upper removeprefix removesuffix startswith endswith", str),
    **_methods("count find index partition split splitlines", str),
    **_methods("isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle isupper", str),
    **{name: partial(_search, name) for name in ("strip", "lstrip", "rstrip")},
    **{name: partial(_search, name) for name in ("rfind", "rindex", "rpartition", "rsplit")},
    **{name: partial(_pad, name) for name in ("center", "ljust", "rjust", "zfill")},
    "format": lambda form, *args, **kwargs: _Formatter(_environment()).vformat(form, args, kwargs),
    "join": _join,
    "replace": _replace,
}
_SEQUENCE_METHODS: dict[str, Callable[..., Any]] = _methods("count index", list)
_DICT_METHODS: dict[str, Callable[..., Any]] = {
    "copy": dict,
    "get": dict.get,
    "items": lambda d: list(d.items()),
    "keys": list,
    "values": lambda d: list(d.values()),
}
_LOOP_NAMES = frozenset((
    "index", "index0", "revindex", "revindex0", "first", "last", "length", "depth", "depth0", "previtem", "nextitem",
    "cycle", "changed",
))  # fmt: skip


def _methods_of(value: Any) -> dict[str, Callable[..., Any]]:
    if isinstance(value, dict):
        return _DICT_METHODS
    if isinstance(value, str):
        return _STR_METHODS
    return _SEQUENCE_METHODS if isinstance(value, list) else {}


def _filter_of_text(run: Callable[..., Any]) -> Callable[..., Any]:
    return _filter(lambda value, *args, **kwargs: run(_text(value), *args, **kwargs))


def _filter(run: Callable[..., Any]) -> Callable[..., Any]:
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.read(*args, *kwargs.values())
        return meter.made(run(*args, **kwargs))

    return metered


def _test(run: Any) -> Callable[..., Any]:
    def metered(*args: Any) -> Any:
        _METER.get().read(*args)
        return run(*args)

    return metered


def _jinja_filter(name: str, *, sequence: bool = True) -> Callable[..., Any]:
    """One of Jinja's own, over a list that can be afforded, with a list for a result."""
    run: Any = FILTERS[name]
    at = 1 if hasattr(run, "jinja_pass_arg") else 0

    @wraps(run)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.tick()
        meter.read(*args[at:], *kwargs.values())
        if sequence:
            args = (*args[:at], _items(args[at] or ()), *args[at + 1 :])  # of None Jinja makes nothing, too
        result = run(*args, **kwargs)
        return meter.made(_collect(result) if isinstance(result, Iterator) else result)

    return guarded


def _tick_filter(cost: int) -> bool:
    _METER.get().tick(max(cost, 0))
    return True


def _step_filter(value: Any) -> Any:
    _METER.get().tick(_TICK)
    return value


def _read_filter(value: Any) -> Any:
    _METER.get().read(value)
    return value


_FILTERS: dict[str, Callable[..., Any]] = {
    **{name: _filter_of_text(getattr(str, name)) for name in ("capitalize", "lower", "upper")},
    **{name: _jinja_filter(name) for name in ("map", "select", "reject", "selectattr", "rejectattr")},
    **{name: _jinja_filter(name) for name in ("sort", "unique", "min", "max")},
    **{name: _jinja_filter(name, sequence=False) for name in ("abs", "default", "d", "dictsort", "items")},
    # Markup escapes what is added to it, with transformers too; no template means it, but models were trained on it.
    **{name: _filter_of_text(markupsafe.escape) for name in ("escape", "e", "forceescape")},
    "safe": _filter_of_text(markupsafe.Markup),
    "string": _filter_of_text(lambda text: text),
    **{name: _filter(len) for name in ("length", "count")},
    "center": _filter_of_text(lambda text, width=80: _pad("center", text, width)),
    "first": _filter(lambda values: next(iter(_items(values)), Undefined("no first item, the sequence is empty"))),
    "float": _filter(_to_float),
    "format": _filter_of_text(lambda form, *args, **kwargs: _percent(form, kwargs or args)),
    "from_json": _filter(_from_json),
    "indent": _filter_of_text(_indent),
    "int": _filter(_to_int),
    "join": _filter(lambda values, d="", attribute=None: _join(_text(d), _attributes(values, attribute))),
    "last": _filter(lambda values: next(reversed(_items(values)), Undefined("no last item, the sequence is empty"))),
    "list": _filter(lambda values: list(_items(values))),
    "replace": _filter_of_text(lambda text, old, new, count=-1: _replace(text, _text(old), _text(new), count)),
    "reverse": _filter(lambda values: values[::-1] if isinstance(values, str) else list(_items(values))[::-1]),
    "round": _filter(_round),
    "sum": _filter(_sum),
    "title": _filter_of_text(_title),
    "tojson": _filter(_json),
    "trim": _filter_of_text(lambda text, chars=None: _search("strip", text, chars)),
    "wordcount": _filter_of_text(lambda text: len(text.split())),
    # For rewritten templates. An author could reach them as strings, as in map(" tick"), and gain nothing.
    " concat": _filter(lambda values: _join("", values)),
    " made": _filter(lambda value: value),
    " read": _read_filter,
    " step": _step_filter,
    " tick": _tick_filter,
}
_TESTS = {
    name: _test(TESTS[name])
    for name in (
        "!=", "<", "<=", "==", ">", ">=", "boolean", "defined", "divisibleby", "eq", "equalto", "even", "false",
        "float", "ge", "greaterthan", "gt", "in", "integer", "iterable", "le", "lessthan", "lt", "mapping", "ne",
        "none", "number", "odd", "sameas", "sequence", "string", "true", "undefined",
    )
}  # fmt: skip
_GLOBALS = {
    "dict": _Function(dict),
    "namespace": _Function(_namespace),
    "raise_exception": _Function(_raise),
    "range": _Function(_range),
    "strftime_now": _Function(_now),
}


class _Generation(Extension):
    """`{% generation %}`: transformers marks the assistant's words with it, for training."""

    tags = {"generation"}  # noqa: RUF012  (as Extension declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _finalize(_: Context, value: Any) -> str:
    """The text that `{{ value }}` writes. It takes a context so that Jinja does not call it while it compiles."""
    text = _text(value)
    _METER.get().tick(len(text) + _ITEM)
    return text


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _Generation],
            optimized=False,
            finalize=_finalize,
            cache_size=0,
        )
        self.filters = dict(_FILTERS)
        self.tests = dict(_TESTS)
        self.globals = dict(_GLOBALS)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`obj.attribute`: a method, else an element, as Jinja has it."""
        found, value = self._method(obj, attribute)
        if found:
            return value
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return self._missing(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`obj[argument]`: an element, else a method."""
        meter = _METER.get()
        meter.tick(1)
        if isinstance(argument, (str, tuple)):  # hashed
            meter.read(argument)
        if isinstance(obj, Undefined):
            return obj[argument]  # raises its own error
        if isinstance(obj, (str, list, tuple, dict, range)):
            try:
                return obj[argument]
            except (TypeError, LookupError):
                pass
        found, value = self._method(obj, argument)
        return value if found else self._missing(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        meter.tick(_TICK + _ITEM * (len(args) + len(kwargs)))
        if not isinstance(__obj, (_Function, Macro, LoopContext, Undefined)):
            raise SecurityError(f"{type(__obj).__name__!r} object is not callable")
        return meter.made(__context.call(__obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return self.binary(operator, left, right)

    def binary(self, operator: str, left: Any, right: Any) -> Any:
        meter = _METER.get()
        meter.read(left, right)
        for value in (left, right):
            if isinstance(value, Undefined):
                value + 0  # raises its own error
        if operator == "%" and isinstance(left, str):
            return meter.made(_percent(left, right))
        sized = (str, list, tuple)
        if operator == "+" and isinstance(left, sized):
            meter.allow(meter.weigh(left) + meter.weigh(right))
        elif operator == "*" and (isinstance(left, sized) or isinstance(right, sized)):
            value, n = (left, right) if isinstance(left, sized) else (right, left)
            meter.allow(meter.weigh(value) * n if isinstance(n, int) and n > 0 else 0)
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * max(right, 0)
            if bits > MAX_BITS:
                raise _LimitError(f"it makes a number of more than {MAX_BITS} bits")
        return meter.made(self.binop_table[operator](left, right))

    def _method(self, obj: Any, name: Any) -> tuple[bool, Any]:
        if not isinstance(name, str):
            return False, None
        run = _methods_of(obj).get(name)
        if run is not None:
            return True, _Function(run, obj)
        if name.startswith("_"):
            return False, None
        if isinstance(obj, (Namespace, Undefined)):  # an Undefined raises its own error here
            return hasattr(obj, name), getattr(obj, name, None)
        if isinstance(obj, LoopContext) and name in _LOOP_NAMES:
            value = getattr(obj, name)
            return True, _Function(value) if name in ("cycle", "changed") else value
        return False, None

    def _missing(self, obj: Any, name: Any) -> Undefined:
        if isinstance(name, str):
            if name.startswith("__"):
                raise SecurityError(f"access to attribute {name[:40]!r} of {type(obj).__name__!r} object is unsafe")
            if not isinstance(obj, Namespace) and hasattr(type(obj), name):
                return self.unsafe_undefined(obj, name)
        return self.undefined(obj=obj, name=name)


# ---- Rewriting -------------------------------------------------------------------------------------------------------

_ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Break, nodes.Continue, nodes.With,
    nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.Assign, nodes.AssignBlock, nodes.ExprStmt, nodes.Name,
    nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword, nodes.CondExpr,
    nodes.Filter, nodes.Test, nodes.Call, nodes.Getitem, nodes.Getattr, nodes.Slice, nodes.Concat, nodes.Compare,
    nodes.Operand, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.And,
    nodes.Or, nodes.Not, nodes.Neg, nodes.Pos,
)  # fmt: skip
_TAGS = {"FromImport": "from", "Scope": "autoescape"}


class _Rewriter(NodeTransformer):
    """Puts a price on what Jinja's environment does not see, and refuses what is not in _ALLOWED."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if type(node) not in _ALLOWED:
            kind = type(node).__name__
            raise TemplateSyntaxError(f"{{% {_TAGS.get(kind, kind.lower())} %}} is not for chat templates", node.lineno)
        return super().visit(node, *args, **kwargs)

    def visit_If(self, node: nodes.If) -> nodes.Node:
        if len(node.elif_) > MAX_ELIF:
            raise TemplateSyntaxError(f"more than {MAX_ELIF} {{% elif %}}", node.lineno)
        return self.generic_visit(node)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(node))
        if node.test is not None:
            node.test = nodes.And(_tick(node), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, _tick_statement(node))
        return node

    visit_CallBlock = visit_Macro

    def visit_Output(self, node: nodes.Output) -> list[nodes.Node]:
        self.generic_visit(node)
        size = sum(len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData))
        return [_tick_statement(node, size), node] if size else [node]

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = node.filter or _call("made", None, node.lineno)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        if node.node is None:  # the content of a block
            node.node = _call("made", None, node.lineno)
        return node

    def visit_List(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node, node.lineno)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self.visit_List(node) if node.ctx == "load" else self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node, node.lineno) if isinstance(node.arg, nodes.Slice) else node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("concat", nodes.List(node.nodes, lineno=node.lineno), node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _read(node.expr)
        for operand in node.ops:
            operand.expr = _read(operand.expr)
        return _call("step", node, node.lineno)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:
        self.generic_visit(node)
        return _call("step", node, node.lineno)


def _call(name: str, value: nodes.Expr | None, lineno: int) -> nodes.Filter:
    return nodes.Filter(value, " " + name, [], [], None, None, lineno=lineno)


def _read(value: nodes.Expr) -> nodes.Expr:
    short = isinstance(value, nodes.Const) and not isinstance(value.value, str)
    return value if short else _call("read", value, value.lineno)


def _tick(at: nodes.Node, cost: int = _TICK) -> nodes.Filter:
    return _call("tick", nodes.Const(cost, lineno=at.lineno), at.lineno)


def _tick_statement(at: nodes.Node, cost: int = _TICK) -> nodes.ExprStmt:
    return nodes.ExprStmt(_tick(at, cost), lineno=at.lineno)
