"""What a CUDA source declares at namespace and class level: device functions and types, nothing that keeps state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernelcrew.tools import policy_cuda_names as names
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.policy_tokens import Token

OPENED = {"(": ")", "[": "]", "{": "}"}
MAX_NESTING = 40


@dataclass
class Declared:
    """The names that a source gives, and what is wrong with how it gives them."""

    functions: set[str] = field(default_factory=set)
    """Functions with a body."""
    kernels: set[str] = field(default_factory=set)
    """Those that the harness can launch."""
    types: set[str] = field(default_factory=set)
    """Classes, enumerations, aliases, template parameters, namespaces."""
    problems: list[Diagnostic] = field(default_factory=list)
    """Broken rules."""


def pairs(tokens: Sequence[Token]) -> dict[int, int] | int:
    """Index of each bracket to that of its partner, both ways; the line of the first one that has none."""
    partner: dict[int, int] = {}
    held: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind != "punct":
            continue
        if token.text in OPENED:
            held.append(index)
        elif token.text in OPENED.values():
            if not held or OPENED[tokens[held[-1]].text] != token.text:
                return token.line
            partner[index] = held.pop()
            partner[partner[index]] = index
    return tokens[held[-1]].line if held else partner


def declared(tokens: Sequence[Token], partner: dict[int, int], macros: set[str]) -> Declared:
    """Everything declared outside functions."""
    reader = _Reader(tokens, partner, macros)
    reader.scope(0, len(tokens), in_class=False, nesting=0)
    return reader.found


class _Reader:
    """Goes through declarations once; function bodies are not entered."""

    def __init__(self, tokens: Sequence[Token], partner: dict[int, int], macros: set[str]) -> None:
        self.tokens = tokens
        self.partner = partner
        self.macros = macros
        self.found = Declared()

    def scope(self, at: int, end: int, *, in_class: bool, nesting: int) -> None:
        """All declarations from `at` up to `end`."""
        if nesting > MAX_NESTING:
            self._broken("size", at, f"scopes nested deeper than {MAX_NESTING}: write it flatter")
            return
        while at < end:
            text = self.tokens[at].text
            if text == ";" or (in_class and text == ":"):
                at += 1
            elif in_class and text in ("public", "private", "protected"):
                at += 2
            elif text == "namespace" or (text == "inline" and self._text(at + 1) == "namespace"):
                at = self._namespace(at, end, nesting)
            elif text == "extern" and at + 1 < end and self.tokens[at + 1].kind == "string":
                at = self._linkage(at, nesting)
            elif text == "template":
                at = self._template(at)
            elif text in ("using", "typedef", "static_assert", "friend"):
                at = self._alias(at, end)
            elif text in self.macros and self._text(at + 1) in ("(", ";"):
                at = self._macro(at, nesting)
            else:
                at = self._declaration(at, end, in_class=in_class, nesting=nesting)

    def _macro(self, at: int, nesting: int) -> int:
        """A macro used as a declaration: what it is given is one too when it says where it lives."""
        end = self.partner.get(at + 1, at)
        if any(self._text(i) in (names.DEVICE, "__constant__", "static") for i in range(at + 2, end)):
            self.scope(at + 2, end, in_class=False, nesting=nesting + 1)
        return end + 1

    def _namespace(self, at: int, end: int, nesting: int) -> int:
        later = at
        while later < end and self._text(later) not in ("{", ";", "="):
            word = self._text(later)
            if word in names.OTHERS:
                self._broken("declaration", later, f"namespace '{word}' is a library's: declare in one of your own")
            elif self.tokens[later].kind == "ident" and word not in names.KEYWORDS:
                self.found.types.add(word)
            later += 1
        if later < end and self._text(later) == "{":
            self.scope(later + 1, self.partner[later], in_class=False, nesting=nesting + 1)
            return self.partner[later] + 1
        self._library(later + 1)
        return self._semicolon(later, end)

    def _library(self, at: int) -> None:
        """The namespace that an alias or `using namespace` names."""
        while self._text(at) == ":":
            at += 1
        word = self._text(at)
        if word not in names.NAMESPACES and word not in self.found.types:
            listed = "cooperative_groups, nvcuda::wmma, cub, cute"
            self._broken("name", at, f"namespace '{word}' is not on the list: {listed}; name what you need in full")

    def _linkage(self, at: int, nesting: int) -> int:
        if self.tokens[at + 1].text not in ('"C"', '"C++"'):
            self._broken("declaration", at, 'only extern "C" is allowed')
        if self._text(at + 2) == "{":
            self.scope(at + 3, self.partner[at + 2], in_class=False, nesting=nesting + 1)
            return self.partner[at + 2] + 1
        return at + 2

    def _template(self, at: int) -> int:
        if self._text(at + 1) != "<":
            return at + 1
        after = angle(self.tokens, at + 1, self.partner)
        inside = self.tokens[at + 2 : after]
        self.found.types |= {t.text for t in inside if t.kind == "ident" and t.text not in names.KEYWORDS}
        return after + 1

    def _alias(self, at: int, end: int) -> int:
        after = self._semicolon(at, end)
        held = [t.text for t in self.tokens[at + 1 : after - 1] if t.kind == "ident"]
        if self._text(at) == "typedef":
            self.found.types |= set(held)
        elif held[:1] == ["namespace"]:
            self._library(at + 2)
        elif self._text(at) == "using" and held and self._text(at + 2) == "=":
            self.found.types.add(held[0])
        return after

    def _declaration(self, at: int, end: int, *, in_class: bool, nesting: int) -> int:
        """One declaration; the index behind it."""
        paren = equals = body = -1
        index = at
        while index < end:
            text = self._text(index)
            if text == ";":
                break
            if text == "=" and paren < 0:
                equals = index
            elif text == "(" and paren < 0 and equals < 0 and not self._listed(index):
                paren = index
            elif text == "{":
                keyed = paren < 0 and equals < 0 and self._keyed(at, index)
                if keyed:
                    self._type(at, index, nesting)
                elif paren >= 0 and equals < 0 and not self._member_list(index):
                    body = index
                    break
            index = self.partner[index] + 1 if text in OPENED else index + 1
        if paren >= 0:
            self._function(at, paren, body)
        elif not self._is_type_alone(at, index):
            self._variable(at, index, in_class=in_class)
        return self.partner[body] + 1 if body >= 0 else index + 1

    def _type(self, at: int, brace: int, nesting: int) -> None:
        """A class or enumeration with its body."""
        words = [t.text for t in self.tokens[at:brace] if t.kind == "ident"]
        key = next(i for i, w in enumerate(words) if w in ("struct", "class", "union", "enum"))
        self.found.types |= {w for w in words[key + 1 :] if w not in names.KEYWORDS}
        if words[key] != "enum":
            self.scope(brace + 1, self.partner[brace], in_class=True, nesting=nesting + 1)

    def _function(self, at: int, paren: int, body: int) -> None:
        words = {t.text for t in self.tokens[at:paren]}
        name = self._name(at, paren)
        if "operator" in words:
            name = "operator"
        device = bool({names.KERNEL, names.DEVICE, "constexpr"} & words)
        if not device and self._text(self.partner[paren] + 1) != "=":
            self._broken("host", at, f"'{name}' is a host function: mark it __device__, or leave it out")
        if body >= 0:
            self.found.functions.add(name)
            if names.KERNEL in words:
                self.found.kernels.add(name)

    def _name(self, at: int, paren: int) -> str:
        """The function's name, the arguments of a specialisation left out."""
        index = paren - 1
        while index > at and (self.tokens[index].kind != "ident" or self._text(index + 1) not in ("(", "<")):
            index -= 1
        return self._text(index)

    def _variable(self, at: int, end: int, *, in_class: bool) -> None:
        words = {t.text for t in self.tokens[at:end]}
        name = next((t.text for t in reversed(self._head(at, end)) if t.kind == "ident"), "?")
        if in_class:
            if "static" in words and not is_fixed([t.text for t in self._head(at, end)]):
                self._broken("state", at, f"static member '{name}' keeps state between launches: make it constexpr")
        elif "__constant__" in words:
            if "=" not in words and "{" not in words:
                self._broken("state", at, f"'{name}' has no initialiser: a __constant__ table says what it holds")
        elif names.DEVICE in words:
            fix = "make it __constant__" if {"const", "constexpr"} & words else "use an argument or the plan's scratch"
            self._broken("state", at, f"'{name}' lives in device memory and keeps state between launches: {fix}")
        elif not is_fixed([t.text for t in self._head(at, end)]):
            self._broken("state", at, f"global variable '{name}': only constants and __shared__ arrays")

    def _head(self, at: int, end: int) -> Sequence[Token]:
        """Tokens before the initialiser or the brackets of an array."""
        stop = next((i for i in range(at, end) if self._text(i) in ("=", "[", "{")), end)
        return self.tokens[at:stop]

    def _is_type_alone(self, at: int, end: int) -> bool:
        """Whether the declaration is that of a type, with no variable behind it."""
        keyed = any(self._text(i) in ("struct", "class", "union", "enum") for i in range(at, end))
        return keyed and (
            end == at or self._text(end - 1) == "}" or not any(self._text(i) == "{" for i in range(at, end))
        )

    def _listed(self, paren: int) -> bool:
        """Whether the parenthesis belongs to a qualifier such as __launch_bounds__(256)."""
        before = self._text(paren - 1)
        return before in names.TAKES_LIST or before in ("alignas", "decltype", "noexcept", "explicit")

    def _keyed(self, at: int, brace: int) -> bool:
        return any(self._text(i) in ("struct", "class", "union", "enum") for i in range(at, brace))

    def _member_list(self, brace: int) -> bool:
        """Whether the brace initialises a member, as in `: a{1}, b{2} {`."""
        after = self._text(self.partner[brace] + 1)
        return (
            self.tokens[brace - 1].kind == "ident"
            and after in (",", "{")
            and self._text(brace - 1) not in names.KEYWORDS
        )

    def _semicolon(self, at: int, end: int) -> int:
        while at < end and self._text(at) != ";":
            at = self.partner[at] + 1 if self._text(at) in OPENED else at + 1
        return at + 1

    def _text(self, index: int) -> str:
        return self.tokens[index].text if 0 <= index < len(self.tokens) else ""

    def _broken(self, rule: str, at: int, message: str) -> None:
        line = self.tokens[at].line if at < len(self.tokens) else 0
        self.found.problems.append(Diagnostic(kind=rule, line=line, message=message))


