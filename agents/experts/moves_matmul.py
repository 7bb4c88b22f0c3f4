"""Moves for products of matrices, and the directions that they make up."""

from __future__ import annotations

from collections.abc import Callable

from kernelcrew.agents.experts.figures import FLOAT_BYTES, axes_of, geometric_mean
from kernelcrew.agents.experts.moves import REACHED, SMALL, Case, Direction, Move, kinds
from kernelcrew.kernels.nouns import CLASSES, ShapeClass
from kernelcrew.tools.nouns import ShapeProfile

OPEN = kinds("latency", "bandwidth", "overhead", "compute", "not_vectorized")
ARITHMETIC = kinds("compute", "latency", "not_vectorized", "overhead")
JAMMED = 1.8
"""Two loads and a store a multiply-add become little more than one load, on a core that does two loads a cycle."""
MOST = 16.0
"""A gain beyond it is not promised: measured starts are seldom further off."""
FEW_ROWS = 2
FEW_COLUMNS = 4
PANEL_LANES = 3
"""Vectors of a strip of B, for what its panel takes of L1."""

Fits = Callable[[dict[str, int]], bool]


def _room(shape: ShapeProfile) -> float:
    return max(REACHED / max(shape.share, 1e-3), 1.0)


def _over(case: Case, fits: Fits, most: float) -> float:
    """Room of the shapes of the case's class that fit, damped by those that do not, up to `most` each."""
    shapes = [s for s in case.evidence.profile.shapes if s.shape_class == case.bottleneck.shape_class]
    return geometric_mean([min(_room(s), most) if fits(axes_of(s.shape)) else 1.0 for s in shapes])


def _skinny(axes: dict[str, int]) -> bool:
    return axes.get("M", 0) <= FEW_ROWS or axes.get("N", 0) <= FEW_COLUMNS


def _tile_gain(case: Case) -> float:
    return _over(case, lambda axes: not _skinny(axes), MOST)


def _jam_gain(case: Case) -> float:
    return _over(case, lambda axes: axes.get("N", 0) > FEW_COLUMNS, JAMMED)


def _rows_gain(case: Case) -> float:
    return _over(case, lambda axes: axes.get("M", 0) <= FEW_ROWS < axes.get("N", 0), MOST)


def _columns_gain(case: Case) -> float:
    return _over(case, lambda axes: axes.get("N", 0) <= FEW_COLUMNS and axes.get("K", 0) >= 4 * case.lanes, MOST)


def _pack_gain(case: Case) -> float:
    """Strips that many rows go through, of a B whose rows are lines apart."""
    wide = PANEL_LANES * case.lanes
    return _over(case, lambda axes: axes.get("M", 0) >= 32 and axes.get("N", 0) > wide, SMALL * SMALL)


def _block_gain(case: Case) -> float:
    """Panels of all terms that would not fit in half of L1."""
    half = case.evidence.machine.caches.get("L1d", 32 << 10) / 2
    strip = PANEL_LANES * case.lanes * FLOAT_BYTES
    return _over(case, lambda axes: axes.get("K", 0) * strip > half and not _skinny(axes), SMALL * SMALL)


def _rows_blocked_gain(case: Case) -> float:
    """Blocks of A, 256 terms wide, that would not fit in half of L2."""
    half = case.evidence.machine.caches.get("L2", 1 << 20) / 2
    return _over(case, lambda axes: axes.get("M", 0) * min(axes.get("K", 0), 256) * FLOAT_BYTES > half, SMALL)


def _trim_gain(case: Case) -> float:
    return _over(case, lambda axes: not _skinny(axes) and axes.get("K", 0) >= 64, SMALL)


def _order_gain(case: Case) -> float:
    return _over(case, lambda axes: axes.get("N", 0) >= case.lanes, float(case.lanes))


def _tile_of(case: Case) -> dict[str, int]:
    """8 x 3 sums, 3 vectors of B and one of A fit in 32 registers (AVX-512, NEON), 6 x 2 and 3 more in 16 (AVX2)."""
    many = case.lanes >= 16 or any("neon" in f or "asimd" in f for f in case.evidence.machine.features)
    return {"MR": 8, "NR": 3} if many else {"MR": 6, "NR": 2}


