"""Recipes for any operator: what a loop's form, the contract and the manifest allow, whatever is computed."""

from __future__ import annotations

import re

from kernelcrew.kernels.cparse import CSource
from kernelcrew.kernels.nouns import Knob, Risk
from kernelcrew.kernels.recipes.find import entry_of, indent_at, line_start
from kernelcrew.kernels.recipes.generic_find import Counted, accesses, innermost, mentions, stride
from kernelcrew.kernels.recipes.generic_loops import (
    interchange,
    keep_in_register,
    reciprocal,
    split_sums,
    threads_outside,
)
from kernelcrew.kernels.recipes.loops import adds_flag
from kernelcrew.kernels.recipes.recipe import Recipe, Refusal, Rewritten, Site

ELEMENT_BYTES = {"float32": 4, "float64": 8, "int32": 4}


def _bare(site: Site) -> list[Counted]:
    """Innermost loops without a pragma, last first, so that edits leave the positions of the rest."""
    text = site.source.text
    found = []
    for loop in innermost(site.source, site.entry):
        start = line_start(text, loop.loop.span.start)
        above = text[line_start(text, start - 1) : start] if start else ""
        if not above.lstrip().startswith("#pragma") and not text[start : loop.loop.span.start].strip():
            found.append(loop)
    return found[::-1]


def _before(text: str, loop: Counted, lines: str) -> str:
    at = loop.loop.span.start
    return f"{text[:at]}{lines}{indent_at(text, at)}{text[at:]}"


def _align(site: Site) -> Rewritten | Refusal:
    entry = entry_of(site.source, site.entry, 1)
    if isinstance(entry, str):
        return Refusal(because=entry)
    given = [p.name for p in entry.parameters]
    args = site.operator.backends[site.backend].args
    tensors = {t.name: t for t in site.operator.tensors}
    promised = [
        (name, tensors[arg].align_bytes)
        for name, arg in zip(given, args, strict=False)
        if arg in tensors and tensors[arg].align_bytes > ELEMENT_BYTES[tensors[arg].dtype]
    ]
    if not promised:
        return Refusal(because="the contract promises no more than the alignment of an element")
    if "align_hints:" in site.source.text:
        return Refusal(because="the alignment is told already")
    at, text = entry.body.start + 1, site.source.text
    lines = "".join(f"\n    {name} = __builtin_assume_aligned({name}, {size});" for name, size in promised)
    return Rewritten(text=f"{text[:at]}\n    /* align_hints: what the contract promises. */{lines}{text[at:]}")


def _unroll(site: Site) -> Rewritten | Refusal:
    loops = _bare(site)
    if not loops:
        return Refusal(because="no innermost loop without a pragma is there")
    text = site.source.text
    for loop in loops:
        why = "/* unroll_inner: fewer branches and index updates an element. */"
        text = _before(text, loop, f"{why}\n#pragma GCC unroll {site.knobs['INNER_UNROLL']}\n")
    return Rewritten(text=text)


def _independent(site: Site) -> Rewritten | Refusal:
    text, done = site.source.text, 0
    for loop in _bare(site):
        if not _no_carry(site.source, loop):
            continue
        why = "/* independent_rounds: no round stores what another one reads. */"
        text = _before(text, loop, f"{why}\n#pragma GCC ivdep\n")
        done += 1
    if not done:
        return Refusal(because="no innermost loop stores to elements of its own that no other round reads")
    return Rewritten(text=text)


def _no_carry(source: CSource, loop: Counted) -> bool:
    """Whether a round stores to one array alone, at its own index, and reads what cannot overlap it.

    The contract says that tensors do not overlap; local pointers are followed to the tensor that they go into.
    """
    used = accesses(loop.body)
    stored = [a for a in used if any(f"{a.array}[{a.at}] {sign}= " in loop.body for sign in ("", *"+-*/"))]
    stored += [a for a in used if f"{a.array}[{a.at}] = " in loop.body]
    names = {a.array for a in stored}
    places = {a.at for a in used if a.array in names}
    if len(names) != 1 or len(places) != 1 or stride(places.pop(), loop.index) != "1":
        return False
    into = _root(source, names.pop(), loop.loop.span.start)
    others = {_root(source, a.array, loop.loop.span.start) for a in used} - {into}
    same = {a.array for a in used if _root(source, a.array, loop.loop.span.start) == into}
    return bool(others) and len(same) == 1 and not mentions(loop.bound, into)


