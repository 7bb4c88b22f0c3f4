"""One round, arrow by arrow. Start reading kernelcrew here.

Each step is one call with one typed result, journalled before the next begins; no step imports another step's work.
"""

from __future__ import annotations

from kernelcrew.agents.nouns import BottleneckSummary
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.judging import best_of, judge_best, judge_unconfirmed
from kernelcrew.runs.nouns import Judged, RoundRecord
from kernelcrew.runs.proposing import propose
from kernelcrew.runs.reading import read, reprofiled
from kernelcrew.runs.remembering import remember
from kernelcrew.runs.settling import keep_trials, settle
from kernelcrew.runs.trying import attempt
from kernelcrew.runs.tuning import tune


def play_round(crew: Crew, number: int, standing: Standing) -> tuple[RoundRecord, Standing]:
    """Read, propose, write, try, tune, ablate, confirm, review, decide, settle, remember."""
    summary = read(crew, number, standing).bottlenecks  # profiler-reader: what holds each shape class back
    if summary is None:
        return _failed(number, "no usable answer from the profiler-reader"), standing
    proposed = propose(crew, number, standing, summary)  # proposer: 2-3 sets of independent changes, repeats taken out
    trials = [attempt(crew, number, standing, p) for p in proposed.kept]  # patch writer, policy ... correctness, screen
    best = best_of(trials)  # the screen's winner
    judged: list[Judged] = []
    for trial in trials:  # the best is ablated, confirmed on new blocks, reviewed by the skeptic and decided by numbers
        if trial is best:
            tuned = tune(crew, number, standing, trial)  # autotuner, inside the proposed windows only
            judged.append(judge_best(crew, number, standing, tuned))
        else:
            judged.append(judge_unconfirmed(trial, best.proposal.id if best else ""))
    for one in judged:
        crew.say("decide", f"{one.decision.action}: {one.decision.reason}", round_number=number, candidate=one.proposal)
    keep_trials(crew, judged)
    settled = [settle(crew, number, standing, one) for one in judged]  # one commit a kept change, incumbent's ref moved
    remember(crew, number, standing, judged, settled)  # tried-patch summaries and rationale, whatever came of them
    record = RoundRecord(
        number=number,
        summary=summary,
        judged=tuple(judged),
        settled=tuple(s for s in settled if s.commits),
        note=proposed.note,
        blocked=tuple(f"{b.change}: {b.reason}" for b in proposed.blocked),
    )
    return record, _next(crew, number, standing, judged, record)


def _next(crew: Crew, number: int, standing: Standing, judged: list[Judged], record: RoundRecord) -> Standing:
    for settled in record.settled:
        build = next(j.trial.verdict.build for j in judged if j.proposal == settled.proposal)
        if settled.candidate is not None and build is not None:
            profile = reprofiled(crew, f"r{number}.profile", settled.candidate, build) or standing.profile
            return Standing(candidate=settled.candidate, build=build, profile=profile, commit=settled.commits[-1])
    return standing


def _failed(number: int, why: str) -> RoundRecord:
    return RoundRecord(
        number=number,
        summary=BottleneckSummary(bottlenecks=[], grade="none", text=why),
        judged=(),
        settled=(),
        note=why,
    )
