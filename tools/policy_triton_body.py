"""What a Triton function may hold: statements, expressions, names, attributes and calls, each from a list."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernelcrew.tools import policy_triton_names as names
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.policy_ptx import ptx_policy

MAX_TEXT = 2000
"""Characters of a string that is no docstring."""
MAX_BITS = 128
"""Width of a whole number written out."""

STATEMENTS = (
    ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.If, ast.For, ast.While, ast.Return, ast.Pass,
)  # fmt: skip
EXPRESSIONS = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Name, ast.Constant, ast.Tuple, ast.List, ast.Subscript,
    ast.Slice, ast.Attribute, ast.Call, ast.IfExp, ast.keyword,
)  # fmt: skip
MARKS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)

_INSTEAD = {
    "Import": "imports stand at the top of the module",
    "ImportFrom": "imports stand at the top of the module",
    "FunctionDef": "functions stand at module level",
    "Global": "a kernel keeps nothing",
    "Nonlocal": "a kernel keeps nothing",
    "Assert": "use tl.static_assert for what is known at compile time",
    "Break": "Triton has no break: put the condition into the loop",
    "Continue": "Triton has no continue: use a mask or an if",
    "ListComp": "write a tl.static_range loop",
    "JoinedStr": "write a plain string",
    "NamedExpr": "assign in a statement of its own",
    "Starred": "name each argument",
    "Lambda": "write a @triton.jit function",
}


@dataclass
class Known:
    """What the names of one module mean."""

    triton: set[str] = field(default_factory=set)
    """Names of the package."""
    language: set[str] = field(default_factory=set)
    """Names of its language module."""
    libdevice: set[str] = field(default_factory=set)
    """Names of its mathematics library."""
    jit: set[str] = field(default_factory=set)
    """Names of the decorator."""
    imported: set[str] = field(default_factory=set)
    """Functions and dtypes of the language under a name of their own."""
    functions: set[str] = field(default_factory=set)
    """Functions of the module."""
    constants: set[str] = field(default_factory=set)
    """Constants of the module."""

    @property
    def all(self) -> set[str]:
        """Every name that has a meaning."""
        modules = self.triton | self.language | self.libdevice
        return modules | self.jit | self.imported | self.functions | self.constants

    def is_jit(self, node: ast.expr) -> bool:
        """Whether `node` is the decorator."""
        path = dotted(node)
        return path is not None and ((len(path) == 1 and path[0] in self.jit) or self._in(path, self.triton, {"jit"}))

    def is_listed(self, path: list[str]) -> bool:
        """Whether a dotted name leads to something on the lists."""
        if self._in(path, self.triton, names.HOST) or self._in(path, self.libdevice, names.LIBDEVICE):
            return True
        inner = path[1:] if len(path) > 1 and path[0] in self.language else None
        if inner is None and len(path) > 2 and path[0] in self.triton and path[1] == "language":
            inner = path[2:]
        if inner is None:
            return False
        if len(inner) == 1:
            return inner[0] in names.LANGUAGE
        if inner[0] == "math" and len(inner) == 2:
            return inner[1] in names.MATH
        if inner[:2] == ["extra", "libdevice"] or inner[:3] == ["extra", "cuda", "libdevice"]:
            return inner[-1] in names.LIBDEVICE and len(inner) == 3 + (inner[1] == "cuda")
        return len(inner) == 2 and inner[0] in names.LANGUAGE and inner[1] in names.METHODS

    def is_annotation(self, node: ast.expr) -> bool:
        """Whether `node` says constexpr or a dtype."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value in {"constexpr", *(f"{name}.constexpr" for name in self.language)}
        path = dotted(node)
        if path is None:
            return False
        if len(path) == 1:
            return path[0] in self.imported or path[0] in names.BUILTINS
        return path[-1] in names.DTYPES | {"constexpr", "tensor"} and self.is_listed(path)

    def is_constant(self, node: ast.expr) -> bool:
        """Whether `node` is a literal, plain arithmetic on numbers, a dtype, or tl.constexpr of one."""
        if isinstance(node, ast.Constant):
            return isinstance(node.value, int | float | bool | str | None) and fits(node)
        if isinstance(node, ast.Tuple):
            return all(self.is_constant(item) for item in node.elts)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub | ast.UAdd) and _is_number(node.operand)
        if isinstance(node, ast.BinOp):
            plain = isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv)
            return plain and _is_number(node.left) and _is_number(node.right)
        if isinstance(node, ast.Call):
            path = dotted(node.func)
            said = path is not None and path[-1] == "constexpr" and (self.is_listed(path) or path[0] in self.imported)
            return said and len(node.args) == 1 and not node.keywords and self.is_constant(node.args[0])
        path = dotted(node)
        return path is not None and path[-1] in names.DTYPES and (self.is_listed(path) or path[-1] in self.imported)

    @staticmethod
    def _in(path: list[str], roots: set[str], listed: frozenset[str] | set[str]) -> bool:
        return len(path) == 2 and path[0] in roots and path[1] in listed


