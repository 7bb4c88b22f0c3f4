"""Recipes around vector accumulators, written with the compiler's vector extension: one source for every width."""

from __future__ import annotations

from kernelcrew.kernels.nouns import Knob, Risk
from kernelcrew.kernels.recipes.find import (
    VectorLoop,
    clash,
    indent_at,
    line_start,
    preamble,
    shift,
    sum_loop,
    vector_loop,
)
from kernelcrew.kernels.recipes.loops import SERIAL, input_name, replace_loop
from kernelcrew.kernels.recipes.recipe import Recipe, Refusal, Rewritten, Site

_TYPES = """\
/* Vectors of VEC floats that may be loaded from any float's address. */
typedef float vec_f __attribute__((vector_size(VEC * 4), aligned(4), may_alias));
typedef int vec_i __attribute__((vector_size(VEC * 4)));

/* The sum of the lanes: each step adds the lanes that are h apart. */
static inline float sum_lanes(const vec_f *v)
{
    vec_f t = *v;
    vec_i lane = {0};
    for (int k = 0; k < VEC; k++)
        lane[k] = k;
#pragma GCC unroll 8
    for (int h = VEC / 2; h > 0; h /= 2)
        t += __builtin_shuffle(t, lane ^ h);
    return t[0];
}
"""

_BODY = """\
/* vector_accumulators: ACC chains of VEC lanes do not wait for each other and hide the latency of an addition. */
{{
    vec_f acc[ACC] = {{{{0.0f}}}};
    {declare}{i} = 0;
    for (; {n} - {i} >= VEC * ACC; {i} += VEC * ACC)
#pragma GCC unroll 16
        for (int k = 0; k < ACC; k++)
            acc[k] += *(const vec_f *)({base} + {i} + k * VEC);
    for (; {n} - {i} >= VEC; {i} += VEC)
        acc[0] += *(const vec_f *)({base} + {i});
#pragma GCC unroll 16
    for (int h = ACC / 2; h > 0; h /= 2)
#pragma GCC unroll 16
        for (int k = 0; k < h; k++)
            acc[k] += acc[k + h];
    {s} += sum_lanes(&acc[0]);
    for (; {i} < {n}; {i}++)
        {statement};
}}"""

_TAIL = """\
/* small_tail: the rest of the row is in its last VEC elements; lanes that were added before are masked to zero. */
if ({i} < {n} && {n} >= VEC) {{
    vec_i lane = {{0}};
    for (int k = 0; k < VEC; k++)
        lane[k] = k;
    acc[ACC - 1] += (vec_f)((vec_i)*(const vec_f *)({base} + {n} - VEC) & (lane >= VEC - (int)({n} - {i})));
    {i} = {n};
}}
"""

_SPLIT = """\
/* split_long_rows: STREAMS parts of a long row are read side by side and keep more cache lines in flight. */
if ({n} >= SPLIT_MIN) {{
    const {type} part = {n} / STREAMS / (VEC * ACC) * (VEC * ACC);
    for (; {i} < part; {i} += VEC * ACC)
#pragma GCC unroll 8
        for (int q = 0; q < STREAMS; q++)
#pragma GCC unroll 16
            for (int k = 0; k < ACC; k++)
                acc[k] += *(const vec_f *)({base} + q * part + {i} + k * VEC);
    {i} = part * STREAMS;
}}
"""

_PREFETCH = """\
    /* prefetch: lines that the hardware has not asked for yet are on their way PREFETCH bytes ahead. */
    for (int k = 0; k < VEC * ACC; k += 16)
        __builtin_prefetch((const void *)((uintptr_t)({base} + {i} + k) + PREFETCH));
"""


def _vector(site: Site) -> Rewritten | Refusal:
    found = sum_loop(site.source, input_name(site))
    if isinstance(found, str):
        there = not isinstance(vector_loop(site.source), str)
        return Refusal(because="the row is summed by vector accumulators already" if there else found)
    if taken := clash(site.source, ("VEC", "ACC", "vec_f", "vec_i", "acc", "sum_lanes")):
        return Refusal(because=f"the source uses the name '{taken}' already")
    return Rewritten(text=preamble(replace_loop(site, found, _BODY), (), site.knobs, _TYPES))


def _small_tail(site: Site) -> Rewritten | Refusal:
    found = vector_loop(site.source)
    if isinstance(found, str):
        return Refusal(because=found)
    if "small_tail:" in site.source.text:
        return Refusal(because="the rest of a row is handled by one masked vector already")
    fold = next((loop for loop in site.source.loops if loop.head == "int h = ACC / 2; h > 0; h /= 2"), None)
    if fold is None:
        return Refusal(because="the loop that adds up the accumulators is not there")
    text = site.source.text
    at = line_start(text, fold.span.start)
    above = line_start(text, at - 1)
    at = above if text[above:at].startswith("#pragma") else at
    return Rewritten(text=text[:at] + _filled(_TAIL, found, indent_at(text, fold.span.start)) + text[at:])


