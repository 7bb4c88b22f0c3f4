"""A run that ended: shown as it is, or given more time when it stopped for want of it.

What a run was asked for (`Start`) never changes; more time is a step of its own, and the last one counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelcrew.errors import UserMistake
from kernelcrew.record import Record
from kernelcrew.runs.crew import Crew
from kernelcrew.runs.journal import payload_of
from kernelcrew.runs.nouns import RunRecord, Start, Step
from kernelcrew.runs.run import ROUND_NEEDS_S

STEP = "extended."


class Extended(Record):
    """More time for a run."""

    budget_min: float
    """Minutes at most from now on, all sittings together."""


def ended(steps: Sequence[Step]) -> RunRecord | None:
    """The run's record; None while it is unfinished, or was given more time after it had ended."""
    last = {"end": -1, STEP: -1}
    for index, step in enumerate(steps):
        last[STEP if step.step.startswith(STEP) else step.step] = index
    return payload_of(list(steps), "end", RunRecord) if last["end"] > last[STEP] else None


def stopped_for_budget(record: RunRecord) -> bool:
    """Whether more time would let it go on."""
    return "of the budget left" in record.stop_reason


def more_to_do(record: RunRecord, budget_min: float | None) -> str:
    """What could still be done with a run that ended, to stand after why it stopped."""
    if stopped_for_budget(record):
        return f"; kernelcrew resume {record.run} --budget-min N gives it more time"
    return "; more time would change nothing: start another run" if budget_min else ""


def budget_of(steps: Sequence[Step], start: Start) -> float:
    """Minutes at most as they were last given."""
    given = [Extended.model_validate(s.payload) for s in steps if s.step.startswith(STEP)]
    return given[-1].budget_min if given else start.budget_min


def take_budget(crew: Crew, budget_min: float | None) -> None:
    """Set the clock to the budget that holds now; journal it when it is new. Raises UserMistake when it is
    spent; the crew is closed then."""
    steps = crew.journal.steps
    budget = budget_min or budget_of(steps, crew.start)
    crew.clock.budget_s = budget * 60
    if budget_min is None or budget == budget_of(steps, crew.start):
        return
    if crew.clock.left_s() < ROUND_NEEDS_S:
        spent = crew.clock.elapsed_s() / 60
        least = spent + ROUND_NEEDS_S / 60
        crew.close()
        raise UserMistake(
            f"--budget-min {budget:g} is spent: run {crew.start.run} has used {spent:.1f} minutes",
            fix=f"it counts all sittings together: give more than {least:.1f}",
        )
    count = sum(s.step.startswith(STEP) for s in steps)
    more = Extended(budget_min=budget)
    crew.journal.do(f"{STEP}{count + 1}", Extended, more, lambda: more)
