"""A report as one HTML page: what to take, a plot of size against divergence, the figures, and how they were measured.

Owns the looks and no figure. The page loads nothing: its style and its plot (report_plot.py) are in it. Names come from
files of strangers and are escaped.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from pyedge.evaluation.report_plot import plot

if TYPE_CHECKING:
    from pyedge.evaluation.report import Advice, Candidate, Report

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2530; --soft: #5d6875; --line: #d6dbe2; --page: #ffffff; --card: #f4f6f9;
        --mix: #6a7686; --chosen: #b4531a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5e9ef; --soft: #9aa5b3; --line: #39424e; --page: #14181d; --card: #1d232b; --mix: #93a0b1;
          --chosen: #f0955a; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: 1rem; }
.card { background: var(--card); border-radius: .5rem; padding: 1rem; min-width: 0; }
.card p { margin: .3rem 0; } .card .need { color: var(--soft); } .card .name { font-size: 1.3rem; }
code { font-size: .85rem; overflow-wrap: anywhere; } .card code { display: block; margin-top: .6rem; user-select: all; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: baseline; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; color: var(--soft); }
.wide { overflow-x: auto; } .soft, small, tr.beaten td { color: var(--soft); } td small { display: block; }
dt { margin-top: .6rem; } dd { margin: 0; } summary { cursor: pointer; padding: .15rem 0; }
details[open] { margin-bottom: 1rem; }
@media (max-width: 40rem) { table { font-size: .85rem; } th, td { padding: .3rem; } }
svg { width: 100%; min-width: 36rem; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
svg text.take { fill: var(--ink); font-weight: 600; } svg line { stroke: var(--line); }
svg .mix { fill: var(--mix); } svg .chosen { fill: var(--chosen); }
svg .front { fill: none; stroke: var(--chosen); stroke-opacity: .5; stroke-dasharray: 3 4; }
"""


def page(report: Report) -> str:
    """UTF-8 text of the whole page."""
    by_name = {c.name: c for c in report.candidates}
    cards = "".join(_card(a, None if a.name is None else by_name[a.name], report) for a in report.advice)
    taken = {a.name for a in report.advice if a.name is not None}
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Which file of {escape(report.base)}</title><style>{_STYLE}</style></head><body>
<h1>Which file of {escape(report.base)}?</h1>
<p class="soft">The original has {_megabytes(report.base_bytes)} MB. {len(report.candidates)} smaller files were made of
it, and each was held against it on {report.tokens:,} tokens of {escape(report.text)} that nothing was tuned on.</p>
<div class="cards">{cards}</div>
<h2>Size against divergence</h2>
<div class="wide">{plot(report.candidates, taken)}</div>
<p class="soft">Left is smaller, lower is nearer to the original. <span style="color: var(--chosen)">&#9670;</span>
formats chosen by measuring, <span style="color: var(--mix)">&#9679;</span> a fixed mix. Those on the dashed line have
none below and to the left of them: take one of them.</p>
<h2>Figures</h2>
<div class="wide"><table><thead><tr><th>file</th><th>MB</th><th>KL divergence</th><th>same next token</th>
<th>worst 1 % from</th><th>perplexity</th><th>bits per weight</th><th>error of outputs</th></tr></thead>
<tbody>{"".join(_row(c, report) for c in report.candidates)}</tbody></table></div>
<dl class="soft">
<dt><b>KL divergence</b></dt><dd>How far its predictions are from the original's: the mean in nats per token, below it
the 95 % interval. 0 is the same; at 0.01 nobody notices, at 0.05 few tasks suffer, from 0.2 on answers do.</dd>
<dt><b>same next token</b></dt><dd>How often it finds the same token the likeliest as the original does.</dd>
<dt><b>worst 1 % from</b></dt><dd>In one place of a hundred the divergence is larger than this.</dd>
<dt><b>perplexity</b></dt><dd>As a ratio to the original's: above 1, it expects the text less.</dd>
<dt><b>error of outputs</b></dt><dd>Of its matrices: the mean of the squared error over what is put out.</dd>
<dt>in grey</dt><dd>Another file is no larger and no farther from the original.</dd></dl>
<p class="soft">Scored are the second halves of {report.windows} windows of {report.n_ctx} tokens. Rounding errors are
weighted by {escape(report.calibrated_by)}. pyedge {escape(report.version)}, {escape(report.isa)}.</p>
<h2>How each is made</h2>
{"".join(_made(c, report) for c in report.candidates)}
</body></html>
"""


def _megabytes(n: int) -> str:
    return f"{n / 1e6:,.1f}"


def _line(c: Candidate, report: Report) -> str:
    """That makes a candidate."""
    return f"<code>pyedge quantize {escape(report.source)} OUT.gguf {escape(c.arguments)}</code>"


def _card(advice: Advice, c: Candidate | None, report: Report) -> str:
    head = f'<div class="card"><p class="need">{escape(advice.need)}</p>'
    if c is None:
        return f'{head}<p class="name">none</p><p>{escape(advice.why)}.</p></div>'
    share = f", {100 * c.file_bytes / report.base_bytes:.0f} % of the original" if report.base_bytes else ""
    return (
        f'{head}<p class="name"><b>{escape(c.name)}</b></p><p>{_megabytes(c.file_bytes)} MB{share}</p>'
        f"<p>{escape(advice.why)}.</p>{_line(c, report)}</div>"
    )


def _row(c: Candidate, report: Report) -> str:
    low, high = c.kl_mean_ci95
    cells = (
        _megabytes(c.file_bytes),
        f"{c.kl_mean:.4f}<small>{low:.4f} to {high:.4f}</small>",
        f"{100 * c.top1:.1f} %<small>{100 * c.top1_ci95[0]:.1f} to {100 * c.top1_ci95[1]:.1f}</small>",
        f"{c.kl_p99:.3f}",
        f"{c.ppl_ratio:.3f}",
        f"{c.bits_per_weight:.2f}",
        f"{c.error:.5f}",
    )
    beaten = ' class="beaten"' if any(other.beats(c) for other in report.candidates) else ""
    mark = "<small>the file that was asked for</small>" if c.wanted else ""
    return f"<tr{beaten}><td>{escape(c.name)}{mark}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _made(c: Candidate, report: Report) -> str:
    """Its command, and the format of each matrix."""
    formats = ", ".join(f"{n} {escape(name)}" for name, n, _ in c.formats)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(kind)}</td><td>{error:.2e}</td></tr>"
        for name, kind, error in c.tensors
    )
    return (
        f'<details><summary><b>{escape(c.name)}</b> <span class="soft">{formats}</span></summary>'
        f'{_line(c, report)}<div class="wide">'
        "<table><thead><tr><th>matrix</th><th>format</th><th>relative squared error</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div></details>"
    )
