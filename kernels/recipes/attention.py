"""Recipes for `attention` on processors: a path with queries in vectors, and rewrites of the loops over one query.

The rewrites look for the loops of the start kernel and leave one call each, so that every subset of them fits together
in any order; `query_lanes` is a template that serves most queries before those loops see them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kernelcrew.kernels.cparse import CSource, Loop, parse_c
from kernelcrew.kernels.nouns import Knob, Risk
from kernelcrew.kernels.recipes.attention_lanes import EXP_FAST, EXP_SLOW, LANES, WIDTH
from kernelcrew.kernels.recipes.attention_rows import EXP_ROW, SCORES, VALUES
from kernelcrew.kernels.recipes.find import REASSOCIATES, clash, entry_of, indent_at, line_start, preamble
from kernelcrew.kernels.recipes.recipe import Recipe, Refusal, Rewritten, Site

_ROW = r"const float \*(?P<row>\w+) = (?P<base>\w+) \+ \(\(long\)(?P<head>\w+) \* (?P<n>\w+) \+ {j}\) \* (?P<d>\w+); "
_EACH = r"for \(int (?P<c>\w+) = 0; (?P=c) < (?P=d); (?P=c)\+\+\) "
_SCORE = (
    _ROW + r"float (?P<s>\w+) = 0\.0f; " + _EACH + r"(?P=s) \+= (?P<q>\w+)\[(?P=c)\] \* (?P=row)\[(?P=c)\]; "
    r"(?P<p>\w+)\[{j}\] = (?P=s) \* (?P<scale>\w+); "
    r"(?P<top>\w+) = (?P=p)\[{j}\] > (?P=top) \? (?P=p)\[{j}\] : (?P=top);"
)
_WEIGH = r"(?P<p>\w+)\[{j}\] = expf\((?P=p)\[{j}\] - (?P<top>\w+)\); (?P<sum>\w+) \+= (?P=p)\[{j}\];"
_VALUE = (
    _ROW + r"const float (?P<w>\w+) = (?P<p>\w+)\[{j}\](?: / (?P<sum>\w+))?; " + _EACH
    + r"(?P<o>\w+)\[(?P=c)\] \+= (?P=w) \* (?P=row)\[(?P=c)\];"
)
_ZERO = r"for \(int (\w+) = 0; \1 < {d}; \1\+\+\)\s*{o}\[\1\] = 0\.0f;\s*\Z"
_CALL = re.compile(r"value_row\((?P<p>\w+), [^;]*?, (?P<o>\w+), (?P<seen>\w+), (?P<d>\w+), (?P<sum>\w+)\);")
_COUNT = re.compile(r"\(size_t\)(?:\((\w+) > 0 \? \1 : 1\)|(\w+)) \* sizeof\(float\)")
_BUFFER = re.compile(r"float \*(?P<p>\w+) = (?P<get>malloc\(.+\));(?=\s*if \(!(?P=p)\)\s*return;)")


class Found(NamedTuple):
    """A loop over the keys of one query."""

    loop: Loop
    names: dict[str, str]
    """What it calls its parts; `seen` is the bound and `j` the index."""


def _keys_loop(source: CSource, pattern: str) -> Found | None:
    """The first loop `for (int j = 0; j < seen; j++)` whose body is `pattern`."""
    for loop in source.loops:
        head = re.fullmatch(r"int (\w+) = 0; \1 < (\w+); \1\+\+", loop.head)
        if head is None:
            continue
        body = source.code(loop.body).removeprefix("{").removesuffix("}").strip()
        match = re.fullmatch(pattern.replace("{j}", head.group(1)), body)
        if match is not None:
            parts = {name: text or "" for name, text in match.groupdict().items()}
            return Found(loop, {**parts, "j": head.group(1), "seen": head.group(2)})
    return None


def _ready(site: Site, own: tuple[str, ...]) -> str:
    """Why helpers of these names cannot be added; empty when they can."""
    entry = entry_of(site.source, site.entry, 1)
    if isinstance(entry, str):
        return entry
    shared = () if WIDTH in site.source.text else ("VEC", "vec_f", "vec_i")
    taken = clash(site.source, (*own, *shared))
    return f"the source uses the name '{taken}' already" if taken else ""


def _with_helpers(site: Site, text: str, code: str) -> str:
    """`text` with `code` before the entry, and the vector types and knobs before the first function."""
    entry = parse_c(text).function(site.entry)
    if entry is None:
        return text
    at = entry.span.start
    for comment in reversed(parse_c(text).comments):
        if comment.span.end <= at and not text[comment.span.end : at].strip() and text[: comment.span.start].strip():
            at = comment.span.start
    text = text[:at] + code + "\n" + text[at:]
    return preamble(text, ("stddef.h", "math.h"), site.knobs, "" if WIDTH in text else WIDTH)


def _put(text: str, first: int, last: int, code: str) -> str:
    """`text[first:last]` replaced by lines indented like the first of them."""
    indent = indent_at(text, first)
    return text[:first] + code.replace("\n", f"\n{indent}") + text[last:]


def _lanes(site: Site) -> Rewritten | Refusal:
    entry = entry_of(site.source, site.entry, 9)
    if isinstance(entry, str):
        return Refusal(because=entry)
    if [p.pointer for p in entry.parameters] != [True] * 4 + [False] * 5:
        return Refusal(because=f"'{site.entry}' does not take (Q, K, V, O, heads, m, n, d, causal)")
    q, k, v, o, heads, m, n, d, causal = (p.name for p in entry.parameters)
    names = ("query_lanes", "lane_block", "turn", "score_tile", "value_tile", "pack_queries", "TILE", "NEAR",
             *site.knobs)
    if because := _ready(site, names):
        return Refusal(because=because)
    loops = site.source.loops
    found = next((x for x in loops if x.parent >= 0 and x.head == f"int i = 0; i < {m}; i++"), None)
    outer = re.fullmatch(r"int (\w+) = 0; \1 < (\w+); \1\+\+", loops[found.parent].head) if found else None
    if found is None or outer is None or outer.group(2) != heads:
        return Refusal(because=f"no loop `for (int i = 0; i < {m}; i++)` inside a loop over {heads} is there")
    h = outer.group(1)
    text = site.source.text
    first = text.index("int i = 0", found.span.start)
    start = (
        f"int i = query_lanes(\n         (const float *const[]){{{q} + (long){h} * {m} * {d}, {k} + (long){h} * "
        f"{n} * {d}, "
        f"{v} + (long){h} * {n} * {d}}},\n         {o} + (long){h} * {m} * {d}, {m}, {n}, {d}, {causal})"
    )
    text = _put(text, first, first + len("int i = 0"), start)
    code = LANES if "exp_lanes" in site.source.text else f"{EXP_SLOW}\n{LANES}"
    return Rewritten(text=preamble(_with_helpers(site, text, code), ("stdlib.h",), {}))


def _scores(site: Site) -> Rewritten | Refusal:
    found = _keys_loop(site.source, _SCORE)
    if found is None:
        return Refusal(because="no loop over keys that keeps s = q . k times a scale, and the largest, is there")
    if because := _ready(site, ("score_row", "fold_pair")):
        return Refusal(because=because)
    call = "{top} = score_row({q}, {base} + (long){head} * {n} * {d}, {p}, {seen}, {d}, {scale});"
    span = found.loop.span
    return Rewritten(
        text=_with_helpers(site, _put(site.source.text, span.start, span.end, call.format(**found.names)), SCORES)
    )


def _exp(site: Site) -> Rewritten | Refusal:
    found = _keys_loop(site.source, _WEIGH)
    text = site.source.text
    slow = EXP_SLOW in text
    if REASSOCIATES & {*site.plan.flags}:
        return Refusal(because="it rounds by adding a constant and taking it away, which -fassociative-math cancels")
    if EXP_FAST in text or (found is None and not slow):
        return Refusal(because="no loop `p[j] = expf(p[j] - top); sum += p[j];` is there")
    if because := _ready(site, ("exp_row", *(() if slow else ("exp_lanes",)))):
        return Refusal(because=because)
    code = "" if slow else EXP_FAST
    if found is not None:
        span = found.loop.span
        text = _put(text, span.start, span.end, "{sum} = exp_row({p}, {seen}, {top});".format(**found.names))
        code += ("\n" if code else "") + EXP_ROW
    text = text.replace(EXP_SLOW, EXP_FAST)
    return Rewritten(text=_with_helpers(site, text, code) if code else text)


def _values(site: Site) -> Rewritten | Refusal:
    found = _keys_loop(site.source, _VALUE)
    if found is None:
        return Refusal(because="no loop over keys that adds w * v[c] to o[c] for every c is there")
    if because := _ready(site, ("value_row", "value_columns", *site.knobs)):
        return Refusal(because=because)
    span, text = found.loop.span, site.source.text
    zero = re.search(_ZERO.format(**found.names), site.source.blank[: span.start])
    if zero is None:
        return Refusal(because=f"'{found.names['o']}' is not set to zero right before the loop")
    parts = {**found.names, "by": found.names["sum"] or "1.0f"}
    call = "value_row({p}, {base} + (long){head} * {n} * {d}, {o}, {seen}, {d}, {by});".format(**parts)
    return Rewritten(text=_with_helpers(site, _put(text, zero.start(), span.end, call), VALUES))


_LATE = """
/* late_division: one division a query instead of one a key; a query that sees no key keeps its zeros. */
if ({seen} > 0) {{
    const float whole = 1.0f / {sum};
    for (int c = 0; c < {d}; c++)
        {o}[c] *= whole;
}}"""


def _late(site: Site) -> Rewritten | Refusal:
    text = site.source.text
    call = _CALL.search(site.source.blank)
    if call is not None:
        after = _LATE.format(**call.groupdict())
        made = call.group().replace(f", {call['sum']});", ", 1.0f);")
        return Rewritten(text=_put(text, call.start(), call.end(), made + after))
    found = _keys_loop(site.source, _VALUE)
    if found is None or not found.names["sum"]:
        return Refusal(because="no loop over keys that divides each weight by their sum is there")
    span, names = found.loop.span, found.names
    loop = text[span.start : span.end]
    divided = f"{names['p']}[{names['j']}] / {names['sum']}"
    if loop.count(divided) != 1:
        return Refusal(because=f"'{divided}' does not stand once in the loop")
    made = loop.replace(divided, f"{names['p']}[{names['j']}]")
    indent = indent_at(text, span.start)
    after = _LATE.format(**names).replace("\n", f"\n{indent}")
    return Rewritten(text=text[: span.start] + made + after + text[span.end :])


def _stack(site: Site) -> Rewritten | Refusal:
    if taken := clash(site.source, ("few", *site.knobs)):
        return Refusal(because=f"the source uses the name '{taken}' already")
    text, blank = site.source.text, site.source.blank
    found = _BUFFER.search(blank)
    freed = re.findall(rf"\bfree\({found['p']}\);", blank) if found else []
    bound = _COUNT.search(found["get"]) if found else None
    if found is None or bound is None or len(freed) != 1:
        return Refusal(because="no buffer of n floats is taken by malloc and freed once")
    name, n = found["p"], bound.group(1) or bound.group(2)
    at = blank.index(freed[0])
    text = text[:at] + f"if ({name} != few)\n{indent_at(text, at)}    {freed[0]}" + text[at + len(freed[0]) :]
    indent = indent_at(text, found.start())
    lines = (
        "/* stack_weights: rows of up to STACK_FLOATS keys need no malloc. */\n", "float few[STACK_FLOATS];\n",
        f"float *{name} = {n} <= STACK_FLOATS ? few : {found['get']};",
    )
    at = line_start(text, found.start())
    text = text[:at] + "".join(indent + line for line in lines) + text[found.end() :]
    return Rewritten(text=preamble(text, (), site.knobs))


_LOADS = (
    ("                acc[k] += t * *(const vec_f *)(key + at[k] + c);\n", "key + at[k] + c"),
    ("            even[b] += w * *(const vec_f *)(v + j * d + b * VEC);\n            odd", "v + j * d + b * VEC"),
    ("            odd[b] += u * *(const vec_f *)(v + (j + 1) * d + b * VEC);\n", "v + (j + 1) * d + b * VEC"),
)
"""Loads of vector_scores and value_registers that walk over whole rows, and their addresses."""
_BARE = " " * 16
"""How far the one of them is indented that is its loop's only statement, without braces."""
_ASK = "__builtin_prefetch((const void *)((uintptr_t)({at}) + KEY_AHEAD));"
_ASK_NOTE = "/* prefetch_keys: lines of keys and values KEY_AHEAD bytes on are asked for before they are needed. */\n"


