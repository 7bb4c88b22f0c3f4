"""Charts as plain SVG text: ratios by shape with intervals, seconds by stage. No script, no outside file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log2

from kernelcrew.record import Record

COLOURS = {"main": "var(--c1)", "short": "var(--c2)", "long": "var(--c3)", "tail": "var(--c4)"}
WIDTH = 960


class RatioRow(Record):
    """One shape's row in the ratio chart."""

    shape: str
    """Its key."""
    shape_class: str
    """Its class."""
    ratio: float
    """Over the kernel it was held against."""
    low: float
    """Interval."""
    high: float
    """Interval."""
    flags: float | None = None
    """What contract flags alone give there."""


def ratio_chart(rows: Sequence[RatioRow]) -> str:
    """Dots with whiskers on a log2 axis; hollow diamonds are the start with contract flags alone; the line is 1x."""
    if not rows:
        return ""
    values = [v for r in rows for v in (r.low, r.high, r.flags or 1.0)] + [1.0]
    lo, hi = floor(log2(max(min(values), 1e-3)) * 2) / 2, ceil(log2(max(values)) * 2) / 2
    hi = hi if hi > lo else lo + 1
    left, right, step, top = 250, 70, 26, 18
    height = top + step * len(rows) + 34

    def x(value: float) -> float:
        return left + (log2(max(value, 1e-3)) - lo) / (hi - lo) * (WIDTH - left - right)

    parts = [_open(WIDTH, height, "Measured ratio by shape")]
    for power in range(ceil(lo), floor(hi) + 1):
        at = x(2.0**power)
        parts.append(_line((at, top - 6), (at, height - 28), "axis strong" if power == 0 else "axis"))
        parts.append(_text(at, height - 10, f"{2.0**power:g}x", "tick", "middle"))
    for index, row in enumerate(rows):
        y = top + step * index + step / 2
        colour = COLOURS.get(row.shape_class, "var(--fg)")
        parts.append(_text(left - 12, y + 4, row.shape, "label", "end"))
        parts.append(
            f'<line x1="{x(row.low):.1f}" x2="{x(row.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
            'stroke-width="3"/>'
        )
        if row.flags is not None:
            at = x(row.flags)
            parts.append(
                f'<path d="M{at:.1f} {y - 5:.1f} l5 5 l-5 5 l-5 -5 z" fill="none" stroke="var(--muted)" '
                'stroke-width="1.5"/>'
            )
        parts.append(f'<circle cx="{x(row.ratio):.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
        parts.append(_text(x(max(row.high, row.flags or 0)) + 10, y + 4, f"{row.ratio:.2f}x", "value", "start"))
    return "".join([*parts, "</svg>"])


def cost_bars(costs: Sequence[tuple[str, float]]) -> str:
    """One bar a stage, seconds."""
    if not costs:
        return ""
    most = max(seconds for _, seconds in costs) or 1.0
    step, left = 24, 110
    parts = [_open(WIDTH, step * len(costs) + 8, "Seconds by stage")]
    for index, (stage, seconds) in enumerate(costs):
        y = step * index + 4
        width = seconds / most * (WIDTH - left - 90)
        parts.append(_text(left - 10, y + 15, stage, "label", "end"))
        parts.append(
            f'<rect x="{left}" y="{y + 3}" width="{max(width, 1):.1f}" height="15" rx="3" fill="var(--c1)" '
            'opacity="0.75"/>'
        )
        parts.append(_text(left + width + 8, y + 15, f"{seconds:.1f} s", "value", "start"))
    return "".join([*parts, "</svg>"])


def _open(width: int, height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}">'


def _line(a: tuple[float, float], b: tuple[float, float], kind: str) -> str:
    return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
