"""Blocks of paired samples: what a laboratory must supply, and how one block is run.

The clock, the workers and the data belong to a `Lab`. The real one is `kernelcrew.tools.timing_lab`; tests bring one
with a simulated clock and known true times.
"""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pydantic import Field

from kernelcrew.kernels.nouns import Shape
from kernelcrew.record import Record
from kernelcrew.tools.estats import median_log_ratio
from kernelcrew.tools.hoststate import HostReading
from kernelcrew.tools.nouns import Build

SAMPLE_US = 1500.0
"""Aimed length of a sample. The law is 1 ms; the surplus covers an estimate of the speed that was too slow."""
LEAST_US = 1000.0
NEAR = 4.0
"""Contenders whose speeds lie within this factor get the same number of calls."""
CLOCK_US = 200.0
CLOCK_SHARE = 0.15
"""The worker's clock may fall short of ours by max(200 us, 15 %). A hand-over takes some 9 us on a quiet machine, and
was seen to take 60 to 150 us in a virtual machine under load. No verdict rests on the worker's clock."""
LOST_US = 30.0
LOST_SHARE = 0.02
"""Wall clock may exceed processor time by max(30 us, 2 %) before a sample counts as disturbed."""


class Sampled(Record):
    """One sealed batch of one contender."""

    name: str
    """The contender."""
    calls: int
    """Calls in the batch."""
    elapsed_us: float
    """By the parent's clock."""
    worker_us: float
    """By the worker's own, to catch one that lies."""
    cpu_us: float = -1.0
    """Processor time of the worker's process as the kernel accounts for it; -1 where it does not."""

    @property
    def clocks_agree(self) -> bool:
        """Whether the worker admits to all the time that it was busy for."""
        busy = min(self.elapsed_us, self.cpu_us) if self.cpu_us > 0 else self.elapsed_us
        return busy - self.worker_us <= max(CLOCK_US, CLOCK_SHARE * busy)

    @property
    def disturbed(self) -> bool:
        """Whether time was taken from it: the core given to others, or the parent woken late."""
        busy = self.cpu_us if self.cpu_us > 0 else self.worker_us
        share = LOST_SHARE if self.cpu_us > 0 else CLOCK_SHARE
        return self.elapsed_us - busy > max(LOST_US, share * self.elapsed_us)


class Heat(Record):
    """Each contender once, in one order, on the same inputs that none has seen before. Two contenders make a pair.

    Time is the parent's wall clock. When other work took time from any of the samples, all of the heat are read by the
    processor time that the kernel accounts to each worker: neither clock is in a candidate's hands, and one that sleeps
    gets no work done. Without that account such a heat counts for nothing.
    """

    samples: tuple[Sampled, ...]
    """In the order they ran."""
    spoilt: str = ""
    """Why it counts for nothing."""
    wrong: dict[str, str] = Field(default_factory=dict)
    """Contender and what was wrong with its outputs or its end."""

    @property
    def disturbed(self) -> bool:
        return any(s.disturbed for s in self.samples)

    @property
    def counts(self) -> bool:
        return not self.spoilt and (not self.disturbed or all(s.cpu_us > 0 for s in self.samples))

    def call_us(self, name: str) -> float | None:
        """Time of one call of a contender; None when it did not run or the heat does not count."""
        sample = self.of(name)
        if sample is None or not self.counts:
            return None
        return (sample.cpu_us if self.disturbed else sample.elapsed_us) / sample.calls

    def of(self, name: str) -> Sampled | None:
        return next((s for s in self.samples if s.name == name), None)


class ShapeBlock(Record):
    """One shape in one block."""

    shape: str
    """Its key."""
    heats: tuple[Heat, ...]
    """All that ran, the discarded ones too."""

    def pairs(self, candidate: str, baseline: str) -> list[tuple[float, float]]:
        """Call times in us (candidate, baseline) of the heats that count."""
        both = [(h.call_us(candidate), h.call_us(baseline)) for h in self.heats]
        return [(c, b) for c, b in both if c is not None and b is not None]


class Block(Record):
    """The unit of replication: fresh workers, fresh copies of the binaries, new placement, random order."""

    phase: str
    """`aa`, `screen`, `decide`, `estimate` or `times`."""
    shapes: tuple[ShapeBlock, ...]
    """In the order they ran."""
    wrong: dict[str, str] = Field(default_factory=dict)
    """Contender and the first thing that was wrong with it."""
    seconds: float = 0.0
    """Wall clock, the start of its workers included."""

    def logs(self, candidate: str, baseline: str, least_pairs: int = 2) -> dict[str, float]:
        """Median log ratio of each shape that has at least `least_pairs` pairs."""
        found: dict[str, float] = {}
        for shape in self.shapes:
            pairs = shape.pairs(candidate, baseline)
            if len(pairs) >= least_pairs:
                found[shape.shape] = median_log_ratio([b for _, b in pairs], [c for c, _ in pairs])
        return found


class Stand(Protocol):
    """Fresh workers of one block."""

    def heat(self, shape: Shape, order: Sequence[str]) -> Heat:
        """Refresh the inputs, poison the outputs, run each contender once and compare every output slot."""
        ...

    def strict(self, shape: Shape, names: Sequence[str]) -> dict[str, str]:
        """Compare outputs of the last heat with the float64 reference at the operator's limits, those of the trusted
        contenders excepted; name and reason of the wrong ones."""
        ...


