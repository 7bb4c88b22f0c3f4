"""Recipes for `gemm`: tiles in registers, copies of panels, blocks, paths for skinny shapes, and the order of loops.

The text of the prepared kernels stands in `matmul_tile.py` and `matmul_skinny.py`; each recipe beyond `register_tile`
takes the place of one line of it, so that every subset is one source. Blocking over columns is in the tiles already:
one strip of B, at most NR vectors wide, is worked through before the next.
"""

from __future__ import annotations

from kernelcrew.kernels.cparse import Function
from kernelcrew.kernels.nouns import Knob, Risk
from kernelcrew.kernels.recipes.find import clash, entry_of, preamble
from kernelcrew.kernels.recipes.matmul_loops import jam_terms, order_ijk, order_ikj
from kernelcrew.kernels.recipes.matmul_skinny import (
    SKINNY_COLUMNS,
    SKINNY_COLUMNS_CALL,
    SKINNY_ROWS,
    SKINNY_ROWS_CALL,
    SKINNY_WIDE,
)
from kernelcrew.kernels.recipes.matmul_tile import (
    ADVANCE,
    BLOCKS_OF_K,
    BLOCKS_OF_ROWS,
    COPY_A,
    COPY_B,
    COPY_WHEN,
    END,
    FREE_A,
    FREE_B,
    PANEL,
    PANEL_B,
    PREFETCH_B,
    PREFETCH_C,
    READ_A,
    SUMS,
    TILES,
    UNROLL,
    WHOLE,
)
from kernelcrew.kernels.recipes.recipe import Recipe, Refusal, Rewritten, Site

_TILES_CALL = """
    /* register_tile: whatever has elements goes by tiles. */
    if ({M} > 0 && {N} > 0) {{
        product({A}, {B}, {C}, {M}, {N}, {K});
        return;
    }}"""
_TILE_NAMES = ("VEC", "MR", "NR", "tile_v", "tile", "down", "strip", "copy_panel", "block", "product")
_ENTRY = "the entry (A, B, C, M, N, K)"
_TILED = "the tiles of register_tile as it wrote them"


def _entry(site: Site) -> Function | str:
    entry = entry_of(site.source, site.entry, 6)
    if isinstance(entry, str):
        return entry
    if [p.pointer for p in entry.parameters] != [True, True, True, False, False, False]:
        return f"'{site.entry}' does not take (A, B, C, M, N, K)"
    return entry


def _called(site: Site, entry: Function, call: str) -> str:
    """The text with a call at the entry's start, behind the paths for skinny shapes, which go first."""
    text = site.source.text
    at = entry.body.start + 1
    if call == _TILES_CALL:
        for path in (SKINNY_ROWS_CALL, SKINNY_COLUMNS_CALL):
            mark = _named(path, entry)
            there = text.find(mark, at)
            at = max(at, there + len(mark)) if there >= 0 else at
    return text[:at] + _named(call, entry) + text[at:]


def _named(call: str, entry: Function) -> str:
    return call.format(**dict(zip("ABCMNK", (p.name for p in entry.parameters), strict=True)))


def _register_tile(site: Site) -> Rewritten | Refusal:
    entry = _entry(site)
    if isinstance(entry, str):
        return Refusal(because=entry)
    if taken := clash(site.source, _TILE_NAMES):
        return Refusal(because=f"the source uses the name '{taken}' already")
    text = _called(site, entry, _TILES_CALL)
    return Rewritten(text=preamble(text, ("stddef.h",), site.knobs, TILES))


def _skinny(site: Site, call: str, code: str, names: tuple[str, ...]) -> Rewritten | Refusal:
    entry = _entry(site)
    if isinstance(entry, str):
        return Refusal(because=entry)
    if taken := clash(site.source, names):
        return Refusal(because=f"the source uses the name '{taken}' already")
    code = code if SKINNY_WIDE in site.source.text else f"{SKINNY_WIDE}\n{code}"
    return Rewritten(text=preamble(_called(site, entry, call), ("stddef.h", "stdlib.h"), site.knobs, code))


