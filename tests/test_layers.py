"""Imports point one way, each outside package has one home, and no import goes in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter

import pytest
from source_tree import ROOMS, Module, imported, modules

HOMES = {
    "autogen_agentchat": "agents/*",
    "autogen_core": "agents/*",
    "autogen_ext": "agents/*",
    "openai": "agents/*",
    "chromadb": "memory/*",
    "onnxruntime": "memory/*",
    "tiktoken": "memory/*",
    "jinja2": "runs/report*",
    "kernel_tuner": "runs/race_kt.py",
    "rich": "runs/cli*",
    "typer": "runs/cli*",
    "subprocess": "base/proc.py",
    "multiprocessing": "nowhere",
    "pydantic_settings": "base/settings.py",
    "torch": "nowhere",
    "triton": "tools/triton_child.py",
    "pycuda": "nowhere",
}
"""Outside package to the files that may import it."""

STARTS = {"system", "popen", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp", "execvpe", "fork", "forkpty"}
"""Functions of `os` that start a program."""

ENVIRONMENT = {"environ", "environb", "getenv", "putenv"}
"""Names of `os` that reach the environment."""

DOOR = "base/__main__.py"
"""`python -m kernelcrew` is the command line: the one file of base that looks to the right."""


def problems_of(module: Module) -> Iterator[str]:
    """What one module does that the house forbids."""
    tree = module.tree
    typed = {id(inner) for node in ast.walk(tree) if for_types(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        where = f"{module.path}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield f"{where}: a relative import hides the room it reaches into"
        for name in imported(node):
            yield from (f"{where}: {problem}" for problem in import_problems(module, name, id(node) in typed))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            yield from (f"{where}: {problem}" for problem in os_problems(module, node.attr))
        if calls_print(node) and not fnmatch(module.path, "runs/cli*.py"):
            yield f"{where}: print; tools and steps say things with values and events"


def calls_print(node: ast.AST) -> bool:
    """Whether this is a call of the built-in print."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"


def for_types(node: ast.AST) -> bool:
    """Whether this is an `if TYPE_CHECKING:`: nothing in it runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_problems(module: Module, name: str, typed: bool) -> Iterator[str]:
    """What is wrong with one imported name; a name for types alone may belong to a package that lives elsewhere."""
    top, *rest = name.split(".")
    if top in ROOMS[1:]:
        yield f"'{top}' is a folder's name; the import name is kernelcrew.{top}"
    if top == "kernelcrew" and module.path != DOOR:
        target = rest[0] if rest and rest[0] in ROOMS else "base"
        if ROOMS.index(target) > ROOMS.index(module.room):
            yield f"{module.room} imports {target}, which stands to its right"
    if top in HOMES and not typed and not fnmatch(module.path, HOMES[top]):
        yield f"{top} is imported in {HOMES[top]} alone"
    if top == "os" and rest:
        yield from os_problems(module, rest[0])


def os_problems(module: Module, attribute: str) -> Iterator[str]:
    """What is wrong with one name of `os`."""
    if attribute in STARTS and module.path != "base/proc.py":
        yield f"os.{attribute} starts a program; base/proc.py does that"
    if attribute in ENVIRONMENT and module.path != "base/settings.py":
        yield f"os.{attribute}: base/settings.py reads the environment"


def graph_of(found: Iterable[Module]) -> dict[str, set[str]]:
    """Module to the modules it imports when it is loaded: not inside functions, not for type checkers alone."""
    known = {module.name: module for module in found}
    graph: dict[str, set[str]] = {}
    for name, module in known.items():
        wanted: set[str] = set()
        for node in loaded(module.tree.body):
            for target in imported(node):
                parent = target.rpartition(".")[0]
                wanted |= {choice for choice in (target, parent) if choice in known and choice != name}
        graph[name] = wanted
    return graph


def loaded(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import, `if TYPE_CHECKING:` and functions left out."""
    for node in body:
        if isinstance(node, ast.If):
            yield from () if for_types(node) else loaded(node.body)
            yield from loaded(node.orelse)
        elif isinstance(node, ast.Try):
            yield from loaded([*node.body, *(s for h in node.handlers for s in h.body), *node.orelse, *node.finalbody])
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one import circle, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [str(name) for name in error.args[1]]
    return []


def test_every_room_is_looked_at() -> None:
    found = list(modules())
    assert {module.room for module in found} == set(ROOMS)
    assert "kernelcrew.record" in {module.name for module in found}
    assert "kernelcrew.tools" in {module.name for module in found}


def test_the_house_keeps_its_layers() -> None:
    assert [problem for module in modules() for problem in problems_of(module)] == []


def test_no_import_goes_in_a_circle() -> None:
    assert cycle_in(graph_of(modules())) == []


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("tools/x.py", "from kernelcrew.runs.run import play", "tools imports runs"),
        ("base/x.py", "import kernelcrew.platforms", "base imports platforms"),
        ("memory/x.py", "def f():\n    from kernelcrew import agents", "memory imports agents"),
        ("runs/x.py", "from tools import git", "import name is kernelcrew.tools"),
        ("runs/x.py", "from . import run", "relative import"),
        ("runs/x.py", "import autogen_core", "autogen_core is imported in agents/* alone"),
        ("agents/x.py", "from chromadb import Settings", "chromadb is imported in memory/* alone"),
        ("tools/x.py", "import subprocess", "subprocess is imported in base/proc.py alone"),
        ("tools/x.py", "import os\nos.system('ls')", "os.system starts a program"),
        ("tools/x.py", "from os import fork", "os.fork starts a program"),
        ("tools/x.py", "import os\nx = os.environ['A']", "reads the environment"),
        ("tools/x.py", "from os import getenv", "reads the environment"),
        ("runs/run.py", "import jinja2", "jinja2 is imported in runs/report* alone"),
        ("tools/x.py", "import torch.nn", "torch is imported in nowhere alone"),
        ("tools/build_triton.py", "import triton", "triton is imported in tools/triton_child.py alone"),
        ("runs/run.py", "print('x')", "print"),
        ("tools/x.py", "if TYPE_CHECKING:\n    from kernelcrew.runs.run import play", "tools imports runs"),
    ],
)
def test_a_bad_module_is_noticed(path: str, text: str, expected: str) -> None:
    assert any(expected in problem for problem in problems_of(Module(path, text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("runs/x.py", "from kernelcrew.tools.git import Repo\nfrom kernelcrew.record import Record"),
        ("tools/x.py", "from kernelcrew import proc\nfrom kernelcrew.tools.nouns import Build"),
        ("base/__main__.py", "from kernelcrew.runs.cli import main"),
        ("tools/x.py", "if TYPE_CHECKING:\n    import subprocess"),
        ("runs/cli_show.py", "import rich\nprint('x')"),
        ("agents/x.py", "import autogen_core\nimport os\nos.path.join('a')"),
    ],
)
def test_a_good_module_passes(path: str, text: str) -> None:
    assert list(problems_of(Module(path, text))) == []


def test_a_circle_is_noticed() -> None:
    one = Module("tools/one.py", "from kernelcrew.tools.two import f")
    two = Module("tools/two.py", "import kernelcrew.tools.one")
    late = Module("tools/two.py", "def f():\n    import kernelcrew.tools.one")
    typed = Module("tools/two.py", "if TYPE_CHECKING:\n    import kernelcrew.tools.one")
    assert set(cycle_in(graph_of([one, two]))) == {"kernelcrew.tools.one", "kernelcrew.tools.two"}
    assert cycle_in(graph_of([one, late])) == []
    assert cycle_in(graph_of([one, typed])) == []
