"""Timing: is a candidate faster than the kernel it is held against, on every shape class, and slower nowhere?

    noise    the baseline against its own copy: what this host can tell apart
    screen   a few short blocks, many candidates against one baseline; never decides
    confirm  sequential tests over new blocks; the reported ratios come from blocks after the decision

The statistics are in `estats`, one block in `timing_blocks`, the state of a confirmation in `timing_sequence`, the
words in `timing_answers`; a `Lab` supplies samples and the clock.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from kernelcrew.errors import HarnessError
from kernelcrew.kernels.nouns import Operator, Shape
from kernelcrew.record import Record, hash_of
from kernelcrew.settings import Settings
from kernelcrew.tools.hoststate import HostReading
from kernelcrew.tools.nouns import AlphaPlan, Build, Noise, Timing
from kernelcrew.tools.reference import Reference
from kernelcrew.tools.sandbox import Sandbox
from kernelcrew.tools.timing_answers import (
    Estimates,
    NoiseTable,
    Sides,
    above_ceiling,
    confirmed_answers,
    estimates,
    host_figures,
    noise_table,
    screen_answers,
    some,
    suspicion,
    too_disturbed,
)
from kernelcrew.tools.timing_blocks import Block, Lab, Lane, call_times, clock_trouble, raw_text, run_block
from kernelcrew.tools.timing_check import Checker
from kernelcrew.tools.timing_lab import WorkerLab
from kernelcrew.tools.timing_sequence import Progress, begin

TOGETHER = 5
"""Candidates screened in one block at most: more would lie too far from their baseline in time."""
LARGE_BYTES = 64 << 20
"""Rings from this size on get two pairs fewer: they are slow to refresh, and their long samples vary little."""
CANDIDATE, BASELINE, START, COPY = "candidate", "baseline", "start", "copy"
TRUSTED = (BASELINE, START, COPY)
"""Contenders that were verified before; the first one present is what outputs are compared with."""


class Pace(Record):
    """How much is measured. More costs time and gains power; none of it touches the error rate."""

    pairs: int = 6
    """Pairs a shape and block in a confirmation; even, so that ABBA closes."""
    screen_pairs: int = 4
    """The same in a screen and in the pre-flight."""
    screen_blocks: int = 3
    """Blocks of a screen: the least that gives an interval of use."""
    noise_blocks: int = 6
    """Blocks of the pre-flight."""
    estimate_blocks: int = 4
    """New blocks after the decision, from which the ratios come."""


@dataclass(frozen=True)
class _Contest:
    """One measurement under way. `deadline` is a time of the lab's clock."""

    builds: Mapping[str, Build]
    shapes: tuple[Shape, ...]
    table: NoiseTable
    began: float
    before: HostReading
    deadline: float = math.inf
    blocks: tuple[Block, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)
    odd_clocks: Mapping[str, str] = field(default_factory=dict)

    @property
    def fault(self) -> str:
        return self.faults.get(CANDIDATE, "")

    def unsettled(self, name: str = CANDIDATE) -> str:
        """Why nothing can be said of a contender: the host disturbed too much, or its two clocks disagree. No verdict
        rests on the worker's clock, so a disagreement refutes nothing; it only forbids to decide."""
        return self.odd_clocks.get(name, "") or too_disturbed(self.blocks)

    @property
    def block_s(self) -> float:
        """The longest of the last blocks: what the next one may take."""
        return max((b.seconds for b in self.blocks[-3:]), default=self.table.block_s * len(self.builds) / 2)

    def after(self, block: Block) -> _Contest:
        """With one more block and what was wrong in it."""
        blocks = (*self.blocks, block)
        clocks = {n: why for n in self.builds if n not in TRUSTED and (why := clock_trouble(blocks, n, BASELINE))}
        return replace(self, blocks=blocks, odd_clocks=clocks, faults={**block.wrong, **self.faults})


