"""Rewrites of loops that hold for any operator, found by the form of the loop alone."""

from __future__ import annotations

import re

from kernelcrew.kernels.cparse import CSource
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Operator
from kernelcrew.kernels.recipes.find import clash, entry_of, indent_at, preamble, shift
from kernelcrew.kernels.recipes.generic_find import (
    FLAT,
    Counted,
    accesses,
    counted,
    declared_float,
    innermost,
    mentions,
    replaced,
    stride,
)
from kernelcrew.kernels.recipes.recipe import Refusal, Rewritten, Site

_ADD = re.compile(r"(?P<sum>[A-Za-z_]\w*(?:\[[^;=]*\])?) \+= (?P<term>[^;=]+);")
_LOCAL = re.compile(r"const float (?P<name>\w+) = (?P<value>[^;=]+); ?")
_WRITES = re.compile(r"\+\+|--|(?<![=!<>])=(?!=)")
RECIPROCAL_U = 4.0
"""Least limit in u at which x * (1 / y), up to 1.5 ulp or 3 u off, may stand for x / y, up to 0.5 ulp off."""

_SPLIT = """\
{{
    float chain[CHAINS_APART] = {{0.0f}};
    {type} {i} = {first};
    for (; {bound} - {i} >= CHAINS_APART; {i} += CHAINS_APART)
#pragma GCC unroll 64
        for (int apart = 0; apart < CHAINS_APART; apart++) {{
            {each}
        }}
    for (int half = CHAINS_APART / 2; half > 0; half /= 2)
        for (int apart = 0; apart < half; apart++)
            chain[apart] += chain[apart + half];
    {sum} += chain[0];
    for (; {i} < {bound}; {i}++) {{
        {rest}
    }}
}}"""


def split_sums(site: Site) -> Rewritten | Refusal:
    """Every innermost loop that adds a term to a scalar float gets CHAINS_APART partial sums."""
    if taken := clash(site.source, ("CHAINS_APART", "chain", "apart", "half")):
        return Refusal(because=f"the source uses the name '{taken}' already")
    text, done = site.source.text, 0
    for loop in reversed(list(innermost(site.source, site.entry))):
        found = _scalar_sum(site.source, loop)
        if found is None:
            continue
        total, before, term = found
        where = f"({loop.index} + apart)"
        each = f"{replaced(before, loop.index, where)}chain[apart] += {replaced(term, loop.index, where)};"
        filled = _SPLIT.format(
            type=loop.type, i=loop.index, first=loop.first, bound=_whole(loop.bound), sum=total,
            each=each.replace("; ", ";\n            "), rest=f"{before}{total} += {term};".replace("; ", ";\n        "),
        )
        why = "/* split_sums: CHAINS_APART partial sums do not wait for each other, and may stand side by side. */\n"
        text = _put(text, loop.loop.span.start, loop.loop.span.end, why + filled)
        done += 1
    if not done:
        return Refusal(because="no innermost loop adds one term to a scalar float and does nothing else")
    return Rewritten(text=preamble(text, (), site.knobs))


def _scalar_sum(source: CSource, loop: Counted) -> tuple[str, str, str] | None:
    """The sum, the declarations before it and the term; None for another loop."""
    body, names = loop.body, []
    while (local := _LOCAL.match(body)) is not None:
        names.append(local["name"])
        body = body[local.end() :]
    before = loop.body[: len(loop.body) - len(body)]
    added = _ADD.fullmatch(body.strip())
    if added is None or FLAT.search(loop.body) or not loop.type or "[" in added["sum"]:
        return None
    total, term = added["sum"], added["term"]
    moved = mentions(before + term, total) or total in names or loop.index in names
    writes = _WRITES.search(term) or any(_WRITES.search(v) for v in _LOCAL.sub(r"\g<value>", before).split(";"))
    if moved or writes or mentions(loop.bound, total) or not _plain(loop.bound):
        return None
    return (total, before, term) if declared_float(source, total, loop.loop.span.start, pointer=False) else None


