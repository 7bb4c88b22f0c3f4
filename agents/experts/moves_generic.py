"""Moves for operators that no recipe was written for, and the directions that they make up.

Where recipes name the operator, theirs are the better ones: nothing is promised here then, so that nothing is proposed.
"""

from __future__ import annotations

from collections.abc import Callable

from kernelcrew.agents.experts.moves import REACHED, SMALL, Case, Direction, Move, kinds
from kernelcrew.kernels.nouns import CLASSES
from kernelcrew.kernels.recipes import RECIPES

ANY = kinds("latency", "not_vectorized", "compute", "overhead", "bandwidth")
SCALAR = kinds("latency", "not_vectorized", "compute", "overhead")
CLAIMED = frozenset(name for recipe in RECIPES.values() for name in recipe.operators)
"""Operators that some recipe is written for."""
DIVISION = 4.0
"""Products in whose time one division is done."""


def _unclaimed(gain: Callable[[Case], float]) -> Callable[[Case], float]:
    return lambda case: 1.0 if case.evidence.operator.name in CLAIMED else gain(case)


def _lanes_gain(case: Case) -> float:
    return min(case.room, float(case.lanes)) if case.chain.lanes == 1 else min(case.room, SMALL)


def _order_gain(case: Case) -> float:
    """A line is fetched for one element of it where a loop strides; lanes are what the whole line would have given."""
    return min(case.room, float(case.lanes))


def _store_gain(case: Case) -> float:
    """A store and a load less for each addition, of the two loads that feed it."""
    return min(case.room, 1 + REACHED)


def _division_gain(case: Case) -> float:
    return min(case.room, DIVISION / 2)


def _small_gain(case: Case) -> float:
    return min(SMALL, case.room)


def _threads_gain(case: Case) -> float:
    """Only where the flags of the plan are OpenMP's: the recipe itself refuses a plan of one thread."""
    return min(case.room, 2 * REACHED)


def _move(mechanism: str, target: str, gain: Callable[[Case], float], reason: str) -> Move:
    bound = SCALAR if mechanism in ("split_sums", "unroll_inner") else ANY
    return Move(mechanism, bound, CLASSES, target, _unclaimed(gain), reason)


MOVES: tuple[Move, ...] = (
    _move(
        "split_sums", "inner sums", _lanes_gain,
        "Each add of {where} waits {latency} for the one before it ({cited}). Partial sums do not wait for each other, "
        "and the compiler may put {lanes} of them into a vector.",
    ),
    _move(
        "interchange_loops", "loop order", _order_gain,
        "The inner loop of {where} strides through memory and uses one element of each line ({cited}). With the "
        "other loop "
        "inside, neighbouring elements follow each other.",
    ),
    _move(
        "keep_in_register", "stored sums", _store_gain,
        "Every addition of {where} stores its sum and loads it again ({cited}). In a register it waits for the add "
        "alone.",
    ),
    _move(
        "reciprocal_division", "divisions", _division_gain,
        "{where} divide every element by the same value ({cited}). One reciprocal and products take a fraction of "
        "that.",
    ),
    _move(
        "independent_rounds", "inner loops", _small_gain,
        "The compiler cannot tell that stores of {where} leave the inputs alone, and tests for it or stays scalar "
        "({cited}).",
    ),
    _move(
        "align_hints", "entry", _small_gain,
        "Vector loops of {where} begin with single elements up to an aligned address ({cited}); the contract "
        "promises one.",
    ),
    _move(
        "no_errno", "flags", _small_gain,
        "Square roots may set errno, which keeps a call beside the instruction in {where} ({cited}).",
    ),
    _move(
        "wide_vectors", "flags", _small_gain,
        "The compiler uses narrower vectors than the machine's {lanes} lanes by default in {where} ({cited}).",
    ),
    _move(
        "unroll_inner", "inner loops", _small_gain,
        "The loops of {where} pay a compare and a branch for each element ({cited}). Unrolled, several share them.",
    ),
    _move(
        "threads_outside", "outermost loop", _threads_gain,
        "One core works on {where} while the plan names several threads ({cited}).",
    ),
)

DIRECTIONS: tuple[Direction, ...] = (
    Direction(
        "Partial sums and registers in the loops as they are",
        "Break the chains of additions by hand, keep sums out of memory and divisions out of loops; the compiler "
        "chooses "
        "the instructions.",
        ("interchange_loops", "split_sums", "keep_in_register", "reciprocal_division", "threads_outside"),
        ("split_sums", "interchange_loops", "keep_in_register", "reciprocal_division", "threads_outside"),
    ),
    Direction(
        "Tell the compiler what the contract frees",
        "Leave the loops alone and say what may be assumed: the order of sums, tensors that do not overlap, rounds "
        "that "
        "are independent.",
        ("contract_flags", "restrict_pointers", "independent_rounds", "align_hints", "no_errno", "wide_vectors"),
        ("independent_rounds", "align_hints", "wide_vectors", "no_errno"),
    ),
    Direction(
        "Unroll the inner loops",
        "Leave the order of operations as it is and trim the loops around them.",
        ("unroll_inner", "unroll_flag"),
        ("unroll_inner",),
    ),
)
