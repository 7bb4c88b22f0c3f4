"""Instructions of one call by valgrind's callgrind: the driver watches the call, callgrind leaves one dump a call."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from kernelcrew import proc
from kernelcrew.settings import child_environment
from kernelcrew.tools.profile_counting import Attempt, Dump, Place, Subject, Traced, why_not, words
from kernelcrew.tools.sandbox import wrap

WATCHED = "kernelcrew_counted_call"
OPTIONS = (
    "--tool=callgrind", "--vgdb=no", f"--toggle-collect={WATCHED}", f"--dump-after={WATCHED}", "--dump-line=yes",
    "--compress-strings=no", "--compress-pos=no",
)
MEMORY_BYTES = 8 << 30
"""Address space, most of it only reserved by valgrind."""


def run_callgrind(subject: Subject, traced: Traced, members: Sequence[Place], time_s: float) -> Attempt:
    """One call a place. Steps may succeed where valgrind cannot run the object, but not where the object misbehaves."""
    if shutil.which("valgrind", path=child_environment()["PATH"]) is None:
        return Attempt(reason="valgrind is not installed", try_steps=True)
    if time_s <= 0:
        return Attempt(reason="no time was left for valgrind")
    folder = traced.source.parent
    out = folder / "out"
    args = words(subject.operator, subject.candidate.backend, members, traced.plan.scratch_bytes)
    argv = ["valgrind", *OPTIONS, f"--callgrind-out-file={out}", str(traced.driver), "once", str(traced.object)]
    done = proc.run(
        wrap(subject.sandbox, [*argv, traced.plan.entry, *args], (subject.folder,), (folder,)),
        env=child_environment(), limits=proc.Limits(time_s=time_s, memory_bytes=MEMORY_BYTES),
    )
    if "SIGILL" in done.err:
        return Attempt(reason="valgrind does not know an instruction of the object", try_steps=True)
    if not done.ok:
        return Attempt(reason=f"the driver under valgrind ended with {why_not(done)}")
    dumps = [Path(f"{out}.{part}") for part in range(1, len(members) + 1)]
    if not all(dump.is_file() for dump in dumps):
        return Attempt(reason="callgrind left no dump of every call", try_steps=True)
    texts = (dump.read_text(encoding="utf-8", errors="replace") for dump in dumps)
    found = tuple(parse_dump(text, traced.source.name) for text in texts)
    return Attempt(way="callgrind", places=tuple(members), dumps=found)


def parse_dump(text: str, source_name: str) -> Dump:
    """One callgrind file with uncompressed names and positions. Costs of calls are left out: the callee has them."""
    total, lines = 0, dict[int, int]()
    inside = called = False
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in ("fl", "fi", "fe"):
            inside = value == source_name or value.endswith("/" + source_name)
        elif key == "calls":
            called = True
        elif line.startswith("totals:"):
            total = int(line.split()[1])
        elif line[:1].isdigit():
            parts = line.split()
            if not called and inside and len(parts) >= 2:
                lines[int(parts[0])] = lines.get(int(parts[0]), 0) + int(parts[1])
            called = False
    return Dump(total=total, lines=lines)
