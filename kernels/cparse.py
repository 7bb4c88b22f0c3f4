"""A small reader of C: functions, loops with their nesting, knobs and comments, by position in the text.

It is no compiler. Comments, literals and preprocessor lines are blanked first, so that braces and keywords inside them
count for nothing; then functions and loops are found by matching brackets. A text whose brackets do not match is read
as far as it goes and `problem` says where it stopped: the compiler has the last word on such a text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Literal

from kernelcrew.record import Record

_SKIP = re.compile(
    r"/\*.*?(?:\*/|\Z)|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?|^[ \t]*#(?:\\\n|/\*.*?\*/|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
_KNOB = re.compile(
    r"^[ \t]*#[ \t]*ifndef[ \t]+(\w+)[ \t]*\n"
    r"[ \t]*#[ \t]*define[ \t]+\1[ \t]+(-?\d+)[^\n]*\n[ \t]*#[ \t]*endif",
    re.MULTILINE,
)
_LOOP = re.compile(r"\b(for|while|do)\b")
_HEAD = re.compile(
    r"(\w+)\s*\(([^(){};]*(?:\([^()]*\)[^(){};]*)*)\)\s*(?:__attribute__\s*\(\(.*?\)\)\s*)?\Z", re.DOTALL
)
_NOT_FUNCTIONS = frozenset(("if", "for", "while", "switch", "return", "sizeof", "do", "else"))
_CLOSES = {"(": ")", "[": "]", "{": "}"}


class Span(Record):
    """A piece of the text: `text[start:end]`."""

    start: int
    """First character."""
    end: int
    """One past the last."""
    line_first: int
    """Line of the first character, from 1."""
    line_last: int
    """Line of the last character."""


class Comment(Record):
    """One comment."""

    span: Span
    """Where."""
    text: str
    """Its words, without the markers."""


class SourceKnob(Record):
    """An `#ifndef NAME` / `#define NAME value` / `#endif` triple."""

    name: str
    """The macro."""
    value: int
    """Its value when the plan gives none."""
    span: Span
    """The three lines."""


class Parameter(Record):
    """One parameter of a function."""

    name: str
    """Its name; empty when it has none."""
    text: str
    """As written."""
    pointer: bool
    """Whether it is a pointer."""


class Loop(Record):
    """One loop."""

    kind: Literal["for", "while", "do"]
    """Its keyword."""
    span: Span
    """From the keyword to the end of the body."""
    head: str
    """What stands between its parentheses, comments blanked; empty for `do`."""
    body: Span
    """The body, braces included where it has them."""
    depth: int
    """1 for an outermost loop."""
    parent: int
    """Index of the loop around it, -1 for none."""
    innermost: bool
    """Whether it holds no other loop."""
    function: str
    """The function it stands in."""


class Function(Record):
    """One function definition."""

    name: str
    """Its name."""
    parameters: tuple[Parameter, ...]
    """In order."""
    span: Span
    """From its first word to the closing brace."""
    signature: Span
    """The parenthesised parameter list, parentheses included."""
    body: Span
    """Braces included."""


class CSource(Record):
    """What was found in one text."""

    text: str
    """The text itself."""
    blank: str
    """The text with comments, literals and preprocessor lines replaced by spaces: same length, same lines."""
    functions: tuple[Function, ...]
    """In order."""
    loops: tuple[Loop, ...]
    """In order of their keywords."""
    knobs: tuple[SourceKnob, ...]
    """In order."""
    comments: tuple[Comment, ...]
    """In order."""
    problem: str = ""
    """Why the reading stopped early; empty when it did not."""

    def function(self, name: str) -> Function | None:
        return next((f for f in self.functions if f.name == name), None)

    def knob(self, name: str) -> SourceKnob | None:
        return next((k for k in self.knobs if k.name == name), None)

    def loop_at(self, line: int) -> Loop | None:
        """The innermost loop that covers a line."""
        inside = [loop for loop in self.loops if loop.span.line_first <= line <= loop.span.line_last]
        return max(inside, key=lambda loop: loop.depth, default=None)

    def of(self, span: Span) -> str:
        """The text of a span."""
        return self.text[span.start : span.end]

    def code(self, span: Span) -> str:
        """The text of a span without its comments, runs of blanks made one."""
        return " ".join(self.blank[span.start : span.end].split())


def parse_c(text: str) -> CSource:
    """Read one translation unit. Never raises for a text that is no C."""
    lines = [0, *(i + 1 for i, c in enumerate(text) if c == "\n")]
    comments: list[Comment] = []
    pieces: list[str] = []
    at = 0
    for found in _SKIP.finditer(text):
        pieces += [text[at : found.start()], re.sub(r"[^\n]", " ", found.group())]
        at = found.end()
        if found.group().startswith(("/*", "//")):
            words = re.sub(r"^\s*\*+ ?", "", found.group().strip("/*\n "), flags=re.MULTILINE)
            comments.append(Comment(span=_span(lines, found.start(), found.end()), text=words.strip()))
    blank = "".join([*pieces, text[at:]])
    knobs = tuple(
        SourceKnob(name=k.group(1), value=int(k.group(2)), span=_span(lines, k.start(), k.end()))
        for k in _KNOB.finditer(text)
    )
    ends, problem = _brackets(blank, lines)
    functions = _functions(blank, lines, ends)
    try:
        loops = _loops(blank, lines, ends, functions)
    except RecursionError:
        loops, problem = (), problem or "statements are nested too deeply to be read"
    return CSource(
        text=text, blank=blank, functions=functions, loops=loops, knobs=knobs, comments=tuple(comments), problem=problem
    )


def set_knob(text: str, name: str, value: int) -> str | None:
    """The text with the default of one knob set; None when it has no such knob."""
    knob = parse_c(text).knob(name)
    if knob is None:
        return None
    triple = text[knob.span.start : knob.span.end]
    changed = re.sub(rf"(define[ \t]+{re.escape(name)}[ \t]+)-?\d+", rf"\g<1>{value}", triple, count=1)
    return text[: knob.span.start] + changed + text[knob.span.end :]


def _span(lines: Sequence[int], start: int, end: int) -> Span:
    last = max(start, end - 1)
    return Span(start=start, end=end, line_first=bisect_right(lines, start), line_last=bisect_right(lines, last))


def _brackets(blank: str, lines: Sequence[int]) -> tuple[dict[int, int], str]:
    """Position of each opening bracket to that of its closing one."""
    ends: dict[int, int] = {}
    stack: list[int] = []
    for found in re.finditer(r"[()\[\]{}]", blank):
        at, c = found.start(), found.group()
        if c in _CLOSES:
            stack.append(at)
        elif stack and _CLOSES[blank[stack[-1]]] == c:
            ends[stack.pop()] = at
        else:
            return ends, f"line {bisect_right(lines, at)}: '{c}' closes nothing"
    if stack:
        return ends, f"line {bisect_right(lines, stack[-1])}: '{blank[stack[-1]]}' is never closed"
    return ends, ""


def _functions(blank: str, lines: Sequence[int], ends: dict[int, int]) -> tuple[Function, ...]:
    found: list[Function] = []
    at = since = 0
    while (brace := blank.find("{", at)) >= 0 and brace in ends:
        head = _HEAD.search(blank, max(blank.rfind(";", since, brace) + 1, since), brace)
        end = ends[brace] + 1
        if head is not None and head.group(1) not in _NOT_FUNCTIONS:
            start = blank.rfind(";", since, brace) + 1 or since
            start += len(blank[start:brace]) - len(blank[start:brace].lstrip())
            found.append(
                Function(
                    name=head.group(1), parameters=_parameters(head.group(2)), span=_span(lines, start, end),
                    signature=_span(lines, head.start(2) - 1, head.end(2) + 1), body=_span(lines, brace, end),
                )
            )
        at = since = end
    return tuple(found)


def _parameters(text: str) -> tuple[Parameter, ...]:
    if text.strip() in ("", "void"):
        return ()
    found = []
    for raw in text.split(","):
        words = " ".join(raw.split())
        name = re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)?$", words)
        found.append(Parameter(name=name.group(1) if name else "", text=words, pointer="*" in words or "[" in words))
    return tuple(found)


def _loops(blank: str, lines: Sequence[int], ends: dict[int, int], functions: Sequence[Function]) -> tuple[Loop, ...]:
    raw: list[tuple[str, int, str, int, int]] = []  # keyword, its position, head, body's start and end
    for found in _LOOP.finditer(blank):
        kind, at = found.group(1), found.end()
        head = ""
        if kind != "do":
            opening = _skip_blank(blank, at)
            if opening not in ends or blank[opening] != "(":
                continue
            head, at = " ".join(blank[opening + 1 : ends[opening]].split()), ends[opening] + 1
        body = _skip_blank(blank, at)
        end = _statement_end(blank, ends, body)
        is_tail_of_do = kind == "while" and blank[body : body + 1] == ";" and any(
            k == "do" and e == _skip_blank_back(blank, found.start()) for k, _, _, _, e in raw
        )
        if end > body and not is_tail_of_do:
            raw.append((kind, found.start(), head, body, end))
    return tuple(_nested(raw, index, lines, functions) for index in range(len(raw)))


def _nested(
    raw: Sequence[tuple[str, int, str, int, int]], index: int, lines: Sequence[int], functions: Sequence[Function]
) -> Loop:
    kind, start, head, body, end = raw[index]
    around = [j for j, (_, _, _, b, e) in enumerate(raw) if b <= start and end <= e and j != index]
    function = next((f.name for f in functions if f.span.start <= start < f.span.end), "")
    return Loop.model_validate(
        {
            "kind": kind, "span": _span(lines, start, end), "head": head, "body": _span(lines, body, end),
            "depth": len(around) + 1, "parent": max(around, default=-1), "function": function,
            "innermost": not any(body <= s < end for _, s, _, _, _ in raw),
        }
    )


def _statement_end(blank: str, ends: dict[int, int], at: int) -> int:
    """One past the end of the statement that starts at `at`; `at` itself when it cannot be told."""
    if at >= len(blank):
        return at
    if blank[at] == "{":
        return ends.get(at, at - 1) + 1
    keyword = re.match(r"(for|while|if|switch|do|else)\b", blank[at:])
    if keyword is None:
        return _semicolon(blank, ends, at)
    after = _skip_blank(blank, at + keyword.end())
    if keyword.group(1) in ("do", "else"):
        end = _statement_end(blank, ends, after)
        return _semicolon(blank, ends, end) if keyword.group(1) == "do" else end
    if after not in ends:
        return at
    end = _statement_end(blank, ends, _skip_blank(blank, ends[after] + 1))
    follow = _skip_blank(blank, end)
    if keyword.group(1) == "if" and re.match(r"else\b", blank[follow:]):
        return _statement_end(blank, ends, follow)
    return end


def _semicolon(blank: str, ends: dict[int, int], at: int) -> int:
    i = at
    while i < len(blank):
        if blank[i] == ";":
            return i + 1
        if blank[i] in _CLOSES:
            if i not in ends:
                return at
            i = ends[i]
        elif blank[i] in ")]}":
            return at
        i += 1
    return at


def _skip_blank(blank: str, at: int) -> int:
    while at < len(blank) and blank[at].isspace():
        at += 1
    return at


def _skip_blank_back(blank: str, at: int) -> int:
    while at > 0 and blank[at - 1].isspace():
        at -= 1
    return at