def is_fixed(words: Sequence[str]) -> bool:
    """Whether a declaration up to its initialiser is a constant's, or that of shared memory: it ends with a block."""
    behind = words[len(words) - words[::-1].index("*") :] if "*" in words else words
    return "constexpr" in words or "__shared__" in words or "const" in behind


def angle(tokens: Sequence[Token], at: int, partner: dict[int, int]) -> int:
    """Index of the `>` that closes the `<` at `at`; the last index when none does."""
    depth = 0
    index = at
    while index < len(tokens):
        text = tokens[index].text
        if text in OPENED:
            index = partner.get(index, index)
        elif text == "<":
            depth += 1
        elif text in (">", ">>"):
            depth -= len(text)
            if depth <= 0:
                return index
        elif text == ";":
            break
        index += 1
    return min(index, len(tokens) - 1)


def functors(tokens: Sequence[Token], types: set[str]) -> Iterator[str]:
    """Objects that may be called: of a type of this file, or lambdas."""
    for index in range(1, len(tokens) - 1):
        token = tokens[index]
        if token.kind != "ident" or token.text in names.KEYWORDS:
            continue
        if tokens[index - 1].text == "auto" and tokens[index + 1].text == "=":
            if index + 2 < len(tokens) and tokens[index + 2].text == "[":
                yield token.text
            continue
        back = index - 1
        while back >= 0 and tokens[back].text in ("&", "&&", "const"):
            back -= 1
        if back >= 0 and tokens[back].text in types and tokens[index + 1].text in (",", ")", ";", "=", "(", "{"):
            yield token.text


def members(tokens: Sequence[Token], partner: dict[int, int]) -> Iterator[str]:
    """Members that a constructor's list initialises: `: a(x), b(y) {`."""
    for index in range(1, len(tokens)):
        if tokens[index].text != ":" or tokens[index - 1].text not in (")", "noexcept"):
            continue
        listed = []
        at = index + 1
        while at + 1 < len(tokens) and tokens[at].kind == "ident" and tokens[at + 1].text in ("(", "{"):
            listed.append(tokens[at].text)
            at = partner[at + 1] + 1
            if at < len(tokens) and tokens[at].text == ",":
                at += 1
        if at < len(tokens) and tokens[at].text == "{":
            yield from listed
