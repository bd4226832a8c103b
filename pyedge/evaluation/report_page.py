"""A report as one HTML page: advice, a plot of size against divergence, the figures, and what they were measured with.

Owns the looks and no figure. The page loads nothing: its style and its plot, SVG, are in it, made by hand, as thirty
lines of them weigh less than a plotting library. Names come from files of strangers and are escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyedge.evaluation.report import Candidate, Report

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 720, 360, 64, 44, 24  # of the plot
_LEAST = 1e-6  # of a divergence on a logarithmic axis

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #66707e; --line: #d6dbe2; --page: #ffffff; --mix: #6a7686;
        --chosen: #b4531a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e9ef; --soft: #9aa5b3; --line: #39424e; --page: #14181d; --mix: #93a0b1; --chosen: #f0955a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; color: var(--soft); }
.wide { overflow-x: auto; } .soft, small { color: var(--soft); } code { overflow-wrap: anywhere; }
tr.wanted td:first-child::after { content: " \\2190 this file"; color: var(--soft); }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; } svg line { stroke: var(--line); }
svg .mix { fill: var(--mix); } svg .chosen { fill: var(--chosen); }
"""


def page(report: Report) -> str:
    """UTF-8 text of the whole page."""
    advice = "".join(
        f"<li><b>{escape(a.need)}</b>: {'' if a.name is None else f'take <b>{escape(a.name)}</b>, as '}"
        f"{escape(a.why)}.</li>"
        for a in report.advice
    )
    measured = (
        f"Measured on {report.tokens:,} tokens of {escape(report.text)} (the second halves of {report.windows} windows "
        f"of {report.n_ctx}, which nothing was tuned on), against {escape(report.base)} "
        f"({_megabytes(report.base_bytes)} MB). Rounding errors weighted by {escape(report.calibrated_by)}. "
        f"pyedge {escape(report.version)}, "
        f"{escape(report.isa)}."
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Which file of {escape(report.base)}</title><style>{_STYLE}</style></head><body>
<h1>Which file of {escape(report.base)}?</h1>
<ul>{advice}</ul>
<h2>Size against divergence</h2>
{_plot(report.candidates)}
<p class="soft">Lower is nearer to the original, left is smaller. <span style="color: var(--chosen)">&#9670;</span>
formats chosen by measuring, <span style="color: var(--mix)">&#9679;</span> a fixed mix.</p>
<h2>Figures</h2>
<div class="wide"><table><thead><tr><th>type</th><th>MB</th><th>bits per weight</th><th>KL divergence</th>
<th>99 % below</th><th>same likeliest</th><th>perplexity</th><th>error of outputs</th></tr></thead>
<tbody>{"".join(_row(c) for c in report.candidates)}</tbody></table></div>
<p class="soft">KL divergence: mean, in nats per token, of its predictions from the original's, with a 95 % interval.
Perplexity: as a ratio to the original's. Error of outputs: mean over matrices of the squared error relative to what is
put out.</p>
<p class="soft">{measured}</p>
<h2>How to make them</h2>
<ul>{"".join(_command(c) for c in report.candidates)}</ul>
<h2>Formats by tensor</h2>
{"".join(_tensors(c) for c in report.candidates)}
</body></html>
"""


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.1f}"


def _row(c: Candidate) -> str:
    low, high = c.kl_mean_ci95
    cells = (
        _megabytes(c.file_bytes),
        f"{c.bits_per_weight:.2f}",
        f"{c.kl_mean:.5f} <small>({low:.5f} to {high:.5f})</small>",
        f"{c.kl_p99:.4f}",
        f"{100 * c.top1:.2f} % <small>({100 * c.top1_ci95[0]:.1f} to {100 * c.top1_ci95[1]:.1f})</small>",
        f"{c.ppl_ratio:.4f}",
        f"{c.error:.5f}",
    )
    kind = ' class="wanted"' if c.wanted else ""
    return f"<tr{kind}><td>{escape(c.name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _command(c: Candidate) -> str:
    return f"<li>{escape(c.name)}: <code>pyedge quantize IN OUT {escape(c.arguments)}</code></li>"


def _tensors(c: Candidate) -> str:
    formats = ", ".join(f"{n} {escape(name)}" for name, n, _ in c.formats)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(kind)}</td><td>{error:.2e}</td></tr>"
        for name, kind, error in c.tensors
    )
    return (
        f"<details><summary>{escape(c.name)}: {formats}</summary><table><thead><tr><th>matrix</th><th>format</th>"
        f"<th>error</th></tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _plot(candidates: Sequence[Candidate]) -> str:
    """An SVG: bytes to the right, the logarithm of the divergence up."""
    sizes = [c.file_bytes for c in candidates]
    logs = [math.log10(max(c.kl_mean, _LEAST)) for c in candidates]
    low, high = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
    first, last = 0.95 * min(sizes), 1.05 * max(sizes)

    def x(size: float) -> float:
        return _LEFT + (size - first) / (last - first) * (_WIDTH - _LEFT - _EDGE)

    def y(log: float) -> float:
        return _HEIGHT - _BOTTOM - (log - low) / (high - low) * (_HEIGHT - _BOTTOM - _EDGE)

    parts = []
    for power in range(low, high + 1):
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{y(power):.1f}" y2="{y(power):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(power) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for i in range(5):
        size = first + (last - first) * (i + 0.5) / 5
        parts.append(f'<text x="{x(size):.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{size / 1e6:,.4g}</text>')
    parts.append(f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">MB</text>')
    parts.append(f'<text x="{_LEFT - 40}" y="14">KL divergence</text>')
    for c, log in zip(candidates, logs, strict=True):
        at, up = x(c.file_bytes), y(log)
        if c.by_size:
            mark = f'<path class="chosen" d="M{at:.1f} {up - 6:.1f}l6 6-6 6-6-6z"/>'
        else:
            mark = f'<circle class="mix" cx="{at:.1f}" cy="{up:.1f}" r="4.5"/>'
        side, anchor = (-9, "end") if c.by_size else (9, "start")
        label = f'<text x="{at + side:.1f}" y="{up + 4:.1f}" text-anchor="{anchor}">{escape(c.name)}</text>'
        title = f"<title>{escape(c.name)}: {_megabytes(c.file_bytes)} MB, divergence {c.kl_mean:.5f}</title>"
        parts.append(f"<g>{title}{mark}{label}</g>")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Size against divergence">{"".join(parts)}</svg>'
    )
