"""The form of the proposer's table: what a recipe answers, what it may be expected to give, and why, from the figures.

The rows stand in one module a family of kernels (`moves_rows.py`, ...), and `catalogue.py` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kernelcrew.agents.evidence import ProposerEvidence
from kernelcrew.agents.experts.figures import FLOAT_BYTES, Chain, chain_of
from kernelcrew.agents.nouns import Bottleneck
from kernelcrew.kernels.nouns import ShapeClass

REACHED = 0.8
"""Share of a measured peak that a good kernel is expected to reach."""
SMALL = 1.05
"""What is expected of a change that only trims."""


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


def _no_values(case: Case) -> dict[str, int]:
    """The recipe's own first values."""
    return {}


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
    first: Callable[[Case], dict[str, int]] = _no_values
    """Values that knobs begin with on the case's machine, where the recipe's own would not do."""

    def why(self, case: Case) -> str:
        """The reason with the figures of one case."""
        latency = f"{case.chain.latency_ns:.2f} ns" if case.chain.latency_ns else "the latency of an add"
        return self.reason.format(where=case.where, cited=case.cited, latency=latency, lanes=case.lanes)


def kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


class Direction(NamedTuple):
    """A strategy and its moves, in the order of application."""

    title: str
    strategy: str
    moves: tuple[str, ...]
    leads: tuple[str, ...]
    """Moves that carry it; without one of them what is left stands on its own."""


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
