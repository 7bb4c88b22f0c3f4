"""The tools of one operator on this machine, as typed tools of the bus.

`Workshop` joins builder, verifier, bench and profiler once; `register_on` puts them on a bus. Nothing here decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from kernelcrew.kernels.nouns import Candidate, Operator, Shape
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import Record
from kernelcrew.settings import Settings
from kernelcrew.tools.build import Builder
from kernelcrew.tools.bus import Bus, Level, Tool
from kernelcrew.tools.nouns import AlphaPlan, Build, Noise, Profile, Timing, Verification
from kernelcrew.tools.peaks import measure_peaks, with_peaks
from kernelcrew.tools.profile import ProfileOptions, profile, shape_figures
from kernelcrew.tools.reference import Reference
from kernelcrew.tools.sandbox import Sandbox
from kernelcrew.tools.timing import Bench
from kernelcrew.tools.verify import VerifyOptions, verify
from kernelcrew.tools.worker import Worker


class BuildArgs(Record):
    """What the builder takes."""

    candidates: tuple[Candidate, ...]
    """Built in parallel; one that fails is a value."""


class Builds(Record):
    """What it gives."""

    builds: tuple[Build, ...]
    """One a candidate, in order."""


class VerifyArgs(Record):
    """What the verifier takes."""

    build: Build
    """A build that is ok."""
    options: VerifyOptions = VerifyOptions()
    """Extra shapes, distributions and seeds; nothing can be removed."""


class BuildRef(Record):
    """One build."""

    build: Build
    """A build that is ok."""


class ProfileArgs(Record):
    """What the profiler takes."""

    candidate: Candidate
    """What was built."""
    build: Build
    """Its build."""


class TimesArgs(Record):
    """What a plain timing takes."""

    build: Build
    """A build that is verified."""
    shapes: tuple[Shape, ...]
    """Any shapes, also such as the operator does not list."""


class Times(Record):
    """What it gives."""

    us: dict[str, float]
    """Median of one call, by shape."""
    ring_bytes: dict[str, int]
    """What a sample ran over, by shape."""


class ScreenArgs(Record):
    """What a screen takes."""

    candidates: tuple[Build, ...]
    """All are held against the same baseline in the same blocks."""
    baseline: Build
    """The incumbent, or the whole set in an ablation."""
    blocks: int = 0
    """More blocks than a screen's own, for figures that are only reported."""


class Screens(Record):
    """What it gives."""

    timings: tuple[Timing, ...]
    """One a candidate, in order."""


class ConfirmArgs(Record):
    """What a confirmation takes."""

    candidate: Build
    """To be shown faster."""
    incumbent: Build
    """Against this."""
    start: Build
    """And not slower than this, so that tolerated losses cannot add up."""
    plan: AlphaPlan
    """How the false-accept rate is spent."""
    deadline_s: float
    """Seconds it may take."""
    held_out: bool = False
    """Whether held-out shapes are timed too (for rules)."""


BUILD = Tool(
    "build", "Compile candidates in the sandbox after the source policy", BuildArgs, Builds, Level.WRITE_SCRATCH
)
VERIFY = Tool("verify", "Safety and correctness against the float64 reference", VerifyArgs, Verification, Level.MEASURE)
NOISE = Tool("noise", "The baseline against its own copy", BuildRef, Noise, Level.MEASURE, measures=True)
PROFILE = Tool(
    "profile", "Every timed shape against the measured peaks", ProfileArgs, Profile, Level.MEASURE, measures=True
)
SCREEN = Tool("screen", "A few short blocks; never decides", ScreenArgs, Screens, Level.MEASURE, measures=True)
TIMES = Tool("times", "One kernel's call times on given shapes", TimesArgs, Times, Level.MEASURE, measures=True)
CONFIRM = Tool("confirm", "Sequential test on new blocks", ConfirmArgs, Timing, Level.MEASURE, measures=True)


