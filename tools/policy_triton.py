"""The source policy of Triton kernels: an allow-list over the syntax tree, judged from the text alone.

A module holds the two imports, constants and `@triton.jit` functions; a function holds arithmetic of the language. The
module is imported later, in the sandbox, because Triton reads its functions from there: whatever an import would run is
therefore a literal. Triton also finds a function's text by a search for `def` in its lines, so no string before the
`def` may hold one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from kernelcrew.tools import policy_triton_names as names
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.policy_triton_body import Known, judge_function

MAX_SOURCE_BYTES = 128 << 10
MAX_LINES = 3000
MAX_NODES = 40_000
MAX_DEPTH = 64
MAX_BRACKETS = 60

IMPORTS = "`import triton`, `import triton.language as tl`, `from triton.language.extra import libdevice`"
_COOKIE = re.compile(r"^[ \t\f]*#.*?coding[:=][ \t]*(?P<name>[-\w.]+)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029\ufeff]")


def judge_triton(source: str) -> list[Diagnostic]:
    """Every broken rule of one Triton source, by line; nothing of it is imported or run."""
    found = list(_text(source))
    if found:
        return found
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return [_broken("syntax", error.lineno or 0, f"{error.msg}: mend the syntax")]
    except (ValueError, RecursionError, MemoryError):
        return [_broken("size", 0, "nested too deeply to be read: write it flatter")]
    return _large(tree) or sorted(_module(tree), key=lambda d: d.line)


def _text(source: str) -> Iterator[Diagnostic]:
    """What must hold before the text may be parsed at all."""
    if len(source.encode()) > MAX_SOURCE_BYTES:
        yield _broken("size", 0, f"the source is larger than {MAX_SOURCE_BYTES >> 10} KiB: hand in the kernel alone")
        return
    lines = source.split("\n")
    if len(lines) > MAX_LINES:
        yield _broken("size", 0, f"{len(lines)} lines: at most {MAX_LINES}")
        return
    depth = 0
    for number, line in enumerate(lines, 1):
        if _CONTROL.search(line.removesuffix("\r")):
            yield _broken("text", number, "control character: lines end in a newline and hold plain text")
        cookie = _COOKIE.match(line) if number < 3 else None
        if cookie and cookie["name"].lower() not in ("utf-8", "utf8", "ascii"):
            yield _broken("text", number, f"encoding '{cookie['name']}': the source is UTF-8, leave the comment out")
        for char in line:
            depth += (char in "([{") - (char in ")]}")
            if depth > MAX_BRACKETS:
                yield _broken("size", number, f"more than {MAX_BRACKETS} open brackets: write it flatter")
                return


def _large(tree: ast.Module) -> list[Diagnostic]:
    """A tree too large or too deep for the judge, walked without recursion."""
    held: list[tuple[ast.AST, int, int]] = [(tree, 0, 0)]
    count = 0
    while held:
        node, depth, above = held.pop()
        line = getattr(node, "lineno", above)
        count += 1
        if count > MAX_NODES:
            return [_broken("size", 0, f"more than {MAX_NODES} syntax nodes: hand in the kernel alone")]
        if depth > MAX_DEPTH:
            return [_broken("size", line, f"nested deeper than {MAX_DEPTH}: write it flatter")]
        held += [(child, depth + 1, line) for child in ast.iter_child_nodes(node)]
    return []


def _module(tree: ast.Module) -> Iterator[Diagnostic]:
    known = Known()
    functions: list[ast.FunctionDef] = []
    for index, node in enumerate(tree.body):
        if isinstance(node, ast.Import):
            yield from _import(node, known)
        elif isinstance(node, ast.ImportFrom):
            yield from _import_from(node, known)
        elif isinstance(node, ast.FunctionDef):
            functions.append(node)
            yield from _take(node.name, node.lineno, known, known.functions)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from _constant(node, known)
        elif not (index == 0 and isinstance(node, ast.Expr) and _is_text(node.value)):
            what = type(node).__name__
            yield _broken(
                "module", node.lineno, f"{what} at module level: only imports, constants and @triton.jit functions"
            )
    for function in functions:
        yield from _decorated(function, known)
        yield from judge_function(function, known)
    if not functions:
        yield _broken("module", 0, "no @triton.jit function: hand in the kernel")


def _import(node: ast.Import, known: Known) -> Iterator[Diagnostic]:
    for alias in node.names:
        bound = alias.asname or alias.name
        if alias.name == "triton" and bound.isidentifier():
            yield from _take(bound, node.lineno, known, known.triton)
        elif alias.name == "triton.language" and alias.asname:
            yield from _take(bound, node.lineno, known, known.language)
        elif alias.name == "triton.language":
            known.triton.add("triton")
        else:
            yield _broken("import", node.lineno, f"import of '{alias.name}': a kernel imports {IMPORTS}")


def _import_from(node: ast.ImportFrom, known: Known) -> Iterator[Diagnostic]:
    tables = {
        "triton": {
            "jit": known.jit,
            "cdiv": known.imported,
            "next_power_of_2": known.imported,
            "language": known.language,
        },
        "triton.language": {name: known.imported for name in names.LANGUAGE - {"inline_asm_elementwise"}},
        "triton.language.math": {name: known.imported for name in names.MATH},
        "triton.language.extra": {"libdevice": known.libdevice},
        "triton.language.extra.cuda": {"libdevice": known.libdevice},
        "triton.language.extra.libdevice": {name: known.imported for name in names.LIBDEVICE},
    }
    table = tables.get(node.module or "", {}) if not node.level else {}
    for alias in node.names:
        where = table.get(alias.name)
        if where is None:
            yield _broken("import", node.lineno, f"'{alias.name}' from '{node.module}': a kernel imports {IMPORTS}")
        else:
            yield from _take(alias.asname or alias.name, node.lineno, known, where)


def _take(name: str, line: int, known: Known, where: set[str]) -> Iterator[Diagnostic]:
    """Give `name` its one meaning at module level."""
    if name.startswith("__") or not name.isascii():
        yield _broken("name", line, f"'{name}' belongs to Python or is not plain ASCII: use another name")
    elif name in known.all and name not in where:
        yield _broken("name", line, f"'{name}' has a meaning already: give each thing a name of its own")
    elif name in known.functions or name in known.constants:
        yield _broken("name", line, f"'{name}' is defined twice: keep one")
    where.add(name)


def _constant(node: ast.Assign | ast.AnnAssign, known: Known) -> Iterator[Diagnostic]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        yield _broken("module", node.lineno, "a module constant is one name and one literal")
        return
    if isinstance(node, ast.AnnAssign) and not known.is_annotation(node.annotation):
        yield _broken("module", node.lineno, "the annotation of a module constant is tl.constexpr or a dtype")
    if node.value is None or not known.is_constant(node.value):
        what = (
            "the value must be a literal, a dtype or tl.constexpr of one: nothing is computed when the module is read"
        )
        yield _broken("module", node.lineno, f"constant '{targets[0].id}': {what}")
    yield from _take(targets[0].id, node.lineno, known, known.constants)


def _decorated(node: ast.FunctionDef, known: Known) -> Iterator[Diagnostic]:
    if getattr(node, "type_params", []):
        yield _broken("function", node.lineno, "type parameters: a kernel has none")
    if not node.decorator_list:
        yield _broken("host", node.lineno, f"'{node.name}' is host code: give it @triton.jit, or leave it out")
    for decorator in node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        plain = call.func if call else decorator
        if not known.is_jit(plain):
            shown = ast.unparse(plain)
            other = names.DECORATORS.get(shown.rpartition(".")[2], "only @triton.jit may stand above a function")
            yield _broken("decorator", decorator.lineno, f"@{shown[:60]}: {other}")
        elif call is not None:
            yield from _options(call)
    if len(node.decorator_list) > 1:
        yield _broken("decorator", node.lineno, f"'{node.name}' has several decorators: keep @triton.jit alone")


def _options(call: ast.Call) -> Iterator[Diagnostic]:
    if call.args:
        yield _broken("decorator", call.lineno, "@triton.jit takes named options alone")
    for keyword in call.keywords:
        value = keyword.value
        items = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        # Triton looks for the first line that begins with `def`: a string of several lines could bring its own.
        plain = all(isinstance(i, ast.Constant) and re.fullmatch(r"\w{1,64}", str(i.value)) for i in items)
        if keyword.arg not in names.JIT_OPTIONS or not plain:
            listed = ", ".join(sorted(names.JIT_OPTIONS))
            yield _broken(
                "decorator", call.lineno, f"option '{keyword.arg}': the options are {listed}, with plain literals"
            )


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _broken(rule: str, line: int, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=line, message=message)
