"""Instructions of one call by single steps: the object runs as it is, so every instruction set is counted.

A step costs some 20 to 50 us, so places are shrunk further; addresses become source lines by binutils' addr2line, run
in the sandbox since it reads the candidate's object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic

from kernelcrew import proc
from kernelcrew.settings import child_environment
from kernelcrew.tools.profile_counting import Attempt, Dump, Place, Subject, Traced, place_of, why_not, words
from kernelcrew.tools.sandbox import wrap

MOST_ELEMENTS = 5 << 10
MEMORY_BYTES = 2 << 30
REFUSED = 5
"""The driver's exit status when it may not trace its child."""


def run_steps(subject: Subject, traced: Traced, members: Sequence[Place], time_s: float) -> Attempt:
    """One call a place, on at most MOST_ELEMENTS elements."""
    if time_s <= 0:
        return Attempt(reason="no time was left for single steps")
    deadline = monotonic() + time_s
    small = [place_of(subject.operator, place.shape, MOST_ELEMENTS) for place in members]
    args = words(subject.operator, subject.candidate.backend, small, traced.plan.scratch_bytes)
    argv = [str(traced.driver), "steps", str(traced.object), traced.plan.entry, *args]
    done = proc.run(
        wrap(subject.sandbox, argv, (subject.folder,), ()), env=child_environment(),
        limits=proc.Limits(time_s=time_s, memory_bytes=MEMORY_BYTES),
    )
    if done.code == REFUSED:
        return Attempt(reason=f"no single steps: {done.err.strip()[:120]}")
    if not done.ok:
        return Attempt(reason=f"the single-stepped driver ended with {why_not(done)}")
    totals, times = parse_steps(done.out)
    if sorted(totals) != list(range(len(small))):
        return Attempt(reason=f"single steps told {len(totals)} of {len(small)} counts")
    offsets = sorted({offset for counted in times.values() for offset in counted})
    lines = _lines(subject, traced, offsets, deadline - monotonic())
    dumps = tuple(Dump(total=totals[k], lines=by_line(times.get(k, {}), lines)) for k in range(len(small)))
    return Attempt(way="single steps", places=tuple(small), dumps=dumps)


def parse_steps(text: str) -> tuple[dict[int, int], dict[int, dict[int, int]]]:
    """Instructions by place, and by place how often each offset was executed; lines of another form are passed over."""
    totals: dict[int, int] = {}
    times: dict[int, dict[int, int]] = {}
    for line in text.splitlines():
        word, *numbers = line.split() or [""]
        if not all(number.isdigit() for number in numbers):
            continue
        if word == "stepped" and len(numbers) == 2:
            totals[int(numbers[0])] = int(numbers[1])
        elif word == "at" and len(numbers) == 3:
            times.setdefault(int(numbers[0]), {})[int(numbers[1])] = int(numbers[2])
    return totals, times


def parse_addresses(text: str, offsets: Sequence[int], source_name: str) -> dict[int, int]:
    """Offset to source line, from addr2line's `FILE:LINE` a line; offsets of other files are left out."""
    found: dict[int, int] = {}
    for offset, line in zip(offsets, text.splitlines(), strict=False):
        file, _, rest = line.rpartition(":")
        number = rest.split(" ")[0]
        if (file == source_name or file.endswith("/" + source_name)) and number.isdigit():
            found[offset] = int(number)
    return found


def by_line(times: Mapping[int, int], lines: Mapping[int, int]) -> dict[int, int]:
    """Instructions by source line."""
    summed: dict[int, int] = {}
    for offset, count in times.items():
        if offset in lines:
            summed[lines[offset]] = summed.get(lines[offset], 0) + count
    return summed


def _lines(subject: Subject, traced: Traced, offsets: Sequence[int], time_s: float) -> dict[int, int]:
    """Source lines of the offsets; none where addr2line is missing or fails, since the counts hold without them."""
    if not offsets or time_s <= 0:
        return {}
    argv = ["addr2line", "-e", str(traced.object), *(hex(offset) for offset in offsets)]
    done = proc.run(
        wrap(subject.sandbox, argv, (subject.folder,), ()), env=child_environment(), limits=proc.Limits(time_s=time_s)
    )
    return parse_addresses(done.out, offsets, traced.source.name) if done.ok else {}