def keep_in_register(site: Site) -> Rewritten | Refusal:
    """An array element that an inner loop adds to, and that does not move with it, is kept in a scalar."""
    if taken := clash(site.source, ("kept",)):
        return Refusal(because=f"the source uses the name '{taken}' already")
    text, done = site.source.text, 0
    for loop in reversed(list(innermost(site.source, site.entry))):
        added = _ADD.fullmatch(loop.body)
        if added is None or "[" not in added["sum"] or mentions(added["sum"], loop.index):
            continue
        array = added["sum"].partition("[")[0]
        if mentions(added["term"], array) or mentions(loop.bound, array) or _WRITES.search(added["term"]):
            continue
        if not declared_float(site.source, array, loop.loop.span.start, pointer=True):
            continue
        head = text[loop.loop.span.start : loop.loop.body.start].rstrip()
        made = (
            "/* keep_in_register: the sum is stored once, not after every addition; nothing that is read overlaps "
            "it. */\n"
            f"{{\n    float kept = {added['sum']};\n    {head}\n        kept += {added['term']};\n"
            f"    {added['sum']} = kept;\n}}"
        )
        text = _put(text, loop.loop.span.start, loop.loop.span.end, made)
        done += 1
    if not done:
        return Refusal(because="no innermost loop adds to an array element that stays the same in it")
    return Rewritten(text=text)


def interchange(site: Site) -> Rewritten | Refusal:
    """Two perfectly nested loops around one accumulation are swapped where that makes every access contiguous."""
    why = "no two perfectly nested loops around one statement `c[..] += ..` are there"
    for inner in innermost(site.source, site.entry):
        parent = inner.loop.parent
        outer = counted(site.source, site.source.loops[parent]) if parent >= 0 else None
        if outer is None or not _perfect(site.source, outer, inner):
            continue
        because = _swap_refused(site, outer, inner)
        if because:
            why = because
            continue
        text, a, b = site.source.text, outer.loop, inner.loop
        outer_head = text[a.span.start : a.body.start].rstrip().removesuffix("{").rstrip()
        inner_head = text[b.span.start : b.body.start].rstrip().removesuffix("{").rstrip()
        made = (
            f"/* interchange_loops: with {outer.index} inside, neighbouring elements are used one after another. */\n"
            f"{inner_head}\n    {outer_head} {{\n        {inner.body}\n    }}"
        )
        return Rewritten(text=_put(text, a.span.start, a.span.end, made))
    return Refusal(because=why)


def _perfect(source: CSource, outer: Counted, inner: Counted) -> bool:
    between = source.blank[outer.loop.body.start : inner.loop.span.start] + source.blank[
        inner.loop.span.end : outer.loop.body.end
    ]
    return not between.strip("{} \n\t") and "#" not in source.text[outer.loop.span.start : inner.loop.span.end]


def _swap_refused(site: Site, outer: Counted, inner: Counted) -> str:
    """Why two loops are not swapped; empty when they are to be."""
    line = f"line {outer.loop.span.line_first}"
    added = _ADD.fullmatch(inner.body)
    if added is None or "[" not in added["sum"]:
        return f"{line}: the body is not one statement `c[..] += ..`"
    heads = f"{inner.first} {inner.bound}"
    if mentions(heads, outer.index) or not outer.type or not inner.type or not _plain(f"{heads} {outer.bound}"):
        return f"{line}: the inner loop's bounds depend on more than names that stay the same"
    target = added["sum"].partition("[")[0]
    if mentions(added["term"], target) or _WRITES.search(added["term"]) or mentions(f"{heads} {outer.bound}", target):
        return f"{line}: '{target}' is read as well as added to"
    used = accesses(inner.body)
    steps = [(stride(u.at, outer.index), stride(u.at, inner.index)) for u in used]
    if any(o is None or i is None for o, i in steps):
        return f"{line}: it cannot be told how {outer.index} and {inner.index} move through {used[0].array}"
    if all(i in ("0", "1") for _, i in steps):
        return f"{line}: every access is contiguous, or the same, along {inner.index} already"
    if not all(o in ("0", "1") for o, _ in steps):
        return f"{line}: along {outer.index} not every access would be contiguous either"
    if steps[0] == ("0", "0") and site.operator.contract.summation != "any order":
        return f"{line}: the additions to {added['sum']} would change their order"
    return ""