def _skinny_rows(site: Site) -> Rewritten | Refusal:
    names = ("ROWS_MAX", "ROW_TERMS", "rows_at_once", "few_rows")
    return _skinny(site, SKINNY_ROWS_CALL, SKINNY_ROWS, names)


def _skinny_columns(site: Site) -> Rewritten | Refusal:
    names = ("COLUMNS_MAX", "DOT_ROWS", "DOT_COLUMNS", "dots", "few_columns")
    return _skinny(site, SKINNY_COLUMNS_CALL, SKINNY_COLUMNS, names)


def _replaced(site: Site, swaps: dict[str, str], includes: tuple[str, ...] = ()) -> Rewritten | Refusal:
    """Lines of the tiles replaced; each must be there once."""
    text = site.source.text
    if WHOLE.strip() not in text and "block(A + k, K" not in text:
        return Refusal(because="no tiles are there: apply register_tile first")
    if taken := clash(site.source, site.knobs):
        return Refusal(because=f"the source uses the name '{taken}' already")
    for old, new in swaps.items():
        if text.count(old) != 1:
            return Refusal(because=f"the tiles' line '{old.strip().splitlines()[0]}' is not there once")
        text = text.replace(old, new)
    return Rewritten(text=preamble(text, includes, site.knobs))


def _pack_b(site: Site) -> Rewritten | Refusal:
    swaps = {PANEL: PANEL + PANEL_B, COPY_WHEN: COPY_B, END: END + FREE_B}
    return _replaced(site, swaps, ("stdlib.h",))


def _pack_a(site: Site) -> Rewritten | Refusal:
    return _replaced(site, {READ_A: COPY_A, END: END + FREE_A}, ("stdlib.h", "string.h"))


def _block_k(site: Site) -> Rewritten | Refusal:
    return _replaced(site, {WHOLE: BLOCKS_OF_K})


def _block_rows(site: Site) -> Rewritten | Refusal:
    return _replaced(site, {PANEL: BLOCKS_OF_ROWS + PANEL})


def _prefetch(site: Site) -> Rewritten | Refusal:
    at = "    tile_v sum[MR][NR];\n"
    return _replaced(
        site, {at: PREFETCH_C + at, ADVANCE: PREFETCH_B + ADVANCE}, ("stdint.h",)
    )


def _unroll(site: Site) -> Rewritten | Refusal:
    """The compiler takes a literal alone in this pragma, so that the knob lives in the recipe and not in the source."""
    if "unroll_terms:" in site.source.text:
        return Refusal(because="the loop over terms is unrolled already")
    pragma = UNROLL.format(terms=site.knobs["K_UNROLL"])
    return _replaced(site.model_copy(update={"knobs": {}}), {SUMS: pragma + SUMS})


GEMM = ("gemm",)

