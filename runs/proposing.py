"""The proposer's directions, and two guards: what the no-go list forbids is not tried, and what memory refutes here is
not tried again."""

from __future__ import annotations

from kernelcrew.agents.nouns import Answer, BottleneckSummary, ProposalSet, to_proposals
from kernelcrew.kernels.nogo import Barred
from kernelcrew.kernels.nouns import Proposal
from kernelcrew.memory.nouns import Refuted
from kernelcrew.record import Record
from kernelcrew.runs.asking import proposer_evidence
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.recalling import guarded, prefix

TASK = "Give two or three directions, each a set of independent changes, with expected gain and risk by shape class."
MOST = 3
"""Proposals tried in a round at most."""


class Proposed(Record):
    """What is tried in this round."""

    kept: tuple[Proposal, ...]
    """In the proposer's order."""
    blocked: tuple[Refuted, ...] = ()
    """Changes that memory speaks against, with the reference."""
    reopened: tuple[Refuted, ...] = ()
    """Refuted before, tried again because the circumstances changed."""
    barred: tuple[Barred, ...] = ()
    """Changes, or values of their knobs, that the no-go list forbids, with reason and evidence."""
    note: str = ""
    """The proposer's note."""


def propose(crew: Crew, number: int, standing: Standing, summary: BottleneckSummary) -> Proposed:
    """Ask the proposer, then take out what was refuted before."""
    opening = prefix(crew, number, standing, summary.text)
    crew.say("propose", "the proposer weighs directions", round_number=number)
    evidence = proposer_evidence(crew, number, standing, summary)
    answer = crew.journal.do(
        f"r{number}.propose",
        Answer,
        [standing.candidate, summary],
        lambda: crew.ask("proposer", TASK, opening.text, evidence, number),
    )
    crew.ledger.add("propose", answer.usage)
    found = answer.proposals
    if found is None:
        return Proposed(kept=(), note=f"no usable answer from the proposer: {answer.problem}")
    proposed = crew.journal.do(
        f"r{number}.guard", Proposed, [found, standing.candidate], lambda: _guarded(crew, number, standing, found)
    )
    _tell(crew, number, proposed)
    return proposed


def guarded_given(crew: Crew, number: int, standing: Standing, proposal: Proposal) -> Proposed:
    """A person's proposal against the same guard: it is tried whole, or not at all and with the reference."""
    proposed = crew.journal.do(
        f"r{number}.guard", Proposed, [proposal, standing.candidate], lambda: _all_or_none(crew, standing, proposal)
    )
    _tell(crew, number, proposed)
    return proposed


def _tell(crew: Crew, number: int, proposed: Proposed) -> None:
    for barred in proposed.barred:
        crew.say("propose", f"not tried: {barred.line}", round_number=number, status="warn")
    for one in proposed.blocked:
        crew.say("propose", f"not tried again: {one.change} ({one.reason})", round_number=number)
    for one in proposed.reopened:
        crew.say("propose", f"tried again: {one.change} ({one.reason})", round_number=number)


def _all_or_none(crew: Crew, standing: Standing, proposal: Proposal) -> Proposed:
    sifted = crew.bars.sifted(proposal)
    if sifted.barred:
        return Proposed(kept=(), barred=sifted.barred)
    found = guarded(crew, standing, proposal)
    against = (*found.refuted, *found.already_in)
    return Proposed(kept=() if against else (proposal,), blocked=against, reopened=found.reopened)


def _guarded(crew: Crew, number: int, standing: Standing, answer: ProposalSet) -> Proposed:
    kept: list[Proposal] = []
    blocked: list[Refuted] = []
    reopened: list[Refuted] = []
    barred: list[Barred] = []
    for given in to_proposals(answer, number)[:MOST]:
        sifted = crew.bars.sifted(given)
        barred += sifted.barred
        if (proposal := sifted.proposal) is None:
            continue
        found = guarded(crew, standing, proposal)
        blocked += [*found.refuted, *found.already_in]
        reopened += found.reopened
        if found.keep:
            kept.append(proposal.model_copy(update={"changes": found.keep}))
    return Proposed(
        kept=tuple(kept), blocked=tuple(blocked), reopened=tuple(reopened), barred=tuple(barred), note=answer.note
    )
