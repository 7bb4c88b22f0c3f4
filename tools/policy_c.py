"""The source policy of C kernels: an allow-list over tokens, judged before anything is compiled.

A kernel is arithmetic on its arguments. Whatever reaches the compiler's own switches, the machine's state, the C
library beyond memory and mathematics, or files of the host cannot be written. What is missed here the object policy
sees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from kernelcrew.tools import policy_names as names
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.policy_tokens import Directive, Lexed, Token, lex

MAX_SOURCE_BYTES = 256 << 10
"""Longest source: a kernel, not a library."""

ASSEMBLER = frozenset(("asm", "__asm", "__asm__"))
STORAGE = frozenset(("_Thread_local", "__thread", "thread_local"))
PROBES = names.words(
    "__has_include __has_include_next __has_embed __FILE__ __BASE_FILE__ __DATE__ __TIME__ __TIMESTAMP__"
)


def judge(source: str, threads: int) -> list[Diagnostic]:
    """Every broken rule of one C source, by line."""
    if len(source.encode()) > MAX_SOURCE_BYTES:
        return [_broken("size", 0, f"the source is larger than {MAX_SOURCE_BYTES >> 10} KiB: hand in the kernel alone")]
    lexed = lex(source)
    if lexed.problems:
        return [_broken("text", p.line, p.what) for p in lexed.problems]
    found = [broken for directive in lexed.directives for broken in _directive(directive)]
    macros = _macros(lexed)
    found += _words(lexed)
    skip = _attribute_ranges(lexed.tokens)
    found += _attributes(lexed.tokens, skip)
    defined = _defined(lexed.tokens, macros) | _headed(lexed) | set(macros)
    found += _calls(lexed.tokens, skip, defined, macros, threads)
    for directive in lexed.directives:
        if directive.name == "define" and directive.tokens:
            own = defined | macros[directive.tokens[0].text]
            body = list(directive.tokens[_parameters_end(directive.tokens) + 1 :])
            inner = _attribute_ranges(body)
            found += _attributes(body, inner)
            found += _calls(body, inner, own, macros, threads)
    found += _pragma_operators(lexed)
    found += _statics(lexed.tokens, skip)
    return sorted(found, key=lambda d: d.line)


def _directive(directive: Directive) -> list[Diagnostic]:
    line, tokens = directive.line, directive.tokens
    if directive.name == "include":
        return _include(line, "".join(t.text for t in tokens))
    if directive.name == "pragma":
        return _pragma(line, [t.text for t in tokens])
    if directive.name in ("define", "undef"):
        return _define(line, tokens)
    if directive.name in names.DIRECTIVES or (not directive.name and not tokens):
        return []
    shown = directive.name or "a line marker"
    return [_broken("directive", line, f"#{shown} is not allowed: use {', '.join(sorted(names.DIRECTIVES))}")]


def _include(line: int, header: str) -> list[Diagnostic]:
    if header.startswith("<") and header.endswith(">") and header[1:-1] in names.HEADERS:
        return []
    listed = ", ".join(f"<{h}>" for h in sorted(names.HEADERS))
    if not header.startswith(("<", '"')):
        return [_broken("include", line, f"computed include '{header}': name the header itself, one of {listed}")]
    return [_broken("include", line, f"{header} is not on the list: include only {listed}")]


def _pragma(line: int, words: Sequence[str]) -> list[Diagnostic]:
    if list(words[:2]) in (["GCC", "unroll"], ["GCC", "ivdep"]):
        return []
    if words[:1] == ["omp"] and len(words) > 1 and words[1] in names.OMP_WORDS:
        return []
    shown = " ".join(words[:3])
    return [_broken("pragma", line, f"#pragma {shown} is not allowed: only omp, GCC unroll and GCC ivdep")]


def _define(line: int, tokens: Sequence[Token]) -> list[Diagnostic]:
    found = []
    if any(t.text == "##" for t in tokens):
        found.append(_broken("macro", line, "## builds names that cannot be judged: write each name out"))
    name = tokens[0].text if tokens else ""
    known = name in names.KEYWORDS or name in names.LIBRARY or name in names.BUILTINS or names.is_intrinsic(name)
    if known or names.is_type(name) or name.startswith("__"):
        found.append(_broken("macro", line, f"'{name}' has a meaning already: give the macro a name of its own"))
    return found


def _words(lexed: Lexed) -> list[Diagnostic]:
    found = []
    for directive in lexed.directives:
        if directive.name not in ("include", "pragma", "error", "warning"):
            found += [broken for token in directive.tokens for broken in _word(token)]
    return found + [broken for token in lexed.tokens for broken in _word(token)]


def _word(token: Token) -> list[Diagnostic]:
    if token.kind != "ident":
        return []
    name, line = token.text, token.line
    if name in ASSEMBLER:
        return [_broken("asm", line, f"'{name}': assembler is not allowed; use the intrinsics of <immintrin.h>")]
    if name in STORAGE:
        return [_broken("state", line, f"'{name}': nothing is kept between calls; use locals or the plan's scratch")]
    if name in PROBES:
        return [_broken("host", line, f"'{name}' reads the host at compile time: leave it out")]
    if names.is_not_pure(name):
        return [_broken("intrinsic", line, f"'{name}' reads or changes the processor's state: leave it out")]
    if name.startswith("__builtin_") and name not in names.BUILTINS:
        return [_broken("builtin", line, f"'{name}' is not on the list of builtins: use plain C or an _mm intrinsic")]
    if names.is_reserved(name):
        return [_broken("name", line, f"'{name}' belongs to the compiler or C library: use another name")]
    return []


def _macros(lexed: Lexed) -> dict[str, set[str]]:
    """Macros of the file, each with its parameters."""
    macros: dict[str, set[str]] = {}
    for directive in lexed.directives:
        if directive.name == "define" and directive.tokens:
            end = _parameters_end(directive.tokens)
            given = {t.text for t in directive.tokens[2:end] if t.kind == "ident"} if end else set()
            macros.setdefault(directive.tokens[0].text, set()).update(given)
    return macros


def _parameters_end(tokens: Sequence[Token]) -> int:
    """Index of the parenthesis that ends a macro's parameters; 0, that of its name, for a macro without any."""
    takes = len(tokens) > 1 and tokens[1].text == "(" and tokens[1].joined
    return _close(tokens, 1) if takes else 0


