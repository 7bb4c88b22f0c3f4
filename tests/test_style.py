"""The habits of AGENTS.md that a machine can check. An exemption is a comment that carries its reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from source_tree import Module, modules

FUNCTION_LINES = 60
MODULE_LINES = 400
PARAMETERS = 6
REASON = re.compile(r"#\s*(?:(?:noqa:|type: ignore).*?\s-\s|long:\s*)\S.{8,}")
"""`# noqa: CODE - why`, `# long: why`: an exemption with at least a few words of reason."""
DOORS = ("runs/cli.py",)
"""Outermost frames that may catch what nobody else did."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def problems_of(module: Module) -> Iterator[str]:
    """What one module does against the habits."""
    if len(module.lines) >= MODULE_LINES and not exempt(module, 1):
        yield f"{module.path}: {len(module.lines)} lines; split it"
    if not ast.get_docstring(module.tree) and module.text.strip():
        yield f"{module.path}: no docstring"
    for node in ast.walk(module.tree):
        where = f"{module.path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, Function):
            yield from (f"{where}: {problem}" for problem in function_problems(module, node))
        if isinstance(node, ast.ExceptHandler) and swallows(node) and module.path not in DOORS:
            yield from () if exempt(module, node.lineno) else [f"{where}: broad except; name what can be raised"]
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Record" for base in node.bases):
            yield from (f"{where}: {problem}" for problem in record_problems(node))
    for number, line in enumerate(module.lines, 1):
        yield from (f"{module.path}:{number}: {problem}" for problem in line_problems(line))


def function_problems(module: Module, node: Function) -> Iterator[str]:
    """Length and parameters of one function."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if length >= FUNCTION_LINES and not exempt(module, node.lineno):
        yield f"{node.name} has {length} lines"
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    count = len([name for name in names if name not in ("self", "cls")])
    if count > PARAMETERS and not exempt(module, node.lineno):
        yield f"{node.name} takes {count} parameters; make a Record of them"


def record_problems(node: ast.ClassDef) -> Iterator[str]:
    """Fields of a noun without the docstring that becomes their description."""
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or "ClassVar" in ast.unparse(field.annotation):
            continue
        value = after.value if isinstance(after, ast.Expr) else None
        if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
            yield f"{node.name}.{ast.unparse(field.target)} has no docstring"


def line_problems(line: str) -> Iterator[str]:
    """What a single line gives away."""
    if re.search(r"#.*\b(TODO|FIXME|XXX|HACK)\b", line):
        yield "unfinished"
    if re.search(r"#\s*noqa\b(?!:)", line):
        yield "a noqa without a code silences everything"
    if re.search(r"#\s*noqa:", line) and not REASON.search(line):
        yield "a noqa without its reason"


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything and does not raise it again."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    names = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(name is None or ast.unparse(name) in ("Exception", "BaseException") for name in names)


def exempt(module: Module, number: int) -> bool:
    """Whether the line says why it may."""
    return bool(REASON.search(module.lines[number - 1]))


def test_the_house_keeps_its_habits() -> None:
    assert [problem for module in modules() for problem in problems_of(module)] == []


def module(body: str, path: str = "tools/x.py") -> Module:
    return Module(path, f'"""A module."""\n{body}\n')


LONG = "\n".join(["    pass"] * FUNCTION_LINES)
MANY = ", ".join("abcdefg")


@pytest.mark.parametrize(
    ("bad", "good", "expected"),
    [
        (f"def f():\n{LONG}", f"def f():  # long: one table, read from top to bottom\n{LONG}", "61 lines"),
        (f"def f({MANY}): ...", f"def f(self, {MANY[:-3]}): ...", "7 parameters"),
        (f"def f({MANY}): ...", f"def f({MANY}): ...  # noqa: PLR0913 - one parameter an option", "7 parameters"),
        ("\n" * MODULE_LINES, "\n" * (MODULE_LINES - 3), "split it"),
        ("try:\n    f()\nexcept Exception:\n    g()", "try:\n    f()\nexcept OSError:\n    g()", "broad except"),
        ("try:\n    f()\nexcept:\n    g()", "try:\n    f()\nexcept (OSError, KeyError):\n    g()", "broad except"),
        ("try:\n    f()\nexcept:\n    g()", "try:\n    f()\nexcept BaseException:\n    g()\n    raise", "broad except"),
        ("x = 1  # TODO mend", "todo = 1  # a list of things to do", "unfinished"),
        ("x = 1  # noqa", "x = 1", "silences everything"),
        ("x = 1  # noqa: E501", "x = 1  # noqa: E501 - a table reads better unbroken", "without its reason"),
        ("class A(Record):\n    x: int\n    y: int", 'class A(Record):\n    x: int\n    """It."""', "A.x has no"),
    ],
)
def test_a_bad_habit_is_noticed(bad: str, good: str, expected: str) -> None:
    assert any(expected in problem for problem in problems_of(module(bad)))
    assert list(problems_of(module(good))) == []


def test_only_a_door_may_catch_everything() -> None:
    text = "try:\n    f()\nexcept Exception:\n    g()"
    assert list(problems_of(module(text, "runs/cli.py"))) == []
    assert list(problems_of(module(text, "runs/run.py"))) != []


def test_a_module_says_what_it_is() -> None:
    assert list(problems_of(Module("tools/x.py", "x = 1\n"))) == ["tools/x.py: no docstring"]
    assert list(problems_of(Module("tools/__init__.py", ""))) == []
