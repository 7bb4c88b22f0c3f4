"""Settling: what was adopted becomes commits on the run's branch, one a kept change, and the incumbent's ref moves."""

from __future__ import annotations

from kernelcrew.kernels.nouns import Candidate, Change, NotApplicable
from kernelcrew.kernels.planfile import to_files
from kernelcrew.record import Record
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.decision import figures
from kernelcrew.runs.domain import Domain, domain_of
from kernelcrew.runs.nouns import Judged, Settled
from kernelcrew.runs.trying import composed
from kernelcrew.tools.bus import Level, Refusal, Tool


class CommitArgs(Record):
    """What the committer takes."""

    branch: str
    """The run's branch, without refs/heads/."""
    parent: str
    """Commit the series stands on."""
    steps: tuple[CommitStep, ...]
    """One a kept change, oldest first."""
    incumbent: tuple[str, str, str]
    """Operator, platform, backend whose incumbent ref moves to the last commit."""


class CommitStep(Record):
    """One commit."""

    files: dict[str, str]
    """The whole tree after this change."""
    subject: str
    """First line."""
    trailers: tuple[tuple[str, str], ...]
    """Rationale, Expected, Risk, Measured."""


class TrialArgs(Record):
    """What the trial keeper takes."""

    run: str
    """The run."""
    proposal: str
    """The proposal."""
    files: dict[str, str]
    """The tree."""


class Commits(Record):
    """What git made."""

    commits: tuple[str, ...]
    """Oldest first."""
    ref: str = ""
    """The ref that was moved."""
    refused: Refusal | None = None
    """Why nothing was made: the caller's level does not reach that far."""


CommitArgs.model_rebuild()
COMMIT = Tool(
    "commit",
    "Commit kept changes on the run's branch and move the incumbent's ref",
    CommitArgs,
    Commits,
    Level.COMMIT,
    frozenset({"runs", "person"}),
)
KEEP_TRIAL = Tool("keep_trial", "Keep a trial's tree under its own ref", TrialArgs, Commits, Level.WRITE_SCRATCH)


def keep_trials(crew: Crew, judged: list[Judged]) -> None:
    """Every trial that could be composed is a tree under refs/kernelcrew/trial/."""
    for one in judged:
        if one.trial.candidate is None:
            continue
        files = to_files(one.trial.candidate, crew.repo.kernel)
        args = TrialArgs(run=crew.start.run, proposal=one.proposal, files=files)
        crew.journal.do(f"trial_ref.{one.proposal}", Commits, args, lambda args=args: crew.bus.need(KEEP_TRIAL, args))  # type: ignore[misc]


def settle(crew: Crew, number: int, standing: Standing, judged: Judged) -> Settled:
    """Commit an adopted proposal; an unadopted one leaves the incumbent where it is."""
    if judged.decision.action not in ("adopt", "adopt_when") or judged.trial.candidate is None:
        return Settled(proposal=judged.proposal)
    candidate = judged.trial.candidate
    branch = f"kernelcrew/{crew.operator.name}/{crew.machine.platform.id}/{crew.start.run}"
    crew.say(
        "settle", f"commit {len(candidate.changes)} changes on {branch}", round_number=number, candidate=judged.proposal
    )
    target = (crew.operator.name, crew.machine.platform.id, crew.start.backend)
    args = CommitArgs(
        branch=branch, parent=standing.commit, steps=commit_steps(crew, standing, judged, candidate), incumbent=target
    )
    caller = "person" if judged.trial.patch.author.startswith("person") else "runs"
    made = crew.journal.do(f"r{number}.settle.{judged.proposal}", Commits, args, lambda: _commit(crew, args, caller))
    if made.refused is not None:
        crew.say("settle", f"not committed: {made.refused.because}", candidate=judged.proposal, status="warn")
        return Settled(proposal=judged.proposal, refused=made.refused)
    return Settled(
        proposal=judged.proposal,
        branch=branch,
        commits=made.commits,
        incumbent_ref=made.ref,
        candidate=candidate,
        domain=_domain(crew, judged),
    )


def told(judged: Judged, settled: Settled) -> Judged:
    """The decision says so when the team's level kept an adopted proposal from being committed."""
    if settled.refused is None:
        return judged
    why = f"{judged.decision.reason}; not committed, it stays a trial ref: commit {settled.refused.because}"
    return judged.model_copy(update={"decision": judged.decision.model_copy(update={"reason": why})})


def _domain(crew: Crew, judged: Judged) -> Domain | None:
    return domain_of(crew.operator, judged.confirmation) if judged.confirmation else None


def _commit(crew: Crew, args: CommitArgs, caller: str) -> Commits:
    found = crew.bus.use(COMMIT, args, caller)
    return Commits(commits=(), refused=found) if isinstance(found, Refusal) else found


def commit_steps(crew: Crew, standing: Standing, judged: Judged, candidate: Candidate) -> tuple[CommitStep, ...]:
    """One commit a kept change: the incumbent with the first, the first two, ... of them. Changes that cannot stand
    without a later one, and a rule's dispatcher, go into the last commit."""
    kept = [c for c in judged.trial.proposal.changes if c.id in candidate.changes]
    steps: list[CommitStep] = []
    waiting: list[Change] = []
    for index, change in enumerate(kept):
        waiting.append(change)
        last = index == len(kept) - 1
        made = (
            candidate
            if last
            else composed(
                crew, standing, judged.trial.proposal, judged.trial.patch, tuple(c.id for c in kept[: index + 1])
            )
        )
        if isinstance(made, NotApplicable):
            continue
        domain = _domain(crew, judged) if last else None
        names = ", ".join(c.id for c in waiting)
        steps.append(
            CommitStep(
                files=to_files(made, crew.repo.kernel),
                subject=f"{crew.operator.name}: {names}"[:72],
                trailers=(*_trailers(judged, waiting), *_boundary(domain)),
            )
        )
        waiting = []
    return tuple(steps)


def _boundary(domain: Domain | None) -> tuple[tuple[str, str], ...]:
    """On the last commit of a set."""
    if domain is None:
        return ()
    return (("Tested", domain.tested), ("Untested", domain.untested), ("Loses", domain.loses or "nowhere measured"))


def _trailers(judged: Judged, changes: list[Change]) -> tuple[tuple[str, str], ...]:
    lines: list[tuple[str, str]] = [("Proposed-by", judged.trial.patch.author)]
    for change in changes:
        want = change.expects
        lines.append(("Rationale", change.why))
        lines.append(
            (
                "Expected",
                f"{want.figure} of {want.shape_class} to {want.factor:.2f}; "
                f"{judged.hypotheses.get(change.id, 'unread')}",
            )
        )
        risks = "; ".join(f"{r.shape_class} {r.level}: {r.why}" for r in change.risks) or "none named"
        lines.append(("Risk", risks))
        row = next((r for r in judged.ablation.rows if r.change == change.id), None) if judged.ablation else None
        if row is not None and row.separable:
            lines.append(
                ("Measured", "without it (screen): " + ", ".join(f"{c} {1 / e:.2f}x" for c, e in row.effect.items()))
            )
    if judged.confirmation is not None:
        lines.append(("Measured", f"whole set (confirmed): {figures(judged.confirmation)}"))
    if judged.decision.rule:
        lines.append(("Measured", f"adopted where {judged.decision.rule}"))
    return tuple(lines)