def _close(tokens: Sequence[Token], at: int) -> int:
    """Index of the token that closes the bracket at `at`; the last index when nothing does."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    opened, closed = tokens[at].text, pairs[tokens[at].text]
    depth = 0
    for index in range(at, len(tokens)):
        depth += (tokens[index].text == opened) - (tokens[index].text == closed)
        if depth == 0:
            return index
    return len(tokens) - 1


def _open(tokens: Sequence[Token], at: int) -> int:
    """Index of the token that opens the parenthesis closed at `at`; 0 when nothing does."""
    depth = 0
    for index in range(at, -1, -1):
        depth += (tokens[index].text == ")") - (tokens[index].text == "(")
        if depth == 0:
            return index
    return 0


def _attribute_ranges(tokens: Sequence[Token]) -> list[tuple[int, int]]:
    """First and last index of each attribute's list, brackets included."""
    ranges = []
    for index, token in enumerate(tokens[:-1]):
        if token.text in ("__attribute__", "__attribute") and tokens[index + 1].text == "(":
            ranges.append((index + 1, _close(tokens, index + 1)))
        elif token.text == "[" and tokens[index + 1].text == "[":
            ranges.append((index, _close(tokens, index)))
    return ranges


def _attributes(tokens: Sequence[Token], ranges: Sequence[tuple[int, int]]) -> list[Diagnostic]:
    found = []
    for first, last in ranges:
        depth = 0
        for token in tokens[first : last + 1]:
            depth += (token.text in "([") - (token.text in ")]")
            name = token.text.removeprefix("__").removesuffix("__")
            if token.kind == "ident" and depth == 2 and name not in names.ATTRIBUTES | {"gnu"}:
                listed = ", ".join(sorted(names.ATTRIBUTES))
                found.append(_broken("attribute", token.line, f"attribute '{name}' is not on the list: {listed}"))
    return found


def _defined(tokens: Sequence[Token], macros: Mapping[str, set[str]]) -> set[str]:
    """Functions with a body here, and names handed to this file's own macros, which may define them."""
    found: set[str] = set()
    for index in range(len(tokens) - 1):
        token = tokens[index]
        if token.kind != "ident" or tokens[index + 1].text != "(" or token.text in names.BEFORE_PAREN:
            continue
        end = _close(tokens, index + 1)
        if token.text in macros:
            found |= {t.text for t in tokens[index + 2 : end] if t.kind == "ident" and t.text not in names.LIBRARY}
        after = end + 1
        while after < len(tokens) and tokens[after].text in ("__attribute__", "__attribute"):
            listed = after + 1 < len(tokens) and tokens[after + 1].text == "("
            after = _close(tokens, after + 1) + 1 if listed else after + 1
        if after < len(tokens) and tokens[after].text == "{":
            found.add(token.text)
    return found


