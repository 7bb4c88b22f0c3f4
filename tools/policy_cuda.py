"""The source policy of CUDA kernels: an allow-list over tokens, judged before anything is compiled.

Device code alone: kernels and device functions, types and constants. Nothing that keeps state from one launch to the
next, starts kernels, allocates, prints, stops the program or reads a clock; inline PTX from a list. The lexer is that
of C; where C++ would read the same text in another way (separators in numbers, raw strings), the text is refused.
What is missed here the object policy sees (`kernelcrew.tools.policy_cubin`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernelcrew.tools import policy_cuda_names as names
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.policy_cuda_scopes import Declared, declared, functors, is_fixed, members, pairs
from kernelcrew.tools.policy_ptx import ptx_policy, unescape
from kernelcrew.tools.policy_tokens import Directive, Lexed, Token, lex

MAX_SOURCE_BYTES = 256 << 10
ASSEMBLER = frozenset(("asm", "__asm", "__asm__"))
LOOK_BACK = 200
"""Tokens at most between the brackets of a template's arguments."""

_AFTER_CALLLESS = frozenset(
    ("return", "else", "do", "case", "and", "or", "not", "throw", "volatile", "goto", "co_return")
)
_BEFORE_LAMBDA = frozenset(("(", ",", "=", "{", "}", ";", "return", "&&", "||", "?", ":"))


@dataclass
class _Own:
    """What the names of one source mean."""

    names: set[str]
    """Functions, types, macros and functors."""
    types: set[str]
    """Types alone."""


def judge_cuda(source: str) -> list[Diagnostic]:
    """Every broken rule of one CUDA source, by line."""
    if len(source.encode()) > MAX_SOURCE_BYTES:
        return [_broken("size", 0, f"the source is larger than {MAX_SOURCE_BYTES >> 10} KiB: hand in the kernel alone")]
    lexed = lex(source)
    found = [_broken("text", p.line, p.what) for p in lexed.problems] + list(_separators(lexed))
    if found:
        return found
    partner = pairs(lexed.tokens)
    if isinstance(partner, int):
        return [_broken("text", partner, "brackets do not match: close each one in the branch that opens it")]
    macros = {d.tokens[0].text for d in lexed.directives if d.name == "define" and d.tokens}
    found += [broken for directive in lexed.directives for broken in _directive(directive)]
    said = declared(lexed.tokens, partner, macros)
    found += said.problems
    if not said.kernels and not any(t.text == names.KERNEL for t in lexed.tokens):
        found.append(_broken("declaration", 0, "no __global__ function: hand in the kernel"))
    own = _own(lexed, said, macros, partner)
    found += _stream(lexed.tokens, partner, own)
    for directive in lexed.directives:
        if directive.name == "define" and directive.tokens:
            found += _macro(directive, own)
        elif directive.name not in ("include", "pragma", "error", "warning"):
            found += [broken for token in directive.tokens for broken in _word(token, "")]
    found += _statics(lexed.tokens)
    return sorted(found, key=lambda d: d.line)


def kernels(source: str) -> tuple[str, ...]:
    """Names of the `__global__` functions with a body, sorted; empty for text that cannot be read."""
    lexed = lex(source)
    partner = pairs(lexed.tokens)
    return () if isinstance(partner, int) else tuple(sorted(declared(lexed.tokens, partner, set()).kernels))


def _separators(lexed: Lexed) -> Iterator[Diagnostic]:
    """`1'000` is one number for C++ and opens a literal for C: what stands between two of them must not be hidden."""
    for tokens in (lexed.tokens, *(d.tokens for d in lexed.directives)):
        for before, token in pairwise(tokens):
            if before.kind == "number" and token.kind == "char" and token.joined:
                yield _broken("text", token.line, "separator in a number: write the digits without it")


def _directive(directive: Directive) -> list[Diagnostic]:
    line, tokens = directive.line, directive.tokens
    if directive.name == "include":
        header = "".join(t.text for t in tokens)
        name = header[1:-1]
        plain = header.startswith(("<", '"')) and header.endswith((">", '"'))
        if plain and (name in names.HEADERS or names.HEADER_FOLDERS.fullmatch(name)):
            return []
        listed = (
            "cuda_fp16.h, cuda_bf16.h, mma.h, cooperative_groups.h, cub/..., cute/... and the headers of plain types"
        )
        return [_broken("include", line, f"{header} is not on the list: include {listed}")]
    if directive.name == "pragma":
        return _pragma(line, [t.text for t in tokens])
    if directive.name in ("define", "undef"):
        return list(_define(line, tokens))
    if directive.name in names.DIRECTIVES or (not directive.name and not tokens):
        return []
    shown = directive.name or "a line marker"
    return [_broken("directive", line, f"#{shown} is not allowed: use {', '.join(sorted(names.DIRECTIVES))}")]


