"""Runs a template that a stranger wrote: Jinja's immutable sandbox, with limits over compiling and rendering.

Owns what a template may name and call, and what becomes of its errors. Messages and special tokens are
chat_template.py's; limits, operations and rewriting have files of their own (template_*.py).

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial, reduce, wraps
from typing import Any

import markupsafe
from jinja2 import Template, TemplateSyntaxError, Undefined, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace, pass_context

from pyedge.tokenizers import template_operations as operations
from pyedge.tokenizers.template_meter import ITEM, MAX_BITS, MAX_CHARS, METER, SECONDS, TICK, LimitError, Meter
from pyedge.tokenizers.template_rewriter import Rewriter

MAX_SOURCE = 1 << 16  # characters of a template; the longest known has 20,000


class ChatTemplateError(ValueError):
    """A chat template cannot be used, or refuses the messages. The text is one line."""


class ChatTemplateRefusalError(ChatTemplateError):
    """The template is in order, and refuses these messages."""


class _RefusedError(Exception):
    """`raise_exception(...)` in a template."""


def check(source: str) -> None:
    """Raises ChatTemplateError if the template cannot be compiled."""
    try:
        if len(source) > MAX_SOURCE:
            raise LimitError(f"it has {len(source)} characters, more than {MAX_SOURCE}")
        _compile(source)
    except TemplateSyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        raise ChatTemplateError(
            f"the chat template is wrong{where}: {operations.one_line(str(error.message))}"
        ) from None
    except RecursionError:
        raise ChatTemplateError("the chat template cannot be used: it is nested too deep") from None
    except Exception as error:  # Python's own compiler has limits, and the source is a stranger's
        text = operations.one_line(str(error)) or type(error).__name__
        raise ChatTemplateError(f"the chat template cannot be used: {text}") from None


def render(source: str, variables: Mapping[str, Any], mark: str = "", seconds: float = SECONDS) -> str:
    """The text that a template makes of plain variables: strings, numbers, None, lists and dicts.

    mark: a character that tojson and the printing of containers leave as it is. Raises ChatTemplateError.
    """
    check(source)
    meter = Meter(mark, seconds)
    token = METER.set(meter)
    try:
        for value in variables.values():
            meter.weigh(value)
        parts, size = [], 0
        template = _compile(source)
        for part in template.root_render_func(template.new_context(dict(variables))):
            size += len(part)
            if size > MAX_CHARS:
                raise LimitError(f"it writes more than {MAX_CHARS} characters")
            parts.append(part)
        return "".join(parts)
    except _RefusedError as error:
        raise ChatTemplateRefusalError(
            f"the chat template refuses these messages: {operations.one_line(str(error), mark)}"
        ) from None
    except LimitError as error:
        raise ChatTemplateError(f"the chat template was stopped: {error}") from None
    except RecursionError:
        raise ChatTemplateError("the chat template was stopped: it calls itself too deep") from None
    except Exception as error:  # a template can provoke any
        text = operations.one_line(str(error), mark) or type(error).__name__
        raise ChatTemplateError(f"the chat template failed: {text}") from None
    finally:
        METER.reset(token)


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    environment = _environment()
    code = environment.compile(Rewriter().visit(environment.parse(source)))
    return Template.from_code(environment, code, environment.globals)


@cache
def _environment() -> _Environment:
    return _Environment()


# ---- What there is ---------------------------------------------------------------------------------------------------


def _sum(values: Any, attribute: Any = None, start: Any = 0) -> Any:
    total = start
    for value in _attributes(values, attribute):
        total = _environment().binary("+", total, value)
    return total


def _attributes(values: Any, path: Any) -> Sequence[Any]:
    """The values, or what a path like "a.b" leads to in each."""
    if path is None:
        return operations.items(values)
    steps = [int(step) if step.isdigit() else step for step in str(path).split(".")]
    return [reduce(_environment().getitem, steps, value) for value in operations.items(values)]


def _raise(message: Any = "") -> None:
    raise _RefusedError(operations.text_of(message))


class _Function:
    """A function that templates may call. Nothing else in a template is callable but its own macros."""

    __slots__ = ("_bound", "_run")

    def __init__(self, run: Callable[..., Any], *bound: Any) -> None:
        self._run = run
        self._bound = bound  # what a method is of

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        METER.get().read(*self._bound, *args, *kwargs.values())
        return self._run(*self._bound, *args, **kwargs)


def _methods(names: str, of: type) -> dict[str, Callable[..., Any]]:
    return {name: getattr(of, name) for name in names.split()}


_STR_METHODS: dict[str, Callable[..., Any]] = {
    **_methods("capitalize casefold lower swapcase title upper removeprefix removesuffix startswith endswith", str),
    **_methods("count find index partition split splitlines", str),
    **_methods("isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle isupper", str),
    **{name: partial(operations.search, name) for name in ("strip", "lstrip", "rstrip")},
    **{name: partial(operations.search, name) for name in ("rfind", "rindex", "rpartition", "rsplit")},
    **{name: partial(operations.pad, name) for name in ("center", "ljust", "rjust", "zfill")},
    "format": lambda form, *args, **kwargs: operations.Formatter(_environment()).vformat(form, args, kwargs),
    "join": operations.join,
    "replace": operations.replace,
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
    return _filter(lambda value, *args, **kwargs: run(operations.text_of(value), *args, **kwargs))


def _filter(run: Callable[..., Any]) -> Callable[..., Any]:
    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.read(*args, *kwargs.values())
        return meter.made(run(*args, **kwargs))

    return metered


def _test(run: Any) -> Callable[..., Any]:
    def metered(*args: Any) -> Any:
        METER.get().read(*args)
        return run(*args)

    return metered


def _jinja_filter(name: str, *, sequence: bool = True) -> Callable[..., Any]:
    """One of Jinja's own, over a list that can be afforded, with a list for a result."""
    run: Any = FILTERS[name]
    at = 1 if hasattr(run, "jinja_pass_arg") else 0

    @wraps(run)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.tick()
        meter.read(*args[at:], *kwargs.values())
        if sequence:
            args = (*args[:at], operations.items(args[at] or ()), *args[at + 1 :])  # of None Jinja makes nothing, too
        result = run(*args, **kwargs)
        return meter.made(operations.collect(result) if isinstance(result, Iterator) else result)

    return guarded


