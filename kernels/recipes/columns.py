"""Recipes for `reduction_batch`, sums down the columns of a matrix: several rows a pass, strips, and folded batches."""

from __future__ import annotations

from kernelcrew.kernels.cparse import Function
from kernelcrew.kernels.nouns import Knob, Risk
from kernelcrew.kernels.recipes.find import clash, entry_of, preamble
from kernelcrew.kernels.recipes.recipe import Recipe, Refusal, Rewritten, Site

_MOST_ROWS = 16
_MOST_VECTORS = 16

_ADDED = """\
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            sum += *(const col_v *)(x + r * n + i);
"""

_PASSES = (
    """\
typedef float col_v __attribute__((vector_size(VEC * 4), aligned(4), may_alias));

/* rows_per_pass: rows of x, a constant number of them, are added to y at once, or put there, so that y is loaded and
 * stored once for all of them. */
static inline __attribute__((always_inline)) void add_rows(const float *x, float *y, size_t n, int width, int add,
    const int rows)
{
    int i = 0;
    for (; width - i >= VEC; i += VEC) {
        col_v sum = add ? *(const col_v *)(y + i) : (col_v){0};
"""
    + _ADDED
    + """\
        *(col_v *)(y + i) = sum;
    }
    for (; i < width; i++) {
        float sum = add ? y[i] : 0.0f;
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            sum += x[r * n + i];
        y[i] = sum;
    }
}

static void passes(const float *restrict x, float *restrict y, int batch, int n)
{
    for (int i = 0, width; i < n; i += width) { /* columns of y that stay in L1 */
        width = n - i < 4096 ? n - i : 4096;
        const float *p = x + i;
        int left = batch;
        for (; left >= ROWS; left -= ROWS, p += (size_t)ROWS * n)
            add_rows(p, y + i, n, width, left < batch, ROWS);
        switch (left) {
"""
    + "".join(
        f"#if ROWS > {rows}\n        case {rows}:\n            add_rows(p, y + i, n, width, left < batch, {rows});\n"
        "            break;\n#endif\n"
        for rows in range(1, _MOST_ROWS)
    )
    + """\
        default:
            break;
        }
    }
}
"""
)

_PASSES_CALL = """
    /* rows_per_pass: whatever has rows goes by passes. */
    if ({batch} > 0) {{
        passes({x}, {y}, {batch}, {n});
        return;
    }}"""

_AHEAD = """\
        /* prefetch_rows: the same columns of the rows of a later pass, PASSES further on, are asked for now. */
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
            __builtin_prefetch((const void *)((uintptr_t)x + ((r + PASSES * ROWS) * n + i) * sizeof(float)));
"""

_STRIPS = (
    """\
#if defined(__AVX512F__)
#define LANE 16
#elif defined(__AVX__)
#define LANE 8
#else
#define LANE 4
#endif
typedef float lane_v __attribute__((vector_size(LANE * 4), aligned(4), may_alias));

/* column_strips: a strip of columns, vecs vectors wide, is summed up in registers over all rows and written once. Two
 * rows at a time have sums of their own, so that half as many additions wait for each other. */
static inline __attribute__((always_inline)) void strip(const float *x, float *y, int batch, size_t n, const int vecs)
{
    lane_v even[STRIP], odd[STRIP];
#pragma GCC unroll 16
    for (int v = 0; v < vecs; v++)
        even[v] = odd[v] = (lane_v){0};
    int b = 0;
    for (; b + 2 <= batch; b += 2, x += 2 * n)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++) {
            even[v] += *(const lane_v *)(x + v * LANE);
            odd[v] += *(const lane_v *)(x + n + v * LANE);
        }
    for (; b < batch; b++, x += n)
#pragma GCC unroll 16
        for (int v = 0; v < vecs; v++)
            even[v] += *(const lane_v *)(x + v * LANE);
#pragma GCC unroll 16
    for (int v = 0; v < vecs; v++)
        *(lane_v *)(y + v * LANE) = even[v] + odd[v];
}

/* Every column; n is at least LANE. The last vector of the last strip may go over columns that are done already. */
static void strips(const float *restrict x, float *restrict y, int batch, int n)
{
    int i = 0;
    for (; n - i >= STRIP * LANE; i += STRIP * LANE)
        strip(x + i, y + i, batch, n, STRIP);
    switch ((n - i) / LANE) {
"""
    + "".join(
        f"#if STRIP > {vecs}\n    case {vecs}:\n        strip(x + i, y + i, batch, n, {vecs});\n"
        "        break;\n#endif\n"
        for vecs in range(1, _MOST_VECTORS)
    )
    + """\
    default:
        break;
    }
    if (n % LANE)
        strip(x + n - LANE, y + n - LANE, batch, n, 1);
}
"""
)

