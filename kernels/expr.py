"""Expressions over the axes: a small subset of Python's grammar, read through `ast`, never handed to `eval`.

Integers are exact; `/`, `sqrt` and `log2` give floats; comparisons, `and`, `or` and `not` give 0 or 1. The words are
`+ - * / // % < <= > >= == and or not`, the functions `min max ceil_div sqrt log2`, parentheses, integer and float
literals, and names. Plans, costs, tolerances, tensor dimensions and variant rules are all written in it.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from kernelcrew.errors import UserMistake

Number = int | float

MAX_CHARS = 400
"""Longest text that is read: a formula, not a program."""
MAX_DEPTH = 40
"""Deepest nesting, so that reading one never runs into the interpreter's own limits."""

WORDS = "+ - * / // % < <= > >= == and or not, min max ceil_div sqrt log2, parentheses, numbers and names"

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Number, Number], bool]]] = {
    ast.Lt: ("<", operator.lt), ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge), ast.Eq: ("==", operator.eq),
}
_CALLS: dict[str, tuple[int, int]] = {"min": (2, 8), "max": (2, 8), "ceil_div": (2, 2), "sqrt": (1, 1), "log2": (1, 1)}
"""Function name to fewest and most arguments."""

_C_AXIS = 1 << 31
"""Axes are C ints, so they lie in [-2^31, 2^31)."""
_C_BOUND = 1 << 63
"""`long long` holds what lies in [-2^63, 2^63)."""


class BadExpression(UserMistake):
    """A text that is no expression of the subset, or one that has no value for the names given."""

    def __init__(self, text: str, part: str, reason: str) -> None:
        where = f" at '{part}'" if part and part != text else ""
        super().__init__(f"expression '{_short(text)}'{where}: {reason}", fix=f"use only {WORDS}")
        self.text = text
        self.part = part
        self.reason = reason


class Expr:
    """One expression that has been read and found to lie in the subset. Immutable; made by `parse`."""

    __slots__ = ("_node", "names", "text")

    def __init__(self, text: str, node: ast.expr, names: frozenset[str]) -> None:
        self.text = text
        self.names = names
        self._node = node

    def value(self, names: Mapping[str, int]) -> Number:
        """The value with these names. Raises BadExpression for a missing name, a division by zero, a root or
        logarithm outside its domain, and a value too large for a float."""
        try:
            return _value(self, self._node, names)
        except OverflowError as error:
            raise BadExpression(self.text, "", "the value is too large for a float") from error

    def part(self, node: ast.AST) -> str:
        """The piece of the text that `node` was read from."""
        return ast.get_source_segment(self.text, node) or ""

    @property
    def node(self) -> ast.expr:
        return self._node

    def __repr__(self) -> str:
        return f"Expr({self.text!r})"


