"""When a run ends: small objects with a reason. The first that speaks wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelcrew.runs.nouns import RoundRecord

Stop = Callable[[tuple[RoundRecord, ...]], str]
"""Given the rounds so far, the reason to stop or an empty string."""


@dataclass(frozen=True)
class RoundsDone:
    """Stops after `rounds` rounds."""

    rounds: int

    def __call__(self, rounds: tuple[RoundRecord, ...]) -> str:
        return f"{self.rounds} rounds done" if len(rounds) >= self.rounds else ""


@dataclass(frozen=True)
class BudgetSpent:
    """Stops when too little time is left for another round."""

    left_s: Callable[[], float]
    round_needs_s: float

    def __call__(self, rounds: tuple[RoundRecord, ...]) -> str:
        left = self.left_s()
        return (
            f"{max(left, 0):.0f} s of the budget left, a round needs {self.round_needs_s:.0f} s"
            if left < self.round_needs_s
            else ""
        )


@dataclass(frozen=True)
class NothingLeft:
    """Stops when the proposer has no direction left that memory does not refute."""

    def __call__(self, rounds: tuple[RoundRecord, ...]) -> str:
        dry = rounds and not rounds[-1].judged and not rounds[-1].given_by
        return f"nothing left to propose: {rounds[-1].note}" if dry else ""


@dataclass(frozen=True)
class Plateau:
    """Stops after `rounds` rounds in a row that adopted nothing."""

    rounds: int = 2

    def __call__(self, rounds: tuple[RoundRecord, ...]) -> str:
        last = rounds[-self.rounds :]
        dry = len(last) == self.rounds and not any(r.settled for r in last)
        return f"plateau: {self.rounds} rounds in a row adopted nothing" if dry else ""


def first_reason(stops: tuple[Stop, ...], rounds: tuple[RoundRecord, ...]) -> str:
    """The first reason to stop, or an empty string."""
    return next((reason for stop in stops if (reason := stop(rounds))), "")
