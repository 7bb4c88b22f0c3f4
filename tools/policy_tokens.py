"""C source as tokens, the way the compiler's first phases see it: splices joined, comments apart, digraphs resolved.

What could be read in two ways (trigraphs, raw strings, letters outside ASCII) is a problem of its own, so that the
policy never judges another text than the one that is compiled.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DIGRAPHS = {"%:%:": "##", "%:": "#", "<:": "[", ":>": "]", "<%": "{", "%>": "}"}

_SPLICE = re.compile(r"\\[ \t\f\v]*\r?\n")
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_TOKEN = re.compile(
    r"""(?P<comment>/\*.*?\*/|//[^\n]*)
      | (?P<open>/\*)
      | (?P<newline>\n)
      | (?P<space>[ \t\r\f\v]+)
      | (?P<raw>(?:u8|[uUL])?R")
      | (?P<string>(?:u8|[uUL])?"(?:\\.|[^"\\\n])*")
      | (?P<char>[uUL]?'(?:\\.|[^'\\\n])*')
      | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>\.?[0-9](?:[eEpP][+-]|[A-Za-z0-9_.])*)
      | (?P<punct>%:%:|\.\.\.|<<=|>>=|%:|<:|:>|<%|%>|\#\#|->|\+\+|--|&&|\|\||[<>=!+\-*/%&|^]=|<<|>>
                 |[{}\[\]()<>;:,.?~!+\-*/%&|^=\#])
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """One token outside comments."""

    kind: str
    """ident, number, string, char or punct."""
    text: str
    """Its spelling; digraphs as what they stand for."""
    line: int
    """Source line, from 1."""
    joined: bool = False
    """Whether nothing, not even a comment, stands between it and the token before: `#define F(x)` against `F (x)`."""


class Directive(NamedTuple):
    """One preprocessor line."""

    name: str
    """include, define, ...; empty for a lone `#`."""
    line: int
    """Source line, from 1."""
    tokens: tuple[Token, ...]
    """What follows the name."""


class Problem(NamedTuple):
    """Text that is no plain C."""

    line: int
    """Source line, from 1."""
    what: str
    """For a person, with the fix."""


class Lexed(NamedTuple):
    """A whole source."""

    tokens: list[Token]
    """Code outside directives."""
    directives: list[Directive]
    """In order."""
    comments: list[tuple[int, str]]
    """First line and text, without the marks."""
    problems: list[Problem]
    """What cannot be judged."""


def lex(source: str) -> Lexed:
    """Tokens, directives and comments of `source`."""
    # gcc skips a byte order mark at the start; it ends no line.
    text, lines = _joined(source.removeprefix("\ufeff"))
    result = Lexed([], [], [], [])
    held: list[Token] | None = None
    fresh, joined = True, False
    for match in _TOKEN.finditer(text):
        kind, spelling, line = str(match.lastgroup), match.group(), lines[match.start()]
        if kind == "newline":
            _close(result, held)
            held, fresh = None, True
        elif kind == "comment":
            result.comments.append((line, _plain(spelling)))
            if "??/" in spelling.splitlines()[-1]:
                result.problems.append(Problem(line, "trigraph '??/' in a comment: write the words without it"))
        elif kind in ("open", "raw", "other"):
            result.problems.append(Problem(line, _complaint(kind, spelling)))
        elif kind != "space":
            if kind in ("string", "char") and _TRIGRAPH.search(spelling):
                result.problems.append(Problem(line, "trigraph in a literal: write the character itself"))
            token = Token(kind, DIGRAPHS.get(spelling, spelling), line, joined)
            if token.text == "#" and fresh and held is None:
                held = [token]
            else:
                (result.tokens if held is None else held).append(token)
            fresh = False
        joined = kind not in ("newline", "comment", "space")
    _close(result, held)
    if _TRIGRAPH.search("".join(f"{t.text}" for t in result.tokens)):
        result.problems.append(Problem(0, "trigraph in the code: write the character itself"))
    return result


def first_comment(source: str) -> str:
    """Text of the first comment, adjoining line comments joined; '' when there is none."""
    comments = lex(source).comments
    if not comments:
        return ""
    words = [comments[0][1]]
    last = comments[0][0]
    if source.removeprefix("\ufeff").lstrip().startswith("//"):
        for line, text in comments[1:]:
            if line != last + 1:
                break
            words.append(text)
            last = line
    return " ".join(words).strip()


def _joined(source: str) -> tuple[str, list[int]]:
    """The text with line splices removed, and the source line of each of its characters."""
    pieces: list[str] = []
    lines: list[int] = []
    line = 1
    start = 0
    for match in (*_SPLICE.finditer(source), None):
        piece = source[start : match.start() if match else len(source)]
        for char in piece:
            lines.append(line)
            line += char == "\n"
        pieces.append(piece)
        if match:
            start = match.end()
            line += 1
    lines.append(line)
    return "".join(pieces), lines


def _close(result: Lexed, held: list[Token] | None) -> None:
    if held is None:
        return
    named = len(held) > 1 and held[1].kind == "ident"
    name = held[1].text if named else ""
    result.directives.append(Directive(name, held[0].line, tuple(held[2:] if named else held[1:])))


def _plain(comment: str) -> str:
    body = comment[2:-2] if comment.startswith("/*") else comment[2:]
    return " ".join(part.strip().lstrip("*").strip() for part in body.splitlines()).strip()


def _complaint(kind: str, spelling: str) -> str:
    if kind == "open":
        return "a comment that does not end: close it with */"
    if kind == "raw":
        return "raw string: write a plain string"
    if spelling in "\"'":
        return "a literal that does not end on its line: close it"
    return f"character {spelling!r} outside comments: use plain ASCII C"