class Lab(Protocol):
    """Where samples come from."""

    def stand(self, builds: Mapping[str, Build], trusted: Sequence[str]) -> AbstractContextManager[Stand]:
        """Fresh workers for contenders by name. `trusted` are the verified ones; outputs are held to the first."""
        ...

    def now(self) -> float:
        """Seconds of a clock that never goes back."""
        ...

    def host(self) -> HostReading:
        """The host's counters."""
        ...

    def ring_bytes(self, shape: Shape) -> int:
        """Bytes that one sample of a shape runs over."""
        ...

    def close(self) -> None:
        """Free what is kept between blocks."""
        ...


class Lane(Record):
    """Who runs on which shape in one block."""

    shape: Shape
    """The shape."""
    names: tuple[str, ...]
    """Its contenders; the baseline is one of them."""
    pairs: int
    """Heats to run; even, so that orders balance."""


def run_block(stand: Stand, phase: str, lanes: Sequence[Lane], rng: random.Random) -> Block:
    """One block: shapes in random order, the lane's number of heats each (as many again may replace spoilt ones).

    A contender that was wrong runs no further; the others go on.
    """
    wrong: dict[str, str] = {}
    done: list[ShapeBlock] = []
    for lane in rng.sample(list(lanes), k=len(lanes)):
        heats = tuple(_heats(stand, lane, wrong, rng))
        done.append(ShapeBlock(shape=lane.shape.key, heats=heats))
    return Block(phase=phase, shapes=tuple(done), wrong=wrong)


def _heats(stand: Stand, lane: Lane, wrong: dict[str, str], rng: random.Random) -> Iterator[Heat]:
    """Heats come in twos, an order and its reverse (ABBA or BAAB at random), so that drift cancels."""
    good = 0
    order: list[str] = []
    for number in range(2 * lane.pairs):
        names = [n for n in lane.names if n not in wrong]
        if good >= lane.pairs or (len(names) < 2 and len(lane.names) > 1):
            break
        order = [n for n in reversed(order) if n in names] if number % 2 else rng.sample(names, k=len(names))
        heat = stand.heat(lane.shape, order)
        good += heat.counts
        _note(wrong, lane, heat.wrong)
        yield heat
    _note(wrong, lane, stand.strict(lane.shape, [n for n in lane.names if n not in wrong]))


def _note(wrong: dict[str, str], lane: Lane, found: Mapping[str, str]) -> None:
    for name, reason in found.items():
        wrong.setdefault(name, f"{lane.shape.key}: {reason}")


def calls_for(paces_us: Mapping[str, float], slots: int, sample_us: float = SAMPLE_US) -> dict[str, int]:
    """Calls a sample for each contender, from estimates of one call's time in us.

    Each sample lasts about `sample_us` or more and makes whole passes over the ring, so that in the end every output
    slot holds the answer of another input. Contenders within a factor of 4 of the
    fastest make as many calls as it does; slower ones are counted by themselves, their samples being compared by call.
    """
    fastest = min(paces_us.values())
    alike = {name: fastest if pace <= NEAR * fastest else pace for name, pace in paces_us.items()}
    return {name: _calls(pace, slots, sample_us) for name, pace in alike.items()}


def _calls(pace_us: float, slots: int, sample_us: float) -> int:
    return slots * max(1, math.ceil(sample_us / (pace_us * slots)))


def call_times(blocks: Iterable[Block], name: str) -> dict[str, float]:
    """Median time of one call in us, by shape, over all heats that count."""
    times: dict[str, list[float]] = {}
    for block in blocks:
        for shape in block.shapes:
            found = [us for h in shape.heats if (us := h.call_us(name)) is not None]
            times.setdefault(shape.shape, []).extend(found)
    return {key: statistics.median(found) for key, found in times.items() if found}


def heat_counts(blocks: Iterable[Block]) -> tuple[int, int, int]:
    """All heats, those that count for nothing, and those read by processor time."""
    heats = [h for block in blocks for shape in block.shapes for h in shape.heats]
    return len(heats), sum(not h.counts for h in heats), sum(h.counts and h.disturbed for h in heats)


def clock_trouble(blocks: Iterable[Block], name: str, baseline: str) -> str:
    """Why a contender's two clocks disagree beyond accident; '' when they do not.

    Accident spares nobody: a share of over 30 % (of at least 6 samples) that is also three times the baseline's is
    not the host's doing.
    """
    heats = [h for block in blocks for shape in block.shapes for h in shape.heats]
    mine = [s.clocks_agree for h in heats if (s := h.of(name)) is not None]
    theirs = [s.clocks_agree for h in heats if (s := h.of(baseline)) is not None]
    if len(mine) < 6 or not theirs:
        return ""
    bad, usual = mine.count(False) / len(mine), theirs.count(False) / len(theirs)
    if bad > 0.3 and bad > 3 * usual:
        return f"its worker's clock and ours disagree in {bad:.0%} of its samples, the baseline's in {usual:.0%}"
    return ""


def raw_text(blocks: Sequence[Block], builds: Mapping[str, Build]) -> str:
    """All samples as JSON, for the record: statistics can be computed again from them."""
    whole = {
        "fields": ["name", "calls", "elapsed_us", "worker_us", "cpu_us"],
        "builds": {name: build.artifact_hash for name, build in builds.items()},
        "blocks": [
            {"phase": b.phase, "shapes": {s.shape: [_raw(h) for h in s.heats] for s in b.shapes}} for b in blocks
        ],
    }
    return json.dumps(whole, separators=(",", ":"))


def _raw(heat: Heat) -> dict[str, object]:
    samples = [[s.name, s.calls, *(round(t, 2) for t in (s.elapsed_us, s.worker_us, s.cpu_us))] for s in heat.samples]
    row: dict[str, object] = {"s": samples}
    if heat.spoilt:
        row["spoilt"] = heat.spoilt
    if heat.wrong:
        row["wrong"] = heat.wrong
    return row
