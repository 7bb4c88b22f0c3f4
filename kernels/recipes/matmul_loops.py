"""Rewrites of a plain triple loop: its order, and several terms at a time. What they look for is found by form."""

from __future__ import annotations

import re

from kernelcrew.kernels.cparse import CSource, Loop
from kernelcrew.kernels.recipes.find import clash, indent_at, preamble, shift
from kernelcrew.kernels.recipes.recipe import Refusal, Rewritten, Site
from kernelcrew.record import Record

_COUNT = re.compile(r"int (\w+) = 0; \1 < (\w+); (?:\1 ?\+\+|\+\+ ?\1|\1 \+= 1)")
_TERM = re.compile(
    r"\{ ?(?:const )?float (?P<a>\w+) = (?P<left>[^;]+); (?:const float \*(?:const )?(?P<b>\w+) = (?P<row>[^;]+); )?"
)

_JAM = """\
/* jam_terms: JAM terms at a time are added to a row of C, which is loaded and stored that much less often. */
int {k} = 0;
for (; {k} + JAM <= {K}; {k} += JAM) {{
    float left[JAM];
#pragma GCC unroll 16
    for (int t = 0; t < JAM; t++)
        left[t] = {left};
#pragma GCC ivdep
    for (int {j} = 0; {j} < {N}; {j}++) {{
        float sum = {c}[{j}];
#pragma GCC unroll 16
        for (int t = 0; t < JAM; t++)
            sum += left[t] * ({row})[{j}];
        {c}[{j}] = sum;
    }}
}}
for (; {k} < {K}; {k}++) """

_IJK = """\
/* order_ijk: the terms of one element after another, so that each element of C is written once. */
for (int {j} = 0; {j} < {N}; {j}++) {{
    float sum = 0.0f;
    for (int {k} = 0; {k} < {K}; {k}++)
        sum += {left} * ({row})[{j}];
    {c}[{j}] = sum;
}}"""

_IKJ = """\
/* order_ikj: the innermost loop runs along rows of B and C, whose elements do not wait for each other. */
for (int {j} = 0; {j} < {N}; {j}++)
    {c} = 0.0f;
for (int {k} = 0; {k} < {K}; {k}++) {{
    const float left = {left};
    const float *right = {row};
    for (int {j} = 0; {j} < {N}; {j}++)
        {c} += left * right[{j}];
}}"""


class Ikj(Record):
    """A loop over terms that adds a multiple of a row of B to a row of C each time round."""

    loop: Loop
    """The loop over terms."""
    names: dict[str, str]
    """`j`, `k`: indices; `N`, `K`: bounds; `c`: the row of C; `left`: A's element; `row`: B's row."""
    zero: Loop | None
    """The loop before it that puts zeros into the row of C."""


class Ijk(Record):
    """A loop over columns that sums up one element of C each time round."""

    loop: Loop
    """The loop over columns."""
    names: dict[str, str]
    """`j`, `k`: indices; `N`, `K`: bounds; `c`: the element of C; `left`: A's element; `row`: B's row."""


def find_ikj(source: CSource) -> Ikj | str:
    """The one such loop, or why there is none."""
    found = [f for loop in source.loops if (f := _as_ikj(source, loop))]
    if len(found) != 1:
        return "no loop over terms that adds `a * b[j]` to a row of C is there" if not found else "several such loops"
    return found[0]


def find_ijk(source: CSource) -> Ijk | str:
    """The one such loop, or why there is none."""
    found = [f for loop in source.loops if (f := _as_ijk(source, loop))]
    if len(found) != 1:
        return "no loop over columns that sums up one element of C is there" if not found else "several such loops"
    return found[0]


def jam_terms(site: Site) -> Rewritten | Refusal:
    """Several terms at a time in the order ikj."""
    found = find_ikj(site.source)
    if isinstance(found, str):
        return Refusal(because=found)
    taken = clash(site.source, ("JAM",)) or _hidden(found.names, ("left", "t", "sum"))
    if taken:
        return Refusal(because=f"the source uses the name '{taken}' already")
    names = dict(found.names)
    later = rf"\b{names['k']}\b"
    names["left"] = re.sub(later, f"({names['k']} + t)", names["left"])
    names["row"] = re.sub(later, f"({names['k']} + t)", names["row"])
    body, end = found.loop.body, "\n}" if _bare(site.source, found.loop) else ""
    text = site.source.text[: body.end] + end + site.source.text[body.end :]
    # The body's lines are indented already: they are put behind the filled text.
    filled = ("{\n" if end else "") + _JAM.format(**names)
    text = _put(text, found.loop.span.start, body.start, filled)
    return Rewritten(text=preamble(text, (), site.knobs))


def order_ijk(site: Site) -> Rewritten | Refusal:
    """From ikj to ijk."""
    found = find_ikj(site.source)
    if isinstance(found, str):
        return Refusal(because=found)
    if found.zero is None:
        return Refusal(because="the row of C is not seen to start from zeros")
    if taken := _hidden(found.names, ("sum",)):
        return Refusal(because=f"the source uses the name '{taken}' already")
    made = _put(site.source.text, found.zero.span.start, found.loop.span.end, _IJK.format(**found.names))
    return Rewritten(text=made)