def reciprocal(site: Site) -> Rewritten | Refusal:
    """A division by a scalar that an innermost loop does not change becomes a multiplication."""
    if taken := clash(site.source, ("inverse",)):
        return Refusal(because=f"the source uses the name '{taken}' already")
    allows = least_tolerance(site.operator)
    if allows < RECIPROCAL_U:
        why = f"the contract allows {allows:g} u, and a product with a reciprocal may need {RECIPROCAL_U:g}"
        return Refusal(because=why)
    text, done = site.source.text, 0
    for loop in reversed(list(innermost(site.source, site.entry))):
        divisors = set(re.findall(r"/ ([A-Za-z_]\w*)\b(?!\s*[\[(.])", loop.body))
        for name in sorted(divisors):
            changed = re.search(rf"\b{name} ?(?:[-+*/]?=(?!=)|\+\+|--)|(?:\+\+|--){name}\b", loop.body)
            start, end = loop.loop.span.start, loop.loop.span.end
            written = text[start:end]
            plain = re.findall(rf"/ {name}\b", written)
            if changed or len(divisors) > 1 or name == loop.index or not plain:
                continue
            if not declared_float(site.source, name, start, pointer=False):
                continue
            written = re.sub(rf"/ {name}\b", "* inverse", written)
            indent = indent_at(text, start)
            made = (
                "/* reciprocal_division: one division for the loop; a result may be 1.5 ulp off instead of 0.5. */\n"
                f"{indent}{{\n{indent}    const float inverse = 1.0f / {name};\n"
                f"{shift(indent + written, '    ')}\n{indent}}}"
            )
            text = text[:start] + made + text[end:]
            done += 1
    if not done:
        return Refusal(because="no innermost loop divides by one scalar float that stays the same in it")
    return Rewritten(text=text)


def least_tolerance(operator: Operator) -> float:
    """The smallest limit on an error, in u, over all distributions and shapes."""
    shapes = [s.axes for s in operator.shapes] or [{a.name: 1 for a in operator.axes}]
    return min((float(parse(t.error).value(axes)) for t in operator.tolerances for axes in shapes), default=0.0)


def threads_outside(site: Site) -> Rewritten | Refusal:
    """The outermost loop is shared among threads, where the plan names several and its rounds are independent."""
    if site.plan.threads < 2:
        return Refusal(because="the plan names one thread: set its threads above 1 first")
    if "-fopenmp" not in site.operator.backends[site.backend].allowed_flags:
        return Refusal(because="the operator does not allow -fopenmp")
    entry = entry_of(site.source, site.entry, 1)
    if isinstance(entry, str):
        return Refusal(because=entry)
    outer = [x for x in site.source.loops if x.depth == 1 and x.function == site.entry]
    loop = counted(site.source, outer[0]) if len(outer) == 1 else None
    if loop is None or not loop.type:
        return Refusal(because="the entry is not one outermost loop `for (int i = 0; i < n; i++)`")
    because = _shared(loop, {p.name for p in entry.parameters if p.pointer})
    if because:
        return Refusal(because=because)
    text, at = site.source.text, loop.loop.span.start
    if "#pragma" in text[max(at - 60, 0) : at]:
        return Refusal(because="the outermost loop has a pragma already")
    indent = indent_at(text, at)
    why = f"/* threads_outside: rounds over {loop.index} share nothing that is written. */\n#pragma omp parallel for\n"
    return Rewritten(text=f"{text[:at]}{why}{indent}{text[at:]}", add_flags=("-fopenmp",))


def _shared(loop: Counted, pointers: set[str]) -> str:
    """What the rounds of a loop share and write; empty when nothing."""
    body = loop.body
    own = set(re.findall(r"\b(?:float|int|long|size_t|double)\s+\**\s*(?:restrict\s+)?(\w+)", body))
    own |= set(re.findall(r", (\w+) = ", body))
    moving = {p for p in own if re.search(rf"\*\s*(?:restrict )?{p} = [^;]*\b{loop.index}\b", body)}
    if re.search(r"\b(?:malloc|free|return|break)\b", body):
        return "a round takes or frees memory, or leaves the loop"
    for name, element in re.findall(r"\b(\w+)(\[[^;=]*\])? [-+*/]?= ", body):
        if element and not (name in moving or (name in pointers and mentions(element, loop.index)) or name in own):
            return f"'{name}' is written at places that do not move with {loop.index}"
        if element and name in own and name not in moving and re.search(rf"\*\s*{name} = ", body):
            return f"'{name}' may point to the same place in every round"
        if not element and name not in own:
            return f"'{name}' is written in every round and was declared outside"
    return ""


def _plain(text: str) -> bool:
    """Whether an expression is of names and numbers alone, so that it may be taken again."""
    return re.fullmatch(r"[\w\s+\-*/()]*", text) is not None and not re.search(r"\w\s*\(|\+\+|--", text)


def _whole(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _put(text: str, start: int, end: int, made: str) -> str:
    """Lines in the place of a loop, indented as it was; directives stay at the margin."""
    indent = indent_at(text, start)
    first, *rest = made.split("\n")
    lines = [line if line.startswith("#") or not line else indent + line for line in rest]
    return text[:start] + "\n".join((first, *lines)) + text[end:]