@lru_cache(maxsize=4096)
def parse(text: str) -> Expr:
    """Read `text`. Raises BadExpression naming the text and the offending part."""
    plain = text.strip()
    if not plain:
        raise BadExpression(text, "", "it is empty")
    if len(plain) > MAX_CHARS:
        raise BadExpression(plain, "", f"it has {len(plain)} characters, more than {MAX_CHARS}")
    if "\n" in plain or not plain.isascii():
        raise BadExpression(plain, "", "it must be one line of ASCII")
    try:
        node = ast.parse(plain, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        words = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
        raise BadExpression(plain, "", f"not readable ({words})") from error
    expr = Expr(plain, node, frozenset())
    names: set[str] = set()
    _check(expr, node, names, 0)
    return Expr(plain, node, frozenset(names))


def to_c(expr: Expr) -> str:
    """The expression in C over int parameters of the same names, with exactly the value that `value` gives.

    Integers and truth values only: no `/`, `sqrt`, `log2` or float literal; divisors are positive literals; every
    intermediate value must fit in `long long` for any int axes. Raises BadExpression otherwise.
    """
    text, _, _ = _c(expr, expr.node)
    return text


def _check(expr: Expr, node: ast.expr, names: set[str], depth: int) -> None:
    part = expr.part(node)
    if depth > MAX_DEPTH:
        raise BadExpression(expr.text, part, f"nested more than {MAX_DEPTH} deep")
    if isinstance(node, ast.Constant):
        _check_literal(expr, node)
        return
    if isinstance(node, ast.Name):
        if node.id in _CALLS:
            raise BadExpression(expr.text, part, "a function's name cannot stand alone")
        names.add(node.id)
        return
    for child in _children(expr, node):
        _check(expr, child, names, depth + 1)


def _check_literal(expr: Expr, node: ast.Constant) -> None:
    if type(node.value) not in (int, float):
        raise BadExpression(expr.text, expr.part(node), "only integer and float literals are allowed")
    if isinstance(node.value, float) and not math.isfinite(node.value):
        raise BadExpression(expr.text, expr.part(node), "the literal is not finite")


def _children(expr: Expr, node: ast.expr) -> Sequence[ast.expr]:
    """The operands of a node of the subset. Raises BadExpression for any other node."""
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return (node.left, node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub | ast.Not):
        return (node.operand,)
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        return (node.left, *node.comparators)
    if isinstance(node, ast.Call):
        return _arguments(expr, node)
    raise BadExpression(expr.text, expr.part(node), f"{_kind(node)} is not allowed")


def _arguments(expr: Expr, node: ast.Call) -> Sequence[ast.expr]:
    part = expr.part(node)
    if not isinstance(node.func, ast.Name) or node.func.id not in _CALLS:
        raise BadExpression(expr.text, part, f"the functions are {', '.join(_CALLS)}")
    low, high = _CALLS[node.func.id]
    if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
        raise BadExpression(expr.text, part, f"{node.func.id} takes plain arguments")
    if not low <= len(node.args) <= high:
        wanted = str(low) if low == high else f"{low} to {high}"
        raise BadExpression(expr.text, part, f"{node.func.id} takes {wanted} arguments, not {len(node.args)}")
    return node.args


def _value(expr: Expr, node: ast.expr, names: Mapping[str, int]) -> Number:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int | float)
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in names:
            raise BadExpression(expr.text, node.id, f"no value for this name; there are {', '.join(names) or 'none'}")
        return names[node.id]
    if isinstance(node, ast.BoolOp):
        test = all if isinstance(node.op, ast.And) else any
        return int(test(_value(expr, v, names) for v in node.values))
    if isinstance(node, ast.UnaryOp):
        inner = _value(expr, node.operand, names)
        return int(not inner) if isinstance(node.op, ast.Not) else -inner if isinstance(node.op, ast.USub) else inner
    operands = [_value(expr, child, names) for child in _children(expr, node)]
    if isinstance(node, ast.Compare):
        pairs = zip(node.ops, operands, operands[1:], strict=False)
        return int(all(_COMPARE[type(op)][1](a, b) for op, a, b in pairs))
    try:
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](operands[0], operands[1])
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        return _call(node.func.id, operands)
    except ZeroDivisionError as error:
        raise BadExpression(expr.text, expr.part(node), "division by zero") from error
    except ValueError as error:
        raise BadExpression(expr.text, expr.part(node), f"no value for {operands[0]}") from error


