"""The profile of one build: every timed shape against the measured peaks, and as good a count as this machine allows.

Grades: `counters` when the kernel gives hardware counters, `simulated` when callgrind or single steps count instead,
`remarks` when there is only time and what the compiler said. The reason why no better grade was to be had is part of
the profile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from kernelcrew.errors import HarnessError, StoreError
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Candidate, Operator, Shape
from kernelcrew.platforms.nouns import Machine, Peak, Platform
from kernelcrew.record import Record
from kernelcrew.settings import Settings
from kernelcrew.tools.nouns import Build, Grade, Profile, ShapeProfile
from kernelcrew.tools.profile_counters import count_by_hardware
from kernelcrew.tools.profile_counting import Counting, Place, Subject, elements, places
from kernelcrew.tools.profile_simulated import count_by_simulation
from kernelcrew.tools.sandbox import Sandbox

MOST_ELEMENTS = 1 << 19
"""Elements of all tensors of a counted call: a simulator runs some fifty times slower than the machine."""


class ProfileOptions(Record):
    """How far a profile goes beyond times and remarks."""

    settings: Settings | None = None
    """Where work files may lie; without it nothing is counted."""
    sandbox: Sandbox | None = None
    """What the counted calls run in; without it nothing is counted."""
    ring_bytes: dict[str, int] = Field(default_factory=dict)
    """Shape key to the bytes of one sample's ring of buffers; the bytes of one call where it is not given."""
    grades: tuple[Grade, ...] = ("counters", "simulated")
    """Ways of counting to try, in this order."""
    most_elements: int = MOST_ELEMENTS
    """Shapes above it are counted on smaller axes."""
    budget_s: float = 6.0
    """Seconds that simulation may take."""


def profile(
    operator: Operator, candidate: Candidate, build: Build, times_us: Mapping[str, float], machine: Machine,
    options: ProfileOptions | None = None,
) -> Profile:
    """The profile of `build` from median call times (shape key to us) and the measured peaks in `machine.platform`.

    Timed shapes without a time are left out. A count that cannot be had lowers the grade and is told in
    `grade_reason`; HarnessError means that our own driver is broken or that the build is not one.
    """
    if build.status != "ok":
        raise HarnessError(f"profile of a build that is {build.status}", fix="profile only builds that are ok")
    wanted = options or ProfileOptions()
    grade, counting = _count(operator, candidate, build, machine, wanted)
    counts = {count.shape: count for count in counting.counts}
    shapes = []
    for shape in operator.timed():
        if shape.key in times_us:
            ring = wanted.ring_bytes.get(shape.key)
            figures = shape_figures(operator, shape, times_us[shape.key], machine.platform, ring)
            count = counts.get(shape.key)
            if count is not None:
                extra = count.model_dump(include={"instructions", "cycles", "counted_on"})
                figures = figures.model_copy(update=extra)
            shapes.append(figures)
    return Profile(
        grade=grade, grade_reason=counting.reason, shapes=tuple(shapes), loops=build.loops,
        hot_lines=counting.hot_lines, candidate=candidate.identity,
    )


def shape_figures(
    operator: Operator, shape: Shape, time_us: float, platform: Platform, ring_bytes: int | None = None
) -> ShapeProfile:
    """One shape's rates and shares. GB/s and GFLOP/s are bytes and flops of the cost formula over the time.

    The read peak is the ceiling at the ring's footprint, the compute peak is multiply-add out of registers (roofline:
    Williams, Waterman, Patterson 2009). A peak that was not measured is 0, and so is its share.
    """
    call_bytes, flops = (float(parse(text).value(shape.axes)) for text in (operator.cost.bytes, operator.cost.flops))
    footprint = float(ring_bytes or call_bytes)
    level = platform.level_of(footprint)
    read = _value(platform.ceiling("read", footprint) or platform.peak("read", level))
    compute = _value(platform.peak("fma", "core"))
    time_ns = max(time_us, 0.0) * 1e3
    gb_s, gflop_s = _over(call_bytes, time_ns), _over(flops, time_ns)
    inputs = [elements(operator, t, shape.axes) for t in operator.tensors if t.role != "out"]
    outputs = [elements(operator, t, shape.axes) for t in operator.tensors if t.role != "in"]
    return ShapeProfile(
        shape=shape.key, shape_class=shape.shape_class, time_us=time_us, gb_s=gb_s, gflop_s=gflop_s, level=level,
        peak_gb_s=read, peak_gflop_s=compute, share=max(_over(gb_s, read), _over(gflop_s, compute)),
        ns_per_element=_over(time_ns, max(inputs, default=0)), ns_per_row=_over(time_ns, max(outputs, default=0)),
    )


def _count(
    operator: Operator, candidate: Candidate, build: Build, machine: Machine, options: ProfileOptions
) -> tuple[Grade, Counting]:
    """The best grade that works, with its counts and why no better one was to be had."""
    if options.settings is None or options.sandbox is None:
        return "remarks", Counting(reason="nothing was counted: no sandbox was given")
    home = options.settings.home / "cache" / "profile"
    chosen = places(operator, options.most_elements)
    refusals: list[str] = []
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as name:
            subject = Subject(
                operator=operator, candidate=candidate, build=build, machine=machine, sandbox=options.sandbox,
                folder=Path(name),
            )
            for grade in options.grades:
                counting = _counted(grade, subject, chosen, options.budget_s)
                if counting.reason:
                    refusals.append(counting.reason)
                if counting.counts:
                    return grade, counting.model_copy(update={"reason": "; ".join(refusals)})
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreError(f"{home}: {why}", fix="free space there or choose another --workdir") from error
    return "remarks", Counting(reason="; ".join(refusals) or "nothing was asked to be counted")


def _counted(grade: Grade, subject: Subject, chosen: tuple[Place, ...], budget_s: float) -> Counting:
    if not chosen:
        return Counting(reason="the operator has no timed shape")
    if grade == "counters":
        return count_by_hardware(subject, chosen)
    if grade == "simulated":
        return count_by_simulation(subject, chosen, budget_s)
    return Counting(reason="")


def _value(peak: Peak | None) -> float:
    return peak.value if peak is not None else 0.0


def _over(amount: float, per: float) -> float:
    return amount / per if per > 0 else 0.0