_STRIPS_CALL = """
    /* column_strips: rows that a few strips cover are read from end to end. */
    if ({n} >= LANE && {n} <= STRIPS_TO) {{
        strips({x}, {y}, {batch}, {n});
        return;
    }}"""

_FOLD_CALL = """
    /* fold_batch: FOLD short rows side by side are one row, whose columns are summed up as any others; what they give
     * is folded in halves. Rows that are left over are added before that, side by side too. */
    if ({n} > 0 && {n} <= FOLD_TO && {batch} / FOLD >= 4) {{
        float *folded = malloc((size_t){n} * FOLD * sizeof(float));
        if (folded) {{
            const int long_rows = {batch} / FOLD, over = ({batch} - long_rows * FOLD) * {n};
            {entry}({x}, folded, long_rows, {n} * FOLD);
            for (int i = 0; i < over; i++)
                folded[i] += {x}[(size_t)long_rows * FOLD * {n} + i];
            for (int h = FOLD / 2; h > 0; h /= 2)
                for (int i = 0; i < h * {n}; i++)
                    folded[i] += folded[h * {n} + i];
            for (int i = 0; i < {n}; i++)
                {y}[i] = folded[i];
            free(folded);
            return;
        }}
    }}"""


def _entry(site: Site) -> Function | str:
    entry = entry_of(site.source, site.entry, 4)
    if isinstance(entry, str):
        return entry
    if [p.pointer for p in entry.parameters] != [True, True, False, False]:
        return f"'{site.entry}' does not take (x, y, batch, n)"
    return entry


def _call(site: Site, entry: Function, call: str) -> str:
    """A call, filled with the entry's own names."""
    x, y, batch, n = (p.name for p in entry.parameters)
    return call.format(x=x, y=y, batch=batch, n=n, entry=site.entry)


def _with_path(
    site: Site, call: str, code: str, names: tuple[str, ...], headers: tuple[str, ...]
) -> Rewritten | Refusal:
    """A path at the entry's start: folding goes first, strips second, passes last, whatever was applied first."""
    entry = _entry(site)
    if isinstance(entry, str):
        return Refusal(because=entry)
    if taken := clash(site.source, names):
        return Refusal(because=f"the source uses the name '{taken}' already")
    text = site.source.text
    at = entry.body.start + 1
    for earlier in (_FOLD_CALL, _STRIPS_CALL):
        if earlier == call:
            break
        mark = _call(site, entry, earlier)
        there = text.find(mark, at)
        at = there + len(mark) if there >= 0 else at
    text = text[:at] + _call(site, entry, call) + text[at:]
    return Rewritten(text=preamble(text, headers, site.knobs, code))


def _rows_per_pass(site: Site) -> Rewritten | Refusal:
    return _with_path(site, _PASSES_CALL, _PASSES, ("VEC", "ROWS", "col_v", "add_rows", "passes"), ("stddef.h",))


def _column_strips(site: Site) -> Rewritten | Refusal:
    names = ("STRIP", "STRIPS_TO", "LANE", "lane_v", "strip", "strips")
    return _with_path(site, _STRIPS_CALL, _STRIPS, names, ("stddef.h",))


def _fold_batch(site: Site) -> Rewritten | Refusal:
    names = ("FOLD", "FOLD_TO", "folded", "long_rows", "over")
    return _with_path(site, _FOLD_CALL, "", names, ("stddef.h", "stdlib.h"))


