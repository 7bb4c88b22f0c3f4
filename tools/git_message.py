"""Commit messages with trailers that `git interpret-trailers --parse` reads back, and the log read from them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelcrew.record import Record

Trailers = Sequence[tuple[str, str]]

FORMAT = "%x1e%H%x1f%P%x1f%aI%x1f%s%x1f%(trailers:only=true,unfold=true)"
"""One record a commit, one field a separator: neither character can stand in a message that we wrote."""


class LogEntry(Record):
    """One commit of a branch."""

    commit: str
    """Its full hash."""
    parents: tuple[str, ...]
    """Full hashes."""
    when: str
    """Author date, ISO 8601."""
    subject: str
    """First line."""
    trailers: tuple[tuple[str, str], ...]
    """Rationale, Expected, Risk, Measured: in the message's order, a key as often as it stands there."""


def message(subject: str, trailers: Trailers) -> str:
    """Subject, blank line, one line a trailer. Text that would break a line or a trailer is folded into one line."""
    first = one_line(subject) or "kernel"
    block = "".join(f"{_key(key)}: {one_line(value) or 'none'}\n" for key, value in trailers)
    return f"{first}\n\n{block}" if block else f"{first}\n"


def one_line(text: str) -> str:
    """Text without line breaks, control characters and lone surrogates."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def parse_log(text: str) -> tuple[LogEntry, ...]:
    """What `git log --format=FORMAT` printed."""
    entries = []
    for record in text.split("\x1e")[1:]:
        commit, parents, when, subject, block = record.split("\x1f", 4)
        pairs = (line.split(": ", 1) for line in block.splitlines() if ": " in line)
        trailers = tuple((key, value) for key, value in pairs)
        above = tuple(parents.split())
        entries.append(LogEntry(commit=commit, parents=above, when=when, subject=subject, trailers=trailers))
    return tuple(entries)


def _key(key: str) -> str:
    """A trailer's key: letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", key).strip("-") or "Note"