def _headed(lexed: Lexed) -> set[str]:
    """Functions whose head stands in a macro without parameters, `#define HEAD void f(int n)` and then `HEAD {`."""
    used = {a.text for a, b in zip(lexed.tokens, lexed.tokens[1:], strict=False) if a.kind == "ident" and b.text == "{"}
    found: set[str] = set()
    for directive in lexed.directives:
        tokens = directive.tokens
        if directive.name == "define" and len(tokens) > 3 and tokens[0].text in used and tokens[-1].text == ")":
            name = tokens[_open(tokens, len(tokens) - 1) - 1]
            if name.kind == "ident" and name.text not in names.BEFORE_PAREN | names.LIBRARY:
                found.add(name.text)
    return found


def _calls(
    tokens: Sequence[Token], skip: Sequence[tuple[int, int]], defined: set[str], macros: Mapping[str, set[str]],
    threads: int,
) -> list[Diagnostic]:
    inside = {index for first, last in skip for index in range(first, last + 1)}
    types = _typedefs(tokens) | set(macros) | defined
    found = []
    for index in range(1, len(tokens)):
        if tokens[index].text != "(" or index in inside:
            continue
        before = tokens[index - 1]
        if before.kind == "ident":
            member = index > 1 and tokens[index - 2].text in (".", "->")
            found += _call(before, member, defined, threads)
        elif before.text == "]" or (before.text == ")" and not _is_cast(tokens, index - 1, macros, types)):
            found.append(_broken("call", before.line, "call through an expression: call functions by name"))
    return found


def _call(callee: Token, member: bool, defined: set[str], threads: int) -> list[Diagnostic]:
    name = callee.text
    if member:
        return [_broken("call", callee.line, f"call through member '{name}': call functions of this file by name")]
    if name in defined or name in names.BEFORE_PAREN or names.is_type(name) or names.is_callable(name, threads):
        return []
    if name in names.OMP_CALLS:
        return [_broken("call", callee.line, f"'{name}' needs a plan with threads above 1: set them, or leave it out")]
    if names.is_not_pure(name) or (name.startswith("__builtin_")):
        return []
    fix = "define it in this file, or use math.h, memory functions and intrinsics"
    return [_broken("call", callee.line, f"'{name}' is neither defined here nor on the list: {fix}")]


def _is_cast(tokens: Sequence[Token], closing: int, macros: Mapping[str, set[str]], types: set[str]) -> bool:
    """Whether the parentheses that end at `closing` hold a type, or belong to a statement, and not to a callee."""
    opening = _open(tokens, closing)
    before = tokens[opening - 1] if opening else None
    if before is not None and before.kind == "ident":
        return before.text in names.BEFORE_PAREN or before.text in macros
    held = tokens[opening + 1 : closing]
    return bool(held) and all(
        (t.kind == "ident" and (names.is_type(t.text) or t.text in types or _tagged(held, i))) or t.text == "*"
        for i, t in enumerate(held)
    )


def _tagged(held: Sequence[Token], index: int) -> bool:
    return index > 0 and held[index - 1].text in ("struct", "union", "enum")


def _typedefs(tokens: Sequence[Token]) -> set[str]:
    """Names that a typedef gives: every identifier of the declaration that is no keyword will do."""
    found: set[str] = set()
    taking = False
    for token in tokens:
        taking = (taking or token.text == "typedef") and token.text != ";"
        if taking and token.kind == "ident":
            found.add(token.text)
    return found


def _pragma_operators(lexed: Lexed) -> list[Diagnostic]:
    streams = [lexed.tokens, *(list(d.tokens) for d in lexed.directives if d.name == "define")]
    found = []
    for tokens in streams:
        for index, token in enumerate(tokens):
            if token.text != "_Pragma":
                continue
            argument = tokens[index + 2] if index + 2 < len(tokens) and tokens[index + 1].text == "(" else None
            if argument is None or argument.kind != "string" or "\\" in argument.text:
                found.append(_broken("pragma", token.line, "_Pragma without a plain string: write the pragma out"))
            else:
                found += _pragma(token.line, re.findall(r"\w+|\S", argument.text.partition('"')[2][:-1]))
    return found


def _statics(tokens: Sequence[Token], skip: Sequence[tuple[int, int]]) -> list[Diagnostic]:
    """Static variables that could be written to; functions and constants are fine."""
    inside = {index for first, last in skip for index in range(first, last + 1)}
    found = []
    for index, token in enumerate(tokens):
        if token.text != "static":
            continue
        declared = []
        for later in range(index + 1, len(tokens)):
            if tokens[later].text in (";", "=", "(", "[", "{") and later not in inside:
                break
            declared.append(tokens[later].text)
        else:
            later = len(tokens) - 1
        if tokens[later].text in (";", "=", "[") and "const" not in declared:
            name = declared[-1] if declared else "?"
            what = f"static variable '{name}' keeps state between calls: make it const or a local"
            found.append(_broken("state", token.line, what))
    return found


def _broken(rule: str, line: int, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=line, message=message)