EVERY: tuple[ShapeClass, ...] = CLASSES
MOVES: tuple[Move, ...] = (
    Move(
        "register_tile", ARITHMETIC | kinds("bandwidth"), EVERY, "product", _tile_gain,
        "{where} touches an element of C for each term ({cited}). A tile of C kept in registers, {lanes} floats a "
        "vector, makes each load serve several multiply-adds, so that these alone bound the loop.",
        _tile_of,
    ),
    Move(
        "pack_b", ARITHMETIC, ("main", "long", "tail"), "panels of B", _pack_gain,
        "A strip of B is read by every group of rows, lines that lie a whole row apart ({cited}). Copied once, it is "
        "one stream that stays in L1.",
    ),
    Move(
        "block_k", ARITHMETIC, ("main", "long"), "loop over terms", _block_gain,
        "A strip of all terms is larger than half of L1, and is read again for each group of rows ({cited}). A block "
        "of terms at a time keeps it there.",
    ),
    Move(
        "skinny_rows", OPEN, ("tail", "short", "long", "main"), "few rows", _rows_gain,
        "One or two rows use each element of B once or twice ({cited}), so that reading B in order is all the work. "
        "Several rows of B at a time load and store C less often.",
    ),
    Move(
        "skinny_columns", OPEN, ("tail", "short", "long", "main"), "few columns", _columns_gain,
        "A row of C of a few columns fills a few of {lanes} lanes ({cited}). Dot products along the terms fill them "
        "all.",
    ),
    Move(
        "jam_terms", ARITHMETIC | kinds("bandwidth"), EVERY, "inner loop", _jam_gain,
        "The loop of {where} loads and stores C for each multiply-add ({cited}). Several terms at a time share that.",
    ),
    Move(
        "order_ikj", ARITHMETIC, EVERY, "loops", _order_gain,
        "The innermost loop of {where} adds one product after another ({cited}). Along a row of B the products do not "
        "wait for each other and fill {lanes} lanes.",
    ),
    Move(
        "pack_a", ARITHMETIC, ("main", "long"), "rows of A", _trim_gain,
        "A tile reads rows of A that lie a whole row apart ({cited}): a power of two apart they share cache sets. "
        "Lines of their own keep them apart.",
    ),
    Move(
        "block_rows", ARITHMETIC, ("main",), "loop over rows", _rows_blocked_gain,
        "A block of A is larger than half of L2 and is read again for each strip of B ({cited}). Fewer rows at a time "
        "keep it there.",
    ),
    Move(
        "prefetch_panels", ARITHMETIC, ("main", "long"), "tiles", _trim_gain,
        "A tile waits for its lines of C and for rows of B that no stream announces ({cited}). Asked for ahead, they "
        "are there in time.",
    ),
    Move(
        "unroll_terms", ARITHMETIC, ("main", "long"), "loop over terms", _trim_gain,
        "The loop over terms counts and branches once a term ({cited}). Unrolled, several terms share that.",
    ),
)

DIRECTIONS: tuple[Direction, ...] = (
    Direction(
        "Register tiles over copied panels, with paths of their own for skinny shapes",
        "Keep a tile of C in registers and feed it from panels that stay in L1; shapes without reuse go round it.",
        ("register_tile", "pack_b", "block_k", "skinny_rows", "skinny_columns"),
        ("register_tile",),
    ),
    Direction(
        "Register tiles over the matrices where they lie",
        "Keep a tile of C in registers and copy nothing: lines are asked for ahead instead.",
        ("register_tile", "prefetch_panels", "unroll_terms", "skinny_rows", "skinny_columns"),
        ("register_tile",),
    ),
    Direction(
        "Several terms at a time in the plain loops",
        "Put the loops in an order that makes vectors, and touch C once in several terms; the compiler does the rest.",
        ("order_ikj", "jam_terms", "skinny_columns"),
        ("jam_terms", "order_ikj"),
    ),
    Direction(
        "Paths of their own for skinny shapes",
        "Products of few rows or columns have nothing to reuse and go round the general loops.",
        ("skinny_rows", "skinny_columns"),
        ("skinny_rows", "skinny_columns"),
    ),
    Direction(
        "Finer blocks and fewer misses around the tiles",
        "The tiles stay; what feeds them is brought nearer.",
        ("pack_a", "block_rows", "prefetch_panels", "unroll_terms"),
        ("pack_a", "block_rows", "prefetch_panels", "unroll_terms"),
    ),
)
