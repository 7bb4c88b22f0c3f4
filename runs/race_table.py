"""What the searches come to: times to near the best found, ratios of medians with their intervals, and verdicts. Pure.

Of a search that did not get there within its budget only that much is known: its true time is longer. Medians and
their ratio take the budget for it and are bounds then; the interval is open on the side where that leaves it open. A
search that broke off by a fault counts for nothing and is told.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import exp, inf, log
from statistics import median

from kernelcrew.record import Record
from kernelcrew.runs.figures import FigureTable
from kernelcrew.runs.race_nouns import SHARE, SHUFFLED, TEAM, TUNER, Race, Trace

DRAWS = 10_000
"""Resamples of the bootstrap (Efron 1979): percentiles of the ratio of medians over seeds drawn with replacement."""
LEAST_SEEDS = 10
"""Seeds below which no verdict is given."""
HALF = 0.5
"""The goal: at most this share of Kernel Tuner's median time."""


class Reached(Record):
    """One search by the common figure."""

    seed: int
    """Which."""
    at_s: float | None
    """Seconds until its best so far had 95 % of the best found by anyone; None when that was not within the budget."""
    final: float | None
    """Its last best, over the start; None when it found nothing that could be measured."""


class Ratio(Record):
    """A ratio of median times, ours over another's."""

    ratio: float | None
    """Of the medians over all seeds; None when neither is within the budget."""
    low: float
    """Lower end of the 95 % bootstrap interval; 0 when the other's median may be any time beyond the budget."""
    high: float
    """Upper end; infinite when ours may be."""
    seeds: int
    """The smaller number of seeds of the two."""


class RaceTables(Record):
    """All that is printed."""

    tables: tuple[FigureTable, ...]
    """By contestant, ratios, by seed."""
    verdicts: tuple[str, ...]
    """In words."""
    notes: tuple[str, ...]
    """Where the comparison is not like for like, and how it was reckoned."""


def reached(record: Race) -> dict[str, tuple[Reached, ...]]:
    """Every search of every contestant, ours first, in the order of seeds."""
    ratios = {name: s.ratio for name, s in record.scores.items() if s.ratio is not None}
    goal = SHARE * max(ratios.values(), default=1.0)
    found: dict[str, list[Reached]] = {}
    for trace in record.traces:
        if not trace.problem:
            found.setdefault(trace.job.contestant, []).append(_reached(trace, ratios, goal))
    order = sorted(found, key=lambda who: (who != TEAM, who != SHUFFLED))
    return {who: tuple(sorted(found[who], key=lambda r: r.seed)) for who in order}


def ratio_of(ours: Sequence[Reached], theirs: Sequence[Reached], search_s: float) -> Ratio:
    """Our median time over theirs, with the bootstrap's interval."""
    mine, other = (_times(rows, search_s) for rows in (ours, theirs))
    rng = random.Random(0)
    drawn = [(_median_of(rng, mine), _median_of(rng, other)) for _ in range(DRAWS)]
    lows = sorted(a / b if b < search_s else 0.0 for a, b in drawn)
    highs = sorted(a / b if a < search_s else inf for a, b in drawn)
    return Ratio(
        ratio=None if min(median(mine), median(other)) >= search_s else median(mine) / median(other),
        low=lows[int(0.025 * DRAWS)],
        high=highs[int(0.975 * DRAWS) - 1],
        seeds=min(len(mine), len(other)),
    )


def tables(record: Race) -> RaceTables:
    """Tables, verdicts and notes of a scored record."""
    rows = reached(record)
    ratios = {who: ratio_of(rows[TEAM], rows[who], record.search_s) for who in rows if who != TEAM and TEAM in rows}
    best = max((s.ratio for s in record.scores.values() if s.ratio is not None), default=1.0)
    told = _contestants(record, rows)
    about = f"{record.operator} on {record.readable or record.platform}, {record.search_s:g} s a search"
    seconds = f"s to {SHARE:.0%} of the best found, {best:.2f}x of the start"
    return RaceTables(
        tables=(
            FigureTable(title=f"search: {about}", columns=tuple(told[0]), rows=tuple(tuple(r.values()) for r in told)),
            _ratio_table(ratios),
            _seed_table(rows, f"by seed, {seconds}"),
        ),
        verdicts=(*tuner_verdict(ratios), *profile_verdict(ratios)),
        notes=notes(record, rows),
    )


def tuner_verdict(ratios: Mapping[str, Ratio]) -> tuple[str, ...]:
    """Whether the team needs at most half of Kernel Tuner's time, held against each of its strategies: the best one
    decides, which is the one with the highest ratio."""
    against = {who: r for who, r in ratios.items() if who.startswith(TUNER)}
    if not against:
        return ()
    hardest = max(against, key=lambda who: (against[who].low, against[who].ratio or 0.0))
    found = against[hardest]
    answer = "undecided"
    if found.seeds >= LEAST_SEEDS:
        answer = "yes" if found.high <= HALF else "no" if found.low > HALF else "undecided"
    few = f"; fewer than {LEAST_SEEDS} seeds give no verdict" if found.seeds < LEAST_SEEDS else ""
    figures = f"{_cell(found)} of {hardest}, its better strategy here" if len(against) > 1 else f"{_cell(found)}"
    return (f"at most half of Kernel Tuner's time: {answer} ({figures}{few})",)


