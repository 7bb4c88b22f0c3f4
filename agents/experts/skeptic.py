"""The skeptic's rules: what the numbers of one candidate miss, from the measured record."""

from __future__ import annotations

import re
from typing import NamedTuple

from kernelcrew.agents.evidence import AblationNote, SkepticEvidence
from kernelcrew.agents.experts.figures import axes_of, geometric_mean
from kernelcrew.agents.nouns import KnobValue, Review, TestRequest
from kernelcrew.tools.nouns import Timing

OVER_PEAK = 1.25
"""Share of peak times ratio above which a gain is doubted, and new seeds are asked for."""
BEYOND_PEAK = 4.0
"""The same above which right results on new seeds do not settle it: a neighbour on the memory bus can halve a peak
while it is measured, and once more the share of it; no more than that is the host's."""
BEYOND_PROMISE = 3.0
"""Measured gain over the promised one from which the mechanism does not explain it."""
FLAGS_EXPLAIN = 1.1
"""Gain over the contract flags alone under which the flags are the explanation."""
NOTHING = 1.01
"""Effect of a change under which it does nothing."""
NEAR_LIMIT = 0.8
"""Share of an error limit that is too near."""
ONE_SHAPE = 3
"""Shapes that a class needs before its gain can be said to rest on one of them."""
THRESHOLD = re.compile(r"\b(?P<axis>[a-z_]\w*)\s*(?:<=?|>=?|==|!=)\s*(?P<value>\d{1,7}|[A-Z]\w*)\b")
DEFINE = re.compile(r"^#\s*define\s+(\w+)\s+(\d{1,7})\s*$|^ -D(\w+)=(\d{1,7})$", re.MULTILINE)
"""A knob's value: in the source, or (later, so that it wins) in the plan."""
MOST_TESTS = 6
MODERATE = 37
"""An odd and moderate size for the axes that a test is not about."""
LONGEST = 1 << 20
"""Elements of an axis that shows as much as a longer one."""


class Doubts(NamedTuple):
    """What was found, by what it asks for."""

    fatal: list[str]
    """Makes adoption wrong."""
    open: list[str]
    """More tests would settle it."""
    notes: list[str]
    """For the record."""


def review(evidence: SkepticEvidence) -> Review:
    """Object, ask for more tests once, or let pass. Every objection carries its figure."""
    timing = evidence.confirmed or evidence.screen
    doubts = Doubts([], [], [])
    if timing is not None:
        _plausible(evidence, timing, doubts)
        _promised(evidence, timing, doubts)
        _resting_on_one(timing, doubts)
        _flags(evidence, timing, doubts)
    _attribution(evidence, doubts)
    _errors(evidence, doubts)
    tests = [] if evidence.tests_done else tests_for(evidence, timing, doubts)
    objections = [*doubts.fatal, *doubts.open, *doubts.notes]
    verdict = "object" if doubts.fatal else "more_tests" if tests else "pass"
    hypotheses = [
        f"{id_}: {evidence.hypotheses.get(id_, 'unread: no figure was measured for it')}" for id_ in evidence.kept
    ]
    return Review.model_validate(
        {
            "verdict": verdict,
            "objections": objections,
            "tests": tests if verdict == "more_tests" else [],
            "hypotheses": hypotheses,
            "summary": _summary(timing, verdict, objections, tests),
        }
    )


def tests_for(evidence: SkepticEvidence, timing: Timing | None, doubts: Doubts) -> list[TestRequest]:
    """Shapes on both sides of each size that the new code compares with, and beside the slowest; seeds for a doubt."""
    wanted: list[TestRequest] = []
    worst = min(timing.shapes, key=lambda s: s.ratio) if timing and timing.shapes else None
    base = axes_of(worst.shape) if worst else {name: MODERATE for name in evidence.operator.axes}
    for axis, value in _thresholds(evidence):
        for beside in (value - 1, value + 1):
            why = f"the new code compares {axis} with {value}"
            wanted.append(_shape({**dict.fromkeys(base, MODERATE), axis: beside}, why))
    if timing is not None and worst is not None and worst.ratio < 1 + timing.margin:
        longest = max(base, key=lambda name: base[name])
        why = f"beside the slowest shape {worst.shape} ({worst.ratio:.2f}x)"
        wanted.append(_shape({**base, longest: min(base[longest], LONGEST) + 1}, why))
    if doubts.open:
        wanted.insert(0, TestRequest(kind="seed", axes=[], distribution="", why=doubts.open[0]))
    return _unlike(wanted)[:MOST_TESTS]


def _plausible(evidence: SkepticEvidence, timing: Timing, doubts: Doubts) -> None:
    shares = {c.shape: c for c in evidence.ceilings}
    for shape in timing.shapes:
        ceiling = shares.get(shape.shape)
        if ceiling is None:
            continue
        reached = ceiling.share * shape.ratio
        peak = f"the {ceiling.level} peak"
        told = f"{shape.shape}: {ceiling.share:.2f} of {peak} times {shape.ratio:.2f} is {reached:.2f} of it"
        if reached > OVER_PEAK and not evidence.tests_done:
            doubts.open.append(f"implausible gain at {told}")
        elif reached > BEYOND_PEAK:
            doubts.fatal.append(f"implausible gain at {told}")
        elif reached > OVER_PEAK:
            doubts.notes.append(f"right on new seeds, so that the peak was measured too low: {told}")


