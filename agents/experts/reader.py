"""The profiler-reader's rules: what holds each shape class back, from the profile of every shape."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kernelcrew.agents.evidence import LoopSpan, ReaderEvidence
from kernelcrew.agents.experts.figures import (
    SHORT_ROW,
    Chain,
    RowFit,
    carries,
    chain_of,
    chains_an_element,
    geometric_mean,
    inner_loop,
    multiply_adds,
    outer_loop,
    row_fit,
    row_length,
    sums_rows,
    times_round,
    updates,
)
from kernelcrew.agents.nouns import Bottleneck, BottleneckSummary
from kernelcrew.kernels.nouns import CLASSES, ShapeClass
from kernelcrew.tools.nouns import ShapeProfile

Kind = Literal["latency", "bandwidth", "overhead", "compute", "not_vectorized", "near_peak"]

NEAR_PEAK = 0.85
"""Share of the measured peak from which there is nothing to gain."""
ONE_CHAIN = (0.7, 1.8)
"""Time an element over the latency of a dependent add within which one accumulator explains it."""
HALF = 0.5
"""Share of a row's time from which its fixed part holds it back; share of a peak from which no chain is to blame."""


LONG_ROW = 1024
"""Elements from which a row's start and end cannot cost half of a vectorised row."""
HALF_CHAINED = 0.4
"""The least of `ONE_CHAIN` where a chain is a part of the work only, as the scores are in attention."""
TINY_NS = 500.0
"""Work at peak speed, below which starting loops and calls weighs as much as the work."""


class Reading(NamedTuple):
    """One shape, read."""

    shape: ShapeProfile
    kind: Kind
    cited: str


class Frame(NamedTuple):
    """What all shapes of a profile have in common."""

    chain: Chain
    fit: RowFit | None
    inner: LoopSpan | None
    outer: LoopSpan | None
    rows: bool
    """Sums over contiguous rows, whose time falls into rows and elements."""
    carried: bool
    """The inner loop adds to one variable."""
    updated: bool
    """The inner loop adds to elements of an array."""
    chains: int
    """Chains of additions that each element goes through; 0 where elements are met many times."""


def read_profile(evidence: ReaderEvidence) -> BottleneckSummary:
    """Bottlenecks by class and kind, most to gain first. Every class with shapes gets at least one."""
    source, profile = evidence.source, evidence.profile
    inner = inner_loop(source, profile)
    frame = Frame(
        chain=chain_of(source, profile, evidence.machine),
        fit=row_fit(profile.shapes),
        inner=inner,
        outer=outer_loop(source, inner),
        rows=sums_rows(evidence.operator),
        carried=carries(source, inner),
        updated=updates(source, inner),
        chains=chains_an_element(evidence.operator, source, inner),
    )
    groups: dict[tuple[ShapeClass, Kind], list[Reading]] = {}
    for shape in profile.shapes:
        reading = read_row_shape(shape, frame) if frame.rows else read_shape(shape, frame)
        groups.setdefault((shape.shape_class, reading.kind), []).append(reading)
    order = sorted(groups, key=lambda key: (key[1] == "near_peak", _share(groups[key]), CLASSES.index(key[0]), key[1]))
    found = [_bottleneck(f"b{n}", *key, groups[key], frame) for n, key in enumerate(order, 1)]
    return BottleneckSummary(bottlenecks=found, grade=profile.grade, text=_text(found, evidence))