TILED = (
    Recipe(
        name="register_tile", label="template", operators=GEMM, rewrite=_register_tile,
        mechanism="Sums up a tile of C, MR rows by NR vectors of VEC floats, in registers: each vector of B that is "
        "loaded serves MR rows, each element of A NR vectors, and C is touched once a tile instead of once a term. "
        "Tiles need MR * NR + NR + 1 registers: 6 x 2 fits the 16 of AVX2, 8 x 3 the 32 of AVX-512.",
        needs=_ENTRY,
        knobs=(
            Knob(name="VEC", window=(8, 16), value=8),
            Knob(name="MR", window=(4, 6, 8, 12), value=6),
            Knob(name="NR", window=(2, 3, 4), value=2),
        ),
        allowed={"VEC": (4, 8, 16), "MR": tuple(range(1, 17)), "NR": (1, 2, 3, 4)},
        constraints=("MR * NR + NR < 32", "MR * NR >= 8"),
        risks=(
            Risk(shape_class="short", level="medium", why="a small product fills few tiles, and those in part"),
            Risk(shape_class="tail", level="medium", why="one column fills one lane of a vector; one row has no reuse"),
            Risk(shape_class="long", level="low", why="without block_k a strip of many terms does not fit in L1"),
        ),
    ),
    Recipe(
        name="pack_b", label="rewrite", operators=GEMM, rewrite=_pack_b, requires=("register_tile",),
        mechanism="Copies a strip of B into one contiguous panel before PACK_MIN rows or more go through it: the tiles "
        "read one stream instead of lines a row of B apart, which share cache sets and TLB entries.",
        needs=_TILED,
        knobs=(Knob(name="PACK_MIN", window=(48, 96, 192), value=96),),
        allowed={"PACK_MIN": (1, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)},
        risks=(
            Risk(shape_class="short", level="medium", why="a copy is not earned back over few rows"),
            Risk(shape_class="tail", level="low", why="the same"),
        ),
    ),
    Recipe(
        name="block_k", label="rewrite", operators=GEMM, reorders=True, rewrite=_block_k,
        requires=("register_tile",),
        mechanism="Works through at most KC terms at a time, so that the panel of B (KC x NR x VEC floats) stays in L1 "
        "and a block of A in L2; C is read and written once a block.",
        needs=_TILED,
        knobs=(Knob(name="KC", window=(128, 256, 512), value=256),),
        allowed={"KC": (32, 64, 96, 128, 192, 256, 320, 384, 512, 768, 1024, 2048)},
        risks=(
            Risk(shape_class="long", level="low", why="C is read and written once more for every KC terms"),
            Risk(shape_class="short", level="none", why="fewer than KC terms are one block"),
        ),
    ),
    Recipe(
        name="block_rows", label="rewrite", operators=GEMM, rewrite=_block_rows, requires=("register_tile",),
        mechanism="Works through at most MC rows at a time, so that their part of A stays in L2 while all strips of B "
        "pass; strips are copied again for each block of rows.",
        needs=_TILED,
        knobs=(Knob(name="MC", window=(192, 384, 768), value=384),),
        allowed={"MC": (48, 96, 144, 192, 288, 384, 576, 768, 1152, 1536)},
        risks=(Risk(shape_class="main", level="low", why="a second copy of B where A would have fitted in L2 anyway"),),
    ),
    Recipe(
        name="pack_a", label="rewrite", operators=GEMM, rewrite=_pack_a, requires=("register_tile",),
        mechanism="Copies the rows of a block of A into lines of their own, a distance apart that is no power of two, "
        "where at least STRIPS_MIN strips of B go through it: rows 2 or 4 KiB apart compete for the same cache sets.",
        needs=_TILED,
        knobs=(Knob(name="STRIPS_MIN", window=(2, 4, 8), value=4),),
        allowed={"STRIPS_MIN": (1, 2, 3, 4, 6, 8, 16)},
        risks=(
            Risk(shape_class="main", level="low", why="a copy of A, where its rows do not compete"),
            Risk(shape_class="short", level="low", why="a copy is not earned back over few columns"),
        ),
    ),
    Recipe(
        name="prefetch_panels", label="rewrite", operators=GEMM, rewrite=_prefetch, requires=("register_tile",),
        mechanism="Asks for a tile's lines of C before its sums begin, and for the row of B that is AHEAD rows further "
        "on: neither is a stream that the hardware's prefetcher follows.",
        needs=_TILED,
        knobs=(Knob(name="AHEAD", window=(4, 8, 16), value=8),),
        allowed={"AHEAD": (1, 2, 4, 8, 16, 32, 64)},
        risks=(
            Risk(shape_class="main", level="medium", why="more instructions in the innermost loop, where B is in L1"),
            Risk(shape_class="short", level="low", why="a tile of few terms pays for lines that are in L1 already"),
        ),
    ),
    Recipe(
        name="unroll_terms", label="rewrite", operators=GEMM, rewrite=_unroll, requires=("register_tile",),
        mechanism="Unrolls the tiles' loop over terms: fewer counts and branches a term.",
        needs=_TILED,
        knobs=(Knob(name="K_UNROLL", window=(2, 4), value=2),),
        allowed={"K_UNROLL": (2, 4, 8)},
        risks=(Risk(shape_class="short", level="low", why="a remainder of the loop over terms in every tile"),),
    ),
)

