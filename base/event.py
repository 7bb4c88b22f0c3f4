"""Event: what the display, and nothing else, consumes. Logic never prints."""

from __future__ import annotations

from collections.abc import Callable

from kernelcrew.record import Record


class Event(Record):
    """One thing that happened in a run."""

    stage: str
    """The arrow: baseline, read, propose, write, trial, tune, ablate, confirm, review, decide, settle, remember."""
    message: str
    """One line for a person."""
    round: int = 0
    """The round, from 1; 0 before the first."""
    candidate: str = ""
    """The proposal or candidate at work, if one is."""
    status: str = "info"
    """`start`, `end`, `info`, `warn` or `reused` (read back from the journal)."""
    elapsed_s: float = 0.0
    """Seconds since the run began."""
    left_s: float = 0.0
    """Seconds of the budget that are left."""


Listener = Callable[[Event], None]


def silent(event: Event) -> None:
    """A listener that does nothing."""
