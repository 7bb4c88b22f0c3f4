"""From a proposal to a screened candidate: write the patch, compose it, and pass the net's cheap gates.

A patch that cannot be composed, is refused by the policy or does not compile goes back to the patch writer with the
words, a bounded number of times; it costs nothing else.
"""

from __future__ import annotations

from typing import Literal

from kernelcrew.agents.nouns import Answer, to_patch
from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.nouns import Candidate, NotApplicable, Patch, Proposal
from kernelcrew.runs.asking import writer_evidence
from kernelcrew.runs.crew import Crew, Lab, Standing
from kernelcrew.runs.nouns import ReasonGiven, Trial
from kernelcrew.runs.queue import Given
from kernelcrew.runs.reasons import proposed_before, reasons_of
from kernelcrew.tools.nogo import gate_of
from kernelcrew.tools.nouns import Build, Stage, Timing, Verdict, Verification
from kernelcrew.tools.workshop import BUILD, SCREEN, VERIFY, BuildArgs, Builds, ScreenArgs, Screens, VerifyArgs

REPORT_BLOCKS = 6
"""Blocks of a measurement that is only reported: enough for an interval that a reader can use."""
ATTEMPTS = 3
"""Tries of the patch writer at one proposal."""

TASK = "Write the patch for this proposal: one edit a change, in the order of application."


def attempts(crew: Crew, number: int, standing: Standing, proposals: tuple[Proposal, ...]) -> list[Trial]:
    """Every proposal in turn; those after the first only while time is left to confirm the best of them."""
    trials: list[Trial] = []
    before = proposed_before(crew, number)
    for place, proposal in enumerate(proposals):
        if trials and not crew.may(f"r{number}.trial.{proposal.id}", crew.clock.reserve_s()):
            crew.say("trial", "no time is left for it", round_number=number, candidate=proposal.id, status="warn")
            continue
        reasons = reasons_of(proposal, (*before, *proposals[:place]))
        hollow = _hollow(crew, number, proposal, reasons, None)
        tried = hollow or attempt(crew, number, standing, proposal)
        trials.append(tried.model_copy(update={"reasons": reasons}))
    return trials


def attempt(crew: Crew, number: int, standing: Standing, proposal: Proposal) -> Trial:
    """One proposal through the patch writer, the cheap gates and the screen."""
    problems: list[str] = []
    trial: Trial | None = None
    for tries in range(1, ATTEMPTS + 1):
        step = f"r{number}.write.{proposal.id}.{tries}"
        crew.say("write", proposal.title, round_number=number, candidate=proposal.id)
        answer = crew.journal.do(
            step,
            Answer,
            [standing.candidate, proposal, problems],
            lambda: _ask(crew, number, standing, proposal, problems),
        )
        crew.ledger.add("write", answer.usage)
        if answer.patch is None:
            return _failed(proposal, "build", f"the patch writer gave no usable answer: {answer.problem}", tries)
        patch = to_patch(answer.patch, proposal.id, f"team:{crew.start.model}")
        candidate = composed(crew, standing, proposal, patch)
        if isinstance(candidate, NotApplicable):
            problems.append(f"change {candidate.change} cannot be applied: {candidate.because}")
            trial = _failed(proposal, "build", problems[-1], tries, patch)
            continue
        crew.say("trial", f"build, verify, screen {proposal.title}", round_number=number, candidate=proposal.id)
        verdict = inspect(crew, f"r{number}.trial.{proposal.id}.{tries}", candidate, standing.build)
        trial = Trial(proposal=proposal, patch=patch, candidate=candidate, verdict=verdict, attempts=tries)
        if verdict.stage not in ("policy", "build"):
            return trial
        problems.append(verdict.reason + "\n" + _words(verdict.build))
    assert trial is not None
    return trial


def attempt_given(crew: Crew, number: int, standing: Standing, given: Given) -> Trial:
    """A person's patch through the same gates and the same screen. It is not rewritten: what does not fit is told."""
    reasons = reasons_of(given.proposal, ())
    hollow = _hollow(crew, number, given.proposal, reasons, given.patch)
    tried = hollow or _try_given(crew, number, standing, given)
    return tried.model_copy(update={"reasons": reasons})


def _try_given(crew: Crew, number: int, standing: Standing, given: Given) -> Trial:
    if given.trouble:
        return _failed(given.proposal, "build", f"the patch does not fit: {given.trouble}", 1, given.patch)
    candidate = composed(crew, standing, given.proposal, given.patch)
    if isinstance(candidate, NotApplicable):
        why = f"change {candidate.change} cannot be applied: {candidate.because}"
        return _failed(given.proposal, "build", why, 1, given.patch)
    crew.say("trial", f"build, verify, screen {given.proposal.title}", round_number=number, candidate=given.proposal.id)
    verdict = inspect(crew, f"r{number}.trial.{given.proposal.id}.1", candidate, standing.build)
    return Trial(proposal=given.proposal, patch=given.patch, candidate=candidate, verdict=verdict)


