"""Moves for sums down the columns of a matrix, and the directions that they make up."""

from __future__ import annotations

from kernelcrew.agents.experts.figures import axes_of, geometric_mean
from kernelcrew.agents.experts.moves import REACHED, SMALL, Case, Direction, Move, kinds
from kernelcrew.kernels.nouns import CLASSES

OPEN = kinds("latency", "bandwidth", "overhead", "compute", "not_vectorized")
PASSES = 2.0
"""A load and a store of y for each load of x leave a third of the accesses to x."""
MOST = 16.0


def _over(case: Case, least: int, longest: int, most: float) -> float:
    """Room of the class's shapes with `least` to `longest` columns, damped by the others, up to `most` each."""
    each = []
    for shape in case.evidence.profile.shapes:
        if shape.shape_class == case.bottleneck.shape_class:
            fits = least <= axes_of(shape.shape).get("n", 0) <= longest
            each.append(min(max(REACHED / max(shape.share, 1e-3), 1.0), most) if fits else 1.0)
    return geometric_mean(each)


def _passes_gain(case: Case) -> float:
    """Never nothing where a class is open: what y takes of the accesses is there on every level."""
    return max(_over(case, case.lanes, 1 << 31, PASSES), min(SMALL, case.room))


def _strips_gain(case: Case) -> float:
    return _over(case, case.lanes, 8 * case.lanes, PASSES)


def _fold_gain(case: Case) -> float:
    return _over(case, 1, 2 * case.lanes, MOST)


def _ahead_gain(case: Case) -> float:
    shapes = [s for s in case.evidence.profile.shapes if s.shape_class == case.bottleneck.shape_class]
    return min(SMALL, case.room) if any(s.level in ("L3", "memory") for s in shapes) else 1.0


MOVES: tuple[Move, ...] = (
    Move(
        "rows_per_pass", OPEN, CLASSES, "loop over rows", _passes_gain,
        "{where} loads and stores y for each row of x ({cited}). Several rows a pass share that, and as many streams "
        "of x are in flight.",
    ),
    Move(
        "column_strips", OPEN, ("long", "tail", "main", "short"), "narrow rows", _strips_gain,
        "Rows of a few vectors are over before the loop along them pays ({cited}). Their sums fit in registers over "
        "the whole batch.",
    ),
    Move(
        "fold_batch", OPEN, ("long", "tail", "short", "main"), "few columns", _fold_gain,
        "Rows of fewer than two vectors leave most of {lanes} lanes empty, and their sums are chains through memory "
        "({cited}). Many rows side by side are one long row.",
    ),
    Move(
        "prefetch_rows", OPEN, ("main", "short"), "passes", _ahead_gain,
        "Rows come from beyond L2 ({cited}), and the hardware's prefetcher starts anew in each. Asked for a pass "
        "ahead, they are on their way.",
    ),
)

DIRECTIONS: tuple[Direction, ...] = (
    Direction(
        "Several rows a pass, with short rows folded into long ones",
        "Touch y once in several rows; what fills no vector is folded until it does.",
        ("rows_per_pass", "fold_batch"),
        ("rows_per_pass",),
    ),
    Direction(
        "Strips of columns in registers, and several rows a pass beyond them",
        "Keep the sums of narrow rows in registers over the whole batch, and go by passes where rows are long.",
        ("rows_per_pass", "column_strips", "prefetch_rows"),
        ("column_strips", "rows_per_pass"),
    ),
)