def _prefetch(site: Site) -> Rewritten | Refusal:
    text = site.source.text
    if taken := clash(site.source, ("KEY_AHEAD",)):
        return Refusal(because=f"the source uses the name '{taken}' already")
    found = [(line, at) for line, at in _LOADS if text.count(line) == 1]
    if not found:
        return Refusal(because="no vector loop over rows of keys or values is there: apply vector_scores first")
    for line, at in found:
        ask = _ASK.format(at=at)
        if line.startswith(_BARE):
            bare, braced = f"{_BARE[4:]}for (int k = 0; k < VEC; k++)", f"{_BARE}{ask}\n{line}{_BARE[4:]}}}\n"
            text = text.replace(f"{bare}\n{line}", f"{bare} {{\n{braced}")
        else:
            text = text.replace(line, f"{_BARE[4:]}{ask}\n{line}")
    first = text.index("KEY_AHEAD")
    function = max(f.span.start for f in parse_c(text).functions if f.span.start < first)
    text = text[:function] + _ASK_NOTE + text[function:]
    return Rewritten(text=preamble(text, ("stdint.h",), site.knobs))


_ONLY = ("attention",)
# Windows hold what a sweep on an AVX-512 machine told apart: the other knobs moved no class by more than the noise, and
# each value in a window costs a screen of every shape.