def _tick_filter(cost: int) -> bool:
    METER.get().tick(max(cost, 0))
    return True


def _step_filter(value: Any) -> Any:
    METER.get().tick(TICK)
    return value


def _read_filter(value: Any) -> Any:
    METER.get().read(value)
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
    "center": _filter_of_text(lambda text, width=80: operations.pad("center", text, width)),
    "first": _filter(
        lambda values: next(iter(operations.items(values)), Undefined("no first item, the sequence is empty"))
    ),
    "float": _filter(operations.to_float),
    "format": _filter_of_text(lambda form, *args, **kwargs: operations.percent(form, kwargs or args)),
    "from_json": _filter(operations.from_json),
    "indent": _filter_of_text(operations.indent),
    "int": _filter(operations.to_int),
    "join": _filter(
        lambda values, d="", attribute=None: operations.join(operations.text_of(d), _attributes(values, attribute))
    ),
    "last": _filter(
        lambda values: next(reversed(operations.items(values)), Undefined("no last item, the sequence is empty"))
    ),
    "list": _filter(lambda values: list(operations.items(values))),
    "replace": _filter_of_text(
        lambda text, old, new, count=-1: operations.replace(
            text, operations.text_of(old), operations.text_of(new), count
        )
    ),
    "reverse": _filter(
        lambda values: values[::-1] if isinstance(values, str) else list(operations.items(values))[::-1]
    ),
    "round": _filter(operations.rounded),
    "sum": _filter(_sum),
    "title": _filter_of_text(operations.title),
    "tojson": _filter(operations.to_json),
    "trim": _filter_of_text(lambda text, chars=None: operations.search("strip", text, chars)),
    "wordcount": _filter_of_text(lambda text: len(text.split())),
    # For rewritten templates. An author could reach them as strings, as in map(" tick"), and gain nothing.
    " concat": _filter(lambda values: operations.join("", values)),
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
    "namespace": _Function(operations.namespace),
    "raise_exception": _Function(_raise),
    "range": _Function(operations.range_of),
    "strftime_now": _Function(operations.now),
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
    text = operations.text_of(value)
    METER.get().tick(len(text) + ITEM)
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
        meter = METER.get()
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
        meter = METER.get()
        meter.tick(TICK + ITEM * (len(args) + len(kwargs)))
        if not isinstance(__obj, (_Function, Macro, LoopContext, Undefined)):
            raise SecurityError(f"{type(__obj).__name__!r} object is not callable")
        return meter.made(__context.call(__obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return self.binary(operator, left, right)

    def binary(self, operator: str, left: Any, right: Any) -> Any:
        meter = METER.get()
        meter.read(left, right)
        for value in (left, right):
            if isinstance(value, Undefined):
                value + 0  # raises its own error
        if operator == "%" and isinstance(left, str):
            return meter.made(operations.percent(left, right))
        sized = (str, list, tuple)
        if operator == "+" and isinstance(left, sized):
            meter.allow(meter.weigh(left) + meter.weigh(right))
        elif operator == "*" and (isinstance(left, sized) or isinstance(right, sized)):
            value, n = (left, right) if isinstance(left, sized) else (right, left)
            meter.allow(meter.weigh(value) * n if isinstance(n, int) and n > 0 else 0)
        elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * max(right, 0)
            if bits > MAX_BITS:
                raise LimitError(f"it makes a number of more than {MAX_BITS} bits")
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
