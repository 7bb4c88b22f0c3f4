"""Moves for sums over rows, and the directions that they make up."""

from __future__ import annotations

from kernelcrew.agents.experts.figures import SHORT_ROW, geometric_mean, row_length
from kernelcrew.agents.experts.moves import REACHED, SMALL, Case, Direction, Move, kinds
from kernelcrew.kernels.nouns import CLASSES

ACCUMULATORS = 4
"""Vector accumulators that hide one add's latency where two adds start a cycle half as long as the latency."""

SERIAL = kinds("latency", "not_vectorized")
ROWS = kinds("overhead", "not_vectorized", "latency")
MEMORY = kinds("bandwidth", "latency", "not_vectorized")


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

DIRECTIONS: tuple[Direction, ...] = (
    Direction(
        "Vector accumulators, with paths of their own for short rows and one column",
        "Break the serial chain into vectors of independent sums; shapes that gain nothing by it get their own path.",
        ("vector_accumulators", "small_tail", "rows_together", "copy_single_column", "split_long_rows", "prefetch"),
        ("vector_accumulators",),
    ),
    Direction(
        "Let the compiler use the freedom of the contract",
        "Keep the plain loop and tell the compiler that sums may be reordered; rows too short for its vector code go "
        "round it.",
        ("contract_flags", "rows_together", "copy_single_column"),
        ("contract_flags",),
    ),
    Direction(
        "Several scalar chains in the plain loop",
        "Split the sum by hand in portable C and leave the choice of instructions to the compiler; rows too short "
        "for them go round.",
        ("restrict_pointers", "scalar_accumulators", "rows_together", "copy_single_column"),
        ("scalar_accumulators",),
    ),
    Direction(
        "Unroll the serial loop",
        "Leave the order of additions as it is and trim the loop around them.",
        ("unroll_pragma", "unroll_flag"),
        ("unroll_pragma",),
    ),
)
