"""The plot of a report: an SVG of size against divergence.

Made by hand, as a hundred lines of it weigh less than a plotting library. Names are escaped; colours are the page's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyedge.evaluation.report import Candidate

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 760, 400, 64, 44, 28
_LEAST = 1e-6  # of a divergence on a logarithmic axis
_LETTER, _LINE = 7.2, 14.0  # the room a label takes
Box = tuple[float, float, float, float]  # left, top, right, bottom


def plot(candidates: Sequence[Candidate], taken: Collection[str]) -> str:
    """Bytes to the right, the logarithm of the divergence up. taken: names of those that are advised."""
    sizes = [c.file_bytes for c in candidates]
    logs = [math.log10(max(c.kl_mean, _LEAST)) for c in candidates]
    low, high = math.floor(min(logs)), max(math.ceil(max(logs)), math.floor(min(logs)) + 1)
    room = 0.06 * (max(sizes) - min(sizes)) or 0.05 * max(sizes)
    first, last = min(sizes) - room, max(sizes) + 2 * room

    def x(size: float) -> float:
        return _LEFT + (size - first) / (last - first) * (_WIDTH - _LEFT - _EDGE)

    def y(log: float) -> float:
        return _HEIGHT - _BOTTOM - (log - low) / (high - low) * (_HEIGHT - _BOTTOM - _EDGE)

    parts = []
    for power in range(low, high + 1):
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{y(power):.1f}" y2="{y(power):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y(power) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for size in _ticks(first / 1e6, last / 1e6):
        parts.append(f'<text x="{x(size * 1e6):.1f}" y="{_HEIGHT - 24}" text-anchor="middle">{size:,.10g}</text>')
    parts.append(f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6}" text-anchor="middle">MB</text>')
    parts.append(f'<text x="{_LEFT - 56}" y="14">KL divergence</text>')
    points = [(x(c.file_bytes), y(log)) for c, log in zip(candidates, logs, strict=True)]
    front = sorted(
        point for c, point in zip(candidates, points, strict=True) if not any(other.beats(c) for other in candidates)
    )
    parts.append(f'<polyline class="front" points="{" ".join(f"{at:.1f},{up:.1f}" for at, up in front)}"/>')
    boxes = [(at - 6, up - 6, at + 6, up + 6) for at, up in points]
    order = sorted(range(len(candidates)), key=lambda i: (candidates[i].name not in taken, not candidates[i].by_size))
    for i in order:
        c, (at, up) = candidates[i], points[i]
        if c.by_size:
            mark = f'<path class="chosen" d="M{at:.1f} {up - 6:.1f}l6 6-6 6-6-6z"/>'
        else:
            mark = f'<circle class="mix" cx="{at:.1f}" cy="{up:.1f}" r="4.5"/>'
        title = f"<title>{escape(c.name)}: {c.file_bytes / 1e6:,.1f} MB, divergence {c.kl_mean:.5f}</title>"
        parts.append(f"<g>{title}{mark}{_label(c.name, at, up, boxes, c.name in taken)}</g>")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Size against divergence">{"".join(parts)}</svg>'
    )


def _label(name: str, at: float, up: float, boxes: list[Box], taken: bool) -> str:
    """Beside its mark where there is room, which it then takes; nothing where there is none, as marks have titles."""
    width = _LETTER * len(name)
    for left, middle in _places(at, up, width):
        box = (left, middle - _LINE / 2, left + width, middle + _LINE / 2)
        inside = box[0] >= 0 and box[2] <= _WIDTH and box[1] >= 0 and box[3] <= _HEIGHT - _BOTTOM
        if inside and not any(_overlap(box, other) for other in boxes):
            boxes.append(box)
            kind = ' class="take"' if taken else ""
            return f'<text{kind} x="{left:.1f}" y="{middle + 4:.1f}">{escape(name)}</text>'
    return ""


def _places(at: float, up: float, width: float) -> Iterator[tuple[float, float]]:
    """Left end and middle of a label: to the right, to the left, above and below."""
    for away in (0.0, 14.0, -14.0):
        yield at + 10, up + away
        yield at - 10 - width, up + away
    for away in (-16.0, 16.0, -30.0, 30.0):
        yield at - width / 2, up + away


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _ticks(first: float, last: float) -> list[float]:
    """Round numbers, about five."""
    raw = (last - first) / 5
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [i * step for i in range(math.ceil(first / step), math.floor(last / step) + 1)]