OTHERS = (
    Recipe(
        name="skinny_rows", label="template", operators=GEMM, rewrite=_skinny_rows,
        mechanism="Products of at most ROWS_MAX rows read B once, in order, and add ROW_TERMS of its rows at a time to "
        "the rows of C, which stay in L1: with nothing to reuse, the stream of B is all that counts.",
        needs=_ENTRY,
        knobs=(
            Knob(name="ROWS_MAX", window=(1, 2, 4), value=2),
            Knob(name="ROW_TERMS", window=(4, 8), value=8),
        ),
        allowed={"ROWS_MAX": (1, 2, 3, 4, 6, 8), "ROW_TERMS": (2, 4, 8, 16)},
        risks=(Risk(shape_class="main", level="none", why="one comparison a call"),),
    ),
    Recipe(
        name="skinny_columns", label="template", operators=GEMM, reorders=True, rewrite=_skinny_columns,
        mechanism="Products of at most COLUMNS_MAX columns are dot products over whole vectors of terms, DOT_ROWS x "
        "DOT_COLUMNS of them at a time: all lanes work where a row of B would fill a few, and several chains of "
        "additions hide each other's latency.",
        needs=_ENTRY,
        knobs=(
            Knob(name="COLUMNS_MAX", window=(2, 4, 8), value=4),
            Knob(name="DOT_ROWS", window=(4, 8), value=4),
            Knob(name="DOT_COLUMNS", window=(1, 2, 4), value=2),
        ),
        allowed={"COLUMNS_MAX": (1, 2, 4, 6, 8, 12, 16), "DOT_ROWS": (1, 2, 4, 6, 8), "DOT_COLUMNS": (1, 2, 3, 4)},
        constraints=("DOT_ROWS * DOT_COLUMNS + DOT_COLUMNS < 32",),
        risks=(
            Risk(shape_class="main", level="none", why="one comparison a call"),
            Risk(shape_class="long", level="low", why="each sum ends in a tree over the lanes, a few terms' worth"),
        ),
    ),
    Recipe(
        name="jam_terms", label="rewrite", operators=GEMM, rewrite=jam_terms,
        mechanism="Adds JAM terms at a time to a row of C in the plain loops, so that C is loaded and stored once in "
        "JAM terms: the loop of one term does two loads and a store for each multiply-add.",
        needs="a loop over terms that adds `a * b[j]` to a row of C",
        knobs=(Knob(name="JAM", window=(4, 8, 16), value=8),),
        allowed={"JAM": (2, 4, 8, 16)},
        risks=(Risk(shape_class="short", level="low", why="the terms that are left go one at a time"),),
    ),
    Recipe(
        name="order_ikj", label="rewrite", operators=GEMM, rewrite=order_ikj,
        mechanism="Moves the loop over columns innermost: neighbouring elements of C do not wait for each other and "
        "rows of B are read in order, so that the compiler can make vectors of it.",
        needs="a loop over columns that sums up one element of C in a loop over terms",
        risks=(Risk(shape_class="tail", level="medium", why="one column leaves an innermost loop of one element"),),
    ),
    Recipe(
        name="order_ijk", label="rewrite", operators=GEMM, rewrite=order_ijk,
        mechanism="Moves the loop over terms innermost: each element of C is written once, which pays where C is "
        "larger than what is summed up into it.",
        needs="a loop over terms that adds `a * b[j]` to a row of C that starts from zeros",
        risks=(Risk(shape_class="main", level="high", why="B is read across its rows, in one chain of additions"),),
    ),
)

RECIPES = (*TILED, *OTHERS)
