"""What recipes look for in a source, and the small edits they share. All pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kernelcrew.kernels.cparse import CSource, Function, Loop, parse_c
from kernelcrew.record import Record

_INIT = re.compile(r"((?:\w+ )*)(\w+) = 0")
_STEP = r"(?:{i} ?\+\+|\+\+ ?{i}|{i} \+= 1)"
_PRAGMA = re.compile(r"[ \t]*#[ \t]*pragma[^\n]*\n\s*\Z")

ROUNDING = re.compile(r"\b(12582912\.|6755399441055744\.|0x1\.8p\+?(23|52))")
"""1.5 x 2^23 and 1.5 x 2^52: a sum with one of them is rounded to a whole number."""
REASSOCIATES = {"-fassociative-math", "-funsafe-math-optimizations", "-ffast-math", "-Ofast"}


class SumLoop(Record):
    """A loop that adds the elements of one row, one after another, into one variable."""

    loop: Loop
    """The loop."""
    start: int
    """Where its text starts, a pragma before it included."""
    index: str
    """The running index."""
    index_type: str
    """`int` and the like where the loop declares it; empty where it was declared before."""
    bound: str
    """The name it runs up to."""
    total: str
    """The float variable it adds to."""
    base: str
    """Pointer expression to the row's first element."""
    statement: str
    """The addition as written, without its semicolon."""


class VectorLoop(Record):
    """The loop over whole groups of vectors that `vector_accumulators` writes."""

    loop: Loop
    """The loop."""
    index: str
    """The running index."""
    index_type: str
    """Its type."""
    bound: str
    """The name it runs up to."""
    base: str
    """Pointer expression to the row's first element."""


def sum_loop(source: CSource, reads: str) -> SumLoop | str:
    """The one serial sum loop of the source, or why there is none. `reads` is the input's parameter name."""
    found = [s for s in (_as_sum(source, loop) for loop in source.loops) if s is not None]
    if not found:
        return "no loop of the form `for (i = 0; i < n; i++) s += p[i];` is there"
    if len(found) > 1:
        lines = ", ".join(str(s.loop.span.line_first) for s in found)
        return f"several serial sum loops are there (lines {lines}), and it cannot be told which one is meant"
    one = found[0]
    kind = _declared_type(source, one.total, one.loop.span.start)
    if kind != "float":
        return f"the sum is kept in '{one.total}', which is {kind or 'not declared in this source'} and not float"
    root = re.match(r"\w+", one.base)
    if root is None or not (root.group() == reads or _points_into(source, root.group(), one.loop.span.start)):
        return f"'{one.base}' is not known to point to floats"
    return one


def vector_loop(source: CSource) -> VectorLoop | str:
    """The loop that `vector_accumulators` left, or why there is none."""
    for loop in source.loops:
        head = re.fullmatch(r"; (\w+) - (\w+) >= VEC \* ACC; \2 \+= VEC \* ACC", loop.head)
        body = re.search(r"acc\[k\] \+= \*\(const vec_f \*\)\((.+) \+ (\w+) \+ k \* VEC\);", source.code(loop.body))
        if head is None or body is None:
            continue
        index = head.group(2)
        declared = re.findall(rf"(\w+(?: \w+)*) {index} = 0;", source.blank[: loop.span.start])
        return VectorLoop(
            loop=loop, index=index, index_type=declared[-1] if declared else "long", bound=head.group(1),
            base=body.group(1),
        )
    return "no loop over groups of vectors is there: apply vector_accumulators first"


def entry_of(source: CSource, name: str, parameters: int) -> Function | str:
    """The entry function with its parameters, or why it cannot be used."""
    found = source.function(name)
    if found is None:
        return f"no function '{name}' is defined in the source"
    if len(found.parameters) < parameters or not all(p.name for p in found.parameters):
        return f"'{name}' does not have {parameters} named parameters"
    return found


def clash(source: CSource, names: Iterable[str]) -> str:
    """The first of `names` that the source already uses as an identifier or macro, or ''."""
    macros = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", source.text, re.MULTILINE)
    used = {*macros, *re.findall(r"\b[A-Za-z_]\w*", source.blank)}
    return next((name for name in names if name in used), "")


