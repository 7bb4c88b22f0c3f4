"""The proposer's table: what each recipe answers, what it may be expected to give, and why, from the figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kernelcrew.agents.evidence import ProposerEvidence
from kernelcrew.agents.experts.figures import FLOAT_BYTES, SHORT_ROW, Chain, chain_of, geometric_mean, row_length
from kernelcrew.agents.nouns import Bottleneck
from kernelcrew.kernels.nouns import CLASSES, ShapeClass

REACHED = 0.8
"""Share of a measured peak that a good kernel is expected to reach."""
SMALL = 1.05
"""What is expected of a change that only trims."""
ACCUMULATORS = 4
"""Vector accumulators that hide one add's latency where two adds start a cycle half as long as the latency."""


class Case(NamedTuple):
    """One bottleneck in the light of the whole evidence."""

    bottleneck: Bottleneck
    evidence: ProposerEvidence
    chain: Chain

    @property
    def room(self) -> float:
        """What the share of peak leaves."""
        return max(REACHED / max(self.bottleneck.share_of_peak, 1e-3), 1.0)

    @property
    def cited(self) -> str:
        """The first figure that the reader rests on, and how many more."""
        more = f", and {len(self.bottleneck.cited) - 1} more shapes" if len(self.bottleneck.cited) > 1 else ""
        return (
            f"{self.bottleneck.cited[0]}{more}"
            if self.bottleneck.cited
            else f"{self.bottleneck.share_of_peak:.0%} of peak"
        )

    @property
    def lanes(self) -> int:
        """Floats in the machine's widest vector."""
        return max(self.evidence.machine.vector_bytes // FLOAT_BYTES, 1)

    @property
    def where(self) -> str:
        b = self.bottleneck
        return f"lines {b.line_first}-{b.line_last}" if b.line_first else "the kernel"


class Move(NamedTuple):
    """One row of the table."""

    mechanism: str
    kinds: frozenset[str]
    classes: tuple[ShapeClass, ...]
    """Classes that it can serve, the one it is meant for first."""
    target: str
    gain: Callable[[Case], float]
    reason: str
    """With {where}, {cited}, {latency} and {lanes} of the case."""

    def why(self, case: Case) -> str:
        """The reason with the figures of one case."""
        latency = f"{case.chain.latency_ns:.2f} ns" if case.chain.latency_ns else "the latency of an add"
        return self.reason.format(where=case.where, cited=case.cited, latency=latency, lanes=case.lanes)


def _few(*names: str) -> frozenset[str]:
    return frozenset(names)


SERIAL = _few("latency", "not_vectorized")
ROWS = _few("overhead", "not_vectorized", "latency")
MEMORY = _few("bandwidth", "latency", "not_vectorized")


def _vector_gain(case: Case) -> float:
    return min(case.room, float(case.lanes * ACCUMULATORS))


def _flags_gain(case: Case) -> float:
    b = case.bottleneck
    measured = case.evidence.flags_alone.get(b.shape_class)
    on_start = not case.evidence.over_start
    return min(measured, case.room) if measured and on_start else min(case.room, float(case.lanes))


def _chains_gain(case: Case) -> float:
    return min(case.room, float(case.lanes))


def _rows_gain(case: Case) -> float:
    """Short rows only: the class's gain is damped by the shapes with longer rows in it."""
    shapes = [s for s in case.evidence.profile.shapes if s.shape_class == case.bottleneck.shape_class]
    each = [min(1 / max(s.share, 1e-3), 3.0) if 1.5 < row_length(s) <= SHORT_ROW else 1.0 for s in shapes]
    return max(geometric_mean(each) * REACHED, 1.0)


def _copy_gain(case: Case) -> float:
    """One column only, damped likewise."""
    shapes = [s for s in case.evidence.profile.shapes if s.shape_class == case.bottleneck.shape_class]
    each = [max(REACHED / max(s.share, 1e-3), 1.0) if row_length(s) <= 1.5 else 1.0 for s in shapes]
    return geometric_mean(each)


def _stream_gain(case: Case) -> float:
    """Only what does not fit in L2 waits for lines."""
    shapes = [s for s in case.evidence.profile.shapes if s.shape_class == case.bottleneck.shape_class]
    return min(SMALL * 1.05, case.room) if any(s.level in ("L3", "memory") for s in shapes) else 1.0


def _small_gain(case: Case) -> float:
    return min(SMALL, case.room)


MOVES: tuple[Move, ...] = (
    Move(
        "vector_accumulators",
        SERIAL,
        CLASSES,
        "inner loop",
        _vector_gain,
        "Each add of {where} waits {latency} for the one before it ({cited}). Independent accumulators of {lanes}"
        " lanes keep several adds in flight and take {lanes} elements a load, so that loads bound the loop.",
    ),
    Move(
        "small_tail",
        ROWS,
        ("tail", "short"),
        "rest of a row",
        _small_gain,
        "The elements left after whole vectors go through a scalar chain in each row ({cited}). One masked vector"
        " takes them at once.",
    ),
    Move(
        "rows_together",
        ROWS,
        ("short", "tail"),
        "rows loop",
        _rows_gain,
        "A short row pays for its start and its horizontal sum ({cited}). Several rows side by side share both: "
        "one vector of sums is stored instead of one float at a time.",
    ),
    Move(
        "copy_single_column",
        ROWS,
        ("tail", "short"),
        "one column",
        _copy_gain,
        "A row of one element starts and ends a loop to add nothing ({cited}). Its sum is the element, so that "
        "one column is a copy at streaming speed.",
    ),
    Move(
        "split_long_rows",
        MEMORY,
        ("long", "main"),
        "long rows",
        _stream_gain,
        "One sequential stream keeps few cache lines in flight, and long rows come from beyond L2 ({cited}). "
        "Parts of a row read side by side keep more of them on their way.",
    ),
    Move(
        "prefetch",
        MEMORY,
        ("long", "main"),
        "inner loop",
        _stream_gain,
        "Long rows come from beyond L2 ({cited}), and the hardware's prefetcher starts anew at each page. Asking "
        "for lines ahead hides that start.",
    ),
    Move(
        "contract_flags",
        SERIAL,
        CLASSES,
        "flags",
        _flags_gain,
        "The compiler may not reorder the adds of {where} ({cited}), though the contract allows any order. Told "
        "so, it makes vector code of the plain loop by itself.",
    ),
    Move(
        "unroll_flag",
        SERIAL,
        CLASSES,
        "flags",
        _small_gain,
        "The loop of {where} pays a compare and a branch each time round ({cited}). Unrolling shares them among "
        "several elements.",
    ),
    Move(
        "restrict_pointers",
        SERIAL,
        CLASSES,
        "entry",
        _small_gain,
        "A store of a sum could change the input for all the compiler knows, which orders loads of {where} behind"
        " stores ({cited}). Restrict tells it that they do not overlap.",
    ),
    Move(
        "scalar_accumulators",
        SERIAL,
        CLASSES,
        "inner loop",
        _chains_gain,
        "Each add of {where} waits {latency} for the one before it ({cited}). Several partial sums do not wait "
        "for each other, and the compiler may put them side by side into a vector.",
    ),
    Move(
        "unroll_pragma",
        SERIAL,
        CLASSES,
        "inner loop",
        _small_gain,
        "The loop of {where} pays a compare and a branch for each element ({cited}). Unrolled, several adds share"
        " them; the chain stays, so that little is expected where it binds.",
    ),
)


def cases_for(move: Move, evidence: ProposerEvidence) -> list[Case]:
    """The bottlenecks that a move answers and where it gains, in the move's order of classes.

    A class with less than half of the best gain goes behind: it is not where the move shows.
    """
    chain = chain_of(evidence.source, evidence.profile, evidence.machine)
    fitting = [
        Case(b, evidence, chain)
        for b in evidence.bottlenecks.bottlenecks
        if b.kind in move.kinds and b.shape_class in move.classes
    ]
    gaining = [c for c in fitting if move.gain(c) > 1.005]
    best = max((move.gain(c) for c in gaining), default=0.0)
    return sorted(
        gaining,
        key=lambda c: (move.gain(c) < best / 2, move.classes.index(c.bottleneck.shape_class), -move.gain(c)),
    )