def order_ikj(site: Site) -> Rewritten | Refusal:
    """From ijk to ikj."""
    found = find_ijk(site.source)
    if isinstance(found, str):
        return Refusal(because=found)
    if taken := _hidden(found.names, ("left", "right")):
        return Refusal(because=f"the source uses the name '{taken}' already")
    filled = _IKJ.format(**found.names)
    filled = f"{{\n{shift(filled, '    ')}\n}}" if _bare(site.source, found.loop) else filled
    return Rewritten(text=_put(site.source.text, found.loop.span.start, found.loop.span.end, filled))


def _bare(source: CSource, loop: Loop) -> bool:
    """Whether the loop is the whole body of what stands around it, without braces: it may not become two statements."""
    return source.blank[: loop.span.start].rstrip()[-1:] not in (";", "{", "}")


def _hidden(names: dict[str, str], fresh: tuple[str, ...]) -> str:
    """The first of `fresh` that the expressions moved under it use themselves."""
    used = {word for text in names.values() for word in re.findall(r"\w+", text)}
    return next((name for name in fresh if name in used), "")


def _put(text: str, start: int, end: int, filled: str) -> str:
    indent = indent_at(text, start)
    return text[:start] + shift(filled, indent).removeprefix(indent) + text[end:]


def _code(source: CSource, start: int, end: int) -> str:
    return " ".join(source.blank[start:end].split())


def _count(loop: Loop) -> tuple[str, str] | None:
    head = _COUNT.fullmatch(loop.head)
    return (head.group(1), head.group(2)) if head and loop.kind == "for" else None


def _inside(source: CSource, loop: Loop) -> Loop | None:
    """The only loop directly inside, itself innermost."""
    at = source.loops.index(loop)
    inner = [inner for inner in source.loops if inner.parent == at]
    return inner[0] if len(inner) == 1 and inner[0].innermost else None


def _as_ikj(source: CSource, loop: Loop) -> Ikj | None:
    outer, inner = _count(loop), _inside(source, loop)
    if outer is None or inner is None or (counted := _count(inner)) is None:
        return None
    (k, terms), (j, columns) = outer, counted
    added = re.fullmatch(
        rf"\{{? ?(\w+)\[{j}\] \+= (\w+) \* (\w+)\[{j}\]; ?\}}?", source.code(inner.body)
    )
    before = _TERM.fullmatch(_code(source, loop.body.start, inner.span.start) + " ")
    after = source.blank[inner.span.end : loop.body.end].strip()
    if added is None or before is None or after != "}" or before["b"] is None:
        return None
    c, a, b = added.groups()
    if (a, b) != (before["a"], before["b"]) or re.search(rf"\b{j}\b", before["left"] + before["row"]):
        return None
    names = {"j": j, "k": k, "N": columns, "K": terms, "c": c, "left": before["left"], "row": before["row"]}
    return Ikj(loop=loop, names=names, zero=_zeroed(source, loop, c, (j, columns)))


def _zeroed(source: CSource, loop: Loop, c: str, counted: tuple[str, str]) -> Loop | None:
    """The loop right before `loop` that puts zeros into all of `c`."""
    for other in source.loops:
        apart = source.blank[other.span.end : loop.span.start]
        if other.span.end <= loop.span.start and not apart.strip() and _count(other) is not None:
            index, bound = _count(other) or ("", "")
            put = re.fullmatch(rf"\{{? ?{c}\[{index}\] = 0(?:\.0?f?)?; ?\}}?", source.code(other.body))
            return other if put and bound == counted[1] else None
    return None


def _as_ijk(source: CSource, loop: Loop) -> Ijk | None:
    outer, inner = _count(loop), _inside(source, loop)
    if outer is None or inner is None or (counted := _count(inner)) is None:
        return None
    (j, columns), (k, terms) = outer, counted
    before = re.fullmatch(r"\{ float (\w+) = 0(?:\.0?f?)?;", _code(source, loop.body.start, inner.span.start))
    added = re.fullmatch(r"\{? ?(\w+) \+= ([^;]+ \* [^;]+); ?\}?", source.code(inner.body))
    after = re.fullmatch(r"([^;=]+) = (\w+); \}", _code(source, inner.span.end, loop.body.end))
    if before is None or added is None or after is None or not before[1] == added[1] == after[2]:
        return None
    left, row = _factors(added[2], j)
    if not re.search(rf"\b{j}\b", after[1]) or re.search(rf"\b{before[1]}\b", added[2]) or not row:
        return None
    names = {"j": j, "k": k, "N": columns, "K": terms, "c": after[1], "left": left, "row": row}
    return Ijk(loop=loop, names=names)


def _factors(term: str, j: str) -> tuple[str, str]:
    """`A's element` and `B's row` of `A[..] * B[.. + j]` or `A[..] * (row)[j]`; empty where it is neither."""
    direct = re.fullmatch(rf"(.+) \* (?:(\w+)|\(([^()]*(?:\([^()]*\)[^()]*)*)\))\[{j}\]", term)
    offset = re.fullmatch(rf"(.+) \* (\w+)\[(.+) \+ {j}\]", term)
    if offset is not None:
        left, row = offset[1], f"{offset[2]} + {offset[3]}"
    elif direct is not None:
        left, row = direct[1], direct[2] or direct[3]
    else:
        return "", ""
    return ("", "") if re.search(rf"\b{j}\b", left + row) else (left, row)
