"""One round, arrow by arrow. Start reading kernelcrew here.

Each step is one call with one typed result, journalled before the next begins; no step imports another step's work.
"""

from __future__ import annotations

from kernelcrew.agents.nouns import BottleneckSummary
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.judging import best_of, judge_best, judge_unconfirmed
from kernelcrew.runs.nouns import Judged, RoundRecord
from kernelcrew.runs.proposing import guarded_given, propose
from kernelcrew.runs.queue import queued
from kernelcrew.runs.reading import read, reprofiled
from kernelcrew.runs.remembering import remember
from kernelcrew.runs.settling import keep_trials, settle, told
from kernelcrew.runs.trying import attempt_given, attempts
from kernelcrew.runs.tuning import merged, tune


def play_round(crew: Crew, number: int, standing: Standing) -> tuple[RoundRecord, Standing]:
    """Read, propose, write, try, tune, ablate, confirm, review, decide, settle, remember."""
    given = queued(crew, number, standing)  # a person's patch waits in the same queue and has the round to itself
    if given is not None:
        summary = BottleneckSummary(bottlenecks=[], grade="none", text=f"{given.patch.author} handed in a patch")
        proposed = guarded_given(crew, number, standing, given.proposal)  # the same guard, whoever asks
        trials = [attempt_given(crew, number, standing, given)] if proposed.kept else []
    else:
        read_ = read(crew, number, standing).bottlenecks  # profiler-reader: what holds each shape class back
        if read_ is None:
            return _failed(number, "no usable answer from the profiler-reader"), standing
        summary = read_
        proposed = propose(crew, number, standing, summary)  # proposer: 2-3 sets of changes, repeats taken out
        trials = attempts(crew, number, standing, proposed.kept)  # patch writer, gates, screen
    best = best_of(trials)  # the screen's winner
    # Autotuned in the proposed windows, ablated, confirmed on new blocks, reviewed by the skeptic, decided by numbers.
    winner = judge_best(crew, number, standing, tune(crew, number, standing, best)) if best else None
    judged = [winner if winner and trial is best else judge_unconfirmed(trial, winner) for trial in trials]
    for one in judged:
        crew.say("decide", f"{one.decision.action}: {one.decision.reason}", round_number=number, candidate=one.proposal)
    keep_trials(crew, judged)
    settled = [settle(crew, number, standing, one) for one in judged]  # one commit a kept change, incumbent's ref moved
    judged = [told(one, result) for one, result in zip(judged, settled, strict=True)]
    remember(crew, number, standing, judged, settled)  # tried-patch summaries and rationale, whatever came of them
    record = RoundRecord(
        number=number,
        summary=summary,
        judged=tuple(judged),
        settled=tuple(s for s in settled if s.commits or s.refused),
        note=proposed.note,
        blocked=tuple(f"{b.change}: {b.reason}" for b in proposed.blocked),
        barred=tuple(b.line for b in proposed.barred),
        given_by=given.patch.author if given else "",
    )
    return record, _next(crew, number, standing, judged, record)


def _next(crew: Crew, number: int, standing: Standing, judged: list[Judged], record: RoundRecord) -> Standing:
    searched = merged(standing.searched, judged)
    for settled in record.settled:
        build = next(j.trial.verdict.build for j in judged if j.proposal == settled.proposal)
        if settled.candidate is not None and build is not None:
            profile = reprofiled(crew, f"r{number}.profile", settled.candidate, build) or standing.profile
            return Standing(
                candidate=settled.candidate, build=build, profile=profile, commit=settled.commits[-1], searched=searched
            )
    return standing.model_copy(update={"searched": searched})


def _failed(number: int, why: str) -> RoundRecord:
    return RoundRecord(
        number=number,
        summary=BottleneckSummary(bottlenecks=[], grade="none", text=why),
        judged=(),
        settled=(),
        note=why,
    )
