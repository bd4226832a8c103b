"""The report: what it advises, that its page is one file that runs nothing, and that no name breaks it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from program import program
from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.evaluation.report import BEARABLE, CLOSE, GOOD, Candidate, Report, advise
from pyedge.evaluation.report_page import page

EVIL = "<script>alert(1)</script>\"'&"


def candidate(name: str, size: int, kl: float, **changes: object) -> Candidate:
    made = Candidate(
        name=name, arguments=name, by_size=False, wanted=False, file_bytes=size, bits_per_weight=4.5, error=0.01,
        formats=[("Q4_K", 3, size)], tensors=[("a.weight", "Q4_K", 0.01)], kl_mean=kl, kl_mean_ci95=(kl, kl), kl_p99=kl,
        top1=0.9, top1_ci95=(0.8, 0.95), ppl_ratio=1.0,
    )  # fmt: skip
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def report(*candidates: Candidate, name: str = "m.gguf") -> Report:
    return Report(
        base=name, source=name, base_bytes=10**9, text=name, calibrated_by=name, tokens=100, windows=2, n_ctx=64,
        version="1", isa="scalar", candidates=candidates, advice=advise(candidates),
    )  # fmt: skip


def test_advice() -> None:
    some = [candidate("large", 9, CLOSE / 2), candidate("mid", 7, CLOSE), candidate("small", 5, GOOD),
            candidate("poor", 4, BEARABLE), candidate("bad", 3, 1.0)]  # fmt: skip
    assert [a.name for a in advise(some)] == ["mid", "small", "poor"]
    assert [a.name for a in advise(some[4:])] == [None, None, None]


def test_a_file_beats_those_that_are_neither_smaller_nor_nearer() -> None:
    a, b, c = candidate("a", 9, 0.1), candidate("b", 7, 0.1), candidate("c", 5, 0.2)
    assert b.beats(a)
    assert not any(x.beats(y) for x, y in ((a, b), (b, c), (c, b), (a, a)))


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href", "srcset") or name.startswith("on")]


@pytest.mark.parametrize("kl", [0.0, 1e-9, 0.3, 12.0])
def test_the_page_is_whole_and_runs_nothing(kl: float) -> None:
    tensors = [(EVIL, EVIL, 0.1)]
    text = page(report(candidate(EVIL, 10**8, kl, tensors=tensors), candidate("b", 10**8, kl, by_size=True), name=EVIL))
    seen = Seen()
    seen.feed(text)
    assert "script" not in seen.tags
    assert not seen.links
    assert "url(" not in text
    assert not re.search(r"https?://", text)
    assert text.count("&lt;script&gt;alert(1)") >= 6
    svg = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert svg
    assert len(ElementTree.fromstring(svg[0]).findall("g")) == 2
    assert not re.search(r"\b(nan|inf)\b", svg[0])


def test_the_command(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "m.gguf", types="F16", n_embd=256, n_head=4, n_kv=2, n_ff=512, n_layer=1)
    text = tmp_path / "t.txt"
    text.write_text("The keeper and the sea: 123 ships, and then the rest of them in a row. " * 30)
    out, folder = tmp_path / "out.gguf", tmp_path / "report"
    outcome = program("quantize", str(source), str(out), "Q4_K_M", "--text", str(text), "--report", str(folder))
    assert outcome.returncode == 0, outcome.stderr
    assert f"report: {folder}/index.html" in outcome.stdout
    facts = json.loads((folder / "report.json").read_text())
    names = [c["name"] for c in facts["candidates"]]
    assert {"Q8_0", "Q4_K_M", "Q2_K"} <= set(names)
    assert any(c["by_size"] and c["name"].startswith("target ") for c in facts["candidates"])
    assert len(names) == len(set(names))
    sizes = [c["file_bytes"] for c in facts["candidates"]]
    assert sizes == sorted(sizes, reverse=True)
    wanted = [c for c in facts["candidates"] if c["wanted"]]
    assert [(c["name"], c["file_bytes"]) for c in wanted] == [("Q4_K_M", out.stat().st_size)]
    for c in facts["candidates"]:
        assert c["kl_mean_ci95"][0] <= c["kl_mean"] <= c["kl_mean_ci95"][1]
        assert 0 <= c["top1"] <= 1
        assert c["tensors"]
    assert all(name in (folder / "index.html").read_text() for name in names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "out.gguf", "report", "t.txt"]
    again = tmp_path / "again.gguf"  # what the report says of a mix makes the same file
    arguments = shlex.split(wanted[0]["arguments"])
    assert arguments == ["Q4_K_M", "--imatrix", str(folder / "imatrix.gguf")]
    assert program("quantize", str(source), str(again), *arguments).returncode == 0
    with _core.Gguf(out) as a, _core.Gguf(again) as b:
        assert all(a.read(t.name) == b.read(t.name) for t in a.tensors)
    outcome = program("quantize", str(source), str(out), "Q4_0", "--report", str(text))
    assert outcome.returncode == 1
    assert outcome.stderr.startswith(f"error: {text}: ")
    outcome = program("quantize", str(source), str(out), "Q4_0", "--report", str(folder), "--dry-run")
    assert outcome.returncode == 2
