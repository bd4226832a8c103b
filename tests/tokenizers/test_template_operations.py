"""What templates do with values: as Jinja does it, and with the mark as it is."""

from __future__ import annotations

from typing import Any

import jinja2

from pyedge.tokenizers.template_sandbox import render


def test_title_is_that_of_jinja() -> None:
    text = "one tWO-three (four) [five {six <seven\teight\n'nine' élan ǆ ß-ß 1a"
    assert render("{{ x | title }}", {"x": text}) == jinja2.Environment().from_string("{{ x | title }}").render(x=text)


def test_the_mark_survives_being_printed() -> None:
    mark = "\ufdd0"
    value = {"k": [f"a{mark}b'", (f"{mark}\\ufdd0",), 1]}
    for source in (
        "{{ x }}",
        "{{ x | tojson }}",
        "{{ x | tojson(ensure_ascii=true) }}",
        "{{ x | string }}",
        "{{ [x] ~ '' }}",
    ):
        marked, unmarked = render(source, {"x": value}, mark), render(source, {"x": _without(value, mark)})
        assert marked.count(mark) == 2
        assert marked.replace(mark, "") == unmarked


def _without(value: Any, mark: str) -> Any:
    if isinstance(value, str):
        return value.replace(mark, "")
    if isinstance(value, dict):
        return {k: _without(v, mark) for k, v in value.items()}
    return type(value)(_without(v, mark) for v in value) if isinstance(value, (list, tuple)) else value
