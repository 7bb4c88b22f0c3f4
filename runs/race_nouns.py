"""The nouns of `kernelcrew bench --search`: who searches, what each found when, and what it was worth."""

from __future__ import annotations

from pydantic import Field

from kernelcrew.kernels.nouns import Candidate
from kernelcrew.record import Record

TEAM = "kernelcrew"
SHUFFLED = "shuffled profile"
TUNER = "Kernel Tuner "
"""Before the name of its strategy."""
STRATEGIES = ("random_sample", "genetic_algorithm")
"""Kernel Tuner's by default. `random_sample` needs no list of the space, so that it searches all of it. Of the global
strategies that it ships, `genetic_algorithm` knows restrictions and spends its time on measurements: on 74 000 listed
configurations it measured 28 in 40 s, `greedy_ils` 31, `dual_annealing` 22, and `hybrid_vndx`, each of whose looks for
neighbours took seconds, 8 (one seed, a busy machine)."""
SHARE = 0.95
"""Of the best found by anyone: what the race is for."""


class Job(Record):
    """One search to be done."""

    contestant: str
    """`kernelcrew`, `shuffled profile`, or `Kernel Tuner ` and its strategy."""
    seed: int
    """Of its choices."""


class Point(Record):
    """One candidate that was better than all before it, by the contestant's own measure."""

    t_s: float
    """Seconds since the contestant's process was started."""
    candidate: str
    """Its identity."""
    own: float
    """The contestant's own figure, higher is better: over the start, or calls a microsecond."""


class Trace(Record):
    """What one search found, and when."""

    job: Job
    """Which."""
    core: int | None
    """The core that it measured on."""
    points: tuple[Point, ...]
    """Best so far, in the order of time, all within the budget."""
    measured: int
    """Configurations with a figure."""
    seconds: float
    """From start to end of its process; at most the budget, at which it is stopped."""
    problem: str = ""
    """Why it ended with an error, if it did; what it had found until then stands."""


class SpaceFacts(Record):
    """The space that Kernel Tuner was given."""

    recipes: tuple[str, ...]
    """The switches."""
    size: int
    """Configurations that its restrictions allow."""
    listed: int
    """Configurations of the part that strategies search which need a list of all of them."""
    held: tuple[str, ...]
    """Recipes whose knobs are held at their first values in that part."""


class Score(Record):
    """One candidate as measured again beside all others."""

    ratio: float | None
    """Over the start, geometric mean over the classes; None where there is no figure."""
    why: str = ""
    """Why there is none: what was wrong with it."""


class Race(Record):
    """Searches of one operator within one budget on one machine."""

    operator: str
    """Shipped operator."""
    platform: str
    """Where."""
    readable: str
    """The machine, for people."""
    search_s: float
    """Budget of each search."""
    versions: dict[str, str]
    """kernelcrew, Kernel Tuner, the compiler."""
    started: str
    """ISO time."""
    space: SpaceFacts
    """Kernel Tuner's."""
    traces: tuple[Trace, ...]
    """One a search."""
    candidates: dict[str, Candidate] = Field(default_factory=dict)
    """By identity; empty once all are scored and the record is slim."""
    scores: dict[str, Score] = Field(default_factory=dict)
    """By identity, from one run over all of them; empty until then."""

    def slim(self) -> Race:
        """Without the sources: what the tables are made of."""
        return self.model_copy(update={"candidates": {}})