def _split(site: Site) -> Rewritten | Refusal:
    found = vector_loop(site.source)
    if isinstance(found, str):
        return Refusal(because=found)
    if taken := clash(site.source, ("STREAMS", "SPLIT_MIN", "part")):
        return Refusal(because=f"the source uses the name '{taken}' already")
    text = site.source.text
    at = line_start(text, found.loop.span.start)
    text = text[:at] + _filled(_SPLIT, found, indent_at(text, found.loop.span.start)) + text[at:]
    return Rewritten(text=preamble(text, (), site.knobs))


def _prefetch(site: Site) -> Rewritten | Refusal:
    found = vector_loop(site.source)
    if isinstance(found, str):
        return Refusal(because=found)
    if taken := clash(site.source, ("PREFETCH",)):
        return Refusal(because=f"the source uses the name '{taken}' already")
    text = site.source.text
    indent = indent_at(text, found.loop.span.start)
    head_end = text.index(")", text.index("+= VEC * ACC", found.loop.span.start)) + 1
    body = text[head_end : found.loop.span.end].lstrip(" ")
    text = (
        text[:head_end] + " {\n" + _filled(_PREFETCH, found, indent) + body.removeprefix("\n") + f"\n{indent}}}"
        + text[found.loop.span.end :]
    )
    return Rewritten(text=preamble(text, ("stdint.h",), site.knobs))


def _filled(template: str, found: VectorLoop, indent: str) -> str:
    filled = template.format(i=found.index, n=found.bound, base=found.base, type=found.index_type)
    return shift(filled, indent)


RECIPES = (
    Recipe(
        name="vector_accumulators", label="rewrite", reorders=True, rewrite=_vector,
        mechanism="Replaces the one chain of additions by ACC vector accumulators of VEC floats and adds them up in a "
        "tree at the end of the row: the latency of an addition is hidden, and each load brings VEC elements.",
        needs=SERIAL,
        knobs=(Knob(name="VEC", window=(4, 8, 16), value=8), Knob(name="ACC", window=(2, 4, 8), value=4)),
        allowed={"VEC": (4, 8, 16, 32), "ACC": (1, 2, 4, 8, 16)},
        risks=(
            Risk(shape_class="short", level="high", why="a row shorter than a vector gains nothing, pays for the tree"),
            Risk(shape_class="tail", level="medium", why="up to VEC - 1 elements of a row are left to a scalar loop"),
        ),
    ),
    Recipe(
        name="small_tail", label="rewrite", reorders=True, rewrite=_small_tail, requires=("vector_accumulators",),
        mechanism="Handles what is left of a row by one load of its last VEC elements, masking the lanes that were "
        "added before, instead of a scalar chain of up to VEC - 1 additions.",
        needs="vector accumulators with a scalar loop for the rest of the row",
        risks=(Risk(shape_class="main", level="low", why="one more branch a row"),),
    ),
    Recipe(
        name="split_long_rows", label="rewrite", reorders=True, rewrite=_split, requires=("vector_accumulators",),
        mechanism="Reads a long row as STREAMS parts side by side, so that more cache lines are in flight than one "
        "sequential stream keeps, from SPLIT_MIN elements on.",
        needs="vector accumulators",
        knobs=(
            Knob(name="STREAMS", window=(2, 4), value=2),
            Knob(name="SPLIT_MIN", window=(65536, 262144, 1048576), value=262144),
        ),
        allowed={"STREAMS": (2, 3, 4, 8), "SPLIT_MIN": tuple(1 << k for k in range(10, 25))},
        risks=(Risk(shape_class="long", level="low", why="several streams share the hardware's prefetchers"),),
    ),
    Recipe(
        name="prefetch", label="rewrite", rewrite=_prefetch, requires=("vector_accumulators",),
        mechanism="Asks for the lines PREFETCH bytes ahead in the vector loop, where the hardware's prefetcher stops "
        "at page ends or starts late.",
        needs="vector accumulators",
        knobs=(Knob(name="PREFETCH", window=(1024, 4096, 8192), value=4096),),
        allowed={"PREFETCH": (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)},
        risks=(
            Risk(shape_class="main", level="medium", why="one more instruction a line where data is in cache already"),
            Risk(shape_class="long", level="low", why="the same, where the row is in cache"),
        ),
    ),
)
