"""Rules over the axes that say for which shapes a variant serves: found on one set of measurements, confirmed on new
blocks with held-out shapes. At most two conditions a rule; a rule must name at least one winner and no loser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from math import isqrt

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Candidate, Operator
from kernelcrew.tools.nouns import Timing

MAX_VARIANTS = 3


def find_rule(operator: Operator, timing: Timing) -> str:
    """The simplest rule that holds on most clearly faster shapes and on no slower one; '' when none does."""
    axes = {s.key: s.axes for s in operator.shapes}
    low = 1 + timing.margin
    winners = [axes[s.shape] for s in timing.shapes if s.low > low and s.shape in axes]
    losers = [axes[s.shape] for s in timing.shapes if s.answer == "slower" and s.shape in axes]
    if not winners or not losers:
        return ""
    conditions = _conditions(operator, winners + losers)
    best: tuple[int, int, str] | None = None
    for size in (1, 2):
        for group in combinations(conditions, size):
            rule = " and ".join(group)
            if any(_holds(rule, loser) for loser in losers):
                continue
            hits = sum(_holds(rule, winner) for winner in winners)
            if hits and (best is None or (hits, -size) > (best[0], best[1])):
                best = (hits, -size, rule)
    return best[2] if best else ""


def with_rule(candidate: Candidate, incumbent: Candidate, rule: str) -> Candidate | None:
    """The candidate where `rule` holds, the incumbent elsewhere; None when that makes too many variants."""
    fast = candidate.variants[-1].model_copy(update={"when": rule})
    variants = (fast, *incumbent.variants)
    if len(variants) > MAX_VARIANTS or len(candidate.variants) > 1:
        return None
    return candidate.model_copy(update={"variants": variants})


def _conditions(operator: Operator, points: Sequence[Mapping[str, int]]) -> list[str]:
    found: list[str] = []
    for axis in operator.axes:
        values = sorted({p[axis.name] for p in points})
        for a, b in pairwise(values):
            cut = max(a, min(b - 1, isqrt(a * b)))
            found += [f"{axis.name} <= {cut}", f"{axis.name} > {cut}"]
        found += [f"{axis.name} % {d} == 0" for d in (4, 8, 16)]
    return found


def _holds(rule: str, axes: Mapping[str, int]) -> bool:
    return bool(parse(rule).value(axes))