def read_shape(shape: ShapeProfile, frame: Frame) -> Reading:
    """What holds one shape of any operator back: the nearer roof, unless short or serial loops keep it off.

    The roofs are the read peak of the level its bytes fit in and the multiply-add peak (roofline).
    """
    chain, told = frame.chain, f"{shape.shape}: {_roof(shape)}"
    if shape.share >= NEAR_PEAK:
        return Reading(shape, "near_peak", told)
    round_ = 0 if chain.by_hand else times_round(shape, frame.inner)
    if shape.share < HALF and 0 < round_ <= 2 * max(chain.lanes, 4):
        return Reading(shape, "overhead", f"{told}; the inner loop goes round {round_} times before it starts anew")
    if shape.share < HALF and shape.time_us * 1e3 * shape.share < TINY_NS:
        work = shape.time_us * 1e3 * shape.share
        return Reading(shape, "overhead", f"{told}; at its peak it would take {work:.0f} ns of {shape.time_us:.2f} us")
    if frame.carried and not chain.by_hand and chain.latency_ns > 0 and shape.share < HALF:
        each = shape.ns_per_element / max(frame.chains, 1)
        if not frame.chains and multiply_adds(shape):
            each = 2 / shape.gflop_s
        chained = each * chain.lanes / chain.latency_ns
        if HALF_CHAINED <= chained <= ONE_CHAIN[1]:
            held = f"{each:.3f} ns a term, {chained:.2f} of one add's {chain.latency_ns:.2f} ns"
            return Reading(shape, "latency", f"{told}; {held}")
    if chain.lanes == 1:
        return Reading(shape, "not_vectorized", f"{told}; one element an instruction")
    kind: Kind = "compute" if _share_of_flops(shape) >= _share_of_bytes(shape) else "bandwidth"
    access = "; each term loads and stores its sum" if frame.updated and not chain.by_hand else ""
    return Reading(shape, kind, told + access)


def _roof(shape: ShapeProfile) -> str:
    """The nearer roof and how much of it is reached."""
    if _share_of_flops(shape) >= _share_of_bytes(shape):
        return f"{shape.share:.0%} of the multiply-add peak ({shape.gflop_s:.1f} of {shape.peak_gflop_s:.1f} GFLOP/s)"
    return f"{shape.share:.0%} of the {shape.level} peak ({shape.gb_s:.1f} of {shape.peak_gb_s:.1f} GB/s)"


def _share_of_bytes(shape: ShapeProfile) -> float:
    return shape.gb_s / shape.peak_gb_s if shape.peak_gb_s else 0.0


def _share_of_flops(shape: ShapeProfile) -> float:
    return shape.gflop_s / shape.peak_gflop_s if shape.peak_gflop_s else 0.0


def read_row_shape(shape: ShapeProfile, frame: Frame) -> Reading:
    """What holds one shape of a sum over rows back, with its figures."""
    length, chain, fit = row_length(shape), frame.chain, frame.fit
    share = f"{shape.share:.0%} of the {shape.level} peak ({shape.gb_s:.1f} of {shape.peak_gb_s:.1f} GB/s)"
    if shape.share >= NEAR_PEAK:
        return Reading(shape, "near_peak", f"{shape.shape}: {share}")
    if length <= SHORT_ROW and shape.ns_per_row > 0:
        fixed = fit.fixed_ns / shape.ns_per_row if fit else 0.0
        if shape.share < HALF and (fixed >= HALF or length < 2):
            part = f", of which {min(fit.fixed_ns, shape.ns_per_row):.1f} ns whatever it holds" if fit else ""
            return Reading(
                shape, "overhead", f"{shape.shape}: {shape.ns_per_row:.1f} ns a row of {length:.0f}{part}; {share}"
            )
    if chain.latency_ns > 0 and not chain.by_hand and length > 2 * chain.lanes and shape.share < HALF:
        chained = shape.ns_per_element * chain.lanes / chain.latency_ns
        if ONE_CHAIN[0] <= chained <= ONE_CHAIN[1]:
            lanes = f" over {chain.lanes} lanes" if chain.lanes > 1 else ""
            held = (
                f"{shape.ns_per_element:.3f} ns an element, {chained:.2f} of one add's {chain.latency_ns:.2f} ns{lanes}"
            )
            return Reading(shape, "latency", f"{shape.shape}: {held}; {share}")
    if chain.lanes == 1:
        return Reading(
            shape,
            "not_vectorized",
            f"{shape.shape}: {shape.ns_per_element:.3f} ns an element, one add at a time; {share}",
        )
    if _share_of_flops(shape) > _share_of_bytes(shape):
        flops = f"{shape.gflop_s:.1f} of {shape.peak_gflop_s:.1f} GFLOP/s"
        return Reading(shape, "compute", f"{shape.shape}: {flops}; {share}")
    if length <= LONG_ROW and shape.share < HALF:
        return Reading(shape, "overhead", f"{shape.shape}: {shape.ns_per_row:.1f} ns a row of {length:.0f}; {share}")
    return Reading(shape, "bandwidth", f"{shape.shape}: {share}")


