"""What an adoption was shown for, where nothing is known, and where it loses: the boundary is for a person to judge."""

from __future__ import annotations

from kernelcrew.kernels.nouns import Operator, Shape
from kernelcrew.record import Record
from kernelcrew.tools.nouns import Timing


class Domain(Record):
    """The boundary of one adoption, in words."""

    tested: str
    """Axes and how far they were timed and checked."""
    untested: str
    """What lies outside."""
    loses: str
    """Shapes whose measured ratio is below 1; empty for none."""


def domain_of(operator: Operator, timing: Timing) -> Domain:
    """From the shapes that were timed, those that were only checked, and the ratios."""
    keys = {s.shape for s in timing.shapes}
    timed = [s for s in operator.shapes if s.key in keys]
    ranges = _ranges(operator, timed)
    words = ", ".join(f"{axis} {low} to {high}" for axis, (low, high) in ranges.items())
    kinds = ", ".join(d.name for d in operator.distributions)
    counted = f"timed at {len(timed)} shapes ({words}), values drawn as {operator.timing_distribution}"
    tested = f"{counted}; correct at every listed shape for {kinds}; one thread, dense row-major tensors"
    beyond = ", ".join(f"{axis} above {high}" for axis, (_, high) in ranges.items())
    losing = sorted((s for s in timing.shapes if s.ratio < 1.0), key=lambda s: s.ratio)
    return Domain(
        tested=tested,
        untested=f"speed between and beyond these shapes ({beyond}), other machines and compilers, several threads",
        loses=", ".join(f"{s.shape} {s.ratio:.3f}x [{s.low:.3f}, {s.high:.3f}]" for s in losing[:5]),
    )


def _ranges(operator: Operator, shapes: list[Shape]) -> dict[str, tuple[int, int]]:
    """Least and greatest value of each axis."""
    return {
        axis.name: (min(s.axes[axis.name] for s in shapes), max(s.axes[axis.name] for s in shapes))
        for axis in operator.axes
        if shapes
    }
