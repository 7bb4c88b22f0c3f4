"""Recipes that work on the plain serial loop, its signature and its flags."""

from __future__ import annotations

import re

from kernelcrew.kernels.nouns import Knob, Risk
from kernelcrew.kernels.recipes.find import (
    REASSOCIATES,
    ROUNDING,
    SumLoop,
    clash,
    entry_of,
    indent_at,
    preamble,
    shift,
    sum_loop,
)
from kernelcrew.kernels.recipes.recipe import Recipe, Refusal, Rewrite, Rewritten, Site

_CHAINS = """\
/* scalar_accumulators: CHAINS partial sums that do not wait for each other hide the latency of one addition. */
{{
    float part[CHAINS] = {{0.0f}};
    {declare}{i} = 0;
    for (; {n} - {i} >= CHAINS; {i} += CHAINS)
#pragma GCC unroll 64
        for (int k = 0; k < CHAINS; k++)
            part[k] += ({base})[{i} + k];
    for (int h = CHAINS / 2; h > 0; h /= 2)
        for (int k = 0; k < h; k++)
            part[k] += part[k + h];
    {s} += part[0];
    for (; {i} < {n}; {i}++)
        {statement};
}}"""


def input_name(site: Site) -> str:
    """The entry's own name for the first input."""
    entry = site.source.function(site.entry)
    return next((p.name for p in entry.parameters if p.pointer), "") if entry else ""


def replace_loop(site: Site, found: SumLoop, template: str) -> str:
    """The text with the serial loop replaced by a filled template, indented like the loop."""
    text = site.source.text
    declare = f"{found.index_type} " if found.index_type else ""
    filled = template.format(
        declare=declare, i=found.index, n=found.bound, s=found.total, base=found.base, statement=found.statement
    )
    indent = indent_at(text, found.loop.span.start)
    return text[: found.start] + shift(filled, indent).removeprefix(indent) + text[found.loop.span.end :]


def _contract_flags(site: Site) -> Rewritten | Refusal:
    flags = site.operator.backends[site.backend].contract_flags
    missing = tuple(f for f in flags if f not in site.plan.flags)
    if not missing:
        return Refusal(because="the plan has them already" if flags else "the contract frees no flag")
    if REASSOCIATES & {*missing} and ROUNDING.search(site.source.blank):
        return Refusal(because="the source rounds by adding a constant and taking it away, which reassociation cancels")
    return Rewritten(text=site.source.text, add_flags=missing)


def adds_flag(flag: str) -> Rewrite:
    """The rewrite that leaves the text alone and adds one compiler flag, where the operator allows it."""

    def rewrite(site: Site) -> Rewritten | Refusal:
        if flag in site.plan.flags:
            return Refusal(because=f"the plan has {flag} already")
        if flag not in site.operator.backends[site.backend].allowed_flags:
            return Refusal(because=f"the operator does not allow {flag}")
        return Rewritten(text=site.source.text, add_flags=(flag,))

    return rewrite


def _restrict(site: Site) -> Rewritten | Refusal:
    entry = entry_of(site.source, site.entry, 2)
    if isinstance(entry, str):
        return Refusal(because=entry)
    text, span = site.source.text, entry.signature
    signature = re.sub(r"\*\s*(?!\s*(?:restrict|__restrict|const))(\w)", r"*restrict \1", text[span.start : span.end])
    if signature == text[span.start : span.end]:
        return Refusal(because="every pointer of the entry is restrict already")
    at = entry.span.start
    why = "/* restrict_pointers: input and output do not overlap, so that a store never makes a load be repeated. */\n"
    return Rewritten(text=text[:at] + why + text[at : span.start] + signature + text[span.end :])


def _unroll_pragma(site: Site) -> Rewritten | Refusal:
    found = sum_loop(site.source, input_name(site))
    if isinstance(found, str):
        return Refusal(because=found)
    if found.start != found.loop.span.start:
        return Refusal(because="the loop has a pragma already")
    text, at = site.source.text, found.start
    indent = indent_at(text, at)
    why = "/* unroll_pragma: fewer branches and index updates an element. */"
    pragma = f"#pragma GCC unroll {site.knobs['UNROLL']}"
    return Rewritten(text=f"{text[:at]}{why}\n{pragma}\n{indent}{text[at:]}")


def _scalar(site: Site) -> Rewritten | Refusal:
    found = sum_loop(site.source, input_name(site))
    if isinstance(found, str):
        return Refusal(because=found)
    if taken := clash(site.source, ("CHAINS", "part")):
        return Refusal(because=f"the source uses the name '{taken}' already")
    text = replace_loop(site, found, _CHAINS.replace("({base})", "{base}" if found.base.isidentifier() else "({base})"))
    return Rewritten(text=preamble(text, (), {"CHAINS": site.knobs["CHAINS"]}))


SERIAL = "one loop `for (i = 0; i < n; i++) s += p[i];` into a float, and a contract that frees the order of additions"

RECIPES = (
    Recipe(
        name="contract_flags", label="rewrite", reorders=True, rewrite=_contract_flags,
        mechanism="Tells the compiler what the contract already frees (order of additions, signed zeros, traps), so "
        "that it may vectorise the sum itself.",
        needs="contract flags in the manifest that the plan does not have yet",
        risks=(
            Risk(shape_class="short", level="medium", why="a short row pays for a vector loop's start and end"),
            Risk(shape_class="tail", level="high", why="one column pays a vector loop's checks for one element"),
        ),
    ),
    Recipe(
        name="unroll_flag", label="rewrite", rewrite=adds_flag("-funroll-loops"),
        mechanism="Lets the compiler unroll loops whose length it does not know (-funroll-loops): fewer branches an "
        "element.",
        needs="a manifest that allows the flag",
        risks=(Risk(shape_class="short", level="medium", why="an unrolled loop needs a remainder loop in every row"),),
    ),
    Recipe(
        name="restrict_pointers", label="rewrite", rewrite=_restrict,
        mechanism="Declares that input and output do not overlap, so that a store to y cannot change x and loads may "
        "be moved across it.",
        needs="pointer parameters of the entry without restrict",
    ),
    Recipe(
        name="unroll_pragma", label="rewrite", rewrite=_unroll_pragma,
        mechanism="Unrolls the serial loop: fewer branches and index updates an element. The chain of additions "
        "stays.",
        needs="one serial sum loop without a pragma",
        knobs=(Knob(name="UNROLL", window=(4, 8, 16), value=8),),
        allowed={"UNROLL": (2, 4, 8, 16, 32)},
        risks=(Risk(shape_class="short", level="low", why="a longer remainder loop for every row"),),
    ),
    Recipe(
        name="scalar_accumulators", label="rewrite", reorders=True, rewrite=_scalar,
        mechanism="Splits the one chain of additions into CHAINS partial sums that do not wait for each other; the "
        "compiler may put them side by side into vectors, since no sum is reordered any more.",
        needs=SERIAL,
        knobs=(Knob(name="CHAINS", window=(8, 16, 32), value=16),),
        allowed={"CHAINS": (2, 4, 8, 16, 32, 64)},
        risks=(Risk(shape_class="short", level="high", why="rows shorter than CHAINS gain nothing, pay for the tree"),),
    ),
)