def _bottleneck(id_: str, shape_class: ShapeClass, kind: Kind, readings: list[Reading], frame: Frame) -> Bottleneck:
    loop = frame.outer if kind == "overhead" else frame.inner
    return Bottleneck(
        id=id_,
        shape_class=shape_class,
        kind=kind,
        line_first=loop.first if loop else 0,
        line_last=loop.last if loop else 0,
        share_of_peak=round(_share(readings), 4),
        cited=[r.cited for r in readings],
        summary=_summary(kind, readings, frame) if frame.rows else _summary_of_any(kind, readings, frame),
    )


def _share(readings: list[Reading]) -> float:
    return geometric_mean([r.shape.share for r in readings])


def _summary(kind: Kind, readings: list[Reading], frame: Frame) -> str:
    per_element = sorted(r.shape.ns_per_element for r in readings)
    span = (
        f"{per_element[0]:.3f} to {per_element[-1]:.3f} ns an element"
        if len(per_element) > 1
        else f"{per_element[0]:.3f} ns an element"
    )
    lines = f"lines {frame.inner.first}-{frame.inner.last}" if frame.inner else "the kernel"
    rows = f"lines {frame.outer.first}-{frame.outer.last}" if frame.outer else "the kernel"
    words: dict[Kind, str] = {
        "latency": f"Each add of {lines} waits for the one before it: {span} against {frame.chain.latency_ns:.2f} ns "
        f"for one dependent add. More independent accumulators are needed.",
        "overhead": f"Starting and ending a row in {rows} costs as much as its work: "
        f"{readings[0].shape.ns_per_row:.1f} ns a row at {readings[0].shape.shape}.",
        "not_vectorized": f"{lines} add one element an instruction ({span}), and neighbouring rows overlap "
        f"enough to hide the chain.",
        "bandwidth": f"{lines} run at {_share(readings):.0%} of what the memory level gives.",
        "compute": f"{lines} are nearer to the arithmetic peak than to the memory peak.",
        "near_peak": f"At {_share(readings):.0%} of the measured peak: nothing is to be gained.",
    }
    return words[kind]


def _summary_of_any(kind: Kind, readings: list[Reading], frame: Frame) -> str:
    lines = f"lines {frame.inner.first}-{frame.inner.last}" if frame.inner else "the kernel"
    share, one = _share(readings), readings[0].shape
    access = " Each term loads and stores its sum, which binds before arithmetic does." if frame.updated else ""
    access = "" if frame.chain.by_hand else access
    words: dict[Kind, str] = {
        "latency": f"Each addition of {lines} waits for the one before it: independent sums are needed.",
        "overhead": f"Starting and ending loops and the call cost as much as the work around {lines}: "
        f"{one.time_us:.2f} us at {one.shape}, {share:.0%} of peak.",
        "not_vectorized": f"{lines} work on one element an instruction, at {share:.0%} of peak.",
        "bandwidth": f"{lines} run at {share:.0%} of what the memory level gives.{access}",
        "compute": f"There are operations enough to reach the multiply-add peak, and {lines} reach {share:.0%} of it."
        f"{access}",
        "near_peak": f"At {share:.0%} of the measured peak: nothing is to be gained.",
    }
    return words[kind]


def _text(found: list[Bottleneck], evidence: ReaderEvidence) -> str:
    profile = evidence.profile
    by_class = []
    for shape_class in CLASSES:
        kinds = [f"{b.kind} ({b.share_of_peak:.0%} of peak)" for b in found if b.shape_class == shape_class]
        if kinds:
            by_class.append(f"{shape_class}: {', '.join(kinds)}")
    scalar = [r for r in profile.loops if not r.vectorized and r.message]
    remark = f" The compiler says of line {scalar[0].line}: {scalar[0].message}." if scalar else ""
    graded = f"Grade {profile.grade}: {profile.grade_reason}." if profile.grade_reason else f"Grade {profile.grade}."
    return f"{len(profile.shapes)} shapes read. {'; '.join(by_class)}.{remark} {graded}"