def dotted(node: ast.expr) -> list[str] | None:
    """`tl.math.exp2` as its parts; None for anything but names and dots."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [*parts, node.id][::-1] if isinstance(node, ast.Name) else None


def fits(node: ast.Constant) -> bool:
    """Whether a literal has an ordinary size."""
    if isinstance(node.value, int):
        return node.value.bit_length() <= MAX_BITS
    return not isinstance(node.value, str) or len(node.value) <= MAX_TEXT


def judge_function(node: ast.FunctionDef, known: Known) -> Iterator[Diagnostic]:
    """Broken rules of one function, its parameters included."""
    yield from _parameters(node, known)
    local = {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    local |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for name in sorted(local):
        modules = known.triton | known.language | known.libdevice | known.jit
        if name in modules or name.startswith("__") or not name.isascii():
            yield _broken("name", node.lineno, f"'{name}' in {node.name} hides another meaning: use another name")
    body = node.body
    if (
        isinstance(body[0], ast.Expr)
        and isinstance(body[0].value, ast.Constant)
        and isinstance(body[0].value.value, str)
    ):
        body = body[1:]
    for statement in body:
        yield from _node(statement, known, local)


def _parameters(node: ast.FunctionDef, known: Known) -> Iterator[Diagnostic]:
    listed = node.args
    if listed.vararg or listed.kwarg:
        yield _broken("function", node.lineno, f"'{node.name}' takes * or ** arguments: name each one")
    for arg in (*listed.posonlyargs, *listed.args, *listed.kwonlyargs):
        if arg.annotation is not None and not known.is_annotation(arg.annotation):
            what = f"annotation of '{arg.arg}': tl.constexpr or a dtype, it is evaluated when the module is read"
            yield _broken("function", arg.lineno, what)
    for default in (*listed.defaults, *listed.kw_defaults):
        if default is not None and not known.is_constant(default):
            yield _broken(
                "function", default.lineno, f"default value in '{node.name}': a literal or tl.constexpr of one"
            )
    if node.returns is not None and not known.is_annotation(node.returns):
        yield _broken("function", node.lineno, f"return annotation of '{node.name}': a dtype, or leave it out")


def _node(node: ast.AST, known: Known, local: set[str]) -> Iterator[Diagnostic]:
    line = getattr(node, "lineno", 0)
    if isinstance(node, MARKS):
        return
    if not isinstance(node, (*STATEMENTS, *EXPRESSIONS)):
        what = type(node).__name__
        instead = _INSTEAD.get(what, "a kernel is assignments, if, for, while and return over tensor arithmetic")
        yield _broken("statement" if isinstance(node, ast.stmt) else "expression", line, f"{what}: {instead}")
        return
    if isinstance(node, ast.Name):
        yield from _name(node, known, local)
    elif isinstance(node, ast.Constant):
        if not isinstance(node.value, int | float | bool | str | None | type(...)) or not fits(node):
            yield _broken("expression", line, "literal: numbers of at most 128 bits, short strings, True, False, None")
    elif isinstance(node, ast.Attribute):
        yield from _attribute(node, known, local)
    elif isinstance(node, ast.Call):
        yield from _call(node, known, local)
    elif isinstance(node, ast.AnnAssign) and not known.is_annotation(node.annotation):
        yield _broken("statement", line, "annotation: tl.constexpr or a dtype")
    if isinstance(node, ast.Attribute) and dotted(node) is not None and _root(node) not in local:
        return
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "ctx") or (isinstance(node, ast.Call) and name == "func"):
            continue
        for item in child if isinstance(child, list) else [child]:
            if isinstance(item, ast.AST):
                yield from _node(item, known, local)


def _name(node: ast.Name, known: Known, local: set[str]) -> Iterator[Diagnostic]:
    if node.id in local or node.id in known.imported | known.functions | known.constants:
        return
    if node.id in names.BUILTINS and not node.id.startswith("_"):
        return
    what = f"'{node.id}' is no argument, local, constant or @triton.jit function of this module"
    yield _broken("name", node.lineno, what)


def _attribute(node: ast.Attribute, known: Known, local: set[str]) -> Iterator[Diagnostic]:
    if not isinstance(node.ctx, ast.Load):
        yield _broken("attribute", node.lineno, f"'.{node.attr}' is assigned to: a kernel assigns to locals alone")
    path = dotted(node)
    if path is not None and path[0] not in local:
        if path[0] in known.triton | known.language | known.libdevice:
            if not known.is_listed(path):
                yield _broken("name", node.lineno, f"'{'.'.join(path)}' is not on the list of the language's names")
            return
        if path[0] not in known.imported | known.constants | known.functions:
            yield _broken("name", node.lineno, f"'{path[0]}' is no argument, local or constant of this module")
            return
    if node.attr not in names.METHODS:
        yield _broken("attribute", node.lineno, f"'.{node.attr}' is not on the list of what tensors and dtypes have")


def _call(node: ast.Call, known: Known, local: set[str]) -> Iterator[Diagnostic]:
    func = node.func
    if any(keyword.arg is None for keyword in node.keywords):
        yield _broken("call", node.lineno, "** arguments: name each one")
    path = dotted(func)
    if path is not None and path[-1] == "inline_asm_elementwise":
        yield from _assembler(node)
    if isinstance(func, ast.Name):
        local_function = func.id in local and func.id not in known.all and func.id not in names.BUILTINS
        if func.id in known.constants or local_function:
            what = f"call of '{func.id}', whose value is not known here: call functions by their own name"
            yield _broken("call", node.lineno, what)
        elif func.id not in known.functions | known.imported | names.BUILTINS:
            what = f"'{func.id}' is neither a @triton.jit function of this module nor on the list"
            yield _broken("call", node.lineno, what)
    elif isinstance(func, ast.Attribute):
        yield from _node(func, known, local)
    else:
        yield _broken("call", node.lineno, "call through an expression: call functions by name")


def _assembler(node: ast.Call) -> Iterator[Diagnostic]:
    texts = [node.args[0]] if node.args else [k.value for k in node.keywords if k.arg == "asm"]
    text = texts[0] if texts else None
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        yield _broken("asm", node.lineno, "inline assembler without a plain string: write the instructions out")
        return
    yield from ptx_policy(text.value, text.lineno, pure=True)


def _root(node: ast.Attribute) -> str:
    path = dotted(node)
    return path[0] if path else ""


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and fits(node)


def _broken(rule: str, line: int, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=line, message=message)
