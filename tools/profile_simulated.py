"""Counts without hardware counters: instructions of one call a shape, and the source lines they fall on.

Each variant is compiled once more with debug information, which leaves the code as it is, and called once a place:
under callgrind where valgrind is installed and knows every instruction of the object (it knows no AVX-512 and no SVE),
else by single steps, which run the object itself but some hundred times slower than callgrind.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from kernelcrew import proc
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Candidate
from kernelcrew.settings import child_environment
from kernelcrew.tools.profile_callgrind import run_callgrind
from kernelcrew.tools.profile_counting import (
    Attempt,
    Count,
    Counting,
    Dump,
    Place,
    Subject,
    Traced,
    build_driver,
    why_not,
)
from kernelcrew.tools.profile_steps import run_steps
from kernelcrew.tools.sandbox import wrap

HOT_LINES = 8
LEAST_SHARE = 0.01


def count_by_simulation(subject: Subject, chosen: Sequence[Place], budget_s: float) -> Counting:
    """Count every place with the variant that serves its shape. Takes at most about `budget_s` seconds."""
    deadline = monotonic() + budget_s
    counts: list[Count] = []
    notes: list[str] = []
    hot: tuple[tuple[int, float], ...] = ()
    served: dict[int, list[Place]] = {}
    for place in chosen:
        served.setdefault(variant_for(subject.candidate, place.shape.axes), []).append(place)
    for number, members in sorted(served.items()):
        attempt = _count_variant(subject, number, members, deadline)
        notes += [attempt.reason] if attempt.reason and attempt.reason not in notes else []
        if not attempt.dumps:
            return Counting(reason="; ".join(notes))
        counts += [
            Count(shape=p.shape.key, instructions=d.total * p.factor, counted_on=f"{p.key}, by {attempt.way}")
            for p, d in zip(attempt.places, attempt.dumps, strict=True)
        ]
        if number == 0:
            hot = hot_lines(attempt.dumps)
    return Counting(counts=tuple(counts), hot_lines=hot, reason="; ".join(notes))


def variant_for(candidate: Candidate, axes: dict[str, int]) -> int:
    """Index of the variant that serves these axes: the first whose rule holds."""
    for number, variant in enumerate(candidate.variants):
        if variant.when is None or parse(variant.when).value(axes):
            return number
    return len(candidate.variants) - 1


def hot_lines(dumps: Sequence[Dump]) -> tuple[tuple[int, float], ...]:
    """Lines with the largest share of instructions, each place counting alike."""
    counted = [dump for dump in dumps if dump.total > 0]
    shares: dict[int, float] = {}
    for dump in counted:
        for line, cost in dump.lines.items():
            shares[line] = shares.get(line, 0.0) + cost / dump.total / len(counted)
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return tuple((line, round(share, 4)) for line, share in ranked[:HOT_LINES] if share >= LEAST_SHARE)


def _count_variant(subject: Subject, number: int, members: Sequence[Place], deadline: float) -> Attempt:
    traced = _traced(subject, number, deadline)
    if isinstance(traced, Attempt):
        return traced
    simulated = run_callgrind(subject, traced, members, deadline - monotonic())
    if simulated.dumps or not simulated.try_steps:
        return simulated
    stepped = run_steps(subject, traced, members, deadline - monotonic())
    reasons = [reason for reason in (simulated.reason, stepped.reason) if reason]
    return stepped.model_copy(update={"reason": "; ".join(reasons)})


def _traced(subject: Subject, number: int, deadline: float) -> Traced | Attempt:
    """The variant as an object with debug information, and the driver that calls it."""
    plan, text = subject.candidate.variants[number].plan, subject.candidate.variants[number].source.text
    driver = build_driver(subject, plan.scratch_bytes is not None)
    folder = subject.folder / f"v{number}"
    folder.mkdir()
    source = folder / f"kernelcrew_variant_{number}.c"
    source.write_text(text, encoding="utf-8")
    left_s = deadline - monotonic()
    if left_s <= 0:
        return Attempt(reason="no time was left to count")
    done = proc.run(
        wrap(subject.sandbox, _compile_line(subject, number, source), (), (folder,)),
        env=child_environment(), limits=proc.Limits(time_s=left_s),
    )
    if not done.ok:
        return Attempt(reason=f"the build with debug information failed: {why_not(done)}")
    return Traced(driver=driver, source=source, object=source.with_suffix(".so"), plan=plan)


def _compile_line(subject: Subject, number: int, source: Path) -> list[str]:
    plan = subject.candidate.variants[number].plan
    base = subject.operator.backends[subject.candidate.backend].base_flags
    defines = [f"-D{name}={value}" for name, value in sorted(plan.defines.items())]
    out = ["-g", "-shared", "-fPIC", str(source), "-o", str(source.with_suffix(".so")), "-lm"]
    return [subject.machine.toolchain.path, *base, *plan.flags, *defines, *out]
