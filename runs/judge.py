"""`kernelcrew judge`: one candidate through the same net, without a team."""

from __future__ import annotations

from pathlib import Path

from kernelcrew.errors import UnknownName
from kernelcrew.event import Listener
from kernelcrew.files import read_text
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, KernelSource, Operator, Variant
from kernelcrew.kernels.planfile import read_plan
from kernelcrew.record import Record
from kernelcrew.runs.crew import Clock, Lab
from kernelcrew.runs.decision import Evidence, decide, gains
from kernelcrew.runs.incumbent import find_incumbent
from kernelcrew.runs.judging import confirmed
from kernelcrew.runs.nogo import may_set_aside
from kernelcrew.runs.nouns import Gate
from kernelcrew.runs.session import open_lab
from kernelcrew.runs.trying import inspect
from kernelcrew.settings import Settings
from kernelcrew.tools.nouns import AlphaPlan, Build, Outcome, Timing, Verdict
from kernelcrew.tools.workshop import BUILD, BuildArgs


class JudgeAsked(Record):
    """What the command line asked for."""

    operator: str
    """Registry name or folder."""
    backend: str
    """Backend."""
    source: Path
    """The candidate's source file."""
    plan: Path | None
    """Launch plan, or the operator's own."""
    why: str
    """Rationale; the source's first comment otherwise."""
    budget_min: float
    """Minutes at most."""
    despite: tuple[str, ...] = ()
    """Entries of the no-go list to set aside; each must allow it."""


def judge_one(settings: Settings, asked: JudgeAsked, listener: Listener) -> Verdict:
    """The net's verdict on one source file. Raises UserMistake for what cannot be read."""
    operator = load_operator(asked.operator)
    if asked.backend not in operator.backends:
        raise UnknownName("backend", asked.backend, operator.backends)
    candidate = candidate_from(operator, asked)
    despite = may_set_aside(settings, asked.despite)
    clock = Clock(budget_s=asked.budget_min * 60)
    lab = open_lab(
        settings, operator, asked.backend, clock, AlphaPlan(confirmations=1, classes=len(operator.classes())), listener
    )
    lab.bars.despite = despite
    try:
        return lab.journal.do("judge", Verdict, candidate, lambda: _judge(lab, candidate, asked.backend))
    finally:
        lab.close()


def candidate_from(operator: Operator, asked: JudgeAsked) -> Candidate:
    """The file as a candidate, with the operator's plan or the one that was given."""
    text = read_text(asked.source, str(asked.source), fix="give one translation unit of C in UTF-8")
    base = start_candidate(operator, asked.backend).variants[-1].plan
    plan = read_plan(asked.plan, base) if asked.plan else base
    variant = Variant(source=KernelSource(text=text, name="kernel.c"), plan=plan)
    return Candidate(
        operator=operator.name,
        backend=asked.backend,
        variants=(variant,),
        changes=("submitted",),
        rationale=asked.why,
        author="person",
    )


def _judge(lab: Lab, candidate: Candidate, backend: str) -> Verdict:
    start = start_candidate(lab.operator, backend)
    incumbent = find_incumbent(lab, start, backend).candidate or start
    lab.say("trial", "policy, build, safety, correctness")
    lab.bars.stand(start, incumbent)
    against = tuple(lab.bus.need(BUILD, BuildArgs(candidates=(incumbent, start))).builds)
    verdict = inspect(lab, "judge", candidate, against[0])
    verdict = verdict.model_copy(update={"despite": tuple(sorted(lab.bars.set_aside))})
    screen = verdict.timing
    if verdict.outcome == "reject" or verdict.build is None or screen is None:
        return verdict
    if screen.status != "noisy" and not gains(screen):  # as in a run: what gains nowhere is not confirmed
        return timed_verdict(verdict, screen, against[0])
    timing = confirmed(lab, "judge", verdict.build, (against[0], against[1]), False)
    return timed_verdict(verdict, timing, against[0])


def timed_verdict(verdict: Verdict, timing: Timing, incumbent: Build) -> Verdict:
    """Faster somewhere and nowhere slower is accept; right but not faster, or mixed, is reject at stage timing."""
    new = len(verdict.build.warnings) - len(incumbent.warnings) if verdict.build else 0
    gate = Gate(name="warnings", passed=new <= 0, figure=f"{max(new, 0)} new compiler warnings")
    if not gate.passed:
        return verdict.model_copy(
            update={"outcome": "reject", "stage": "build", "reason": gate.figure, "timing": timing}
        )
    decision = decide(
        Evidence(
            gates=(),
            confirmed=timing if timing.grade == "confirmed" else None,
            screen=timing,
            changes=("submitted",),
            split_before=True,
            rule_before=True,
            adjusted_before=True,
        )
    )
    outcomes: dict[str, Outcome] = {"adopt": "accept", "inconclusive": "inconclusive"}
    outcome = outcomes.get(decision.action, "reject")
    return verdict.model_copy(
        update={"outcome": outcome, "stage": "timing", "reason": decision.reason, "timing": timing}
    )
