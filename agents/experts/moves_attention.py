"""Moves for attention on processors, and the directions that they make up."""

from __future__ import annotations

from collections.abc import Callable

from kernelcrew.agents.experts.figures import axes_of, geometric_mean
from kernelcrew.agents.experts.moves import REACHED, SMALL, Case, Direction, Move, kinds
from kernelcrew.kernels.nouns import CLASSES

OPERATOR = "attention"
ANY = kinds("latency", "not_vectorized", "compute", "overhead", "bandwidth")
"""Every kind but near_peak: a scalar kernel is held back by several at once, and each of these answers all of them."""
PER_EXP = 8.0
"""Products in whose time expf takes one weight; 2 d products go with it."""
MOST = 16.0
"""What is promised at most: several times the lanes never was reached."""


def _axis(case: Case, name: str) -> list[int]:
    """An axis of the shapes of the case's class."""
    shapes = [s for s in case.evidence.profile.shapes if s.shape_class == case.bottleneck.shape_class]
    return [axes_of(s.shape).get(name, 1) for s in shapes]


def _vectors(case: Case) -> float:
    return min(case.room, float(case.lanes), MOST)


def _lanes_gain(case: Case) -> float:
    """As far as there are queries to fill the lanes."""
    full = [min(m / case.lanes, 1.0) for m in _axis(case, "m")]
    each = [max(min(case.room, MOST) * part, 1.0) if part >= 0.5 else 1.0 for part in full]
    return geometric_mean(each)


def _row_gain(case: Case) -> float:
    """Half of what lanes promise: each load of a key or value serves one query."""
    return max(_vectors(case) / 2, 1.0)


def _exp_gain(case: Case) -> float:
    """Amdahl's law: exp is PER_EXP of 2 d + PER_EXP in scalar code, and more once the products are in vectors."""
    share = geometric_mean([PER_EXP / (2 * d / case.lanes + PER_EXP) for d in _axis(case, "d")])
    return min(1 / (1 - share * REACHED), case.room, float(case.lanes))


def _stream_gain(case: Case) -> float:
    """Few queries, and more keys and values than L2 holds, wait for lines."""
    few = max(_axis(case, "m"), default=1) < case.lanes
    shapes = [s for s in case.evidence.profile.shapes if s.shape_class == case.bottleneck.shape_class]
    return min(SMALL, case.room) if few and any(s.level in ("L2", "L3", "memory") for s in shapes) else 1.0


def _small_gain(case: Case) -> float:
    return min(SMALL, case.room)


def _own(gain: Callable[[Case], float]) -> Callable[[Case], float]:
    """Nothing is promised for another operator, so that its proposals say nothing of these moves."""
    return lambda case: gain(case) if case.evidence.operator.name == OPERATOR else 1.0


MOVES: tuple[Move, ...] = (
    Move(
        "query_lanes",
        ANY,
        ("main", "tail", "short", "long"),
        "queries loop",
        _own(_lanes_gain),
        "One query at a time, each product of {where} loads its key or value for itself ({cited}). With {lanes} "
        "queries "
        "in a vector, one load serves them all, and a softmax needs no horizontal step.",
    ),
    Move(
        "vector_scores",
        ANY,
        ("long", "tail", "main", "short"),
        "logits of a query",
        _own(_row_gain),
        "Each add of q . k waits {latency} for the one before it ({cited}). {lanes} keys at once are as many "
        "chains, and "
        "each load brings {lanes} elements.",
    ),
    Move(
        "poly_exp",
        ANY,
        CLASSES,
        "weights",
        _own(_exp_gain),
        "expf is one call a weight, as long as several products ({cited}). A polynomial takes {lanes} weights at once.",
    ),
    Move(
        "value_registers",
        ANY,
        ("long", "tail", "main", "short"),
        "values of a query",
        _own(_row_gain),
        "For every key the output is loaded and stored again ({cited}). Columns that stay in registers over all keys "
        "leave one load a product.",
    ),
    Move(
        "late_division",
        ANY,
        ("main", "long", "tail", "short"),
        "weights",
        _own(_small_gain),
        "Each weight is divided by the same sum ({cited}), and a division takes the time of several products. The "
        "output "
        "needs it once.",
    ),
    Move(
        "prefetch_keys",
        ANY,
        ("long", "tail"),
        "keys and values of a query",
        _own(_stream_gain),
        "Few queries read keys and values that are not in L1 ({cited}), and the hardware's prefetcher starts anew "
        "at each "
        "page. Asking for lines ahead hides that start.",
    ),
    Move(
        "stack_weights",
        ANY,
        ("short",),
        "buffer",
        _own(_small_gain),
        "A small call pays for malloc and free as well ({cited}). A short row of weights fits on the stack.",
    ),
)

DIRECTIONS: tuple[Direction, ...] = (
    Direction(
        "Queries side by side in vectors, few queries row by row",
        "Blocks of queries fill the lanes and share each key and value that is loaded; where there are too few of "
        "them, "
        "the loops over one query get vectors along keys and columns.",
        ("query_lanes", "vector_scores", "poly_exp", "value_registers"),
        ("query_lanes",),
    ),
    Direction(
        "Vectors within one query",
        "Keep one query at a time and put its products, weights and values into vectors; nothing is packed, and short "
        "rows need no buffer.",
        ("vector_scores", "poly_exp", "value_registers", "late_division", "stack_weights"),
        ("vector_scores",),
    ),
    Direction(
        "Plain loops that the compiler may reorder",
        "Leave the products to the compiler, which the contract's freedom lets vectorise them, and take out by "
        "hand what it cannot: divisions.",
        ("contract_flags", "late_division"),
        ("late_division",),
    ),
    Direction(
        "Trim what is left to single queries",
        "Once their loops are in vectors, ask for keys and values ahead, divide once and leave out the buffer.",
        ("prefetch_keys", "late_division", "stack_weights"),
        ("prefetch_keys",),
    ),
)