def _promised(evidence: SkepticEvidence, timing: Timing, doubts: Doubts) -> None:
    promised = [c.gain for c in evidence.proposal.changes if c.id in evidence.kept]
    for measured in timing.classes:
        if promised and measured.ratio > BEYOND_PROMISE * max(promised):
            doubts.notes.append(
                f"{measured.shape_class} gained {measured.ratio:.2f}x where {max(promised):.2f}x was promised: the "
                f"mechanism named does not explain it"
            )


def _resting_on_one(timing: Timing, doubts: Doubts) -> None:
    for measured in timing.classes:
        shapes = sorted((s for s in timing.shapes if s.shape_class == measured.shape_class), key=lambda s: s.ratio)
        if len(shapes) < ONE_SHAPE or measured.ratio <= 1 + timing.margin:
            continue
        rest = geometric_mean([s.ratio for s in shapes[:-1]])
        if rest <= NOTHING:
            doubts.notes.append(
                f"the gain of {measured.shape_class} ({measured.ratio:.2f}x) rests on {shapes[-1].shape} "
                f"({shapes[-1].ratio:.2f}x); the others are at {rest:.2f}x"
            )


def _flags(evidence: SkepticEvidence, timing: Timing, doubts: Doubts) -> None:
    over = dict(evidence.over_start)
    if not over and evidence.incumbent_is_start:
        over = {c.shape_class: c.ratio for c in timing.classes}
    beyond = {c: over[c] / alone for c, alone in evidence.flags_alone.items() if c in over and alone > FLAGS_EXPLAIN}
    if beyond and max(beyond.values()) < FLAGS_EXPLAIN:
        shown = ", ".join(f"{c} {r:.2f}x" for c, r in beyond.items())
        doubts.notes.append(
            f"the contract flags alone explain it: over the start kernel with those flags it gives {shown}"
        )


def _attribution(evidence: SkepticEvidence, doubts: Doubts) -> None:
    for row in evidence.ablation:
        if row.change not in evidence.kept or not row.separable or not row.effect:
            continue
        hurt = [f"{c} {row.effect[c]:.2f}x" for c, high in row.high.items() if high < 1 / NOTHING]
        if hurt:
            doubts.notes.append(f"{row.change} makes {', '.join(hurt)} slower: the set is faster without it there")
        elif _best(row) < NOTHING:
            doubts.notes.append(f"{row.change} does nothing: at best {_best(row):.2f}x in the ablation")


def _best(row: AblationNote) -> float:
    return max(row.effect.values())


def _errors(evidence: SkepticEvidence, doubts: Doubts) -> None:
    checked = evidence.verification
    if checked is None:
        return
    if checked.nearest > NEAR_LIMIT:
        told = f"{checked.nearest_case} uses {checked.nearest:.0%} of its error limit"
        (doubts.notes if evidence.tests_done else doubts.open).append(told)
    if not checked.deterministic and evidence.operator.contract.deterministic:
        doubts.fatal.append("two calls on one input differed, and the contract promises that they do not")
    elif not checked.deterministic:
        doubts.notes.append("two calls on one input differed in the last bits")


def _thresholds(evidence: SkepticEvidence) -> list[tuple[str, int]]:
    """Axis and size of each comparison that the patch adds."""
    lines = (line for line in evidence.diff.splitlines() if line.startswith("+") and not line.startswith("+++"))
    added = "\n".join(line[1:] for line in lines)
    values = {m[1] or m[3]: m[2] or m[4] for m in DEFINE.finditer(added)}
    found: list[tuple[str, int]] = []
    for match in THRESHOLD.finditer(added):
        value = values.get(match["value"], match["value"])
        if match["axis"] in evidence.operator.axes and value.isdigit() and 0 < int(value) <= LONGEST:
            found.append((match["axis"], int(value)))
    return list(dict.fromkeys(found))


def _shape(axes: dict[str, int], why: str) -> TestRequest:
    return TestRequest(
        kind="shape", axes=[KnobValue(name=n, value=v) for n, v in axes.items()], distribution="", why=why
    )


def _unlike(tests: list[TestRequest]) -> list[TestRequest]:
    """Each shape once, the first reason kept."""
    found: dict[str, TestRequest] = {}
    for test in tests:
        found.setdefault(test.kind + ",".join(f"{a.name}={a.value}" for a in test.axes), test)
    return list(found.values())


def _summary(timing: Timing | None, verdict: str, objections: list[str], tests: list[TestRequest]) -> str:
    if timing is None or not timing.shapes:
        return "Nothing was timed."
    worst = min(timing.shapes, key=lambda s: s.ratio)
    best = max(timing.shapes, key=lambda s: s.ratio)
    spread = f"from {worst.ratio:.2f}x at {worst.shape} to {best.ratio:.2f}x at {best.shape}"
    if verdict == "object":
        return f"Objection: {objections[0]} ({spread})."
    if verdict == "more_tests":
        return f"{len(tests)} more tests wanted before a word on it ({spread})."
    told = f" Noted: {objections[0]}." if objections else ""
    return f"No objection: {spread}.{told}"
