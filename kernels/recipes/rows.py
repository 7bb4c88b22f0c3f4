"""Recipes that add a path of their own before the general loop of `reduction`: for short rows and for one column."""

from __future__ import annotations

from kernelcrew.kernels.cparse import Function
from kernelcrew.kernels.nouns import Knob, Risk
from kernelcrew.kernels.recipes.find import clash, entry_of, preamble
from kernelcrew.kernels.recipes.recipe import Recipe, Refusal, Rewritten, Site

_ROWS = """\
typedef float row_f __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int row_i __attribute__((vector_size(LANES * 4)));

/* Lanes i with bit h clear become a[i] + a[i + h], those with bit h set b[i - h] + b[i]. */
static inline void fold(row_f *a, const row_f *b, int h)
{
    row_i lane = {0};
    for (int k = 0; k < LANES; k++)
        lane[k] = k;
    const row_i from_b = ((lane & h) != 0) & LANES;
    *a = __builtin_shuffle(*a, *b, lane + from_b) + __builtin_shuffle(*a, *b, (lane ^ h) + from_b);
}

/* rows_together: LANES short rows at once. Each row is added up lane by lane into one vector, the elements beyond whole
 * vectors masked; then a tree of shuffles turns LANES vectors into one vector of row sums, so that no row pays for a
 * horizontal sum of its own. Returns how many rows were done: the last ones, whose loads might leave x, are left. */
static int rows_together(const float *x, float *y, int rows, int n)
{
    row_i lane = {0};
    for (int k = 0; k < LANES; k++)
        lane[k] = k;
    const int whole = n / LANES * LANES, rest = n - whole;
    const int last = n < LANES ? 0 : n - LANES;
    const row_i keep = n < LANES ? lane < n : lane >= LANES - rest;
    const int stop = rows - (LANES - 1) - (LANES + n - 1) / n;
    int r = 0;
    for (; r <= stop; r += LANES) {
        row_f v[LANES];
#pragma GCC unroll 16
        for (int k = 0; k < LANES; k++) {
            const float *p = x + (size_t)(r + k) * n;
            v[k] = rest ? (row_f)((row_i)*(const row_f *)(p + last) & keep) : (row_f){0};
            for (int i = 0; i < whole; i += LANES)
                v[k] += *(const row_f *)(p + i);
        }
#if LANES >= 16
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++)
            fold(&v[k], &v[k + 8], 8);
#endif
#if LANES >= 8
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++)
            fold(&v[k], &v[k + 4], 4);
#endif
        fold(&v[0], &v[2], 2);
        fold(&v[1], &v[3], 2);
        fold(&v[0], &v[1], 1);
        *(row_f *)(y + r) = v[0];
    }
    return r;
}
"""

_CALL = """
    if ({n} > 1 && {n} <= SHORT_MAX) {{
        const int done = rows_together({x}, {y}, {rows}, {n});
        {x} += (size_t)done * {n};
        {y} += done;
        {rows} -= done;
    }}"""

_COPY = """
    /* copy_single_column: a row of one element is its own sum, so that one column is a copy. */
    if ({n} == 1) {{
        for (int k = 0; k < {rows}; k++)
            {y}[k] = {x}[k];
        return;
    }}"""


def _entry(site: Site) -> Function | str:
    entry = entry_of(site.source, site.entry, 4)
    if isinstance(entry, str):
        return entry
    pointers = [p.pointer for p in entry.parameters]
    if len(pointers) != 4 or pointers != [True, True, False, False]:
        return f"'{site.entry}' does not take (x, y, rows, n)"
    frozen = next((p.name for p in entry.parameters if "const" in p.text.rpartition("*")[2].split()), "")
    return f"the parameter '{frozen}' is const and cannot be moved past the rows that are done" if frozen else entry


def _named(template: str, entry: Function) -> str:
    x, y, rows, n = (p.name for p in entry.parameters)
    return template.format(x=x, y=y, rows=rows, n=n)


def _rows_together(site: Site) -> Rewritten | Refusal:
    entry = _entry(site)
    if isinstance(entry, str):
        return Refusal(because=entry)
    if taken := clash(site.source, ("LANES", "SHORT_MAX", "fold", "row_f", "row_i", "rows_together", "done")):
        return Refusal(because=f"the source uses the name '{taken}' already")
    at = entry.body.start + 1
    text = site.source.text[:at] + _named(_CALL, entry) + site.source.text[at:]
    return Rewritten(text=preamble(text, ("stddef.h",), site.knobs, _ROWS))


def _copy(site: Site) -> Rewritten | Refusal:
    entry = _entry(site)
    if isinstance(entry, str):
        return Refusal(because=entry)
    if "copy_single_column:" in site.source.text:
        return Refusal(because="one column is copied already")
    at = entry.body.start + 1
    return Rewritten(text=site.source.text[:at] + _named(_COPY, entry) + site.source.text[at:])


RECIPES = (
    Recipe(
        name="rows_together", label="template", reorders=True, operators=("reduction",), rewrite=_rows_together,
        mechanism="Adds up LANES short rows at once and turns their vectors into one vector of sums by a tree of "
        "shuffles: the end of a row costs a fraction of a horizontal sum, and a rest shorter than a vector is masked, "
        "not looped over.",
        needs="the entry (x, y, rows, n) with parameters that may be moved; serves rows of 2 to SHORT_MAX elements",
        knobs=(Knob(name="LANES", window=(4, 8, 16), value=8), Knob(name="SHORT_MAX", window=(64, 128, 256), value=64)),
        allowed={"LANES": (4, 8, 16), "SHORT_MAX": (8, 16, 32, 64, 128, 256, 512, 1024)},
        risks=(
            Risk(shape_class="tail", level="low", why="the last rows go through the general loop"),
            Risk(shape_class="main", level="none", why="longer rows take one comparison a call"),
        ),
    ),
    Recipe(
        name="copy_single_column", label="template", operators=("reduction",), rewrite=_copy,
        mechanism="One column is a copy: no loop is started and ended for each element.",
        needs="the entry (x, y, rows, n)",
        risks=(Risk(shape_class="main", level="none", why="one comparison a call"),),
    ),
)
