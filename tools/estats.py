"""The statistics that timing rests on. Pure: numbers in, numbers out.

The block is the unit of replication. Everything is said in natural logarithms of a ratio, baseline time over candidate
time, so that above 0 the candidate is faster.

**The e-process.** Each block is won or lost against a margin; a win multiplies the evidence by 1.8, a loss by 0.2.
While a block is won with a chance of at most one half given the past, the expected factor is at most 1, so by Ville's
inequality the evidence ever reaches 1/a with a chance of at most a, whenever one stops. Nothing is assumed about the
shape of the noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kernelcrew.record import Record
from kernelcrew.tools.nouns import Answer

WIN = 1.8
LOSS = 0.2
STOP = 1e-3
"""Evidence below this is given up: five losses more than the wins made good."""
SHAPE_ALPHA = 0.05
"""Chance that a shape slower than its margin is called not slower (and the other way round). It is asked of every shape
and all must pass, so it is not divided by their number."""
FASTER_MARGIN = 0.01
NOT_SLOWER_MARGIN = 0.02
LARGEST_LOSS = 0.05
"""No shape's estimate may fall below this loss, and no margin of `not slower` may be wider."""
SDS = 3.0
"""A margin is at least this many standard deviations of the baseline against its own copy."""

_T975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantile 0.975 of Student's t for 1 to 30 degrees of freedom."""


class EProcess(Record):
    """Evidence so far in one sequential test."""

    value: float = 1.0
    """The evidence; 1 says nothing."""
    wins: int = 0
    """Blocks beyond the margin."""
    losses: int = 0
    """Blocks short of it."""

    def after(self, won: bool) -> EProcess:
        """The evidence after one more block."""
        factor = WIN if won else LOSS
        return EProcess(value=self.value * factor, wins=self.wins + won, losses=self.losses + (not won))

    def reached(self, threshold: float) -> bool:
        return self.value >= threshold

    @property
    def hopeless(self) -> bool:
        return self.value < STOP

    def out_of_reach(self, threshold: float, blocks_left: int) -> bool:
        """Whether not even a win in every block that is left would reach the threshold."""
        return self.value * WIN**blocks_left < threshold


class Interval(Record):
    """A mean over blocks with its 95 % interval, in log ratios."""

    mean: float
    """Mean of the blocks."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""


def median_log_ratio(baseline: Sequence[float], candidate: Sequence[float]) -> float:
    """Median over pairs of log(baseline time / candidate time). At least one pair; times above 0."""
    return statistics.median(math.log(b / c) for b, c in zip(baseline, candidate, strict=True))


def class_statistic(shapes: Mapping[str, float], members: Sequence[str]) -> float | None:
    """A class in one block: the mean of its shapes' median log ratios; None unless every member was measured."""
    if not members or any(key not in shapes for key in members):
        return None
    return math.fsum(shapes[key] for key in members) / len(members)


def deviation(values: Sequence[float]) -> float:
    """Standard deviation about 0, which is the true log ratio of a kernel and its own copy (n degrees of freedom, so
    a lasting difference by placement counts as noise too)."""
    return math.sqrt(math.fsum(v * v for v in values) / len(values)) if values else 0.0


def interval(values: Sequence[float], least_sd: float = 0.0) -> Interval:
    """Mean over blocks with Student's t at 95 %, blocks taken as independent.

    One block has no spread of its own: `least_sd`, from the baseline against its own copy, then stands in for it as if
    it came from two blocks. With no value at all the interval says nothing: a factor of 1000 either way.
    """
    if not values:
        return Interval(mean=0.0, low=-math.log(1000), high=math.log(1000))
    mean = math.fsum(values) / len(values)
    freedom = max(len(values) - 1, 1)
    sd = statistics.stdev(values) if len(values) > 1 else least_sd
    half = t975(freedom) * sd / math.sqrt(len(values))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def t975(freedom: int) -> float:
    """Quantile 0.975 of Student's t; beyond the table the first correction of its expansion (error under 0.001)."""
    return _T975[freedom - 1] if freedom <= len(_T975) else 1.960 + 2.4 / freedom


def geometric_mean(ratios: Sequence[float]) -> float:
    """Geometric mean of ratios above 0; 1 of none."""
    return math.exp(math.fsum(math.log(r) for r in ratios) / len(ratios)) if ratios else 1.0


def faster_margin(aa_sd: float) -> float:
    """Smallest gain that counts for a class: max(1 %, 3 A/A sd), as a ratio minus 1."""
    return max(FASTER_MARGIN, math.expm1(SDS * aa_sd))


def not_slower_margin(aa_sd: float, call_us: float = math.inf, floor_us: float = 0.0) -> float:
    """Loss that a shape is forgiven: max(2 %, 3 sd), at most 5 %, as a ratio minus 1.

    `floor_us` is the least loss in us of a call that counts. It is for launches, whose own jitter is of that size; a
    sample on a processor is a batch of some 1000 calls, so a call's time is known far better and the floor is 0.
    """
    margin = min(max(NOT_SLOWER_MARGIN, math.expm1(SDS * aa_sd)), LARGEST_LOSS)
    return max(margin, floor_us / call_us)


def beats(statistic: float, margin: float) -> bool:
    """Whether a block is won for `faster`: the gain exceeds the margin."""
    return statistic > math.log1p(margin)


def holds(statistic: float, margin: float) -> bool:
    """Whether a block is won for `not slower`: the loss stays within the margin."""
    return statistic > -math.log1p(margin)


def by_interval(found: Interval, gain_margin: float, loss_margin: float) -> Answer:
    """What an interval alone says (screen grade): faster, not slower, slower or unknown."""
    if found.low > math.log1p(gain_margin):
        return "faster"
    if found.low > -math.log1p(loss_margin):
        return "not slower"
    if found.high < -math.log1p(loss_margin):
        return "slower"
    return "unknown"


def hurts(without: Sequence[float], margin: float, least_sd: float = 0.0) -> bool:
    """Ablation at screen grade: whether the set without a change is faster than the whole set beyond noise and margin.

    `without` holds the block statistics of one class, the set without the change as candidate.
    """
    return interval(without, least_sd).low > math.log1p(margin)


def lag1(values: Sequence[float]) -> float:
    """Correlation of successive blocks: the e-process assumes that the past does not tell the next block."""
    if len(values) < 3:
        return 0.0
    mean = math.fsum(values) / len(values)
    spread = math.fsum((v - mean) ** 2 for v in values)
    if spread == 0:
        return 0.0
    return math.fsum((a - mean) * (b - mean) for a, b in pairwise(values)) / spread
