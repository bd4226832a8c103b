"""Templates that strangers write: the same text as plain Jinja where they are honest, a short end where they are not.

Run as a program, it renders every bomb and prints what came of it, with the peak of its memory.
"""

from __future__ import annotations

import json
import resource
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2.nodes
import pytest
from jinja2.ext import LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pyedge.tokenizers import template_sandbox as sandbox
from pyedge.tokenizers.template_sandbox import ChatTemplateError, render

VARIABLES: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "a <b> & 'q'"},
        {"role": "assistant", "content": "<think>hm</think> é 😀"},
        {"role": "user", "content": "c", "n": 3, "x": 1.5, "flag": True, "none": None, "list": [1, "two", [3]]},
    ],
    "tools": [{"d": "café <b> & 'q' 😀", "p": {"type": "object", "z": 1, "a": [1, True, None]}}],
    "bos_token": "<s>",
    "text": "one two\n  three\n\nfour",
}

HONEST = [
    "plain text\n",
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] | trim }}\n{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% else %}"
    "none{% endfor %}",
    "{% for m in messages %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ (loop.previtem or {}).role }}"
    "{{ (loop.nextitem or {}).role }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }},{% endfor %}",
    "{% for m in messages %}{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "{% for m in messages[::-1] %}{{ m.role }}{% endfor %}{{ messages[1:][0].role }}{{ text[2:5] }}{{ text[-3:] }}",
    "{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.last = m.role %}"
    "{% endfor %}{{ ns.n }}{{ ns.last }}{{ ns.nothing is defined }}",
    "{% macro f(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}]{% endmacro %}"
    "{{ f(1) }}{{ f('q', b=2) }}{{ f(1, 2, 3, 4, d=5) }}",
    "{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}in{% endcall %}",
    "{% macro tree(v) %}{% if v is mapping %}{% for k, w in v.items() %}{{ k }}({{ tree(w) }}){% endfor %}"
    "{% elif v is iterable and v is not string %}{% for w in v %}{{ tree(w) }},{% endfor %}{% else %}{{ v }}"
    "{% endif %}"
    "{% endmacro %}{{ tree(tools) }}",
    "{% for k in [1, [2, [3]]] recursive %}{{ loop.depth }}{% if k is iterable %}{{ loop(k) }}{% else %}{{ k }}"
    "{% endif %}"
    "{% endfor %}",
    "{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}{% filter lower %}AB{{ 'C' }}{% endfilter %}",
    "{% set x | trim %}  a  {% endset %}[{{ x }}]{% with y = 2 %}{{ y }}{% endwith %}{{ y is defined }}",
    "{{ tools }}{{ (1,) }}{{ (1, 'a') }}{{ [none, true, 1.5] }}{{ {'a': [\"it's\"]} }}{{ messages[2] }}",
    "{{ tools | tojson }}{{ tools | tojson(indent=4) }}"
    "{{ tools[0].p | tojson(sort_keys=true, separators=(',', ':')) }}"
    "{{ tools | tojson(ensure_ascii=true) }}",
    "{{ tools | string | length }}{{ text | length }}{{ messages | count }}{{ nothing | length }}",
    "{{ text | indent }}{{ text | indent(2, true) }}{{ text | indent(2, first=false, blank=true) }}"
    "{{ 'a\n' | indent }}",
    "{{ text | replace('o', '0') }}{{ text.replace('o', '0', 1) }}{{ text | title }}{{ text | capitalize }}",
    "{{ ['a', 1, none] | join(', ') }}{{ messages | join('|', attribute='role') }}{{ '-'.join(['a', 'b']) }}",
    "{{ messages | map(attribute='role') | join }}{{ ['a', 'b'] | map('upper') | list }}"
    "{{ [1, 2] | map('string') | list }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
    "{{ messages | rejectattr('n') | list | length }}",
    "{{ [1, 2, 3] | select('odd') | list }}{{ [1, 2, 3] | reject('in', [1]) | list }}"
    "{{ none | selectattr('a') | list }}",
    "{{ [3, 1, 2] | sort }}{{ [3, 1] | sort(reverse=true) }}{{ [1, 1, 2] | unique | list }}{{ [1, 5] | max }}"
    "{{ [1, 5] | min }}",
    "{{ messages | sort(attribute='role') | map(attribute='content') | first }}{{ [1, 2] | sum }}{{ 'abc' | reverse }}"
    "{{ [{'a': {'b': 1}}, {'a': {'b': 2}}] | sum(attribute='a.b') }}{{ [['x']] | join(attribute='0') }}",
    "{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1} | items | list }}{{ {'a': 1}.get('b', 'd') }}"
    "{{ {'a': 1}.keys() | list }}",
    "{{ [1, 2] | first }}{{ [1, 2] | last }}{{ [] | first }}{{ 'ab' | list }}{{ nothing | default('d') }}"
    "{{ '' | d('e', true) }}",
    "{{ '3' | int + 1 }}{{ 'x' | int }}{{ '1.5' | float }}{{ -3 | abs }}{{ 2.567 | round(1) }}"
    "{{ 2.5 | round(0, 'ceil') }}{{ 3.0 | round(0, 'ceil') }}{{ -2.55 | round(1, 'floor') }}{{ 3 | round }}",
    "{{ '<a>' | e }}{{ '<a>' | safe }}{{ '<x>' | safe + '<y>' }}{{ ('<x>' | safe) ~ '<y>' }}",
    "{{ '{} {a}'.format(1, a=2) }}{{ '{:>5.2f}|{:d}'.format(1.5, 3) }}{{ '{0[role]}'.format(messages[0]) }}"
    "{{ '%s-%03d%%' % ('a', 7) }}"
    "{{ '%s' | format('x') }}{{ '%(a)s' % {'a': 1} }}",
    "{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 10 }}{{ 7 / 2 }}{{ -1 + +2 }}{{ 'ab' * 2 }}{{ [1] * 2 + [3] }}"
    "{{ (1,) + (2,) }}{{ 1 ~ none ~ 'x' }}",
    "{{ 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ 'role' in messages[0] }}{{ 4 not in [1] }}{{ not true }}{{ 1 == 1.0 "
    "and 'x' or 'y' }}",
    "{{ 'x' if nothing else 'y' }}{{ 'x' if nothing }}{{ nothing }}{{ messages[0].nothing is undefined }}"
    "{{ messages[9] is defined }}",
    "{{ ' a '.strip() }}{{ 'xxa'.lstrip('x') }}{{ 'a.b.c'.split('.') }}{{ 'a.b.c'.rsplit('.', 1) }}{{ 'a "
    "b'.split() }}"
    "{{ 'a\nb'.splitlines() }}{{ 'a=b'.partition('=') }}{{ 'abc'.startswith('a') }}{{ 'abc'.endswith(('c', 'd')) }}",
    "{{ 'abc'.find('c') }}{{ 'aba'.count('a') }}{{ 'aBc'.upper() }}{{ 'aBc'.lower() }}{{ 'x1'.isalnum() }}"
    "{{ 'a'.center(3, '*') }}",
    "{{ '</think>' in messages[1].content }}{{ messages[1].content.split('</think>')[-1].lstrip('\n') }}",
    "{{ messages[0] is mapping }}{{ 1 is number }}{{ 'a' is string }}{{ none is none }}{{ true is boolean }}"
    "{{ [] is sequence }}"
    "{{ 1 is integer }}{{ 1 is odd }}{{ 4 is divisibleby 2 }}{{ 1 is sameas 1 }}{{ 'a' is in ['a'] }}{{ true "
    "is true }}",
    "{{ range(3) | list }}{{ range(1, 10, 4) | list }}{% for i in range(2) %}{{ i }}{% endfor %}{{ dict(a=1) }}",
    "  {%- if true -%}  x  {%- endif %}\n  {% if true %}\n  y\n  {% endif %}\n{# comment #}\n{% raw %}{{ x }}"
    "{% endraw %}\n",
    "{{ messages[2].list[1] }}{{ messages[2]['list'][2][0] }}{{ messages[2].items() | list | length }}"
    "{{ {'items': 1}['items'] }}",
    "{{ strftime_now('%Y-%m-%d') }}",
]

