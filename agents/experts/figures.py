"""Figures that the experts derive from a profile and a source: what a loop does, how long it is, what a chain costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import exp, log
from statistics import median
from typing import NamedTuple

from kernelcrew.agents.evidence import LoopSpan, MachineFacts, OperatorFacts, SourceFacts
from kernelcrew.tools.build_words import IN_ORDER
from kernelcrew.tools.nouns import Profile, ShapeProfile

FLOAT_BYTES = 4
SHORT_ROW = 64
"""Elements of a row up to which its start and end may weigh as much as its work."""
HAND_VECTORS = re.compile(r"vector_size|\b__m(128|256|512)|\b_mm(256|512)?_|\bfloat32x4")
"""Marks of vector code written by hand, which the compiler's remarks do not count as vectorised."""

_EXTENTS = re.compile(r"(\w+)\[([^,;]+)\]")
_CARRIED = re.compile(r"(?<![\w\]).])(?!\w+ \+= 1\b)(\w+) \+= |\b(\w+) = \2 \+ ")
_UPDATED = re.compile(r"\] \+= ")
_BOUND = re.compile(r"; \w+ < (\w+);")


class RowFit(NamedTuple):
    """Time a row = `fixed_ns` + `element_ns` x elements, over rows of at most `SHORT_ROW` elements."""

    fixed_ns: float
    element_ns: float
    shapes: int


class Chain(NamedTuple):
    """How the inner loop computes: elements an instruction takes, and the latency of one dependent add."""

    lanes: int
    by_hand: bool
    """Vectors in the source: how many of them are added to at a time cannot be told from the lanes."""
    latency_ns: float


def row_length(shape: ShapeProfile) -> float:
    """Elements of the largest input for each element of the output: the length of a row in a reduction."""
    return shape.ns_per_row / shape.ns_per_element if shape.ns_per_element > 0 else 0.0


def row_fit(shapes: Iterable[ShapeProfile]) -> RowFit | None:
    """Median slope and intercept over pairs of short-row shapes; None with fewer than two row lengths."""
    points = sorted((row_length(s), s.ns_per_row) for s in shapes if 0 < row_length(s) <= SHORT_ROW)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :] if b[0] - a[0] > 0.5]
    if not slopes:
        return None
    slope = max(median(slopes), 0.0)
    fixed = max(median(y - slope * x for x, y in points), 0.0)
    return RowFit(fixed_ns=fixed, element_ns=slope, shapes=len(points))


def chain_of(source: SourceFacts, profile: Profile, machine: MachineFacts) -> Chain:
    """Lanes of the innermost work: by the compiler's remarks, or by hand-written vectors; 1 for scalar code.

    A reduction that is vectorised in source order loads vectors and adds them one element after another: 1 lane,
    whatever the loops beside it do. Loops that set up or write out, less deep than the one that the time is spent in,
    do not count.
    """
    by_hand = HAND_VECTORS.search(source.text) is not None
    inner = inner_loop(source, profile)
    in_order = inner is not None and any(
        r.message == IN_ORDER and inner.first <= r.line <= inner.last for r in profile.loops
    )
    work = [
        loop
        for loop in source.loops
        if inner is not None and (loop == inner or (not in_order and _beside(loop, inner)))
    ]
    widths = [
        r.vector_bytes or 16
        for r in profile.loops
        if r.vectorized and r.message != IN_ORDER and any(i.first <= r.line <= i.last for i in work)
    ]
    width = machine.vector_bytes if by_hand else max(widths, default=0)
    return Chain(
        lanes=max(width // FLOAT_BYTES, 1), by_hand=by_hand, latency_ns=machine.peaks.get("add_latency core", 0.0)
    )


def _beside(loop: LoopSpan, inner: LoopSpan) -> bool:
    return loop.innermost and loop.depth >= inner.depth


def sums_rows(operator: OperatorFacts) -> bool:
    """Whether each element of the output is a sum over a contiguous row of the first input, by the extents."""
    extents = {name: dims.split("][") for name, dims in _EXTENTS.findall(operator.signature.rpartition(";")[2])}
    if len(extents) != len(operator.signature.rpartition(";")[2].split(",")) or len(extents) != 2:
        return False
    (_, input_), (_, output) = extents.items()
    return len(output) < len(input_) and input_[: len(output)] == output


def carries(source: SourceFacts, loop: LoopSpan | None) -> bool:
    """Whether the loop adds to a plain variable: each time round waits for the one before it.

    An addition to an element of an array (`c[j] += ...`) does not: neighbouring elements do not wait for each other.
    """
    return loop is not None and _CARRIED.search(_lines(source, loop)) is not None


def chains_an_element(operator: OperatorFacts, source: SourceFacts, inner: LoopSpan | None) -> int:
    """How many chains of additions each element of the largest input goes through, one loop after the other; 0 where
    the loops are deeper than an input has axes, so that an element is met many times."""
    axes = [dims.count("][") + 1 for _, dims in _EXTENTS.findall(operator.signature.rpartition(";")[2])]
    if inner is None or inner.depth > max(axes, default=0):
        return 0
    return sum(carries(source, loop) for loop in source.loops if loop == inner or _beside(loop, inner))


def updates(source: SourceFacts, loop: LoopSpan | None) -> bool:
    """Whether the loop adds to elements of an array, which are loaded and stored each time round."""
    return loop is not None and _UPDATED.search(_lines(source, loop)) is not None


def times_round(shape: ShapeProfile, loop: LoopSpan | None) -> int:
    """How often the loop goes round in this shape, where its head names an axis as the bound; 0 where it does not."""
    bound = _BOUND.search(loop.head) if loop is not None else None
    return axes_of(shape.shape).get(bound.group(1), 0) if bound else 0


def multiply_adds(shape: ShapeProfile) -> bool:
    """Whether each element of the largest input takes part in more than one operation."""
    return shape.gflop_s * shape.ns_per_element > 1.5


def _lines(source: SourceFacts, loop: LoopSpan) -> str:
    return "\n".join(source.text.splitlines()[loop.first - 1 : loop.last])


def inner_loop(source: SourceFacts, profile: Profile) -> LoopSpan | None:
    """The loop that the time is spent in: where the simulator's hottest line lies, else the deepest one.

    A loop that a pragma unrolls is no loop any more when it runs: the one around it stands for it.
    """
    lines = source.text.splitlines()
    loops = [
        loop for loop in source.loops if not lines[max(loop.first - 2, 0)].lstrip().startswith("#pragma GCC unroll")
    ] or list(source.loops)
    for line, _ in sorted(profile.hot_lines, key=lambda pair: -pair[1]):
        around = [loop for loop in loops if loop.first <= line <= loop.last]
        if around:
            return max(around, key=lambda loop: loop.depth)
    return max(loops, key=lambda loop: (loop.depth, -loop.first), default=None)


def outer_loop(source: SourceFacts, inner: LoopSpan | None) -> LoopSpan | None:
    """The loop around `inner`, or `inner` itself."""
    if inner is None:
        return None
    around = [
        loop
        for loop in source.loops
        if loop.depth < inner.depth and loop.first <= inner.first and inner.last <= loop.last
    ]
    return max(around, key=lambda loop: loop.depth, default=inner)


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values; 0 for none."""
    return exp(sum(log(max(v, 1e-9)) for v in values) / len(values)) if values else 0.0


def axes_of(key: str) -> dict[str, int]:
    """`rows=64,n=1024` as a mapping."""
    return {name: int(value) for name, _, value in (part.partition("=") for part in key.split(","))}
