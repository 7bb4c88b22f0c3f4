"""The rationale gate over a proposal: each change's own reason, and no reason twice for different changes."""

from __future__ import annotations

from collections.abc import Sequence

from kernelcrew.kernels.nouns import Change, Proposal
from kernelcrew.runs.crew import Crew
from kernelcrew.runs.nouns import ReasonGiven
from kernelcrew.runs.proposing import Proposed
from kernelcrew.tools.rationale import judge_rationale, same_words


def reasons_of(proposal: Proposal, earlier: Sequence[Proposal]) -> tuple[ReasonGiven, ...]:
    """Pure: each change's reason judged.

    A reason that was given for another change is a copy: it cannot be the mechanism of both, and neither hypothesis
    could be refuted by it. Two things are no copies: the same change proposed again, and one reason for a whole set,
    given as the set's direction, which is judged as such and then taken apart by the ablation.
    """
    before = [c for p in earlier for c in p.changes]
    found: list[ReasonGiven] = []
    for place, change in enumerate(proposal.changes):
        own = () if same_words(change.why, proposal.direction) else proposal.changes[:place]
        others = [c.why for c in (*before, *own) if _idea(c) != _idea(change)]
        found.append(ReasonGiven(change=change.id, found=judge_rationale(change.why, others)))
    return tuple(found)


def proposed_before(crew: Crew, number: int) -> tuple[Proposal, ...]:
    """What earlier rounds of this run tried, from its journal."""
    steps = {f"r{n}.guard" for n in range(1, number)}
    kept = [Proposed.model_validate(s.payload) for s in crew.journal.steps if s.step in steps]
    return tuple(p for one in kept for p in one.kept)


def _idea(change: Change) -> tuple[str, str, str]:
    return change.id, change.mechanism, change.target