@dataclass
class Bench:
    """Times builds of one operator.

    `ceilings` may give, by shape, the fastest call in us that the machine can do at all, `higher` measures them again
    before anyone is refused for one, and `recheck` verifies a build once more on new inputs in a new worker ('' when it
    is right). `floor_us` is the least loss in us of a call that counts against a shape: 0.2 for launches on a GPU, 0 on
    a processor (see `not_slower_margin`). `seed` is the entropy of the lab's generator, for the record.
    """

    operator: Operator
    lab: Lab
    keep: Callable[[str], str] = hash_of
    rng: random.Random = field(default_factory=random.SystemRandom)
    pace: Pace = field(default_factory=Pace)
    ceilings: Mapping[str, float] = field(default_factory=dict)
    higher: Callable[[], Mapping[str, float]] | None = None
    recheck: Callable[[Build], str] | None = None
    floor_us: float = 0.0
    seed: str = ""
    _tables: dict[str, NoiseTable] = field(default_factory=dict)

    @classmethod
    def on_this_machine(
        cls, operator: Operator, settings: Settings, sandbox: Sandbox, core: int | None, keep: Callable[[str], str]
    ) -> Bench:
        """A bench with real workers, pinned to `core` unless it is None. `keep` stores raw samples and gives a hash."""
        entropy = secrets.randbits(128)
        rng = np.random.default_rng(entropy)
        checker = Checker(operator, Reference(operator), rng)
        lab = WorkerLab(operator, settings, sandbox, core, checker, rng)
        return cls(operator=operator, lab=lab, keep=keep, seed=f"{entropy:032x}")

    def close(self) -> None:
        """Free what the lab keeps between blocks."""
        self.lab.close()

    def noise(self, build: Build) -> Noise:
        """The build against its own copy. Raises HarnessError when its own outputs disagree with each other."""
        builds = {BASELINE: build, COPY: build}
        shapes = self.operator.timed()
        lanes = [self._lane(s, (BASELINE, COPY), self.pace.screen_pairs) for s in shapes]
        blocks: list[Block] = []
        while len(blocks) < self.pace.noise_blocks and not too_disturbed(blocks):
            blocks.append(self._block("aa", builds, lanes))
        table = noise_table(blocks, shapes, Sides(candidate=COPY, baseline=BASELINE))
        record = {"samples": self.keep(raw_text(blocks, builds)), "input_seed": self.seed}
        table = table.model_copy(update={"noise": table.noise.model_copy(update=record)})
        self._tables[build.artifact_hash] = table
        return table.noise

    def call_times(self, build: Build, shapes: Sequence[Shape] | None = None) -> dict[str, float]:
        """Median time of one call in us, by shape (the timed ones by default), of one build alone."""
        chosen = self.operator.timed() if shapes is None else shapes
        lanes = [self._lane(s, (BASELINE,), self.pace.screen_pairs) for s in chosen]
        blocks = [self._block("times", {BASELINE: build}, lanes) for _ in range(2)]
        return call_times(blocks, BASELINE)

    def ring_bytes(self) -> dict[str, int]:
        """Bytes that one sample runs over, by timed or held-out shape: which cache level a shape is held against."""
        return {s.key: self.lab.ring_bytes(s) for s in self._shapes(True)}

    def screen(self, candidate: Build, baseline: Build, shapes: Sequence[Shape] | None = None) -> Timing:
        """A few short blocks. Never decides."""
        return self.screen_many([candidate], baseline, shapes)[0]

    def screen_many(
        self, candidates: Sequence[Build], baseline: Build, shapes: Sequence[Shape] | None = None, blocks: int = 0
    ) -> list[Timing]:
        """All candidates against one baseline in the same blocks, at most five at a time; one Timing each, in order.

        `blocks` above the pace's own narrows the intervals of figures that are only reported.
        """
        chosen = tuple(self.operator.timed() if shapes is None else shapes)
        table = self._known_table(baseline)
        found: list[Timing] = []
        for first in range(0, len(candidates), TOGETHER):
            contest = self._screen_group(candidates[first : first + TOGETHER], baseline, chosen, table, blocks)
            found += [self._screened(contest, name) for name in contest.builds if name != BASELINE]
        return found

    def confirm(
        self, candidate: Build, incumbent: Build, start: Build, plan: AlphaPlan, deadline_s: float, *,
        include_held_out: bool = False,
    ) -> Timing:  # fmt: skip
        """Faster than the incumbent on each class? Slower nowhere, than it or than the start? In `deadline_s` seconds.

        At least one block is run after the deciding ones, so a deadline may be overrun by the length of a block.
        """
        with_start = start.artifact_hash != incumbent.artifact_hash
        builds = {CANDIDATE: candidate, BASELINE: incumbent} | ({START: start} if with_start else {})
        began, before = self.lab.now(), self.lab.host()
        table = self._tables.get(incumbent.artifact_hash) or self._measured_table(incumbent)
        contest = _Contest(builds, self._shapes(include_held_out), table, began, before, began + deadline_s)
        losses = {s.key: table.loss_margin(s.key, self.floor_us) for s in contest.shapes}
        progress = begin(contest.shapes, plan, table.gain_margin, losses, with_start=with_start)
        progress, contest, late = self._decide(progress, contest)
        new, contest = self._estimate(contest)
        found = estimates(new, contest.shapes, Sides(candidate=CANDIDATE, baseline=BASELINE))
        timing = self._bare("confirmed", contest, found).model_copy(update={"threshold": plan.threshold})
        flagged = suspicion(found)
        fault = contest.fault or self._too_fast(found, candidate if flagged else None)
        if fault:
            return timing.model_copy(update={"status": "invalid", "reason": fault})
        classes, rows = confirmed_answers(found, contest.shapes, table, progress)
        status, reason = _ending(progress, contest, late)
        reason = "; ".join(filter(None, (reason, flagged)))
        return timing.model_copy(update={"classes": classes, "shapes": rows, "status": status, "reason": reason})

    def _too_fast(self, found: Estimates, flagged: Build | None) -> str:
        """Why a candidate cannot be as fast as it seems; '' when it can. One that is flagged is verified again."""
        fault = above_ceiling(found.candidate_us, self.ceilings)
        if fault and self.higher is not None:
            self.ceilings = self.higher()
            fault = above_ceiling(found.candidate_us, self.ceilings)
        if fault or flagged is None or self.recheck is None:
            return fault
        again = self.recheck(flagged)
        return f"suspiciously fast, and wrong when it was verified again: {again}" if again else ""

    def _decide(self, progress: Progress, contest: _Contest) -> tuple[Progress, _Contest, bool]:
        """Blocks until everything is decided, all are spent, a fault is found or time runs out (then True)."""
        while not progress.over:
            needed = contest.block_s * (1 + self.pace.estimate_blocks)
            if self.lab.now() + needed > contest.deadline:
                return progress, contest, True
            asked = [(s, *progress.needs(s)) for s in contest.shapes]
            names = {False: (CANDIDATE, BASELINE), True: (CANDIDATE, BASELINE, START)}
            lanes = [self._lane(s, names[with_start], self.pace.pairs) for s, needed, with_start in asked if needed]
            block = self._block("decide", contest.builds, lanes)
            contest = contest.after(block)
            if contest.fault or contest.unsettled():
                break
            progress = progress.after(block.logs(CANDIDATE, BASELINE), block.logs(CANDIDATE, START))
        return progress, contest, False

    def _estimate(self, contest: _Contest) -> tuple[tuple[Block, ...], _Contest]:
        """New blocks over every shape; one when the host is too disturbed or time runs out, none after a fault."""
        new: list[Block] = []
        lanes = [self._lane(s, (CANDIDATE, BASELINE), self.pace.pairs) for s in contest.shapes]
        while len(new) < self.pace.estimate_blocks and not contest.fault:
            late = bool(new) and self.lab.now() + new[-1].seconds > contest.deadline
            if late or (new and too_disturbed(contest.blocks)):
                break
            new.append(self._block("estimate", contest.builds, lanes))
            contest = contest.after(new[-1])
        return tuple(new), contest

    def _screen_group(
        self, candidates: Sequence[Build], baseline: Build, shapes: tuple[Shape, ...], table: NoiseTable, blocks: int
    ) -> _Contest:
        names = [f"{CANDIDATE}{number}" for number in range(1, len(candidates) + 1)]
        builds = dict(zip(names, candidates, strict=True)) | {BASELINE: baseline}
        contest = _Contest(builds, shapes, table, self.lab.now(), self.lab.host())
        for _ in range(max(blocks, self.pace.screen_blocks)):
            left = [n for n in names if n not in contest.faults]
            if left and not too_disturbed(contest.blocks):
                lanes = [self._lane(s, (*left, BASELINE), self.pace.screen_pairs) for s in shapes]
                contest = contest.after(self._block("screen", builds, lanes))
        return contest

    def _screened(self, contest: _Contest, name: str) -> Timing:
        found = estimates(contest.blocks, contest.shapes, Sides(candidate=name, baseline=BASELINE))
        timing = self._bare("screen", contest, found, name)
        fault = contest.faults.get(name, "") or self._too_fast(found, None)
        if fault:
            return timing.model_copy(update={"status": "invalid", "reason": fault})
        classes, rows = screen_answers(found, contest.shapes, contest.table, self.floor_us)
        disturbed = contest.unsettled(name)
        status = "noisy" if disturbed else "undecided"
        return timing.model_copy(update={"classes": classes, "shapes": rows, "status": status, "reason": disturbed})

    def _bare(
        self, grade: Literal["screen", "confirmed"], contest: _Contest, found: Estimates, name: str = CANDIDATE
    ) -> Timing:
        """A Timing without answers yet."""
        return Timing(
            grade=grade, status="undecided", baseline=contest.builds[BASELINE].identity,
            candidate=contest.builds[name].identity, margin=contest.table.gain_margin,
            aa_sd=contest.table.noise.aa_sd, classes=(), shapes=(), blocks=len(contest.blocks),
            host=host_figures(contest.before, self.lab.host(), contest.blocks, found),
            samples=self.keep(raw_text(contest.blocks, contest.builds)), input_seed=self.seed,
            seconds=round(self.lab.now() - contest.began, 3),
        )

    def _block(self, phase: str, builds: Mapping[str, Build], lanes: Sequence[Lane]) -> Block:
        """One block with fresh workers for those who run in it. Raises HarnessError when a trusted one fails."""
        running = {n for lane in lanes for n in lane.names}
        used = {n: b for n, b in builds.items() if n in running}
        began = self.lab.now()
        with self.lab.stand(used, [n for n in TRUSTED if n in used]) as stand:
            block = run_block(stand, phase, lanes, self.rng)
        for name in TRUSTED:
            if name in block.wrong:
                raise HarnessError(
                    f"a verified kernel failed in a timed batch of {self.operator.name}: {block.wrong[name]}",
                    fix="verify it again with `kernelcrew judge`; it may depend on what lies beside its buffers",
                )
        return block.model_copy(update={"seconds": self.lab.now() - began})

    def _lane(self, shape: Shape, names: tuple[str, ...], pairs: int) -> Lane:
        large = self.lab.ring_bytes(shape) >= LARGE_BYTES
        return Lane(shape=shape, names=names, pairs=max(2, pairs - 2) if large else pairs)

    def _shapes(self, held_out: bool) -> tuple[Shape, ...]:
        return (*self.operator.timed(), *(self.operator.held_out() if held_out else ()))

    def _measured_table(self, build: Build) -> NoiseTable:
        self.noise(build)
        return self._tables[build.artifact_hash]

    def _known_table(self, baseline: Build) -> NoiseTable:
        """The baseline's own noise; for a screen another build's will do, the widest, so none is measured anew."""
        own = self._tables.get(baseline.artifact_hash)
        if own is None and self._tables:
            own = max(self._tables.values(), key=lambda t: t.noise.aa_sd)
        return own or self._measured_table(baseline)


def _ending(progress: Progress, contest: _Contest, late: bool) -> tuple[str, str]:
    """Status and reason of a confirmation without fault."""
    disturbed = contest.unsettled()
    if disturbed:
        return "noisy", disturbed
    if progress.decided:
        return "decided", ""
    pieces = [f"class {c} neither shown faster nor given up" for c in progress.unreached]
    if progress.unproven:
        pieces.append(f"not shown not slower: {some(progress.unproven)}")
    end = "the time was up" if late else f"{progress.max_blocks} blocks do not suffice"
    reason = f"{end} (after {progress.blocks} block{'' if progress.blocks == 1 else 's'}); {'; '.join(pieces)}"
    if contest.table.noise.quiet:
        return "undecided", reason
    return "noisy", f"{reason}; {contest.table.noise.reason}"
