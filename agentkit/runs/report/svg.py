"""Small plots as inline SVG: no script, no font, no network. Colours are classes of the page's style sheet."""

import math
from collections.abc import Sequence

from attrs import frozen

from agentkit.runs.report.escaping import markup
from agentkit.runs.report.stats import Histogram

_WIDTH = 520
_LABEL = 190
_ROW = 26


@frozen
class Bar:
    """A labelled length; `style` is a class of the style sheet, `note` stands behind the bar, `title` on hovering."""

    label: str
    value: float
    note: str
    style: str = "c0"
    title: str = ""


@frozen
class Point:
    """A value with its interval."""

    x: float
    y: float
    low: float | None
    high: float | None


def bars(rows: Sequence[Bar], *, label: str) -> str:
    """Horizontal bars, one a row, from zero."""
    largest = max((row.value for row in rows), default=0.0) or 1.0
    room = _WIDTH - _LABEL - 110
    parts = []
    for number, row in enumerate(rows):
        y = number * _ROW
        width = max(1.0, room * row.value / largest) if row.value else 0.0
        parts.append(
            f"<g><title>{markup(row.title or f'{row.label}: {row.note}')}</title>"
            f'<text class="label" x="{_LABEL - 8}" y="{y + 17}" text-anchor="end">{markup(row.label, limit=28)}</text>'
            f'<rect class="{row.style}" x="{_LABEL}" y="{y + 5}" width="{width:.1f}" height="16" rx="3"/>'
            f'<text class="note" x="{_LABEL + width + 6:.1f}" y="{y + 17}">{markup(row.note)}</text></g>'
        )
    return _svg(_WIDTH, max(1, len(rows)) * _ROW, label, parts)


def split(rows: Sequence[Bar], *, label: str) -> str:
    """One bar of parts that add up, with a legend below."""
    total = math.fsum(row.value for row in rows) or 1.0
    parts, x = [], 0.0
    for row in rows:
        width = _WIDTH * row.value / total
        if width:
            parts.append(
                f"<g><title>{markup(row.title or f'{row.label}: {row.note}')}</title>"
                f'<rect class="{row.style}" x="{x:.1f}" y="0" width="{max(width - 1, 0.5):.1f}" height="30" '
                'rx="3"/></g>'
            )
        x += width
    for number, row in enumerate(rows):
        left, top = (number % 3) * _WIDTH / 3, 44 + number // 3 * 22
        parts.append(
            f'<rect class="{row.style}" x="{left:.1f}" y="{top}" width="12" height="12" rx="3"/>'
            f'<text class="label" x="{left + 18:.1f}" y="{top + 10}">{markup(row.label)} {markup(row.note)}</text>'
        )
    return _svg(_WIDTH, 44 + math.ceil(len(rows) / 3) * 22, label, parts)


def columns(data: Histogram, *, label: str, unit: str = "") -> str:
    """A histogram as columns, the counts above them."""
    height, base, top = 190, 160, 18
    largest = max(data.counts, default=0) or 1
    slot = _WIDTH / max(1, len(data.counts))
    width = min(slot * 0.86, 90.0)
    parts = [f'<line class="axis" x1="0" y1="{base}" x2="{_WIDTH}" y2="{base}"/>']
    for number, count in enumerate(data.counts):
        middle, tall = (number + 0.5) * slot, (base - top) * count / largest
        where = _bin(data, number)
        shown = f'<text class="note" x="{middle:.1f}" y="{base - tall - 4:.1f}" text-anchor="middle">{count}</text>'
        parts.append(
            f"<g><title>{markup(f'{where}{unit}: {count}')}</title>"
            f'<rect class="c0" x="{middle - width / 2:.1f}" y="{base - tall:.1f}" width="{width:.1f}" '
            f'height="{tall:.1f}" rx="2"/>{shown if count and slot > 20 else ""}</g>'
        )
    if data.values:
        each = max(1, math.ceil(len(data.values) * 44 / _WIDTH))
        marks = [((place + 0.5) * slot, value) for place, value in enumerate(data.values) if place % each == 0]
    else:
        each = max(1, math.ceil(len(data.edges) * 52 / _WIDTH))
        marks = [(place * slot, value) for place, value in enumerate(data.edges) if place % each == 0]
    for x, value in marks:
        anchor = "start" if x < 10 else "end" if x > _WIDTH - 10 else "middle"
        parts.append(f'<text class="note" x="{x:.1f}" y="{base + 16}" text-anchor="{anchor}">{short(value)}</text>')
    return _svg(_WIDTH, height, label, parts)


def curve(points: Sequence[Point], *, label: str) -> str:
    """Rates between 0 and 1 over x, evenly spaced, with the band of their intervals."""
    height, left, right, top, base = 220, 44, 24, 14, 184
    step = (_WIDTH - left - right) / max(1, len(points) - 1)

    def at(number: int, rate: float) -> str:
        return f"{left + number * step:.1f},{base - (base - top) * rate:.1f}"

    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        level = base - (base - top) * tick
        parts.append(f'<line class="grid" x1="{left}" y1="{level:.1f}" x2="{_WIDTH - right}" y2="{level:.1f}"/>')
        parts.append(f'<text class="note" x="{left - 8}" y="{level + 4:.1f}" text-anchor="end">{tick:.0%}</text>')
    known = [(place, p.low, p.high) for place, p in enumerate(points) if p.low is not None and p.high is not None]
    if len(known) > 1:
        outline = [at(place, high) for place, _, high in known] + [at(place, low) for place, low, _ in reversed(known)]
        parts.append(f'<polygon class="band" points="{" ".join(outline)}"/>')
    for place, low, high in known:
        (x, above), (_, below) = at(place, high).split(","), at(place, low).split(",")
        parts.append(f'<line class="whisker" x1="{x}" y1="{above}" x2="{x}" y2="{below}"/>')
    parts.append(f'<polyline class="line" points="{" ".join(at(n, p.y) for n, p in enumerate(points))}"/>')
    for number, point in enumerate(points):
        x, y = at(number, point.y).split(",")
        between = "" if point.low is None or point.high is None else f" ({point.low:.1%} to {point.high:.1%})"
        parts.append(
            f'<g><title>k = {point.x:g}: {point.y:.1%}{between}</title><circle class="dot" cx="{x}" cy="{y}" r="4"/>'
        )
        parts.append(f'<text class="note" x="{x}" y="{base + 18}" text-anchor="middle">{point.x:g}</text></g>')
    return _svg(_WIDTH, height, label, parts)


def short(value: float) -> str:
    """A number in a few characters."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.3g}{suffix}"
    return f"{value:.4g}"


def _bin(data: Histogram, number: int) -> str:
    if data.values:
        return short(data.values[number])
    return f"{short(data.edges[number])} to {short(data.edges[number + 1])}"


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{markup(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
