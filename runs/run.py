"""A whole run: baseline, rounds until a stop condition speaks, the final measurement, the record."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kernelcrew.agents.nouns import Usage
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.lockfile import write_lock
from kernelcrew.runs.nouns import Baseline, RoundRecord, RunRecord, StageCost
from kernelcrew.runs.reading import measure_baseline, standing_of
from kernelcrew.runs.round import play_round
from kernelcrew.runs.stages import stage_seconds
from kernelcrew.runs.stop import BudgetSpent, NothingLeft, Plateau, RoundsDone, Stop, first_reason
from kernelcrew.runs.trying import REPORT_BLOCKS, fresh, screened
from kernelcrew.tools.nouns import Timing

ROUND_NEEDS_S = 30.0
"""A round is not begun with less than this left: it could not confirm anything."""

T = TypeVar("T")


def play(crew: Crew) -> RunRecord:
    """The run to its end. Raises CrewError for what stops it; everything recorded so far stays."""
    baseline = _timed(crew, "baseline", lambda: measure_baseline(crew))
    crew.baseline = baseline
    standing = standing_of(crew, baseline)
    crew.bars.stand(baseline.start, baseline.incumbent)
    stops: tuple[Stop, ...] = (
        RoundsDone(crew.start.rounds),
        NothingLeft(),
        Plateau(),
        BudgetSpent(crew.clock.left_s, ROUND_NEEDS_S),
    )
    crew.standing = standing
    rounds: tuple[RoundRecord, ...] = ()
    while not (reason := _stop_reason(crew, stops, rounds)):
        number = len(rounds) + 1
        crew.say("read", f"round {number} of at most {crew.start.rounds}", round_number=number, status="start")
        record, standing = play_round(crew, number, standing)
        crew.standing = standing
        crew.bars.stand(standing.candidate)
        rounds = (*rounds, _kept(crew, record))
    crew.say("end", reason)
    return _timed(crew, "end", lambda: _record(crew, baseline, rounds, standing, reason))


def _kept(crew: Crew, record: RoundRecord) -> RoundRecord:
    """Journalled by what was decided: the record itself holds paths, which differ when a folder has moved."""
    made = [(one.proposal, one.decision) for one in record.judged], [one.commits for one in record.settled]
    return crew.journal.do(f"r{record.number}", RoundRecord, [record.note, *made], lambda: record)


def _stop_reason(crew: Crew, stops: tuple[Stop, ...], rounds: tuple[RoundRecord, ...]) -> str:
    """A round that the journal already holds is always replayed: a resume ends where the run would have."""
    done = crew.journal.find(f"r{len(rounds) + 1}.queue") is not None
    return "" if done else first_reason(stops, rounds)


def _record(
    crew: Crew, baseline: Baseline, rounds: tuple[RoundRecord, ...], standing: Standing, reason: str
) -> RunRecord:
    over_incumbent, over_start = final_figures(crew, baseline, standing)
    record = RunRecord(
        run=crew.start.run,
        operator=crew.operator.name,
        platform=crew.machine.platform.id,
        backend=crew.start.backend,
        status="finished",
        stop_reason=reason,
        baseline=baseline,
        rounds=rounds,
        final=standing.candidate,
        final_timing=over_incumbent,
        final_over_start=over_start,
        costs=costs(crew),
        report=str(crew.journal.folder / "report.html"),
        overridden=crew.start.overridden,
    )
    kept = crew.journal.do("end", RunRecord, [r.number for r in rounds], lambda: record)
    write_lock(crew.journal.folder)
    return kept


def final_figures(crew: Crew, baseline: Baseline, standing: Standing) -> tuple[Timing | None, Timing | None]:
    """The final kernel over the run's incumbent, and over the user's start, on blocks of their own; None where the two
    kernels are the same, since nothing is printed that was not measured."""
    if standing.candidate.identity == baseline.incumbent.identity:
        return None, baseline.incumbent_over_start
    crew.say("end", "measure the final kernel against where the run began")
    build = standing.build
    incumbent = fresh(crew, baseline.incumbent, baseline.incumbent_build)
    over = screened(crew, "final.over_incumbent", (build,), incumbent, REPORT_BLOCKS)[0]
    if baseline.incumbent.identity == baseline.start.identity:
        return over, over
    start = fresh(crew, baseline.start, baseline.start_build)
    return over, screened(crew, "final.over_start", (build,), start, REPORT_BLOCKS)[0]


def costs(crew: Crew) -> tuple[StageCost, ...]:
    """Seconds by stage from the journal (what a resume read back counts once), tokens and money from the ledger."""
    return tuple(
        StageCost(stage=stage, seconds=round(spent, 2), usage=crew.ledger.usage.get(stage, Usage()))
        for stage, spent in stage_seconds(crew.journal.steps).items()
    )


def _timed(crew: Crew, stage: str, work: Callable[[], T]) -> T:
    started = time.monotonic()
    try:
        return work()
    finally:
        crew.ledger.spend(stage, time.monotonic() - started)
