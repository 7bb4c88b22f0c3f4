"""Hardware counters: user instructions and cycles of a call, read by `perf_event_open` inside the sandboxed driver."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelcrew import proc
from kernelcrew.settings import child_environment
from kernelcrew.tools.nouns import Build
from kernelcrew.tools.profile_counting import Count, Counting, Place, Subject, build_driver, why_not, words
from kernelcrew.tools.sandbox import wrap

LIMITS = proc.Limits(time_s=5.0, memory_bytes=2 << 30, output_bytes=1 << 20)
REFUSED = 5
"""The driver's exit status when the kernel gives it no counters."""


def count_by_hardware(subject: Subject, chosen: Sequence[Place]) -> Counting:
    """Count the built object itself, dispatcher and all. A refusal by the kernel is a reason, not an error."""
    scratch = next((v.plan.scratch_bytes for v in subject.candidate.variants if v.plan.scratch_bytes), None)
    driver = build_driver(subject, scratch is not None)
    backend = subject.operator.backends[subject.candidate.backend]
    args = words(subject.operator, subject.candidate.backend, chosen, scratch)
    argv = [str(driver), "counters", subject.build.artifact, backend.entry, *args]
    line = wrap(subject.sandbox, argv, _readable(subject.folder, subject.build), ())
    done = proc.run(line, env=child_environment(), limits=LIMITS)
    if done.code == REFUSED:
        return Counting(reason=f"perf_event_open: {done.err.strip()[:120] or 'the counters could not be read'}")
    if not done.ok:
        return Counting(reason=f"the counting driver ended with {why_not(done)}")
    counts = parse_counts(done.out, chosen)
    if len(counts) != len(chosen):
        return Counting(reason=f"the counting driver told {len(counts)} of {len(chosen)} counts")
    return Counting(counts=counts)


def parse_counts(text: str, chosen: Sequence[Place]) -> tuple[Count, ...]:
    """The driver's lines `counted INDEX INSTRUCTIONS CYCLES` in the order of the places; others are passed over."""
    told: dict[int, Count] = {}
    for line in text.splitlines():
        parts = line.split()
        if len(parts) != 4 or parts[0] != "counted" or not all(part.isdigit() for part in parts[1:]):
            continue
        index, instructions, cycles = (int(part) for part in parts[1:])
        # A group that the kernel never scheduled, since others hold the counters, reads 0.
        if index < len(chosen) and instructions > 0:
            place = chosen[index]
            told[index] = Count(
                shape=place.shape.key, instructions=instructions * place.factor, cycles=cycles * place.factor,
                counted_on=place.key,
            )
    return tuple(told[index] for index in sorted(told))


def _readable(folder: Path, build: Build) -> tuple[Path, ...]:
    return (folder, Path(build.artifact).parent)
