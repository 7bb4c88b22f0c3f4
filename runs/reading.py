"""Where a run and a round begin: the baseline measured, the standing kernel profiled, its bottlenecks named."""

from __future__ import annotations

from kernelcrew.agents.nouns import Answer
from kernelcrew.errors import CrewError
from kernelcrew.kernels.load import start_candidate
from kernelcrew.kernels.nouns import Candidate, Operator, Variant
from kernelcrew.runs.asking import reader_evidence
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.incumbent import Incumbent, find_incumbent
from kernelcrew.runs.nouns import Baseline
from kernelcrew.runs.trying import REPORT_BLOCKS, fresh, screened
from kernelcrew.tools.nouns import Build, Noise, Profile, Verification
from kernelcrew.tools.workshop import (
    BUILD,
    NOISE,
    PROFILE,
    VERIFY,
    BuildArgs,
    BuildRef,
    Builds,
    ProfileArgs,
    VerifyArgs,
)

READER_TASK = "Read the profile of every shape and name what holds each class back, with the figures and source lines."


class UnfitBaseline(CrewError):
    """The start kernel itself does not build or is wrong: nothing can be held against it."""


def measure_baseline(crew: Crew) -> Baseline:
    """Build, verify, time and profile the kernel the run starts from, and what flags alone would give."""
    j, bus = crew.journal, crew.bus
    start = start_candidate(crew.operator, crew.start.backend)
    found = j.do(
        "baseline.incumbent", Incumbent, [start.identity], lambda: find_incumbent(crew, start, crew.start.backend)
    )
    incumbent = found.candidate or start
    crew.say("baseline", f"start from {found.source}" if found.candidate else f"start from the {found.source} kernel")
    flagged = with_contract_flags(crew.operator, crew.start.backend, start)
    args = BuildArgs(candidates=(start, incumbent, flagged))
    crew.say("baseline", "build the start kernel, the incumbent, and the start with contract flags alone")
    builds = j.do("baseline.build", Builds, [c.identity for c in args.candidates], lambda: bus.need(BUILD, args)).builds
    first, second, third = (fresh(crew, c, b) for c, b in zip(args.candidates, builds, strict=True))
    adopted = found.source if incumbent.identity != start.identity else ""
    _must_build(crew.operator, crew.start.backend, first)
    _must_build(crew.operator, crew.start.backend, second, adopted)
    crew.say("baseline", "verify over all shapes, distributions and fresh seeds")
    checked = j.do(
        "baseline.verify", Verification, second.artifact_hash, lambda: bus.need(VERIFY, VerifyArgs(build=second))
    )
    if checked.status != "ok":
        fix = "mend the start kernel, or the limits in operator.toml with their reason"
        which = _named(crew.operator, crew.start.backend, adopted)
        raise UnfitBaseline(f"{which} is not right: {checked.reason}", fix=fix)
    crew.say("baseline", "hold the incumbent against its own copy")
    noise = j.do("baseline.noise", Noise, second.artifact_hash, lambda: bus.need(NOISE, BuildRef(build=second)))
    crew.say("baseline", noise.reason, status="info" if noise.quiet else "warn")
    profile = profiled(crew, "baseline.profile", incumbent, second)
    crew.say("baseline", "time the start with contract flags alone")
    flags = screened(crew, "baseline.flags", (third,), first, REPORT_BLOCKS)[0] if third.status == "ok" else None
    over = screened(crew, "baseline.over_start", (second,), first, REPORT_BLOCKS)[0] if adopted else None
    baseline = Baseline(
        start=start,
        incumbent=incumbent,
        incumbent_from=found.source,
        start_build=first,
        incumbent_build=second,
        verification=checked.slim(),
        noise=noise,
        profile=profile,
        flags_alone=flags,
        incumbent_over_start=over,
    )
    return j.do("baseline", Baseline, [first.artifact_hash, second.artifact_hash], lambda: baseline)


def standing_of(crew: Crew, baseline: Baseline) -> Standing:
    """The kernel to beat at the run's start."""
    found = crew.journal.do(
        "baseline.incumbent",
        Incumbent,
        [baseline.start.identity],
        lambda: find_incumbent(crew, baseline.start, crew.start.backend),
    )
    build = fresh(crew, baseline.incumbent, baseline.incumbent_build)
    return Standing(candidate=baseline.incumbent, build=build, profile=baseline.profile, commit=found.commit)


def profiled(crew: Crew, step: str, candidate: Candidate, build: Build) -> Profile:
    """Every timed shape against the measured peaks, and the compiler's remarks, with the grade."""
    crew.say("read", "profile every shape")
    args = ProfileArgs(candidate=candidate, build=build)
    return crew.journal.do(step, Profile, build.artifact_hash, lambda: crew.bus.need(PROFILE, args))


def reprofiled(crew: Crew, step: str, candidate: Candidate, build: Build) -> Profile | None:
    """The profile of a newly adopted kernel; None when the budget is spent, and with it the run."""
    spent = crew.clock.left_s() <= 0 and crew.journal.find(step) is None
    return None if spent else profiled(crew, step, candidate, build)


def read(crew: Crew, number: int, standing: Standing) -> Answer:
    """The profiler-reader's bottleneck summary, by shape class, with the evidence cited."""
    crew.say("read", "the profiler-reader reads every shape", round_number=number)
    evidence = reader_evidence(crew, standing)
    answer = crew.journal.do(
        f"r{number}.read",
        Answer,
        [standing.candidate, standing.profile],
        lambda: crew.ask("profiler_reader", READER_TASK, "", evidence, number),
    )
    crew.ledger.add("read", answer.usage)
    return answer


def with_contract_flags(operator: Operator, backend: str, start: Candidate) -> Candidate:
    """The start kernel with every flag that keeps the contract: what a compiler option alone gives."""
    variant = start.variants[-1]
    flags = tuple(dict.fromkeys((*variant.plan.flags, *operator.backends[backend].contract_flags)))
    plan = variant.plan.model_copy(update={"flags": flags})
    return start.model_copy(update={"variants": (Variant(source=variant.source, plan=plan),)})


def _must_build(operator: Operator, backend: str, build: Build, adopted: str = "") -> None:
    if build.status != "ok":
        bad = [d for d in build.diagnostics if d.kind not in ("warning", "note")] or list(build.diagnostics)
        words = "; ".join(f"{d.at}{d.message}" for d in bad[:3])
        which = _named(operator, backend, adopted)
        raise UnfitBaseline(f"{which} does not build ({build.stage}): {words}", fix="mend the start kernel")


def _named(operator: Operator, backend: str, adopted: str) -> str:
    """The kernel that a run starts from, by its file or by the commit that adopted it."""
    if adopted:
        return f"the kernel this run starts from ({adopted})"
    return f"the start kernel itself, {operator.folder / operator.backends[backend].source},"
