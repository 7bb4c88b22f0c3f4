"""A person's diff as edits: each hunk a search and replace block, hunks grouped into changes by the person."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk, PatchedFile, PatchSet

from kernelcrew.kernels.nouns import Block, Edit
from kernelcrew.record import Record

MOST_CONTEXT = 200
"""Lines a block may grow by, on each side, until its text occurs once."""


class Group(Record):
    """Hunks that make up one change."""

    name: str
    """The change's id."""
    hunks: tuple[int, ...]
    """Numbers from 1, in the diff's order."""
    why: str = ""
    """Its own reason; the submission's when empty."""


class Piece(NamedTuple):
    """One hunk, ready to be applied."""

    block: Block
    line: int
    """First changed line of the old text, from 1."""


def diff_of(old: str, new: str, name: str) -> str:
    """The unified diff from one text to another."""
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def pieces_of(diff: str, old: str, name: str) -> list[Piece] | str:
    """The hunks of a diff against `old`, or why it cannot be used. Only one file may be changed, of the kind of
    `name`: what it is called does not matter, since a branch, a folder and `show` call the kernel differently."""
    try:
        files = [f for f in PatchSet(diff) if len(f)]
    except UnidiffParseError as error:
        return f"it is no unified diff: {error}"
    if not files:
        return "it holds no change: give the output of `git diff` or `diff -u`"
    if len(files) > 1:
        return f"it changes {len(files)} files ({', '.join(f.path for f in files)}): a kernel is one file"
    if trouble := _whole_file(files[0], name):
        return trouble
    found: list[Piece] = []
    for number, hunk in enumerate(files[0], 1):
        piece = _piece(hunk, old)
        if isinstance(piece, str):
            return f"hunk {number} {piece}"
        found.append(piece)
    return found


def edits_from(pieces: Sequence[Piece], groups: Sequence[Group]) -> tuple[Edit, ...] | str:
    """One edit a group, in the order given, or what is wrong with the groups. All hunks must be in just one."""
    owner: dict[int, str] = {}
    names: set[str] = set()
    for group in groups:
        if group.name in names:
            return f"change '{group.name}' is there twice"
        names.add(group.name)
        for number in group.hunks:
            if not 1 <= number <= len(pieces):
                return f"change '{group.name}' names hunk {number}: the diff has {len(pieces)}"
            if number in owner:
                return f"hunk {number} is in '{owner[number]}' and in '{group.name}'"
            owner[number] = group.name
    if left := [str(n) for n in range(1, len(pieces) + 1) if n not in owner]:
        return f"hunk {', '.join(left)} is in no change"
    return tuple(Edit(change=g.name, blocks=tuple(pieces[n - 1].block for n in sorted(g.hunks))) for g in groups)


def parse_group(text: str) -> Group | str:
    """`NAME=1,3` or `NAME=1,3:its own reason`, or what is wrong with it."""
    name, equals, rest = text.partition("=")
    listed, _, why = rest.partition(":")
    name = name.strip()
    if not equals or not name.replace("_", "").replace("-", "").isalnum():
        return f"'{text}': write NAME=HUNKS, for instance unroll=1,3"
    try:
        hunks = tuple(int(part) for part in listed.split(","))
    except ValueError:
        return f"'{text}': '{listed}' is no list of hunk numbers, for instance 1,3"
    return Group(name=name, hunks=hunks, why=why.strip())


def _whole_file(changed: PatchedFile, name: str) -> str:
    if changed.is_added_file or changed.is_removed_file:
        return f"it adds or removes {changed.path}: only the kernel's text can be changed"
    suffix = name[name.rfind(".") :]
    if not changed.path.endswith(suffix):
        return f"it changes {changed.path}: only the kernel's source ({suffix}) can be changed"
    return ""


def _piece(hunk: Hunk, old: str) -> Piece | str:
    lines = old.splitlines(keepends=True)
    before, after = _sides(hunk)
    first = _place(lines, before, hunk.source_start - 1)
    if first is None:
        shown = next((text.strip() for text in before if text.strip()), "")[:60]
        return f"does not fit the kernel as it stands (at '{shown}'): make the diff against it"
    start, end = first, first + len(before)
    low, high = start, end
    while old.count("".join(lines[low:high])) != 1 and (low, high) != (0, len(lines)):
        low, high = max(0, low - 1), min(len(lines), high + 1)
        if start - low > MOST_CONTEXT:
            return "is ambiguous: its lines occur more than once"
    search = "".join(lines[low:high])
    replace = "".join([*lines[low:start], *after, *lines[end:high]])
    changed = next((n for n, line in enumerate(hunk) if not line.is_context), 0)
    return Piece(block=Block(search=search, replace=replace), line=first + 1 + min(changed, max(len(before) - 1, 0)))


def _sides(hunk: Hunk) -> tuple[list[str], list[str]]:
    """The old and the new lines. A mark says of the line before it that the file ends there without a line break."""
    before: list[str] = []
    after: list[str] = []
    last: list[list[str]] = []
    for line in hunk:
        if line.line_type == "\\":
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
            continue
        last = ([before] if not line.is_added else []) + ([after] if not line.is_removed else [])
        for side in last:
            side.append(line.value)
    return before, after


def _place(lines: Sequence[str], before: Sequence[str], wanted: int) -> int | None:
    """Where the old lines stand: at the hunk's own place, else the nearest place that holds them."""
    if not before:
        return min(max(wanted + 1, 0), len(lines))
    places = [at for at in range(len(lines) - len(before) + 1) if list(lines[at : at + len(before)]) == list(before)]
    return min(places, key=lambda at: abs(at - wanted), default=None)