def profile_verdict(ratios: Mapping[str, Ratio]) -> tuple[str, ...]:
    """Whether the team with a true profile is faster than with a shuffled one."""
    found = ratios.get(SHUFFLED)
    if found is None:
        return ()
    words = f"true over shuffled profile {_cell(found)}"
    if found.seeds < LEAST_SEEDS:
        return (f"profile reading pays: undecided ({words}; fewer than {LEAST_SEEDS} seeds give no verdict)",)
    if found.high < 1:
        return (f"profile reading pays: yes ({words})",)
    if found.low >= 1 or (found.ratio or 0.0) >= 1:
        return (f"profile reading pays: no ({words}): a shuffled profile does as well, profile reading is decoration",)
    return (f"profile reading pays: undecided ({words}): the interval holds 1, it may be decoration",)


def notes(record: Race, rows: Mapping[str, Sequence[Reached]]) -> tuple[str, ...]:
    """What a reader must know to judge the figures."""
    space = record.space
    late = {who: sum(r.at_s is None for r in listed) for who, listed in rows.items()}
    broken = sum(1 for t in record.traces if t.problem)
    censored = ", ".join(f"{who} {n}" for who, n in late.items() if n) or "none"
    wrong = [s.why for s in record.scores.values() if s.ratio is None]
    held = f", with the knobs of {', '.join(space.held)} at their first values" if space.held else ""
    part = (
        f"random_sample draws from all of them, other strategies search {space.listed:,}{held}: they list a space first"
        if space.listed < space.size
        else "all strategies search all of them"
    )
    found = [
        f"searches that did not get there within {record.search_s:g} s, of which no more is known: {censored}",
        f"Kernel Tuner's space: {len(space.recipes)} recipes on or off with the windows of their knobs, "
        f"{space.size:,} configurations; {part}",
        "seconds run from the start of each process in an empty folder. The team's hold the machine's peaks, the "
        "baseline's check, noise and profile, a check of each proposal's numbers, ablation and confirmation; Kernel "
        "Tuner checks no output and begins at once; a wait for another kernelcrew on the same core counts",
        "the team builds a batch in parallel where cores are free; Kernel Tuner compiles one at a time",
        "the team may leave a knob's window in later rounds, and ends when nothing is left to propose; seed 0 takes "
        "the proposer's own first values, every other seed draws them",
        "both climb the geometric mean over classes, over the same rings and sample lengths with the same compiler and "
        "flags; the table's figure is neither's own, but one of our screens over all candidates beside the start; "
        "the best of many is flattered a little by its noise, for all alike",
    ]
    if wrong:
        found.append(f"{len(wrong)} candidates have no figure and count as not found: {wrong[0]}")
    if broken:
        found.append(f"{broken} of {len(record.traces)} searches broke off by a fault and count for nothing:")
    problems = [f"{t.job.contestant}, seed {t.job.seed}: {t.problem}" for t in record.traces if t.problem]
    return (*found, *problems)


def _reached(trace: Trace, ratios: Mapping[str, float], goal: float) -> Reached:
    at_s = next((p.t_s for p in trace.points if ratios.get(p.candidate, 0.0) >= goal), None)
    final = ratios.get(trace.points[-1].candidate) if trace.points else None
    return Reached(seed=trace.job.seed, at_s=at_s, final=final)


def _contestants(record: Race, rows: Mapping[str, Sequence[Reached]]) -> list[dict[str, str]]:
    told = []
    for who, listed in rows.items():
        traces = [t for t in record.traces if t.job.contestant == who and not t.problem]
        middle = median(_times(listed, record.search_s))
        there = sum(r.at_s is not None for r in listed)
        finals = [r.final for r in listed if r.final is not None]
        firsts = [t.points[0].t_s for t in traces if t.points]
        told.append(
            {
                "contestant": who,
                "seeds": str(len(listed)),
                "reached 95 %": f"{there} of {len(listed)}",
                "median s to it": f"{'over ' if middle >= record.search_s else ''}{middle:.1f}",
                "first figure at, s": f"{median(firsts):.1f}" if firsts else "-",
                "configurations": f"{median(t.measured for t in traces):g}",
                "last best over start": f"{exp(sum(map(log, finals)) / len(finals)):.2f}x" if finals else "-",
            }
        )
    return told


def _ratio_table(ratios: Mapping[str, Ratio]) -> FigureTable:
    rows = tuple((f"{TEAM} / {who}", _cell(r), str(r.seeds)) for who, r in ratios.items())
    title = "ratio of median times to 95 % of the best found, 95 % bootstrap intervals over seeds"
    return FigureTable(title=title, columns=("time of", "ratio", "seeds"), rows=rows)


def _seed_table(rows: Mapping[str, Sequence[Reached]], title: str) -> FigureTable:
    seeds = sorted({r.seed for listed in rows.values() for r in listed})
    cells = []
    for seed in seeds:
        line = [str(seed)]
        for listed in rows.values():
            one = next((r for r in listed if r.seed == seed), None)
            line.append("" if one is None else "not within" if one.at_s is None else f"{one.at_s:.1f}")
        cells.append(tuple(line))
    return FigureTable(title=title, columns=("seed", *rows), rows=tuple(cells))


def _times(rows: Sequence[Reached], search_s: float) -> list[float]:
    return [search_s if r.at_s is None else max(r.at_s, 0.1) for r in rows]


def _median_of(rng: random.Random, values: Sequence[float]) -> float:
    return median(rng.choices(values, k=len(values)))


def _cell(found: Ratio) -> str:
    """`0.41 [0.32, 0.55]`; an end that is not known is left open."""
    middle = "neither median within the budget," if found.ratio is None else f"{found.ratio:.2f}"
    low, high = (f"{end:.2f}" if 0 < end < inf else "open" if end else "0" for end in (found.low, found.high))
    return f"{middle} [{low}, {high}]"