def _root(source: CSource, name: str, before: int) -> str:
    """The tensor or buffer that a local pointer goes into: the first name it was set to."""
    for _ in range(4):
        found = re.findall(rf"\*\s*(?:const |restrict )*{name} = &?(\w+)", source.blank[:before])
        if not found or found[-1] == name:
            break
        name = found[-1]
    return name


_CHAINS = Knob(name="CHAINS_APART", window=(8, 16, 32), value=16)

RECIPES = (
    Recipe(
        name="split_sums", label="rewrite", reorders=True, rewrite=split_sums,
        mechanism="Splits each innermost sum of any term into CHAINS_APART partial sums that do not wait for each "
        "other; "
        "the compiler may put them side by side into vectors.",
        needs="an innermost loop that adds one term to a scalar float, and a contract that frees the order of "
        "additions",
        knobs=(_CHAINS,), allowed={"CHAINS_APART": (2, 4, 8, 16, 32, 64)},
        risks=(Risk(shape_class="short", level="high", why="short loops gain nothing and pay for the partial sums"),),
    ),
    Recipe(
        name="keep_in_register", label="rewrite", rewrite=keep_in_register,
        mechanism="Keeps an array element that an inner loop adds to in a register until the loop is over.",
        needs="an innermost loop `c[j] += ..` in which c[j] stays the same; tensors that do not overlap",
        risks=(Risk(shape_class="short", level="low", why="one load and one store where the loop runs not at all"),),
    ),
    Recipe(
        name="interchange_loops", label="rewrite", rewrite=interchange,
        mechanism="Swaps two perfectly nested loops so that neighbouring elements are used one after another.",
        needs="two perfectly nested loops around one accumulation, contiguous along the outer index but not the "
        "inner one",
        risks=(Risk(shape_class="short", level="medium", why="the loop that is inside now may be the shorter one"),),
    ),
    Recipe(
        name="reciprocal_division", label="rewrite", rewrite=reciprocal,
        mechanism="Divides once before a loop and multiplies inside it: a division takes the time of several products.",
        needs="a division by a scalar float that stays the same in an innermost loop, and limits of at least 4 u",
        risks=tuple(
            Risk(shape_class=c, level="low", why="a result may be 1.5 ulp off instead of 0.5, and more for a divisor "
                 "whose reciprocal is denormal or infinite")
            for c in ("main", "short", "long", "tail")
        ),
    ),
    Recipe(
        name="independent_rounds", label="rewrite", rewrite=_independent,
        mechanism="Tells the compiler that the rounds of an innermost loop do not depend on each other (GCC ivdep), so "
        "that it need not test for overlaps before it vectorises.",
        needs="an innermost loop that stores to one array at its own index, and reads that array there alone",
    ),
    Recipe(
        name="unroll_inner", label="rewrite", rewrite=_unroll,
        mechanism="Unrolls innermost loops: fewer branches and index updates an element.",
        needs="an innermost counted loop without a pragma",
        knobs=(Knob(name="INNER_UNROLL", window=(2, 4, 8), value=4),), allowed={"INNER_UNROLL": (2, 4, 8, 16)},
        risks=(Risk(shape_class="short", level="low", why="a remainder loop for every start"),),
    ),
    Recipe(
        name="align_hints", label="rewrite", rewrite=_align,
        mechanism="Tells the compiler the alignment that the contract promises, so that vector loops need no start of "
        "single elements.",
        needs="a tensor whose align_bytes is more than its element",
    ),
    Recipe(
        name="no_errno", label="rewrite", rewrite=adds_flag("-fno-math-errno"),
        mechanism="Lets square roots and the like be instructions instead of calls that may set errno "
        "(-fno-math-errno).",
        needs="a manifest that allows the flag",
    ),
    Recipe(
        name="wide_vectors", label="rewrite", rewrite=adds_flag("-mprefer-vector-width=512"),
        mechanism="Lets the compiler use the machine's widest vectors, which it avoids by default "
        "(-mprefer-vector-width=512).",
        needs="a manifest that allows the flag",
        risks=(
            Risk(shape_class="short", level="medium", why="more elements are left over after whole vectors"),
            Risk(shape_class="tail", level="medium", why="more elements are left over after whole vectors"),
        ),
    ),
    Recipe(
        name="threads_outside", label="rewrite", rewrite=threads_outside,
        mechanism="Shares the outermost loop among the plan's threads (OpenMP).",
        needs="a plan with several threads, a manifest that allows -fopenmp, and rounds that share nothing they write",
        risks=(Risk(shape_class="short", level="high", why="waking threads costs more than a small call takes"),),
    ),
)
