"""The modules of the distribution, parsed: what the tests of layers and of style look at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("base", "platforms", "kernels", "tools", "memory", "agents", "runs")
"""From left to right: a room may import any room to its left."""


@dataclass(frozen=True)
class Module:
    """One source file: its path from the root, and its text."""

    path: str
    text: str

    @property
    def room(self) -> str:
        return self.path.split("/", 1)[0]

    @property
    def name(self) -> str:
        """`kernelcrew.tools.git`: the import name."""
        parts = self.path.removesuffix(".py").removesuffix("/__init__").split("/")
        return ".".join(["kernelcrew", *(parts[1:] if parts[0] == "base" else parts)])

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def modules() -> Iterator[Module]:
    """Every Python file of every room."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            yield Module(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))


def imported(node: ast.AST) -> list[str]:
    """The full names that an import statement asks for; none for any other node."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []
