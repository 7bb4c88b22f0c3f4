"""The ceilings of this machine: trusted C loops (`csrc/peaks.c`) on one pinned core, built by the user's own compiler.

Read, copy and multiply-add are streamed over footprints inside each cache level and in memory; multiply-add is also run
out of registers, and one serial chain of additions gives the latency of an add. Best of all repeats, since disturbance
only ever slows a loop; the spread says how much of it there was.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from kernelcrew import proc
from kernelcrew.errors import HarnessError, MissingTool, StoreError
from kernelcrew.platforms.nouns import Machine, Peak, Platform
from kernelcrew.record import Record, hash_of
from kernelcrew.settings import Settings, child_environment
from kernelcrew.tools.cores import measuring_core

SOURCE = Path(__file__).parent / "csrc" / "peaks.c"
FLAGS = ("-O3", "-march=native")
KIB, MIB = 1 << 10, 1 << 20
MEMORY_BYTES = (128 * MIB, 512 * MIB)
"""The memory footprint is four times L3, within these bounds."""
ROUND_S = 1.7
"""A second round is run when the first one took no longer, which keeps the whole under about 4 s."""
SLICE_MS = 15
UNITS = {"read": "GB/s", "copy": "GB/s", "fma": "GFLOP/s", "add_latency": "ns"}
CORE_BYTES = 4096


class Job(Record):
    """One loop over one footprint."""

    kind: str
    """read, copy, fma or add_latency."""
    level: str
    """L1, L2, L3, memory or core."""
    footprint_bytes: int
    """Bytes it runs over."""


class Reading(Record):
    """One line of the program."""

    job: Job
    """Which loop and where."""
    loop: str
    """plain, prefetch, streams, library, ..."""
    best: float
    """Best repeat."""
    median: float
    """Median repeat."""


class PeakFile(Record):
    """What the cache holds."""

    peaks: tuple[Peak, ...]
    """As measured."""


def measure_peaks(machine: Machine, settings: Settings, *, again: bool = False) -> tuple[Peak, ...]:
    """Peaks of one core of this machine, from the cache under `settings.home` unless `again`; some 3 s to measure.

    For each name and level the best footprint stands first. A busy host can only lower a peak, so what is measured
    again replaces what was known only where it is better. Raises UserMistake for a core that this process may not
    use, MissingTool without compiler or C headers, HarnessError when the program fails, StoreError when the disk
    refuses.
    """
    core = measuring_core(settings)
    folder = settings.home / "cache" / "peaks"
    text = SOURCE.read_text(encoding="utf-8")
    kept = folder / f"{hash_of(machine.circumstances(), machine.toolchain.version, core, text, FLAGS)}.json"
    found = None if again else _load(kept)
    if found is not None:
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            program = _build(Path(scratch), machine)
            fresh = best_of(_run(program, core, machine.platform), datetime.now(UTC).date().isoformat())
            peaks = merged(_load(kept) or (), fresh)
            draft = Path(scratch) / kept.name
            draft.write_text(PeakFile(peaks=peaks).model_dump_json(indent=1), encoding="utf-8")
            os.replace(draft, kept)
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreError(f"{folder}: {why}", fix="free space there or choose another --workdir") from error
    return peaks


def with_peaks(machine: Machine, peaks: Sequence[Peak]) -> Machine:
    """The machine with measured peaks in front of those of a datasheet."""
    platform = machine.platform.model_copy(update={"peaks": (*peaks, *_documented(machine.platform))})
    return machine.model_copy(update={"platform": platform})


def footprints(caches: dict[str, int], memory_bytes: int) -> tuple[tuple[str, int], ...]:
    """Footprints by level: from twice the level before in steps of four, ending at three quarters of the level."""
    chosen: list[tuple[str, int]] = []
    before = 4 * KIB
    for level, key in (("L1", "L1d"), ("L2", "L2"), ("L3", "L3")):
        size = caches.get(key, 0)
        last = size * 3 // 4
        if last <= before:
            continue
        step = 2 * before
        while step < last * 3 // 4:
            chosen.append((level, _whole(step)))
            step *= 4
        chosen.append((level, _whole(last)))
        before = size
    if 2 * before < memory_bytes:
        chosen.append(("memory", _whole(2 * before)))
    chosen.append(("memory", _whole(memory_bytes)))
    return tuple(dict.fromkeys(chosen))


def memory_footprint(caches: dict[str, int], available_bytes: int) -> int:
    """Four times the last cache within MEMORY_BYTES, and at most a quarter of the memory that is free."""
    largest = max(caches.values(), default=0)
    wanted = min(max(4 * largest, MEMORY_BYTES[0]), MEMORY_BYTES[1])
    return max(min(wanted, available_bytes // 4), 16 * MIB)


def jobs_for(platform: Platform, available_bytes: int) -> tuple[Job, ...]:
    """Every loop over every footprint, then those that stay in the core."""
    places = footprints(platform.caches, memory_footprint(platform.caches, available_bytes))
    streamed = [Job(kind=k, level=level, footprint_bytes=b) for level, b in places for k in ("read", "copy", "fma")]
    core = [Job(kind=k, level="core", footprint_bytes=CORE_BYTES) for k in ("fma", "add_latency")]
    return (*streamed, *core)


def parse_readings(text: str) -> tuple[Reading, ...]:
    """The program's lines. Raises HarnessError for a line of another form."""
    readings = []
    for line in text.splitlines():
        words = line.split()
        try:
            kind, level, footprint, loop, best, median = words
            job = Job(kind=kind, level=level, footprint_bytes=int(footprint))
            readings.append(Reading(job=job, loop=loop, best=float(best), median=float(median)))
        except ValueError as error:
            what = f"the peaks program said '{line[:120]}'"
            raise HarnessError(what, fix="report this line with the machine's name") from error
    return tuple(readings)


def best_of(readings: Iterable[Reading], date: str) -> tuple[Peak, ...]:
    """One Peak a job, from the best of its loops and rounds; within a name and level the best footprint first."""
    best: dict[Job, Reading] = {}
    for reading in readings:
        held = best.get(reading.job)
        if held is None or _better(reading, held):
            best[reading.job] = reading
    peaks = [
        Peak.model_validate(
            {
                "name": job.kind,
                "level": job.level,
                "value": r.best,
                "unit": UNITS[job.kind],
                "date": date,
                "footprint_bytes": job.footprint_bytes,
                "source": "measured here",
                "spread": abs(r.best - r.median) / r.best if r.best else 0.0,
            }
        )
        for job, r in best.items()
    ]
    order = {place: at for at, place in reversed(list(enumerate((p.name, p.level) for p in peaks)))}
    return tuple(sorted(peaks, key=lambda p: (order[p.name, p.level], -p.value)))


def merged(known: Sequence[Peak], fresh: Sequence[Peak]) -> tuple[Peak, ...]:
    """The better of two measurements of each job, in the order of `fresh`."""
    held = {(p.name, p.level, p.footprint_bytes): p for p in known}
    chosen = [_better_peak(p, held.get((p.name, p.level, p.footprint_bytes))) for p in fresh]
    order = {place: at for at, place in reversed(list(enumerate((p.name, p.level) for p in chosen)))}
    return tuple(sorted(chosen, key=lambda p: (order[p.name, p.level], -p.value)))


def _better_peak(new: Peak, held: Peak | None) -> Peak:
    if held is None:
        return new
    return min(new, held, key=lambda p: p.value if p.name == "add_latency" else -p.value)


def _better(new: Reading, held: Reading) -> bool:
    return new.best < held.best if new.job.kind == "add_latency" else new.best > held.best


def _whole(size: int) -> int:
    return max(size // 4096, 1) * 4096


def _documented(platform: Platform) -> tuple[Peak, ...]:
    return tuple(p for p in platform.peaks if p.source != "measured here")


def _load(path: Path) -> tuple[Peak, ...] | None:
    try:
        return PeakFile.model_validate_json(path.read_text(encoding="utf-8")).peaks
    except (OSError, ValidationError, UnicodeDecodeError):
        return None


def _build(folder: Path, machine: Machine) -> Path:
    program = folder / "peaks"
    # GCC splits vectors wider than a register; fixed-width code cannot use an SVE register as one.
    width = 16 if "neon" in machine.platform.features else machine.platform.vector_bytes
    argv = [machine.toolchain.path, *FLAGS, f"-DVECTOR_BYTES={width}", str(SOURCE), "-o", str(program)]
    built = proc.run(argv, env=child_environment(), limits=proc.Limits(time_s=60.0))
    if built.status == "missing":
        raise MissingTool(f"the C compiler '{argv[0]}' is not here", fix="apt-get install gcc libc6-dev")
    if "No such file or directory" in built.err and ".h:" in built.err:
        raise MissingTool(f"C headers are not here: {built.err.strip()[:200]}", fix="apt-get install libc6-dev")
    if not built.ok:
        what = f"{SOURCE.name} does not compile: {built.err.strip()[:600]}"
        raise HarnessError(what, fix="report this with the compiler's version")
    return program


def _run(program: Path, core: int | None, platform: Platform) -> tuple[Reading, ...]:
    jobs = jobs_for(platform, os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    largest = max(job.footprint_bytes for job in jobs)
    words = [word for job in jobs for word in (job.kind, job.level, str(job.footprint_bytes))]
    argv = [str(program), str(-1 if core is None else core), str(SLICE_MS), str(largest), *words]
    # The program's buffer counts as a file: the limit on what it may write must leave room for it.
    limits = proc.Limits(time_s=60.0, output_bytes=largest + MIB, memory_bytes=largest + 256 * MIB)
    readings: tuple[Reading, ...] = ()
    for _ in range(2):
        done = proc.run(argv, env=child_environment(), limits=limits)
        if not done.ok:
            why = done.err.strip()[:300] or f"status {done.status}, code {done.code}"
            what = f"the peaks program failed on core {core}: {why}"
            raise HarnessError(what, fix="try another core with KERNELCREW_CORE")
        readings += parse_readings(done.out)
        if done.seconds > ROUND_S:
            break
    return readings
