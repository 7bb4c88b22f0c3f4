"""Fresh inputs for each heat, and the check of every output that was timed.

Two checks: each slot of a contender against the verified baseline's on the same inputs (limits added, since both may
err), and once a block and shape one slot against the float64 reference at the operator's own limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelcrew.kernels.nouns import Operator, Shape
from kernelcrew.tools.arena import InputRing, OutputRing
from kernelcrew.tools.data import Pool
from kernelcrew.tools.numerics import SMALLEST, Limits, Pooled, U, compare, limits_for
from kernelcrew.tools.reference import Expected, Reference

MANY_ELEMENTS = 1 << 16
"""From so many input elements on, the largest condition scale of a filling hardly varies from one to the next."""
SCALE_SPARE = 1.5
FEW_SCALE_SPARE = 4.0
"""Small inputs: the largest of 16 fillings, times 4. Loose, but limits for few terms are tight."""
FEW_FILLINGS = 16


@dataclass(frozen=True)
class Filled:
    """Output slots after a batch."""

    ring: OutputRing
    slots: Mapping[int, int]
    """Output slot to the input slot whose answer it must hold."""

    def by_input(self, name: str) -> NDArray[Any]:
        """One output of all slots, ordered by input slot: shape (slots, *dims)."""
        places = {source: place for place, source in self.slots.items()}
        order = [places[source] for source in sorted(places)]
        stacked: NDArray[Any] = self.ring.stacked(name)[order]
        return stacked

    def of(self, name: str, source: int) -> NDArray[Any]:
        """One output for one input slot."""
        place = next(p for p, s in self.slots.items() if s == source)
        view: NDArray[Any] = self.ring.stacked(name)[place]
        return view


@dataclass
class Checker:
    """Holds the stock that inputs come from, the reference, and a bound on the condition scale of each shape."""

    operator: Operator
    reference: Reference
    rng: np.random.Generator
    _pool: Pool | None = None
    _scales: dict[str, dict[str, float]] = field(default_factory=dict)

    def refresh(self, ring: InputRing) -> None:
        """New contents in every slot and window, at memory speed, by a trusted generator."""
        if self._pool is None:
            self._pool = Pool(self.operator.distribution(self.operator.timing_distribution), self.rng)
        for slot in range(ring.slots):
            self._pool.refresh(ring.fillings(slot), self.rng)

    def prepare(self, shape: Shape, ring: InputRing) -> None:
        """Fill the ring, and bound the condition scale of the shape once."""
        self.refresh(ring)
        if shape.key in self._scales:
            return
        few = sum(view.size for view in ring.views(0).values()) < MANY_ELEMENTS
        spare = FEW_SCALE_SPARE if few else SCALE_SPARE
        bound: dict[str, float] = {}
        for filling in range(FEW_FILLINGS if few else 1):
            if filling:
                self.refresh(ring)
            for name, (_, scale) in self.reference.values(ring.views(0), shape.axes).items():
                top = float(scale.max()) if scale.size else 0.0
                bound[name] = max(bound.get(name, 0.0), spare * top)
        self._scales[shape.key] = bound

    def truth(self, shape: Shape, ring: InputRing, slot: int) -> Expected:
        """Value and condition scale of one slot, by the float64 reference in its own process."""
        return self.reference.values(ring.views(slot), shape.axes)

    def against_baseline(self, shape: Shape, mine: Filled, baseline: Filled) -> str:
        """'' when every slot agrees within both kernels' limits, else where it does not."""
        if sorted(mine.slots.values()) != sorted(baseline.slots.values()):
            return "batches that do not fill the same slots"
        limit = 2 * self._limits(shape).error
        for name, scale in self._scales[shape.key].items():
            got, want = mine.by_input(name), baseline.by_input(name)
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(got - want)
                bad = ~(gap <= limit * max(U * scale, SMALLEST))
            bad &= got.view(_bits(got)) != want.view(_bits(want))
            if bad.any():
                where = tuple(int(i) for i in np.argwhere(bad)[0])
                return (
                    f"a timed output is wrong: {name}{list(where[1:])} of slot {where[0]} is {float(got[where]):.9g}, "
                    f"the baseline's {float(want[where]):.9g} ({int(bad.sum())} of {bad.size} differ)"
                )
        return ""

    def against_truth(self, shape: Shape, mine: Filled, slot: int, truth: Expected) -> str:
        """'' when the outputs of one input slot keep the operator's limits, bias included, else what breaks them."""
        for name, (value, scale) in truth.items():
            pool = Pooled()
            found = compare(mine.of(name, slot), value, scale, self._limits(shape), pool)
            reason = found.reason or pool.reason()
            if reason:
                return f"a timed output is wrong by the float64 reference: '{name}' {reason}"
        return ""

    def close(self) -> None:
        """End the reference's child."""
        self.reference.close()

    def _limits(self, shape: Shape) -> Limits:
        return limits_for(self.operator, self.operator.timing_distribution, shape.axes)


def _bits(array: NDArray[Any]) -> Any:
    return np.uint64 if array.dtype.itemsize == 8 else np.uint32