def _prefetch_rows(site: Site) -> Rewritten | Refusal:
    text = site.source.text
    if text.count(_ADDED) != 1:
        return Refusal(because="the loop over the rows of a pass is not there: apply rows_per_pass first")
    if taken := clash(site.source, site.knobs):
        return Refusal(because=f"the source uses the name '{taken}' already")
    return Rewritten(text=preamble(text.replace(_ADDED, _AHEAD + _ADDED), ("stdint.h",), site.knobs))


HERE = ("reduction_batch",)
_NEEDS = "the entry (x, y, batch, n)"

RECIPES = (
    Recipe(
        name="rows_per_pass", label="template", operators=HERE, reorders=True, rewrite=_rows_per_pass,
        mechanism="Adds ROWS rows of x to y in one pass over at most 4096 columns: y is loaded and stored once in ROWS "
        "rows and stays in L1, and ROWS streams of x are in flight. The first pass puts what it adds, so that y is "
        "never read before it is written.",
        needs=_NEEDS,
        knobs=(Knob(name="VEC", window=(8, 16), value=8), Knob(name="ROWS", window=(4, 8, 16), value=8)),
        allowed={"VEC": (4, 8, 16, 32), "ROWS": (1, 2, 3, 4, 6, 8, 12, 16)},
        risks=(
            Risk(shape_class="tail", level="low", why="columns beyond whole vectors go one at a time, in every pass"),
            Risk(shape_class="short", level="low", why="more streams than the hardware follows, for few rows"),
        ),
    ),
    Recipe(
        name="column_strips", label="template", operators=HERE, reorders=True, rewrite=_column_strips,
        mechanism="Keeps the sums of a strip of STRIP vectors of columns in registers over the whole batch, for rows "
        "of at most STRIPS_TO columns: y is not touched until the end. A row that one strip covers is read from end "
        "to end.",
        needs=_NEEDS,
        knobs=(
            Knob(name="STRIP", window=(4, 8, 12), value=8),
            Knob(name="STRIPS_TO", window=(64, 128, 512), value=128),
        ),
        allowed={"STRIP": (1, 2, 4, 6, 8, 12, 14), "STRIPS_TO": (32, 64, 128, 256, 512, 1024, 2048, 4096)},
        risks=(
            Risk(shape_class="main", level="medium", why="strips of a long row are read a row apart, line by line"),
            Risk(shape_class="tail", level="low", why="the last vector goes over columns that are done already"),
        ),
    ),
    Recipe(
        name="fold_batch", label="template", operators=HERE, reorders=True, rewrite=_fold_batch,
        mechanism="Takes FOLD rows of at most FOLD_TO columns as one long row, sums up its columns and folds the "
        "result: short rows fill whole vectors, and a single column becomes FOLD independent chains of additions.",
        needs=_NEEDS,
        knobs=(Knob(name="FOLD", window=(32, 64, 128), value=64), Knob(name="FOLD_TO", window=(16, 32, 64), value=32)),
        allowed={"FOLD": (16, 32, 64, 128, 256), "FOLD_TO": (1, 2, 4, 8, 16, 32, 64, 128)},
        risks=(
            Risk(shape_class="long", level="low", why="one allocation and log2(FOLD) short passes a call"),
            Risk(shape_class="main", level="none", why="one comparison a call"),
        ),
    ),
    Recipe(
        name="prefetch_rows", label="rewrite", operators=HERE, rewrite=_prefetch_rows, requires=("rows_per_pass",),
        mechanism="Asks for the columns of the rows PASSES passes further on, where the hardware's prefetcher stops at "
        "the end of a page and starts anew in each row.",
        needs="the passes of rows_per_pass as it wrote them",
        knobs=(Knob(name="PASSES", window=(1, 2), value=1),),
        allowed={"PASSES": (1, 2, 3, 4)},
        risks=(
            Risk(shape_class="main", level="medium", why="one more instruction a line, where lines are near already"),
            Risk(shape_class="tail", level="low", why="the same"),
        ),
    ),
)