HOSTILE = {
    # to get out
    "globals": "{{ lipsum.__globals__['os'].popen('touch /tmp/pyedge-was-here').read() }}",
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "cycler": "{{ cycler.__init__.__globals__.os.getcwd() }}",
    "class": "{{ messages.__class__ }}",
    "class as item": "{{ messages['__class__'] }}",
    "class by attr": "{{ messages | attr('__class__') }}",
    "class by map": "{{ messages | map(attribute='__class__') | list }}",
    "class by format": "{{ '{0.__class__}'.format(messages) }}",
    "class by format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "class of a macro": "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__ }}",
    "globals of a function": "{{ raise_exception.__call__.__func__.__globals__ }}",
    "self": "{{ self.__init__.__globals__ }}",
    "append": "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
    "update": "{{ messages[0].update({'role': 'system'}) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}",
    "from": "{% from '/etc/passwd' import x %}",
    "extends": "{% extends '/etc/passwd' %}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    # to cost while it compiles
    "autoescape": "{% autoescape 'a' | center(300000000) %}{% endautoescape %}",
    "long": "x" * 10_000_000,
    "many expressions": "{{a}}" * 13_000 + "{{ raise_exception('end') }}",
    "parentheses": "{{ " + "(" * 30_000 + "1" + ")" * 30_000 + " }}",
    "brackets": "{{ " + "[" * 30_000 + "]" * 30_000 + " }}",
    "not": "{{ " + "not " * 15_000 + "1 }}",
    "sums": "{{ " + "1+" * 30_000 + "1 }}",
    "comparisons": "{{ 1" + "<2" * 30_000 + " }}{{ nothing.end }}",
    "attributes": "{{ a" + ".b" * 30_000 + " }}",
    "filters": "{{ 'a'" + "|trim" * 12_000 + " }}",
    "ifs": "{% if a %}" * 3000 + "{% endif %}" * 3000,
    "fors": "{% for a in b %}" * 2000 + "{% endfor %}" * 2000,
    "elifs": "{% if a %}" + "{% elif a %}" * 5000 + "{% endif %}",
    "open tags": "{{" * 30_000,
    "open comments": "{#" * 30_000,
    "open raws": "{% raw %}" * 7000,
    "digits": "{{ " + "9" * 60_000 + " }}",
    "hexadecimal digits": "{% set a = 0x" + "f" * 60_000 + " %}{{ a * a }}",
    # to cost while it runs
    "range": "{% for i in range(1000000000) %}x{% endfor %}",
    "times": "{{ 'a' * 10000000000 }}",
    "times, reversed": "{{ 10000000000 * 'a' }}",
    "times a list": "{{ [1] * 1000000000 }}",
    "power": "{{ 10 ** 1000000000 }}",
    "power tower": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "squares": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}"
    "{% endfor %}"
    "{% endfor %}",
    "loops that write": "{% for a in range(100000) %}{% for b in range(100000) %}xxxxxxxx{% endfor %}{% endfor %}",
    "loop in a condition": "{% for a in range(100000) if range(100000) | sum < 0 %}{% endfor %}",
    "a string in a condition": "{% for a in range(100000) if 'x' * 4000000 == 'y' * 4000000 %}{% endfor %}",
    "doubling": "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling with ~": "{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}",
    "doubling a list": "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
    "{% endfor %}",
    "a list twice": "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}"
    "{% endfor %}{{ ns.s }}",
    "a dict twice": "{% set ns = namespace(s={}) %}{% for i in range(99) %}{% set "
    "ns.s = {'a': ns.s, 'b': ns.s} %}{% endfor %}",
    "deep tuples": "{% set ns = namespace(s=()) %}{% for i in range(99999) %}{% set ns.s = (ns.s,) %}"
    "{% endfor %}{{ {}[ns.s] }}",
    "many strings": "{% set ns = namespace(l=[]) %}{% for i in range(999) %}{% set "
    "ns.l = ns.l + ['a' * 99999 ~ i] %}{% endfor %}",
    "wide strings": "{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set "
    "ns.l = ns.l + ['😀' * 4000000] %}{% endfor %}",
    "a dict in a dict": "{% set ns = namespace(d={}) %}{% set l = range(100000) | list %}{% for i in range(99999) %}"
    "{% set ns.d = dict(a=l, b=ns.d) %}{% endfor %}",
    "slices": "{% set s = 'a' * 4000000 %}{{ [" + "s[1:]," * 9000 + "] | length }}",
    "comparing": "{% set a = 'x' * 4000000 %}{% set b = 'x' * 4000000 %}" + "{% if a == b %}{% endif %}" * 2000
    + "{{ raise_exception('end') }}",
    "macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros": "{% macro m(n) %}{% if n %}{% set a = m(n - 1) %}{% set b = m(n - 1) %}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "macro that writes": "{% macro m() %}" + "x" * 50_000 + "{% endmacro %}{% for i in range(99999) %}{% set "
    "a = m() %}{% endfor %}",
    "block that is set": "{% set a %}{% for i in range(99999) %}" + "x" * 50_000 + "{% endfor %}{% endset %}",
    "block that is filtered": "{% filter upper %}{% for i in range(99999) %}" + "x" * 50_000 + "{% endfor %}"
    "{% endfilter %}",
    "arguments": "{% set l = range(100000) | list %}{% macro m() %}{{ m(*varargs) }}{% endmacro %}{{ m(*l) }}",
    "recursive loop": "{% for x in range(100000) recursive %}{{ loop(range(100000)) }}{% endfor %}",
    "center": "{{ 'a' | center(300000000) }}",
    "center, method": "{{ 'a'.center(300000000) }}",
    "ljust": "{{ 'a'.ljust(300000000) }}",
    "zfill": "{{ 'a'.zfill(300000000) }}",
    "expandtabs": "{{ '\t'.expandtabs(300000000) }}",
    "format": "{{ '{:>1000000000}'.format(1) }}",
    "format, nested": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format, digits": "{{ '{:.1000000000f}'.format(1.0) }}",
    "format, repeated": "{% set s = 'a' * 4000000 %}{{ ('{0}' * 1000).format(s) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent, star": "{{ '%*d' % (1000000000, 1) }}",
    "percent, repeated": "{% set s = 'a' * 4000000 %}{{ '%(s)s' * 1000 % {'s': s} }}",
    "percent of nothing": "{{ '%1000000000s' % nothing }}",
    "indent": "{{ 'a' | indent(1000000000, true) }}",
    "indent, lines": "{{ ('\n' * 4000000) | indent(999, true, true) }}",
    "join": "{{ range(100000) | join('x' * 4000000) }}",
    "join, method": "{{ ('x' * 4000000).join(range(100000)) }}",
    "replace": "{{ ('a' * 4000000) | replace('a', 'b' * 4000000) }}",
    "replace, method": "{{ ('a' * 4000000).replace('', 'b' * 1000) }}",
    "tojson": "{{ range(100000) | list | tojson(indent=1000) }}",
    "sum of lists": "{{ ([[1]] * 100000) | sum(start=[]) }}",
    "sort": "{% set l = range(100000) | list %}{% for i in range(99999) %}{% set x = l | sort(reverse=true) %}"
    "{% endfor %}",
    "characters": "{{ ('日' * 4000000) | list }}",
    "words": "{{ ('日 ' * 2000000).split() }}",
    "strip": "{{ ('a' * 4000000).strip('b' * 2000000 ~ 'a') }}",
    "rfind": "{{ ('a' * 4000000).rfind('b' ~ 'a' * 2000000) }}",
    "strftime": "{{ strftime_now('%c' * 100000) }}",
    "from_json": "{{ ('[' * 2000000) | from_json }}",
    "from_json, number": "{{ ('1' * 4000000) | from_json }}",
    "from_json, lists": "{{ ('[' ~ '[],' * 1000000 ~ '1]') | from_json }}",
    "fuel": "{% for i in [-1000000000] | map(' tick') %}{% endfor %}{% for i in range(99999) %}"
    "{{ 'x' * 99999 }}{% endfor %}",
    "namespace in itself": "{% set ns = namespace() %}{% set ns.x = ns %}{{ [ns] }}",
    "raise": "{{ raise_exception('a' * 4000000) }}",
}  # fmt: skip

