"""What the generic recipes look for in a loop: its head, its statements, and how an index moves through an array."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelcrew.kernels.cparse import CSource, Loop
from kernelcrew.record import Record

FLAT = re.compile(r"\b(for|while|do|if|switch|return|break|continue|goto|else|case)\b|[{}?]")
"""What a body of plain statements does not hold."""
_HEAD = re.compile(
    r"(?P<type>(?:\w+ )*)(?P<index>\w+) = (?P<first>[^;,]+); (?P=index) < (?P<bound>[^;]+); ?(?P<step>.+)"
)
_ACCESS = re.compile(r"\b(\w+)\[")


class Counted(Record):
    """A loop `for (T i = first; i < bound; i++)`."""

    loop: Loop
    """The loop."""
    index: str
    """The running index."""
    type: str
    """Its type where the loop declares it; empty where it was declared before."""
    first: str
    """Where it starts."""
    bound: str
    """Where it ends."""
    body: str
    """The body's code without comments and outer braces."""


class Access(Record):
    """One `array[at]`."""

    array: str
    """The name before the bracket."""
    at: str
    """The index expression."""


def counted(source: CSource, loop: Loop) -> Counted | None:
    """The loop's parts, or None for another form."""
    head = _HEAD.fullmatch(loop.head)
    if loop.kind != "for" or head is None:
        return None
    index = head["index"]
    if head["step"].strip() not in (f"{index}++", f"++{index}", f"{index} += 1"):
        return None
    if mentions(head["bound"], index) or "=" in head["first"]:
        return None
    body = source.code(loop.body)
    if body.startswith("{") and body.endswith("}"):
        body = body[1:-1].strip()
    return Counted(
        loop=loop, index=index, type=head["type"].strip(), first=head["first"].strip(), bound=head["bound"].strip(),
        body=body,
    )


def innermost(source: CSource, entry: str) -> Iterator[Counted]:
    """The counted innermost loops of the entry."""
    for loop in source.loops:
        if loop.innermost and loop.function == entry and (found := counted(source, loop)) is not None:
            yield found


def mentions(text: str, name: str) -> bool:
    """Whether `name` occurs in `text` as a word."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def replaced(text: str, name: str, by: str) -> str:
    """`text` with the word `name` replaced; members are left alone."""
    return re.sub(rf"(?<![\w.>])\b{re.escape(name)}\b", lambda _: by, text)


def accesses(code: str) -> list[Access]:
    """Every array access in `code`, inner ones too."""
    found = []
    for match in _ACCESS.finditer(code):
        depth, at = 1, match.end()
        while at < len(code) and depth:
            depth += (code[at] == "[") - (code[at] == "]")
            at += 1
        found.append(Access(array=match.group(1), at=code[match.end() : at - 1].strip()))
    return found


def stride(at: str, index: str) -> str | None:
    """By how much `at` moves when `index` grows by one: '0', '1' or an expression; None where that cannot be told."""
    at = re.sub(r"\((?:long|int|size_t|ptrdiff_t)\)", "", at).strip()
    if not mentions(at, index):
        return "0"
    if at == index:
        return "1"
    if at.startswith("(") and _closes(at) == len(at) - 1:
        return stride(at[1:-1], index)
    terms = _split(at, "+-")
    if len(terms) > 1:
        moving = [t for t in terms if mentions(t, index)]
        negative = re.search(rf"-[^+]*\b{re.escape(index)}\b", at)
        return stride(moving[0], index) if len(moving) == 1 and negative is None else None
    factors = _split(at, "*")
    moving = [f for f in factors if mentions(f, index)]
    if len(factors) < 2 or len(moving) != 1:
        return None
    inner = stride(moving[0], index)
    others = " * ".join(f for f in factors if f is not moving[0])
    return None if inner is None else others if inner == "1" else f"{others} * {inner}"


def declared_float(source: CSource, name: str, before: int, *, pointer: bool) -> bool:
    """Whether the last declaration of `name` before a position is a float, or a pointer to floats."""
    star = r"\*\s*(?:const\s+|restrict\s+|__restrict\s+)*" if pointer else r"(?:\w+\s*(?:=[^;,]*)?,\s*)*"
    found = re.findall(rf"\b(\w+)\s+(?:const\s+)?{star}{re.escape(name)}\b(?!\s*\()", source.blank[:before])
    return bool(found) and found[-1] == "float"


def _closes(text: str) -> int:
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return at
    return -1


def _split(text: str, operators: str) -> list[str]:
    """Parts between the operators that stand outside all brackets."""
    parts, depth, since = [], 0, 0
    for at, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if depth == 0 and c in operators and at > since:
            parts.append(text[since:at].strip())
            since = at + 1
    return [p for p in (*parts, text[since:].strip()) if p]