def _call(name: str, values: list[Number]) -> Number:
    if name == "min":
        return min(values)
    if name == "max":
        return max(values)
    if name == "ceil_div":
        return -(-values[0] // values[1])
    return math.sqrt(values[0]) if name == "sqrt" else math.log2(values[0])


def _c(expr: Expr, node: ast.expr) -> tuple[str, int, int]:
    """C text, and the least and greatest value it can have."""
    part = expr.part(node)
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, int):
            raise BadExpression(expr.text, part, "a rule in C has integers only")
        return _fits(expr, part, f"{node.value}LL", node.value, node.value)
    if isinstance(node, ast.Name):
        return f"(long long){node.id}", -_C_AXIS, _C_AXIS - 1
    if isinstance(node, ast.BoolOp):
        glue = " && " if isinstance(node.op, ast.And) else " || "
        return f"({glue.join(_c(expr, v)[0] for v in node.values)})", 0, 1
    if isinstance(node, ast.UnaryOp):
        text, low, high = _c(expr, node.operand)
        if isinstance(node.op, ast.Not):
            return f"(!{text})", 0, 1
        return (text, low, high) if isinstance(node.op, ast.UAdd) else _fits(expr, part, f"(-{text})", -high, -low)
    if isinstance(node, ast.Compare):
        texts = [_c(expr, child)[0] for child in _children(expr, node)]
        steps = [f"{a} {_COMPARE[type(op)][0]} {b}" for op, a, b in zip(node.ops, texts, texts[1:], strict=False)]
        return f"({' && '.join(f'({step})' for step in steps)})", 0, 1
    if isinstance(node, ast.BinOp):
        return _c_binary(expr, node)
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return _c_call(expr, node, node.func.id)


def _c_binary(expr: Expr, node: ast.BinOp) -> tuple[str, int, int]:
    part = expr.part(node)
    a, a_low, a_high = _c(expr, node.left)
    b, b_low, b_high = _c(expr, node.right)
    if isinstance(node.op, ast.Add):
        return _fits(expr, part, f"({a} + {b})", a_low + b_low, a_high + b_high)
    if isinstance(node.op, ast.Sub):
        return _fits(expr, part, f"({a} - {b})", a_low - b_high, a_high - b_low)
    if isinstance(node.op, ast.Mult):
        corners = [x * y for x in (a_low, a_high) for y in (b_low, b_high)]
        return _fits(expr, part, f"({a} * {b})", min(corners), max(corners))
    if isinstance(node.op, ast.Div):
        raise BadExpression(expr.text, part, "a rule in C has integers only: use //")
    divisor = _c_divisor(expr, node.right)
    rest = f"(({a} % {divisor}LL + {divisor}LL) % {divisor}LL)"
    if isinstance(node.op, ast.Mod):
        return _fits(expr, part, rest, 0, divisor - 1)
    return _fits(expr, part, f"(({a} - {rest}) / {divisor}LL)", a_low // divisor, a_high // divisor)


def _c_call(expr: Expr, node: ast.Call, name: str) -> tuple[str, int, int]:
    part = expr.part(node)
    if name == "ceil_div":
        divisor = _c_divisor(expr, node.args[1])
        a, low, high = _c(expr, node.args[0])
        raised = f"({a} + {divisor - 1}LL)"
        rest = f"(({raised} % {divisor}LL + {divisor}LL) % {divisor}LL)"
        _fits(expr, part, raised, low + divisor - 1, high + divisor - 1)
        return f"(({raised} - {rest}) / {divisor}LL)", -(-low // divisor), -(-high // divisor)
    if name not in ("min", "max"):
        raise BadExpression(expr.text, part, "a rule in C has integers only")
    sign, best = ("<", min) if name == "min" else (">", max)
    text, low, high = _c(expr, node.args[0])
    for arg in node.args[1:]:
        other, other_low, other_high = _c(expr, arg)
        text = f"({text} {sign} {other} ? {text} : {other})"
        low, high = best(low, other_low), best(high, other_high)
    return text, low, high


def _c_divisor(expr: Expr, node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and 0 < node.value < _C_AXIS:
        return node.value
    raise BadExpression(expr.text, expr.part(node), "in a rule the divisor is a positive integer literal")


def _fits(expr: Expr, part: str, text: str, low: int, high: int) -> tuple[str, int, int]:
    if low <= -_C_BOUND or high >= _C_BOUND:
        raise BadExpression(expr.text, part, "it may overflow 64 bits")
    return text, low, high


def _kind(node: ast.expr) -> str:
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        return f"the operator {type(node.op).__name__}"
    if isinstance(node, ast.Compare):
        return f"the comparison {next(type(op).__name__ for op in node.ops if type(op) not in _COMPARE)}"
    return f"a {type(node).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