# Operations that make nothing, or little, of much: each repeated until the clock says no.
BIG = (
    "{% set s = 'a' * 4000000 %}{% set t = 'a' * 3999999 ~ 'a' %}{% set words = 'aa ' * 1000000 %}"
    "{% set l = range(99999) | list %}{% set l2 = range(99999) | list %}{% set d = dict(a=1) %}"
    "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}"
    "{% macro nothing() %}{% endmacro %}"
)
SLOW = [
    "s | trim('a')", "s.strip('a')", "s.strip()", "s.rstrip('ab')", "s.count('ab')", "s.find('b')", "s.rfind('b')",
    "s.isalpha()", "s.endswith((s, t))", "s.split('b')", "s.rsplit('b')", "s.partition('b')", "s.replace('b', 'c')",
    "s | replace('b', 'c')", "'b' in s", "'b' not in s", "s is in ['b', t]", "s == t", "s != t", "s < t",
    "'a' < 'b' < s < t", "s is eq t", "s is lt t", "[s] == [t]", "'x' in l", "l == l2", "l < l2", "(l, 1) == (l2, 2)",
    "l.count('x')", "l.index(99998)", "1.5 in range(100000)", "l | max", "l | min", "l | sum", "l | sort | first",
    "l | unique | first", "l | first", "l | last", "l | length", "words[:200000] | max",
    "words[:200000] | list | max", "[t] | select('eq', s) | list", "l | select('in', l2) | first",
    "l | map('string') | first", "l | join | int", "l | reject('odd') | first", "words | wordcount",
    "words | title | first", "words.split() | length", "words[:600000].split() | length", "words | upper | length",
    "words | indent(2) | length", "l | string | length", "l | tojson | length",
    "('é' * 400000) | tojson(ensure_ascii=true)", "words.title()", "l | tojson | from_json", "'%%' * 2000000 % 1",
    "('%s' * 99999) | format(*l)", "'{}'.format(s)", "d[s]", "d[(s, t)]", "d.get(t)", "d.get((s, t))", "s | int",
    "s | float", "s | e", "s ~ ''", "s + ''", "s[::-1]", "s | reverse", "l[::-1]", "dict(a=l)", "f(40)", "nothing()",
    "s is string", "s is iterable", "s is sameas t", "[s, t] | map('trim', 'a') | list", "[s, t] | sort",
    "[s, t] | unique | list", "{'a': s} == {'a': t}", "s | default(t)", "s | d",
]  # fmt: skip