@dataclass
class Workshop:
    """Everything that builds and measures one operator here."""

    operator: Operator
    settings: Settings
    sandbox: Sandbox
    machine: Machine
    core: int | None
    keep: Callable[[str], str]

    @cached_property
    def builder(self) -> Builder:
        return Builder(self.operator, self.settings, self.sandbox, self.machine)

    @cached_property
    def reference(self) -> Reference:
        return Reference(self.operator)

    @cached_property
    def bench(self) -> Bench:
        bench = Bench.on_this_machine(self.operator, self.settings, self.sandbox, self.core, self.keep)
        bench.recheck, bench.higher = self._recheck, self._higher
        return bench

    def build(self, args: BuildArgs) -> Builds:
        return Builds(builds=tuple(self.builder.build_many(list(args.candidates))))

    def verify(self, args: VerifyArgs) -> Verification:
        factory = partial(
            Worker.start, operator=self.operator, settings=self.settings, sandbox=self.sandbox, core=self.core
        )
        return verify(self.operator, args.build, factory, self.reference, args.options)

    def noise(self, args: BuildRef) -> Noise:
        return self.bench.noise(args.build)

    def profile(self, args: ProfileArgs) -> Profile:
        times = self.bench.call_times(args.build)
        options = ProfileOptions(settings=self.settings, sandbox=self.sandbox, ring_bytes=self.bench.ring_bytes())
        found = profile(self.operator, args.candidate, args.build, times, self.machine, options)
        if max((s.share for s in found.shapes), default=0.0) <= 1.0:
            self.bench.ceilings = self._ceilings()
            return found
        # Faster than a peak: the peak was measured on a busy host. It is measured again, and the better one is kept.
        self.bench.ceilings = self._higher()
        return profile(self.operator, args.candidate, args.build, times, self.machine, options)

    def _higher(self) -> dict[str, float]:
        """The ceilings once the peaks were measured again; of two measurements the better one is kept."""
        self.machine = with_peaks(self.machine, measure_peaks(self.machine, self.settings, again=True))
        return self._ceilings()

    def _ceilings(self) -> dict[str, float]:
        """Least time of one call in us, by timed or held-out shape. A ring is held against the level that half of it
        fits in, since a cache that is a little too small still serves a part of it."""
        rings, platform = self.bench.ring_bytes(), self.machine.platform
        shapes = (*self.operator.timed(), *self.operator.held_out())
        return {s.key: shape_figures(self.operator, s, 1.0, platform, rings[s.key] // 2).share for s in shapes}

    def _recheck(self, build: Build) -> str:
        """What is wrong with a build on new inputs, twice as many as usual, in a worker of its own; '' when nothing."""
        found = self.verify(VerifyArgs(build=build, options=VerifyOptions(seeds=2)))
        return "" if found.status == "ok" else found.reason

    def screen(self, args: ScreenArgs) -> Screens:
        return Screens(timings=tuple(self.bench.screen_many(list(args.candidates), args.baseline, blocks=args.blocks)))

    def times(self, args: TimesArgs) -> Times:
        rings = {s.key: self.bench.lab.ring_bytes(s) for s in args.shapes}
        return Times(us=self.bench.call_times(args.build, args.shapes), ring_bytes=rings)

    def confirm(self, args: ConfirmArgs) -> Timing:
        return self.bench.confirm(
            args.candidate, args.incumbent, args.start, args.plan, args.deadline_s, include_held_out=args.held_out
        )

    def close(self) -> None:
        """End what was started: the reference's child, the bench's rings."""
        if "reference" in self.__dict__:
            self.reference.close()
        if "bench" in self.__dict__:
            self.bench.close()

    def register_on(self, bus: Bus) -> None:
        """Put the tools on a bus."""
        bus.register(BUILD, self.build)
        bus.register(VERIFY, self.verify)
        bus.register(NOISE, self.noise)
        bus.register(PROFILE, self.profile)
        bus.register(SCREEN, self.screen)
        bus.register(TIMES, self.times)
        bus.register(CONFIRM, self.confirm)