def composed(
    crew: Crew, standing: Standing, proposal: Proposal, patch: Patch, subset: tuple[str, ...] | None = None
) -> Candidate | NotApplicable:
    """The incumbent with the proposal's changes (or a subset), carrying the rationale of each."""
    made = compose(standing.candidate, patch, subset, operator=crew.operator)
    if isinstance(made, NotApplicable):
        return made
    kept = [c for c in proposal.changes if subset is None or c.id in subset]
    rationale = " ".join(f"{c.id}: {c.why}" for c in kept)
    made = made.model_copy(
        update={
            "changes": tuple(c.id for c in kept),
            "rationale": rationale,
            "author": patch.author,
            "operator": crew.operator.name,
        }
    )
    crew.bars.note(made, kept)
    return made


def inspect(crew: Lab, step: str, candidate: Candidate, against: Build | None) -> Verdict:
    """Policy, build, safety, correctness, short screen against a baseline (when one is given): stops at the first
    failure, which is a value."""
    builds = crew.journal.do(
        f"{step}.build", Builds, candidate, lambda: crew.bus.need(BUILD, BuildArgs(candidates=(candidate,)))
    )
    build = fresh(crew, candidate, builds.builds[0])
    if build.status != "ok":
        return Verdict(
            outcome="reject", stage=build.stage, reason=_first_word(build), build=build, gate=gate_of(build)
        )
    whole = crew.journal.do(
        f"{step}.verify",
        Verification,
        [candidate, build.artifact_hash],
        lambda: crew.bus.need(VERIFY, VerifyArgs(build=build)),
    )
    verification = whole.slim()
    if verification.status != "ok":
        stage: Stage = "safety" if verification.status == "unsafe" else "correctness"
        return Verdict(
            outcome="reject", stage=stage, reason=verification.reason, build=build, verification=verification
        )
    if against is None:
        return Verdict(outcome="accept", stage="correctness", reason="right", build=build, verification=verification)
    timing = screened(crew, f"{step}.screen", (build,), against)[0]
    outcome = "reject" if timing.status == "invalid" else "accept"
    return Verdict(
        outcome=outcome,
        stage="timing",
        reason=timing.reason or "screened",
        build=build,
        verification=verification,
        timing=timing,
    )


def screened(crew: Lab, step: str, builds: tuple[Build, ...], baseline: Build, blocks: int = 0) -> tuple[Timing, ...]:
    """Screen several builds against one baseline in the same blocks."""
    inputs = [[b.artifact_hash for b in builds], baseline.artifact_hash, blocks]
    args = ScreenArgs(candidates=builds, baseline=baseline, blocks=blocks)
    return crew.journal.do(step, Screens, inputs, lambda: _screens(crew, args)).timings


def unmeasured(candidate: Build, baseline: Build, why: str, grade: Literal["screen", "confirmed"]) -> Timing:
    """What is said of a candidate that could not be timed: nothing, and why. Decides as a noisy host does."""
    return Timing(
        grade=grade,
        status="noisy",
        baseline=baseline.identity,
        candidate=candidate.identity,
        margin=0.0,
        aa_sd=0.0,
        classes=(),
        shapes=(),
        blocks=0,
        reason=why,
    )


def fresh(crew: Lab, candidate: Candidate, build: Build) -> Build:
    """A build whose object is still in the cache; built again (same content) when a cleaned cache lost it."""
    if build.status != "ok" or crew.has_artifact(build):
        return build
    return crew.bus.need(BUILD, BuildArgs(candidates=(candidate,))).builds[0]


def _screens(crew: Lab, args: ScreenArgs) -> Screens:
    found = crew.bus.use(SCREEN, args)
    if isinstance(found, Screens):
        return found
    return Screens(timings=tuple(unmeasured(c, args.baseline, found.because, "screen") for c in args.candidates))


def _hollow(
    crew: Crew, number: int, proposal: Proposal, reasons: tuple[ReasonGiven, ...], patch: Patch | None
) -> Trial | None:
    """The trial of a proposal whose reasons do not stand: no patch is asked for, nothing is built."""
    bad = next((r for r in reasons if r.found.status == "refused"), None)
    if bad is None:
        return None
    why = f"{bad.change}: {bad.found.figure}"
    crew.say("trial", f"rationale refused, {why}", round_number=number, candidate=proposal.id, status="warn")
    trial = _failed(proposal, "policy", why, 0, patch)
    return trial.model_copy(update={"verdict": trial.verdict.model_copy(update={"gate": "rationale"})})


def _ask(crew: Crew, number: int, standing: Standing, proposal: Proposal, problems: list[str]) -> Answer:
    return crew.ask("patch_writer", TASK, "", writer_evidence(crew, standing, proposal, problems), number)


def _failed(proposal: Proposal, stage: Stage, reason: str, tries: int, patch: Patch | None = None) -> Trial:
    empty = Patch(proposal=proposal.id, edits=(), author="team")
    verdict = Verdict(outcome="reject", stage=stage, reason=reason)
    return Trial(proposal=proposal, patch=patch or empty, candidate=None, verdict=verdict, attempts=tries)


def _first_word(build: Build) -> str:
    bad = next((d for d in build.diagnostics if d.kind not in ("warning", "note")), None)
    return f"{bad.at}{bad.kind}: {bad.message}" if bad else f"{build.stage} failed"


def _words(build: Build | None) -> str:
    if build is None:
        return ""
    return "\n".join(f"{d.at}{d.kind}: {d.message}" for d in build.diagnostics if d.kind != "note")[:2000]