def preamble(text: str, includes: Iterable[str], knobs: Mapping[str, int], code: str = "") -> str:
    """`text` with headers included, knobs defined and `code` put before the first function.

    Headers and knobs that are there already are not repeated.
    """
    source = parse_c(text)
    fresh = {name: value for name, value in knobs.items() if source.knob(name) is None}
    parts = ["".join(f"#ifndef {name}\n#define {name} {value}\n#endif\n" for name, value in fresh.items()), code]
    block = "".join(f"{part}\n" for part in parts if part)
    first = _before_first_function(source)
    if block and text[:first].strip() and not text[:first].endswith("\n\n"):
        block = "\n" + block
    there = set(re.findall(r"^[ \t]*#[ \t]*include[ \t]*<([^>]+)>", text, re.MULTILINE))
    missing = [header for header in includes if header not in there]
    lines = "".join(f"#include <{header}>\n" for header in missing)
    at = min(_after_head_comment(source), first)
    return text[:at] + lines + text[at:first] + block + text[first:]


def indent_at(text: str, at: int) -> str:
    """The blanks that the line of position `at` starts with."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def line_start(text: str, at: int) -> int:
    """Where the line of position `at` starts."""
    return text.rfind("\n", 0, at) + 1


def shift(text: str, indent: str) -> str:
    """Every line of `text` but directives and empty ones, moved right by `indent`."""
    return "".join(
        line if line.startswith("#") or not line.strip() else indent + line for line in text.splitlines(keepends=True)
    )


def _as_sum(source: CSource, loop: Loop) -> SumLoop | None:
    if loop.kind != "for" or not loop.innermost or loop.head.count(";") != 2:
        return None
    init, condition, step = (part.strip() for part in loop.head.split(";"))
    started = _INIT.fullmatch(init)
    if started is None:
        return None
    index = started.group(2)
    bound = re.fullmatch(rf"{index} < (\w+)", condition)
    if bound is None or re.fullmatch(_STEP.format(i=index), step) is None:
        return None
    body = source.code(loop.body).removeprefix("{").removesuffix("}").strip()
    if body.count(";") != 1 or not body.endswith(";"):
        return None
    statement = body[:-1].strip()
    added = re.fullmatch(r"(\w+) \+= (.+)", statement) or re.fullmatch(r"(\w+) = \1 \+ (.+)", statement)
    base = _row_of(added.group(2), index) if added else ""
    if added is None or not base or bound.group(1) in (index, added.group(1)) or added.group(1) == index:
        return None
    pragma = _PRAGMA.search(source.text, 0, loop.span.start)
    start = loop.span.start
    while pragma is not None:
        start = pragma.start() + len(pragma.group()) - len(pragma.group().lstrip(" \t"))
        pragma = _PRAGMA.search(source.text, 0, line_start(source.text, start))
    return SumLoop(
        loop=loop, start=start, index=index, index_type=started.group(1).strip(), bound=bound.group(1),
        total=added.group(1), base=base, statement=statement,
    )


def _row_of(term: str, index: str) -> str:
    """`p` for `p[i]`, `x + r * n` for `x[r * n + i]`, '' for anything else."""
    direct = re.fullmatch(rf"(\w+)\[{index}\]", term)
    if direct:
        return direct.group(1)
    offset = re.fullmatch(rf"(\w+)\[([\w\s()*+]+) \+ {index}\]", term)
    if offset and not re.search(rf"\b{index}\b", offset.group(2)):
        return f"{offset.group(1)} + {offset.group(2)}"
    return ""


def _declared_type(source: CSource, name: str, before: int) -> str:
    others = r"(?:\w+\s*(?:=[^;,]*)?,\s*)*"
    found = re.findall(rf"\b(float|double|int|long|_Float16)\s+{others}{name}\b(?!\s*\()", source.blank[:before])
    return found[-1] if found else ""


def _points_into(source: CSource, name: str, before: int) -> bool:
    words = r"(?:const\s+|restrict\s+|__restrict\s+)*"
    return re.search(rf"\bfloat\s+(?:const\s+)?\*\s*{words}{name}\b", source.blank[:before]) is not None


def _before_first_function(source: CSource) -> int:
    """Before the first function, and before the comments that stand on it, unless one of them heads the file."""
    at = source.functions[0].span.start if source.functions else len(source.text)
    for comment in reversed(source.comments):
        stands_on = comment.span.end <= at and not source.text[comment.span.end : at].strip()
        if stands_on and source.text[: comment.span.start].strip():
            at = comment.span.start
    return at


def _after_head_comment(source: CSource) -> int:
    if source.comments and not source.text[: source.comments[0].span.start].strip():
        end = source.text.find("\n", source.comments[0].span.end)
        return end + 1 if end >= 0 else len(source.text)
    return 0
