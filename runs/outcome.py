"""How a run came out, in words: what was adopted, or what was seen and not confirmed."""

from __future__ import annotations

from collections.abc import Sequence

from kernelcrew.record import Record
from kernelcrew.runs.nouns import RoundRecord
from kernelcrew.tools.nouns import Timing


class Seen(Record):
    """The best that a run measured without adopting it."""

    proposal: str
    """Which one."""
    title: str
    """In words."""
    timing: Timing
    """Its blocks, of whatever grade."""
    changes: tuple[str, ...]
    """What it was made of."""

    def ratio(self, shape_class: str) -> float | None:
        """The ratio in one class; None where it was not measured."""
        return next((c.ratio for c in self.timing.classes if c.shape_class == shape_class), None)


def best_seen(rounds: Sequence[RoundRecord]) -> Seen | None:
    """The proposal with the best ratio of any class that was measured and not adopted; None when none was faster."""
    found = [
        Seen(proposal=one.proposal, title=one.title, timing=timing, changes=one.changes)
        for round_ in rounds
        for one in round_.judged
        if not one.decision.action.startswith("adopt")
        and (timing := one.confirmation or one.trial.verdict.timing) is not None
        and timing.classes
    ]
    best = max(found, key=lambda seen: max(c.ratio for c in seen.timing.classes), default=None)
    return best if best and max(c.ratio for c in best.timing.classes) > 1 else None


def seen_words(seen: Seen, shape_class: str) -> str:
    """`screened 3.94x, not confirmed`; '' where it was not measured."""
    ratio = seen.ratio(shape_class)
    if ratio is None:
        return ""
    verb = "screened" if seen.timing.grade == "screen" else "measured"
    return f"{verb} {ratio:.2f}x, not {'confirmed' if verb == 'screened' else 'adopted'}"


def kept_changes(rounds: Sequence[RoundRecord]) -> list[str]:
    """All changes that were adopted, oldest first."""
    return [change for r in rounds for s in r.settled if s.candidate for change in s.candidate.changes]


def outcome_of(rounds: Sequence[RoundRecord]) -> str:
    """One line: what was adopted, or the best that was seen."""
    kept = kept_changes(rounds)
    if kept:
        return f"adopted {len(kept)} change{'s' if len(kept) > 1 else ''}: {', '.join(kept)}"
    if any(s.refused for r in rounds for s in r.settled):
        return "what won was not committed, as the team's level does not reach that far: the incumbent stays"
    seen = best_seen(rounds)
    if seen is None:
        return "nothing was adopted: the incumbent stays"
    best = max(seen.timing.classes, key=lambda c: c.ratio)
    words = seen_words(seen, best.shape_class)
    return f"nothing was adopted: the incumbent stays (the best, {seen.proposal}, {words}, in class {best.shape_class})"