def _pragma(line: int, words: Sequence[str]) -> list[Diagnostic]:
    if words and words[0] in names.PRAGMAS:
        return []
    return [_broken("pragma", line, f"#pragma {' '.join(words[:3])} is not allowed: only unroll")]


def _define(line: int, tokens: Sequence[Token]) -> Iterator[Diagnostic]:
    if any(t.text == "##" for t in tokens):
        yield _broken("macro", line, "## builds names that cannot be judged: write each name out")
    name = tokens[0].text if tokens else ""
    known = name in names.KEYWORDS or name in names.REFUSED_KEYWORDS or name in names.QUALIFIERS or name in ASSEMBLER
    if known or names.is_type(name) or names.is_callable(name) or name.startswith("__"):
        yield _broken("macro", line, f"'{name}' has a meaning already: give the macro a name of its own")


def _own(lexed: Lexed, said: Declared, macros: set[str], partner: dict[int, int]) -> _Own:
    own = _Own(names=set(), types=set(said.types))
    tokens = lexed.tokens
    for index, token in enumerate(tokens[:-2]):
        nxt = tokens[index + 1]
        if (token.text in ("struct", "class", "union", "enum", "typename", "namespace") and nxt.kind == "ident") or (
            token.text == "using" and nxt.kind == "ident" and tokens[index + 2].text == "="
        ):
            own.types.add(nxt.text)
    own.types |= _typedefs(tokens)
    own.types -= names.KEYWORDS
    own.names = said.functions | own.types | macros
    own.names |= set(functors(tokens, own.types)) | set(members(tokens, partner))
    return own


def _typedefs(tokens: Sequence[Token]) -> set[str]:
    found: set[str] = set()
    taking = False
    for token in tokens:
        taking = (taking or token.text == "typedef") and token.text != ";"
        if taking and token.kind == "ident":
            found.add(token.text)
    return found


def _macro(directive: Directive, own: _Own) -> list[Diagnostic]:
    """A macro's text, its parameters counted as names of its own."""
    tokens = list(directive.tokens)
    start, parameters = 1, set()
    if len(tokens) > 1 and tokens[1].text == "(" and tokens[1].joined:
        start = next((i for i, t in enumerate(tokens) if t.text == ")"), len(tokens) - 1) + 1
        parameters = {t.text for t in tokens[2:start] if t.kind == "ident"}
    body = tokens[start:]
    partner = pairs(body)
    if isinstance(partner, int):
        return [_broken("macro", directive.line, "brackets do not match within the macro: close each one there")]
    inner = _Own(names=own.names | parameters | set(functors(body, own.types)), types=own.types | parameters)
    return [*_stream(body, partner, inner), *_statics(body)]


def _stream(tokens: Sequence[Token], partner: dict[int, int], own: _Own) -> list[Diagnostic]:
    """Words, calls, assembler, attributes and launches of one run of tokens."""
    found: list[Diagnostic] = []
    for index, token in enumerate(tokens):
        before = tokens[index - 1].text if index else ""
        if token.kind == "ident":
            found += _word(token, before)
            if token.text in names.TAGS and _preceded(tokens, index):
                found.append(_broken("name", token.line, f"'::{token.text}' is an object of a library: leave it out"))
            if token.text in ASSEMBLER:
                found += _assembler(tokens, index, partner)
            elif token.text == "_Pragma":
                found += _pragma_operator(tokens, index)
            if _followed(tokens, index) and before not in (".", "->") and not _preceded(tokens, index):
                found += _root(tokens, index, own)
        elif (
            token.text == "<<"
            and index + 1 < len(tokens)
            and tokens[index + 1].text == "<"
            and tokens[index + 1].joined
        ):
            found.append(_broken("launch", token.line, "<<< starts a kernel from the device: the harness launches"))
        elif token.text == "(" and index:
            found += _call(tokens, index, partner, own)
        elif token.text == "[" and _text(tokens, index + 1) == "[" and partner.get(index, 0) > index:
            found += _attributes(tokens, index, partner)
    return found