RECIPES = (
    Recipe(
        name="query_lanes", label="template", reorders=True, operators=_ONLY, rewrite=_lanes,
        mechanism="Works on blocks of QUERY_VECTORS vectors of queries, one query a lane: logits and weighted "
        "values are "
        "register tiles in which each load serves many products, a softmax needs no horizontal step, KEY_BLOCK "
        "keys stay "
        "in cache from logit to value, and the division is done once a query.",
        needs="the entry (Q, K, V, O, heads, m, n, d, causal) with a loop over m queries inside one over the heads; "
        "serves blocks of at least FEW_QUERIES queries",
        knobs=(
            Knob(name="QUERY_VECTORS", window=(1, 2), value=2), Knob(name="KEY_BLOCK", window=(128,), value=128),
            Knob(name="FEW_QUERIES", window=(8,), value=8),
        ),
        allowed={
            "QUERY_VECTORS": (1, 2, 3, 4), "KEY_BLOCK": (8, 16, 32, 64, 128, 256, 512, 1024),
            "FEW_QUERIES": (1, 2, 3, 4, 6, 8, 12, 16),
        },
        risks=(
            Risk(shape_class="long", level="low", why="a few queries leave lanes idle, and one takes a comparison"),
            Risk(shape_class="short", level="low", why="a block with few queries pays for all its lanes"),
            Risk(shape_class="tail", level="low", why="the last block's lanes are not all in use"),
        ),
    ),
    Recipe(
        name="vector_scores", label="template", reorders=True, operators=_ONLY, rewrite=_scores,
        mechanism="Takes the products of one query with as many keys at once as a vector has lanes: that many sums do "
        "not wait for each other, and a tree of shuffles makes one vector of logits of them.",
        needs="the loop over keys of the start kernel, and a contract that frees the order of additions",
        risks=(Risk(shape_class="short", level="low", why="with fewer keys than lanes the last one is taken again"),),
    ),
    Recipe(
        name="poly_exp", label="template", reorders=True, operators=_ONLY, rewrite=_exp,
        mechanism="Takes exp of a whole vector by range reduction and a polynomial (at most 1.02 ulp off), where "
        "expf is "
        "one call a weight; -inf, NaN and denormal results are as those of expf.",
        needs="the loop over weights of the start kernel, or query_lanes; arguments up to 88, as a softmax has",
        risks=(Risk(shape_class="short", level="low", why="a row shorter than a vector takes as long as a whole one"),),
    ),
    Recipe(
        name="value_registers", label="template", reorders=True, operators=_ONLY, rewrite=_values,
        mechanism="Keeps COLUMNS vectors of the output in registers over all keys, even and odd keys apart, instead of "
        "loading and storing the output for every key.",
        needs="the loop of the start kernel that adds weighted values to a zeroed output",
        knobs=(Knob(name="COLUMNS", window=(4,), value=4),),
        allowed={"COLUMNS": (1, 2, 4, 8)},
        risks=(Risk(shape_class="tail", level="low", why="columns beyond whole vectors are done twice"),),
    ),
    Recipe(
        name="late_division", label="rewrite", operators=_ONLY, rewrite=_late,
        mechanism="Divides the output of a query once by the sum of its weights, where every weight was divided by it.",
        needs="a weight p[j] / sum in the loop over values, or value_registers",
        risks=(Risk(shape_class="short", level="low", why="with few keys the output is as long as their weights"),),
    ),
    Recipe(
        name="prefetch_keys", label="rewrite", operators=_ONLY, rewrite=_prefetch, requires=("vector_scores",),
        mechanism="Asks for the lines KEY_AHEAD bytes ahead in the loops over keys and values of one query, which read "
        "each of them once: the hardware's prefetcher starts anew at each page.",
        needs="vector_scores or value_registers",
        knobs=(Knob(name="KEY_AHEAD", window=(4096,), value=4096),),
        allowed={"KEY_AHEAD": (512, 1024, 2048, 4096, 8192, 16384, 32768)},
        risks=(Risk(shape_class="short", level="low", why="one more instruction a load of what is in cache already"),),
    ),
    Recipe(
        name="stack_weights", label="rewrite", operators=_ONLY, rewrite=_stack,
        mechanism="Keeps the weights of up to STACK_FLOATS keys on the stack, so that a small call needs no malloc.",
        needs="one buffer of n floats from malloc, freed once",
        knobs=(Knob(name="STACK_FLOATS", window=(1024,), value=1024),),
        allowed={"STACK_FLOATS": (128, 256, 512, 1024, 2048, 4096, 8192)},
        risks=(Risk(shape_class="long", level="none", why="longer rows take one comparison a call"),),
    ),
)
