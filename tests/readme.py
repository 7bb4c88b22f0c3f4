"""The commands of README.md: what stands after `$ ` in its console blocks, in order."""

from __future__ import annotations

import re
from dataclasses import dataclass

from source_tree import ROOT

EXCEPTED = ("make ",)
"""Not run as documentation: CI runs the make targets as steps of their own."""


@dataclass(frozen=True)
class Command:
    """One command: its first line's number, and its text with continuation lines."""

    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return self.text.split()


def commands(text: str) -> list[Command]:
    """All commands of the console blocks; lines that start with `> ` continue the command above them."""
    found: list[Command] = []
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            found.append(Command(number, line[2:]))
        elif inside and (line.startswith("> ") or line == ">"):
            found[-1] = Command(found[-1].line, f"{found[-1].text}\n{line[2:]}")
    return [command for command in found if not command.text.startswith(EXCEPTED)]


def readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def options(text: str) -> set[str]:
    """Every `--option` that a text names."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