def _word(token: Token, before: str) -> list[Diagnostic]:
    if token.kind != "ident":
        return []
    name, line = token.text, token.line
    if name == "__host__":
        return [_broken("host", line, "'__host__': a candidate has device code alone, leave it out")]
    if name == "__managed__":
        return [_broken("state", line, "'__managed__': nothing is kept between launches; use the plan's scratch")]
    if name == "delete" and before != "=":
        return [_broken("keyword", line, "'delete': device memory is the harness's; leave it out")]
    if name in names.REFUSED_KEYWORDS:
        return [_broken("keyword", line, f"'{name}': {names.REFUSED_KEYWORDS[name]}")]
    if name in names.LIBRARY or names.HOST_API.fullmatch(name):
        return [_broken("call", line, f"'{name}' prints, allocates, stops, reads a clock or starts work: leave it out")]
    if name in ASSEMBLER or name == "_Pragma":
        return []
    if names.is_reserved(name):
        return [_broken("name", line, f"'{name}' belongs to the compiler or is not on the list of intrinsics")]
    return []


def _assembler(tokens: Sequence[Token], index: int, partner: dict[int, int]) -> list[Diagnostic]:
    """The strings of one asm statement, judged as PTX."""
    line = tokens[index].line
    at = index + 1
    while _text(tokens, at) in ("volatile", "__volatile__", "__volatile"):
        at += 1
    if _text(tokens, at) != "(" or at not in partner:
        return [_broken("asm", line, 'assembler without its list: write asm volatile("..." : ... )')]
    at += 1
    texts = []
    while at < len(tokens) and tokens[at].kind == "string":
        plain = unescape(tokens[at].text) if tokens[at].text.startswith('"') else None
        if plain is None:
            return [_broken("asm", tokens[at].line, "an escape hides what the assembler says: write it plainly")]
        texts.append(plain)
        at += 1
    if not texts or _text(tokens, at) not in (":", ")"):
        return [_broken("asm", line, "the assembler's text is not plain: write it as string literals alone")]
    return ptx_policy("".join(texts), line)


def _pragma_operator(tokens: Sequence[Token], index: int) -> list[Diagnostic]:
    argument = tokens[index + 2] if _text(tokens, index + 1) == "(" and index + 2 < len(tokens) else None
    if argument is None or argument.kind != "string" or "\\" in argument.text:
        return [_broken("pragma", tokens[index].line, "_Pragma without a plain string: write the pragma out")]
    return _pragma(argument.line, re.findall(r"\w+|\S", argument.text[1:-1]))


def _root(tokens: Sequence[Token], index: int, own: _Own) -> list[Diagnostic]:
    """The first part of a qualified name: an allowed library, or something of this file."""
    name = tokens[index].text
    if name in names.NAMESPACES or name in own.names:
        return []
    member = _text(tokens, index + 3)
    if name == "std" or (name == "cuda" and member == "std"):
        inner = member if name == "std" else _text(tokens, index + 6)
        if inner in names.STD:
            return []
        return [_broken("name", tokens[index].line, f"'{name}::{inner}' is not on the list of std's members")]
    if name == "cuda" and member in names.ATOMICS:
        return []
    listed = "cooperative_groups, nvcuda::wmma, cub, cute, std types"
    return [_broken("name", tokens[index].line, f"namespace '{name}' is not on the list: {listed}")]


def _call(tokens: Sequence[Token], paren: int, partner: dict[int, int], own: _Own) -> list[Diagnostic]:
    before = tokens[paren - 1]
    if before.text == "]" and paren - 1 in partner:
        opening = partner[paren - 1]
        if opening and (_text(tokens, opening - 1) in _BEFORE_LAMBDA or _text(tokens, opening - 1) == "operator"):
            return []
        return [_broken("call", before.line, "call through an expression: call functions by name")]
    if before.text == ")" and paren - 1 in partner:
        return _after_paren(tokens, paren - 1, partner, own)
    if before.kind != "ident":
        return []
    name = before.text
    if name in own.names or name in names.BEFORE_PAREN or name in ASSEMBLER or name == "_Pragma":
        return []
    if names.is_type(name) or names.is_callable(name) or _declares(tokens, paren - 1, own):
        return []
    if (
        name in names.LIBRARY
        or names.HOST_API.fullmatch(name)
        or names.is_reserved(name)
        or name in names.REFUSED_KEYWORDS
    ):
        return []
    if _text(tokens, paren - 2) in (".", "->") or (_preceded(tokens, paren - 1) and _qualified(tokens, paren - 1)):
        return []
    fix = "define it in this file, or use the math functions, intrinsics and atomics of CUDA"
    return [_broken("call", before.line, f"'{name}' is neither defined here nor on the list: {fix}")]


