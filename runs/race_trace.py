"""What a search found when: read from a run's journal, or from the lines that Kernel Tuner's process wrote. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime

from kernelcrew.runs.nouns import Baseline, Step
from kernelcrew.runs.race_kt import Found
from kernelcrew.runs.race_nouns import Point
from kernelcrew.runs.tuning import score
from kernelcrew.tools.nouns import Timing
from kernelcrew.tools.workshop import Screens

NO_SEARCH = ("baseline.", "final.")
"""Steps whose screens are reported and not searched: flags alone, and the last figures."""

Figure = tuple[float, str, float]
"""Seconds since the start, identity, the searcher's own figure (higher is better)."""


def screened_in(steps: Sequence[Step], began: float) -> list[Figure]:
    """Every candidate that a run screened, with the second at which its figure was in the journal.

    A figure is over the run's start. Where a screen was held against another kernel, that one's figure is multiplied
    in; a confirmation replaces the figure of what it confirmed. `began` is in seconds since the epoch.
    """
    known: dict[str, float] = {}
    found: list[Figure] = []
    for step in steps:
        if step.kind == "Baseline":
            baseline = Baseline.model_validate(step.payload)
            known[baseline.start.identity] = known[baseline.incumbent.identity] = 1.0
        for timing in _timings(step):
            if timing.status != "invalid" and timing.classes and timing.baseline in known:
                known[timing.candidate] = known[timing.baseline] * score(timing)
                found.append((_ended(step) - began, timing.candidate, known[timing.candidate]))
    return found


def measured_in(lines: Iterable[str], name: dict[tuple[int, ...], str]) -> list[Figure]:
    """Every configuration that Kernel Tuner measured; `name` gives the identity of each. A torn line is left out."""
    found: list[Figure] = []
    for line in lines:
        if line.endswith("\n"):
            one = Found.model_validate(json.loads(line))
            found.append((one.t_s, name[one.config], 1 / one.us))
    return found


def best_so_far(figures: Iterable[Figure], search_s: float) -> tuple[Point, ...]:
    """Those that were better than all before them, within the budget."""
    points: list[Point] = []
    for t_s, candidate, own in sorted(figures):
        if t_s <= search_s and (not points or own > points[-1].own):
            points.append(Point(t_s=round(t_s, 2), candidate=candidate, own=own))
    return tuple(points)


def _timings(step: Step) -> list[Timing]:
    if step.kind == "Screens" and not step.step.startswith(NO_SEARCH):
        return list(Screens.model_validate(step.payload).timings)
    return [Timing.model_validate(step.payload)] if step.kind == "Timing" else []


def _ended(step: Step) -> float:
    return datetime.fromisoformat(step.started).timestamp() + step.seconds
