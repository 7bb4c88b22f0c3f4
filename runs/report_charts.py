"""Charts as plain SVG text: ratios by shape with intervals, and the roofline. No script, no outside file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from math import ceil, floor, log2, log10

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
    """Over the start kernel."""
    low: float
    """Interval."""
    high: float
    """Interval."""
    flags: float | None = None
    """What contract flags alone give there."""


class Roof(Record):
    """One ceiling."""

    label: str
    """For the reader."""
    gb_s: float
    """Bandwidth of the level."""


LABEL_PX = 110
"""Room that the name of a ceiling takes."""


class RoofPoint(Record):
    """One shape on the roofline."""

    shape: str
    """Its key."""
    shape_class: str
    """Its class."""
    intensity: float
    """Flops a byte."""
    before: float
    """GFLOP/s of the start of the run."""
    after: float | None
    """GFLOP/s of the final kernel; None when nothing was adopted."""


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

    parts = [_open(WIDTH, height, "Measured ratio over the start kernel by shape")]
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


def roofline(points: Sequence[RoofPoint], roofs: Sequence[Roof], fma_gflop_s: float) -> str:
    """GFLOP/s over flops a byte, both logarithmic: hollow before, filled after, under the measured ceilings."""
    if not points or not roofs:
        return ""
    xs = [p.intensity for p in points if p.intensity > 0] or [0.25]
    x_lo, x_hi = floor(log10(min(xs)) - 0.5), ceil(log10(max(xs)) + 0.9)
    ys = [v for p in points for v in (p.before, p.after or p.before) if v > 0] or [1.0]
    y_lo, y_hi = floor(log10(min(ys))), ceil(log10(max(*ys, fma_gflop_s)))
    left, right, top, height = 70, 170, 16, 380

    def x(value: float) -> float:
        return left + (log10(value) - x_lo) / (x_hi - x_lo) * (WIDTH - left - right)

    def y(value: float) -> float:
        return height - 40 - (log10(max(value, 1e-9)) - y_lo) / (y_hi - y_lo) * (height - 40 - top)

    parts = [_open(WIDTH, height, "Roofline"), *_grid((x_lo, x_hi), (y_lo, y_hi), x, y, height)]
    beside = y(fma_gflop_s) + 4
    for roof in sorted(roofs, key=lambda r: -r.gb_s):
        knee = fma_gflop_s / roof.gb_s
        first = max(10.0**x_lo, 10.0**y_lo / roof.gb_s)
        last = min(knee, 10.0**x_hi)
        parts.append(_line((x(first), y(first * roof.gb_s)), (x(last), y(last * roof.gb_s)), "roof"))
        label = f"{roof.label} {roof.gb_s:.0f} GB/s"
        if x(last) > WIDTH - right - LABEL_PX:  # no room above the line's end: in the margin, below the one before
            beside = max(beside + 14, y(last * roof.gb_s) + 4)
            parts.append(_text(WIDTH - right + 6, beside, label, "tick", "start"))
        else:
            parts.append(_text(x(last) - 4, y(last * roof.gb_s) - 5, label, "tick", "end"))
    parts.append(
        _line(
            (x(min(fma_gflop_s / max(r.gb_s for r in roofs), 10.0**x_hi)), y(fma_gflop_s)),
            (x(10.0**x_hi), y(fma_gflop_s)),
            "roof",
        )
    )
    parts.append(_text(x(10.0**x_hi) + 6, y(fma_gflop_s) + 4, f"FMA {fma_gflop_s:.0f} GFLOP/s", "tick", "start"))
    for index, point in enumerate(points):
        parts.append(_point(point, x(point.intensity) + (index - (len(points) - 1) / 2) * 5, y))
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


def _grid(
    xr: tuple[int, int], yr: tuple[int, int], x: Callable[[float], float], y: Callable[[float], float], height: int
) -> list[str]:
    parts: list[str] = []
    for power in range(xr[0], xr[1] + 1):
        at = x(10.0**power)
        parts.append(_line((at, y(10.0 ** yr[1])), (at, y(10.0 ** yr[0])), "axis"))
        parts.append(_text(at, height - 22, f"{10.0**power:g}", "tick", "middle"))
    for power in range(yr[0], yr[1] + 1):
        at = y(10.0**power)
        parts.append(_line((x(10.0 ** xr[0]), at), (x(10.0 ** xr[1]), at), "axis"))
        parts.append(_text(x(10.0 ** xr[0]) - 8, at + 4, f"{10.0**power:g}", "tick", "end"))
    parts.append(_text(x(10.0 ** ((xr[0] + xr[1]) / 2)), height - 4, "flops a byte", "tick", "middle"))
    parts.append(_text(14, 12, "GFLOP/s", "tick", "start"))
    return parts


def _point(point: RoofPoint, at: float, y: Callable[[float], float]) -> str:
    colour = COLOURS.get(point.shape_class, "var(--fg)")
    last = point.before if point.after is None else point.after
    title = f"<title>{escape(point.shape)}: {point.before:.2f} to {last:.2f} GFLOP/s</title>"
    parts = [
        f'<g>{title}<circle cx="{at:.1f}" cy="{y(point.before):.1f}" r="4" fill="var(--bg)" stroke="{colour}" '
        'stroke-width="1.5"/>'
    ]
    if point.after is not None:
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(point.before):.1f}" y2="{y(point.after):.1f}" '
            f'stroke="{colour}" opacity="0.5"/>'
        )
        parts.append(f'<circle cx="{at:.1f}" cy="{y(point.after):.1f}" r="4.5" fill="{colour}"/>')
    return "".join([*parts, "</g>"])


def _open(width: int, height: float, title: str) -> str:
    return f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}">'


def _line(a: tuple[float, float], b: tuple[float, float], kind: str) -> str:
    return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" class="{kind}"/>'


def _text(x: float, y: float, text: str, kind: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