def _declares(tokens: Sequence[Token], index: int, own: _Own) -> bool:
    """Whether `name (` declares a variable, because a type stands before it."""
    before = _text(tokens, index - 1)
    if index and tokens[index - 1].kind == "ident":
        return before not in _AFTER_CALLLESS
    if before != ">":
        return False
    depth = 0
    for at in range(index - 1, max(-1, index - LOOK_BACK), -1):
        text = tokens[at].text
        depth += (text == ">") - (text == "<") + 2 * (text == ">>")
        if text in (";", "{", "}", "&&", "||", "?"):
            return False
        if depth == 0:
            name = _text(tokens, at - 1)
            return name in own.types or _preceded(tokens, at - 1)
    return False


def _after_paren(tokens: Sequence[Token], closing: int, partner: dict[int, int], own: _Own) -> list[Diagnostic]:
    """`) (`: a cast, a statement's head, a qualifier's list, or a call through an expression."""
    opening = partner[closing]
    before = tokens[opening - 1] if opening else None
    if before is not None and before.kind == "ident":
        known = (
            before.text in names.BEFORE_PAREN or before.text in own.names or _text(tokens, opening - 2) == "operator"
        )
        if known:
            return []
    held = tokens[opening + 1 : closing]
    if before is not None and before.text == "operator":
        return []
    is_cast = bool(held) and all(
        t.text in ("*", "&", ":", "::", "<", ">", ",") or t.kind == "number" or names.is_type(t.text)
        or t.text in own.types
        or t.text in ("struct", "typename", "const", "volatile", "__restrict__")
        for t in held
    ) and held[0].kind == "ident"  # fmt: skip
    if is_cast:
        return []
    return [_broken("call", tokens[closing].line, "call through an expression: call functions by name")]


def _attributes(tokens: Sequence[Token], index: int, partner: dict[int, int]) -> list[Diagnostic]:
    inside = tokens[index + 2 : partner[index + 1]] if index + 1 in partner else ()
    listed = ", ".join(sorted(names.ATTRIBUTES))
    return [
        _broken("attribute", t.line, f"attribute '{t.text}' is not on the list: {listed}")
        for t in inside if t.kind == "ident" and t.text not in names.ATTRIBUTES
    ]  # fmt: skip


def _statics(tokens: Sequence[Token]) -> Iterator[Diagnostic]:
    """Static variables of a function that could be written to, and a `static` of a macro that ends before it says of
    what."""
    for index, token in enumerate(tokens):
        if token.text != "static":
            continue
        words: list[str] = []
        for later in tokens[index + 1 : index + LOOK_BACK]:
            if later.text in (";", "=", "(", "[", "{"):
                stop = later.text
                break
            words.append(later.text)
        else:
            stop = ";" if not {names.DEVICE, names.KERNEL} & set(words) else "("
        if stop != "(" and not is_fixed(words) and not {"struct", "class", "union"} & set(words):
            name = words[-1] if words else "?"
            yield _broken("state", token.line, f"static variable '{name}' keeps state between launches: use a local")


def _followed(tokens: Sequence[Token], index: int) -> bool:
    """Whether `::` stands behind, which the lexer of C gives as two colons."""
    return _text(tokens, index + 1) == ":" and _text(tokens, index + 2) == ":" and tokens[index + 2].joined


def _preceded(tokens: Sequence[Token], index: int) -> bool:
    return _text(tokens, index - 1) == ":" and _text(tokens, index - 2) == ":" and tokens[index - 1].joined


def _qualified(tokens: Sequence[Token], index: int) -> bool:
    """Whether something stands before the `::`, so that the name is not a global one."""
    return index > 2 and (tokens[index - 3].kind == "ident" or tokens[index - 3].text in (">", ">>"))


def _text(tokens: Sequence[Token], index: int) -> str:
    return tokens[index].text if 0 <= index < len(tokens) else ""


def _broken(rule: str, line: int, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=line, message=message)