def plain_jinja() -> jinja2.Environment:
    """Jinja with the settings and helpers that chat templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension], keep_trailing_newline=False
    )

    def tojson(value: Any, **options: Any) -> str:
        return json.dumps(value, **{"ensure_ascii": False, **options})

    environment.filters["tojson"] = tojson
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


@pytest.mark.parametrize("source", HONEST, ids=range(len(HONEST)))
def test_same_as_jinja(source: str) -> None:
    assert render(source, VARIABLES) == plain_jinja().from_string(source).render(VARIABLES)


@dataclass(frozen=True)
class Run:
    """What rendering the bombs came to."""

    seconds: dict[str, float]  # of processor time
    errors: dict[str, str | None]
    peak_mb: float


@pytest.fixture(scope="module")
def bombs() -> Run:
    from program import python  # here: as a program of its own, this file has no helpers

    code = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
    done = python("-c", code, timeout=300)
    assert done.returncode == 0, done.stderr
    return Run(**json.loads(done.stdout))


@pytest.mark.parametrize("name", HOSTILE)
def test_stopped(bombs: Run, name: str) -> None:
    assert bombs.seconds[name] < 5
    error = bombs.errors[name]
    assert error is not None
    assert "\n" not in error
    assert len(error) < 1000


@pytest.mark.parametrize("expression", SLOW)
def test_time_is_bounded_whatever_is_read(expression: str) -> None:
    source = BIG + "{% for i in range(99999) %}{% for j in range(99999) %}{% set x = " + expression + " %}"
    start = time.thread_time()
    with pytest.raises(ChatTemplateError) as caught:
        render(source + "{% endfor %}{% endfor %}", {}, seconds=0.2)
    assert time.thread_time() - start < 1.5
    assert "was stopped" in str(caught.value)


def test_a_method_kept_in_a_variable_pays_too() -> None:
    source = BIG + "{% set count = s.count %}{% for i in range(99999) %}{% set x = count('ab') %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match=r"more than 0\.1 s"):
        render(source, {}, seconds=0.1)


def test_nothing_got_out(bombs: Run) -> None:
    assert bombs.errors
    assert not Path("/tmp/pyedge-was-here").exists()


def test_memory_is_bounded(bombs: Run) -> None:
    assert bombs.peak_mb < 600


@pytest.mark.parametrize("source", [*HONEST, *(s for s in HOSTILE.values() if len(s) < 300)])
def test_compiling_evaluates_nothing(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[str] = []
    kinds = [k for k in vars(jinja2.nodes).values() if isinstance(k, type) and issubclass(k, jinja2.nodes.Expr)]
    for kind in kinds:
        if "as_const" in vars(kind) and kind not in (jinja2.nodes.Const, jinja2.nodes.TemplateData):
            monkeypatch.setattr(kind, "as_const", lambda *_: evaluated.append(source))
    sandbox._compile.cache_clear()
    with suppress(ChatTemplateError):
        sandbox.check(source)
    assert not evaluated


def test_messages_stay_as_they_are() -> None:
    before = json.dumps(VARIABLES)
    for source in HONEST:
        render(source, VARIABLES)
    assert json.dumps(VARIABLES) == before


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('System role not\nsupported') }}", "refuses these messages: System role not supported"),
        ("{% if %}", "is wrong in line 1: Expected an expression"),
        ("\n\n{% for %}", "is wrong in line 3"),
        ("{{ 1 | nonesuch }}", "No filter named 'nonesuch'"),
        ("{% block a %}{% endblock %}", "{% block %} is not for chat templates"),
        ("{% autoescape true %}{% endautoescape %}", "{% autoescape %} is not for chat templates"),
        ("{{ nothing.more }}", "'nothing' is undefined"),
        ("{{ nothing() }}", "'nothing' is undefined"),
        ("{{ messages[0].nothing.more }}", "has no attribute 'nothing'"),
        ("{{ 'a' + none }}", "can only concatenate str"),
        ("{{ messages() }}", "'list' object is not callable"),
        ("{{ messages.pop() }}", "'pop' of 'list' object is unsafe"),
        ("x" * (sandbox.MAX_SOURCE + 1), "characters, more than"),
        ("{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "writes more than"),
    ],
)
def test_errors_say_what(source: str, said: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        render(source, VARIABLES)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_generation_tags_are_for_training() -> None:
    assert render("a{% generation %}b{{ bos_token }}{% endgeneration %}c", VARIABLES) == "ab<s>c"


def test_a_long_conversation_is_no_bomb() -> None:
    messages = [{"role": "user", "content": "word " * 2000}] * 300  # three million characters
    source = (
        HONEST[1]
        + "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content | length %}{% endfor %}"
    )
    assert len(render(source, {"messages": messages, "bos_token": ""})) > 2_900_000
    many = [{"role": "user", "content": "hi"}] * 20_000
    assert len(render(HONEST[1], {"messages": many, "bos_token": ""})) == 20_000 * len("user: hi\n")


def run_bombs() -> Run:
    seconds: dict[str, float] = {}
    errors: dict[str, str | None] = {}
    for name, source in HOSTILE.items():
        start = time.process_time()
        errors[name] = None
        try:
            render(source, VARIABLES)
        except ChatTemplateError as error:
            errors[name] = str(error)
        seconds[name] = time.process_time() - start
    return Run(seconds, errors, _peak_mb())


def _peak_mb() -> float:
    """Of this process. On Linux ru_maxrss begins with what the process that started it had: a whole test run."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS counts bytes


if __name__ == "__main__":
    print(json.dumps(asdict(run_bombs())))
